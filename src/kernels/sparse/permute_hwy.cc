// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/permute.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/permute_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U = hn::ScalableTag<uint32_t>;
using VU = hn::Vec<U>;

HWY_INLINE VU hash(VU x, uint32_t key) {
  const U d;
  VU h = hn::Mul(hn::Xor(x, hn::Set(d, key)), hn::Set(d, 0x9E3779B1U));
  h = hn::Mul(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(d, 0x85EBCA77U));
  return hn::Xor(h, hn::ShiftRight<13>(h));
}

// Upper 32 bits of the products.
HWY_INLINE VU mul_high(VU a, VU b) {
  const U d;
  const hn::Repartition<uint64_t, U> d64;
  const auto even = hn::ShiftRight<32>(hn::MulEven(a, b));
  const auto a_odd = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a)));
  const auto odd = hn::And(hn::MulEven(a_odd, b), hn::Set(d64, 0xFFFFFFFF00000000U));
  return hn::BitCast(d, hn::Or(even, odd));
}

void permute(const Permutation& p, uint64_t first, uint32_t n, uint32_t* HWY_RESTRICT out) {
  const U d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  const VU low_mask = hn::Set(d, (1U << p.low_bits) - 1);
  const VU modulus = hn::Set(d, p.high);
  const VU last = hn::Set(d, static_cast<uint32_t>(p.n - 1));
  const int bits = static_cast<int>(p.low_bits);
  const VU iota = hn::Iota(d, 0);  // hoisted: it is built in memory
  uint32_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const VU i = hn::Add(iota, hn::Set(d, static_cast<uint32_t>(first + j)));  // below 2^32
    VU low = hn::And(i, low_mask);
    VU high = hn::ShiftRightSame(i, bits);
    for (uint32_t round = 0; round < kPermuteRounds; round += 2) {
      low = hn::Xor(low, hn::And(hash(high, p.key[round]), low_mask));
      high = hn::Add(high, mul_high(hash(low, p.key[round + 1]), modulus));
      high = hn::Min(high, hn::Sub(high, modulus));  // high < 2 · modulus: wraps where it was below
    }
    const VU to = hn::Or(hn::ShiftLeftSame(high, bits), low);
    hn::StoreU(to, d, out + j);
    if (!hn::AllTrue(d, hn::Eq(hn::Max(to, last), last))) {  // rare: at most √n of the domain
      for (uint32_t lane = 0; lane < lanes; ++lane)
        out[j + lane] = permute_one(p, first + j + lane);
    }
  }
  for (; j < n; ++j) out[j] = permute_one(p, first + j);
}

constexpr PermuteKernels kTable{&permute};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const PermuteKernels& permute_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kPermuteScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
