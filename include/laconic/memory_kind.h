// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace laconic {

/// The memory of a parameter's gradients between steps, set by a modifier of the spec. g is this
/// step's gradient, t the encoded value, Q(t) the decoded payload.
enum class MemoryKind : uint8_t {
  none,      ///< +noef: t = g
  residual,  ///< +ef, +decay=β (else β = 1): t = β·e + g, then e ← t − Q(t)
  ema,       ///< +ema=β: m ← β·m + (1 − β)·g, t = m (Signum)
  momentum,  ///< +momentum=μ: u ← μ·u + g, v ← v + u, t = v; both 0 where v was sent (DGC)
};

/// A set of memory kinds, as Contract::memories. `none` is in every set.
template <class... Kinds>
constexpr uint8_t memory_set(Kinds... kinds) {
  uint32_t set = 1;
  ((set |= uint32_t{1} << static_cast<uint32_t>(kinds)), ...);
  return static_cast<uint8_t>(set);
}
constexpr bool in_memory_set(uint8_t set, MemoryKind kind) {
  return (uint32_t{set} >> static_cast<uint32_t>(kind) & 1U) != 0;
}

/// A spec's memory. Factors are in (0, 1].
struct MemorySettings {
  MemoryKind kind = MemoryKind::none;
  float factor = 0.0F;  ///< β of ema, μ of momentum; else 0
  float decay = 1.0F;   ///< β of residual; else 1
  friend bool operator==(const MemorySettings&, const MemorySettings&) = default;
};

}  // namespace laconic
