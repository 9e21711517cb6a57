// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Narrow codes: lanes to bytes, two bits to a byte and back, values from tables. Included by
// *_hwy.cc files after highway.h, once per target.
#if defined(LACONIC_KERNELS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_CODES_INL_H_
#undef LACONIC_KERNELS_CODES_INL_H_
#else
#define LACONIC_KERNELS_CODES_INL_H_
#endif

#include <cstring>

#include "kernels/core/packed_codes.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// The low bits of lanes.
template <class Code>
HWY_INLINE void store_codes(VI v, Code* to) {
  using Unsigned = hwy::MakeUnsigned<Code>;
  const hn::Rebind<Unsigned, F32> d;
  auto* const at = reinterpret_cast<Unsigned*>(to);
  const VU codes = hn::BitCast(U32(), v);
  if constexpr (sizeof(Code) == sizeof(uint32_t)) {
    hn::StoreU(codes, d, at);
  } else {
    hn::StoreU(hn::TruncateTo(d, codes), d, at);
  }
}

/// The low two bits of n codes, four to a byte. `codes` has room for the rest of the last eight.
HWY_INLINE void pack_pairs(int8_t* codes, uint64_t n, uint8_t* out) {
  const hn::Repartition<int8_t, U32> d8;
  const size_t at_once = hn::Lanes(d8);
  uint64_t i = 0;
  for (; i + at_once <= n; i += at_once) {
    VU four = hn::BitCast(U32(), hn::And(hn::LoadU(d8, codes + i), hn::Set(d8, int8_t{3})));
    four = hn::Or(four, hn::ShiftRight<6>(four));
    store_codes(hn::BitCast(I32(), hn::Or(four, hn::ShiftRight<12>(four))), out + i / 4);
  }
  pack_codes(codes + i, n - i, 2, out + i / 4);
}

/// A vector of codes of two bits from code i on, a multiple of 4.
HWY_INLINE VI load_pairs(const void* codes, uint64_t i) {
  uint32_t word = 0;
  std::memcpy(&word, static_cast<const uint8_t*>(codes) + i / 4, hn::MaxLanes(F32()) / 4);
  const VU lane = hn::Iota(U32(), 0);
  const VU shifted = hn::Shr(hn::Set(U32(), word), hn::Add(lane, lane));
  return hn::BitCast(I32(), hn::And(shifted, hn::Set(U32(), 3)));
}

/// table[index], indices below kSize, a power of two: from vectors where eight hold the table.
template <uint32_t kSize>
HWY_INLINE VF look_up(const float* table, VI index) {
  constexpr uint32_t kLanes = hn::MaxLanes(F32());
  if constexpr (kSize > 8 * kLanes) {
    return hn::GatherIndex(F32(), table, index);
  } else if constexpr (kSize > kLanes) {
    const auto upper = hn::TestBit(index, hn::Set(I32(), static_cast<int32_t>(kSize / 2)));
    return hn::IfThenElse(hn::RebindMask(F32(), upper),
                          look_up<kSize / 2>(table + kSize / 2, index),
                          look_up<kSize / 2>(table, index));
  } else {
    static_assert(kSize == kLanes);
    const VI lane = hn::And(index, hn::Set(I32(), static_cast<int32_t>(kLanes - 1)));
    return hn::TableLookupLanes(hn::LoadU(F32(), table), hn::IndicesFromVec(F32(), lane));
  }
}

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#endif  // include guard
