// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class CastKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const CastKernels& simd_ = cast_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, CastKernelsTest, testing::ValuesIn(isas()), isa_param_name);

std::vector<uint16_t> all_halves() {
  std::vector<uint16_t> h(65536);
  for (uint32_t i = 0; i < 65536; ++i) h[i] = static_cast<uint16_t>(i);
  return h;
}

/// Every 16-bit float, its neighbours in float32, and the midpoints to the next one with their
/// neighbours.
std::vector<float> around(float (*widen_one)(uint16_t)) {
  std::vector<float> x;
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint32_t here = bits(widen_one(static_cast<uint16_t>(i)));
    const uint32_t next = bits(widen_one(static_cast<uint16_t>(i + 1)));
    const uint32_t middle = here + (next - here) / 2;
    for (const uint32_t u : {here - 1, here, here + 1, middle - 1, middle, middle + 1}) {
      x.push_back(std::bit_cast<float>(u));
    }
  }
  return x;
}

TEST_P(CastKernelsTest, EveryHalfWidensExactly) {
  const std::vector<uint16_t> h = all_halves();
  std::vector<float> f(h.size()), b(h.size());
  widen(simd_, DType::f16, f.data(), h.data(), h.size());
  widen(simd_, DType::bf16, b.data(), h.data(), h.size());
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto word = static_cast<uint16_t>(i);
    expect_same(std::vector<float>{f16_to_float(word)}, std::vector<float>{f[i]}, i);
    expect_same(std::vector<float>{bf16_to_float(word)}, std::vector<float>{b[i]}, i);
    const int exponent = (word >> 10) & 31;
    if (exponent == 31) continue;
    const double fraction = (word & 1023) + (exponent == 0 ? 0 : 1024);
    const double value = std::ldexp(fraction, (exponent == 0 ? 1 : exponent) - 25);
    ASSERT_EQ(static_cast<double>(f[i]), (word & 0x8000) != 0 ? -value : value) << i;
  }
}

TEST_P(CastKernelsTest, NarrowingRoundsToNearestTiesToEven) {
  for (const std::vector<float>& x :
       {around(&f16_to_float), around(&bf16_to_float), special_values(100000, 1)}) {
    std::vector<uint16_t> f(x.size()), s(x.size()), b(x.size());
    simd_.narrow_f16(f.data(), 1.0F, x.data(), x.size(), false);
    simd_.narrow_f16(s.data(), 1.0F, x.data(), x.size(), true);
    simd_.narrow_bf16(b.data(), 1.0F, x.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(f[i], float_to_f16(x[i])) << std::hexfloat << x[i];
      ASSERT_EQ(s[i], float_to_f16(saturate_to_f16(x[i]))) << std::hexfloat << x[i];
      ASSERT_EQ(b[i], float_to_bf16(x[i])) << std::hexfloat << x[i];
    }
  }
}

// The reference itself, against arithmetic that does not look at bits.
TEST(CastReference, NearestIsMinimalDistance) {
  for (const float x : special_values(200000, 3)) {
    const float h = f16_to_float(float_to_f16(x));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(h));
      EXPECT_EQ(std::signbit(h), std::signbit(x));
      continue;
    }
    if (std::fabs(x) >= 65520.0F) {
      EXPECT_EQ(h, std::copysign(INFINITY, x));
      continue;
    }
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(x == 0 ? 0x1p-30F : x), -14) - 10);
    const double nearest = std::nearbyint(static_cast<double>(x) / ulp) * ulp;  // ties to even
    ASSERT_EQ(static_cast<double>(h), nearest) << std::hexfloat << x;
    ASSERT_EQ(std::signbit(h), std::signbit(x));
  }
}

TEST_P(CastKernelsTest, SaturationKeepsInfinityAndNan) {
  const std::vector<float> x{65504.0F, 65519.0F,  65520.0F, 1e30F, -3e38F,
                             INFINITY, -INFINITY, NAN,      1.0F};
  std::vector<uint16_t> h(x.size());
  simd_.narrow_f16(h.data(), 1.0F, x.data(), x.size(), true);
  EXPECT_EQ(h, (std::vector<uint16_t>{0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, h[7],
                                      0x3C00}));
  EXPECT_TRUE(std::isnan(f16_to_float(h[7])));
}

TEST_P(CastKernelsTest, OddSizesAndAddressesEqualTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t shift : {0U, 1U, 3U}) {
      const std::vector<float> x = special_values(n + shift, n);
      const auto check = [&](auto run) {
        std::vector<uint8_t> a(2 * n + 40, 9), b = a;
        run(kCastScalar, a.data() + shift);
        run(simd_, b.data() + shift);
        expect_same(a, b, n);
      };
      const float* in = x.data() + shift;
      check([&](const CastKernels& k, uint8_t* out) { k.narrow_f16(out, 0.25F, in, n, true); });
      check([&](const CastKernels& k, uint8_t* out) { k.narrow_f16(out, 0.3F, in, n, false); });
      check([&](const CastKernels& k, uint8_t* out) { k.narrow_bf16(out, 0.3F, in, n); });
      check([&](const CastKernels& k, uint8_t* out) { k.stream_bf16(out, 0.3F, in, n); });
      check([&](const CastKernels& k, uint8_t* out) { k.stream_f16(out, 0.3F, in, n, true); });
    }
  }
}

TEST_P(CastKernelsTest, WeightedSumsEqualTheReference) {
  std::mt19937_64 random(7);
  for (const uint64_t n : sizes()) {
    std::vector<std::vector<uint8_t>> payloads(9);
    std::vector<Weighted> terms;
    for (uint32_t t = 0; t < 9; ++t) {
      payloads[t].resize(2 * n + 8);
      for (uint8_t& byte : payloads[t]) byte = static_cast<uint8_t>(random());
      terms.push_back({payloads[t].data() + t % 3, 0.3F * static_cast<float>(t) - 1});
    }
    for (const uint32_t count : {0U, 1U, 2U, 9U}) {
      for (const Output output : {Output::set, Output::stream, Output::add}) {
        for (const auto sum : {&CastKernels::weighted_sum_f16, &CastKernels::weighted_sum_bf16}) {
          std::vector<float> a = normal_values(n + 3, 5), b = a;
          (kCastScalar.*sum)(a.data() + 1, output, terms.data(), count, n / 3, n);
          (simd_.*sum)(b.data() + 1, output, terms.data(), count, n / 3, n);
          expect_same(a, b, n);
        }
      }
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
