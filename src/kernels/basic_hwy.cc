// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/basic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/basic_hwy.cc"
#include "kernels/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;

HWY_INLINE uint32_t max_of_lanes(hn::Vec<I> v) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I(), v)));
}

Scan scan(const float* HWY_RESTRICT x, uint64_t n) {
  const F f;
  const I d;
  const size_t lanes = hn::Lanes(f);
  const auto low31 = hn::Set(d, 0x7FFFFFFF);
  auto m0 = hn::Zero(d), m1 = m0, m2 = m0, m3 = m0;
  const auto absolute = [&](uint64_t i) HWY_ATTR {
    return hn::And(hn::BitCast(d, hn::LoadU(f, x + i)), low31);
  };
  uint64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    prefetch_ahead(x + i);
    m0 = hn::Max(m0, absolute(i));
    m1 = hn::Max(m1, absolute(i + lanes));
    m2 = hn::Max(m2, absolute(i + 2 * lanes));
    m3 = hn::Max(m3, absolute(i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(m0, absolute(i));
  uint32_t bits = max_of_lanes(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  for (; i < n; ++i) bits = HWY_MAX(bits, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU);
  return {bits != 0, bits < 0x7F800000U, std::bit_cast<float>(bits)};
}

void add(float* out, const float* x, uint64_t n) {
  const F f;
  const size_t lanes = hn::Lanes(f);
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(f, out + i), hn::LoadU(f, x + i)), f, out + i);
  }
  for (; i < n; ++i) out[i] += x[i];
}

constexpr BasicKernels kTable{&scan, &add};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const BasicKernels& basic_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kBasicScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
