// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of error feedback, running means and DGC's momentum on a range of a parameter, by
// kind of memory (laconic/memory_kind.h). The pipeline decides when each function is called.
#pragma once

#include <cstdint>

#include "feedback/residence.h"
#include "kernels/core/basic.h"
#include "laconic/memory_kind.h"

namespace laconic::feedback {

/// A unit's arrays, or those of a range of it. Plain pointers: the store owns them.
struct Memory {
  MemorySettings settings;
  float* values = nullptr;    ///< e, m or v: what is encoded. Null: no memory
  float* momentum = nullptr;  ///< u, for momentum alone
  Residence* home = nullptr;  ///< of the array in which `values` are; null: always on the host

  /// Gradient that was not delivered: e or v. A running mean is none.
  [[nodiscard]] float* residual() const noexcept {
    return settings.kind == MemoryKind::ema ? nullptr : values;
  }
  /// A residual without decay: the one that fused codecs update themselves.
  [[nodiscard]] bool plain() const noexcept {
    return settings.kind == MemoryKind::residual && settings.decay == 1.0F;
  }
  [[nodiscard]] Memory from(uint64_t first) const noexcept {
    return {settings, values == nullptr ? nullptr : values + first,
            momentum == nullptr ? nullptr : momentum + first, home};
  }
};

// All functions: `memory` has values; `n` elements of each array; `g` is the gradient.

/// max |x|, by absolute bits (infinity or NaN when not all are finite), of what `correct` would
/// encode. Finite: nothing in memory becomes anything else.
float largest_corrected(const kernels::BasicKernels& k, const Memory& memory, const float* g,
                        uint64_t n);
/// The gradient joins what is encoded.
void correct(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n);
/// Undoes `correct`, within a rounding of each of its operations.
void take_back(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n);

/// As largest_corrected, of `keep`.
float largest_kept(const kernels::BasicKernels& k, const Memory& memory, const float* g,
                   uint64_t n);
/// The gradient that no exchange took: as `correct`, but nothing decays, as nothing was sent.
void keep(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n);

}  // namespace laconic::feedback
