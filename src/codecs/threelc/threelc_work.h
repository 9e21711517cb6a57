// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Encoder and decoder of codecs/threelc/threelc.h.
#pragma once

#include <limits>

#include "codecs/threelc/threelc.h"

namespace laconic::codecs::threelc {

/// Bytes of Work::scratch for `columns` digit bytes.
uint64_t encode_scratch(uint64_t columns) noexcept;
uint64_t decode_scratch(uint64_t columns) noexcept;

/// Mean payload of `count` independent normal elements (RoundPlan::expected). Such elements once
/// corrected by error feedback are spread more evenly and send more, up to five times as much at
/// s = 1; gradients with heavier tails send less.
uint64_t expected_bytes(const ThreeLc::Params& params, uint64_t count) noexcept;

/// M = s · max stays below half of FLT_MAX, as s < 2.
inline constexpr float kLargestInput = std::numeric_limits<float>::max() / 4;

/// `count` is not zero.
Encoded encode_unit(const ThreeLc::Params& params, uint64_t count, Source source, Work& work,
                    MutBytes out);
Encoded encode_chunks(const ThreeLc::Params& params, uint64_t count, Source source, Work& work,
                      MutBytes out);
/// One to kMaxUnpackTerms checked payloads.
void decode_terms(const ThreeLc::Params& params, uint64_t count, std::span<const Term> terms,
                  Work& work, Target target);

/// The pool when it is worth cutting the work, else null.
inline ThreadPool* useful_pool(const Work& work, uint64_t tasks) noexcept {
  return work.pool != nullptr && work.pool->threads() > 1 && tasks > 1 ? work.pool : nullptr;
}

}  // namespace laconic::codecs::threelc
