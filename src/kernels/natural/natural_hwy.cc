// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/natural/natural.h"
#include "kernels/natural/natural_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/natural/natural_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/random_codes-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// Sums to codes; sees the largest magnitude on the way.
struct Rounding {
  VI most;
  uint32_t most_alone = 0;

  HWY_INLINE Rounding() : most(hn::Zero(I32())) {}
  static HWY_INLINE GroupBits bits(const PhiloxWords& w) {
    const VU low23 = hn::Set(U32(), 0x7FFFFF);
    return {{hn::And(hn::RotateRight<25>(w.w01), low23), hn::ShiftRight<9>(w.w01),
             hn::And(hn::RotateRight<25>(w.w23), low23), hn::ShiftRight<9>(w.w23)}};
  }
  HWY_INLINE VI code(VF x, VU r) {
    most = hn::Max(most, absolute_bits(x));
    const VU sum = hn::Add(hn::BitCast(U32(), x), r);
    const VU lowest = hn::Set(U32(), kNaturalLowest), highest = hn::Set(U32(), kNaturalHighest);
    const VU exponent = hn::And(hn::ShiftRight<23>(sum), hn::Set(U32(), 0xFF));
    const VU code = hn::Sub(hn::Min(hn::Max(exponent, lowest), highest), lowest);
    const VU sign = hn::And(hn::ShiftRight<24>(sum), hn::Set(U32(), 0x80));
    return hn::BitCast(I32(), hn::Or(code, sign));
  }
  HWY_INLINE uint8_t code(float x, uint32_t r) {
    most_alone = HWY_MAX(most_alone, float_bits(x) & 0x7FFFFFFFU);
    return natural_code(float_bits(x) + r);
  }
};

bool encode(const float* x, uint64_t n, void* codes, RandomKey key, uint64_t first) {
  Rounding rounding;
  RandomCodes<Rounding>(key).encode(rounding, x, n, static_cast<uint8_t*>(codes), first);
  const uint32_t most = max_of_lanes(rounding.most);
  return HWY_MAX(most, rounding.most_alone) < 0x7F800000U;
}

/// The values of a vector of codes from i on.
HWY_INLINE VF load_values(const void* codes, uint64_t i) {
  const hn::Rebind<int8_t, F32> d8;
  const VI code = hn::PromoteTo(I32(), hn::LoadU(d8, static_cast<const int8_t*>(codes) + i));
  // a code's sign bit was extended to bit 31
  const VI magnitude = hn::And(hn::ShiftLeft<23>(code), hn::Set(I32(), 0x3F800000));
  const VI sign = hn::And(code, hn::Set(I32(), std::numeric_limits<int32_t>::min()));
  return hn::Mul(hn::BitCast(F32(), hn::Or(magnitude, sign)), hn::Set(F32(), kNaturalScale));
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count, uint64_t begin,
            uint64_t end) {
  weighted_sum_of(
      out, output, payloads, count, begin, end,
      [](const void* data, uint64_t i) LACONIC_LAMBDA { return load_values(data, i); },
      [](const void* data, uint64_t i, uint64_t n)
          LACONIC_LAMBDA { prefetch_span(static_cast<const char*>(data) + i, n); },
      &natural_value);
}

constexpr NaturalKernels kTable{&encode, &decode};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const NaturalKernels& natural_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kNaturalScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
