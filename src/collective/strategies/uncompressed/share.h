// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A share is an equal part of a residual (what error feedback holds back) that goes out with the
// gradient, uncompressed: in each step of a flush, and where a control policy changes to float32.
//
// An owner's residual belongs to the mean of all ranks, so it counts world times.
#pragma once

#include "collective/exchange/rank_state.h"

namespace laconic::collective {

/// Does this rank hold a residual of a parameter, its own or of a mean that it owns?
[[nodiscard]] bool has_residual(const RankParameter& parameter) noexcept;

/// `out` has the gradient of a parameter, and takes residual/parts in addition. False, and nothing
/// was taken: there is no gradient here, whose mean DDP may discard (where memory is joint, another
/// rank may have one), or a sum would not be finite. An owner's residual joins this rank's own
/// first, where there is one.
bool add_share(const RankState& state, const RankParameter& parameter, uint32_t parts,
               const float* gradient, float* out);

/// It was delivered: the residual loses it, but for what `travelled` rounded off.
void drop_share(const RankState& state, const RankParameter& parameter, uint32_t parts,
                DType travelled, const float* gradient);

}  // namespace laconic::collective
