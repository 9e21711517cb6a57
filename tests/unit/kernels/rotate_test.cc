// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/rotate/rotate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/rotate/rotate_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr RandomKey kKey{0x12345678U, 0x9ABCDEF0U};
constexpr std::array<uint32_t, 6> kSizes{256, 512, 1024, 2048, 4096, 8192};

class RotateKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const RotateKernels& simd_ = rotate_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, RotateKernelsTest, testing::ValuesIn(isas()), isa_param_name);

/// Whole blocks, and ends of every kind.
std::vector<uint64_t> counts(uint32_t d) { return {d, 0, 1, 31, 32, 33, 200, d - 1, d - 32}; }

/// Entry (i, j) of Sylvester's matrix by its definition [[H, H], [H, -H]].
int hadamard(uint32_t d, uint32_t i, uint32_t j) {
  if (d == 1) return 1;
  const uint32_t half = d / 2;
  const int rest = hadamard(half, i % half, j % half);
  return i >= half && j >= half ? -rest : rest;
}

/// All entries, row by row, made once.
const std::vector<int8_t>& matrix(uint32_t d) {
  static std::map<uint32_t, std::vector<int8_t>> made;
  std::vector<int8_t>& h = made[d];
  for (uint32_t at = static_cast<uint32_t>(h.size()); at < d * d; ++at) {
    h.push_back(static_cast<int8_t>(hadamard(d, at / d, at % d)));
  }
  return h;
}

/// The sign's bit, as the page says: of block ⌊e/128⌋, word ⌊e/32⌋ mod 4, bit e mod 32.
double sign_of(uint64_t e) { return (philox(kKey, e / 128)[e / 32 % 4] >> e % 32 & 1U) ? -1 : 1; }

/// In double, by the matrix.
std::vector<double> dense_rotation(const std::vector<float>& x, uint64_t first) {
  const auto d = static_cast<uint32_t>(x.size());
  const std::vector<int8_t>& h = matrix(d);
  std::vector<double> flipped(d), y(d);
  for (uint32_t j = 0; j < d; ++j) flipped[j] = sign_of(first + j) * x[j];
  for (uint32_t i = 0; i < d; ++i) {
    for (uint32_t j = 0; j < d; ++j) y[i] += h[i * d + j] * flipped[j];
    y[i] /= std::sqrt(d);
  }
  return y;
}

TEST_P(RotateKernelsTest, RotationIsSylvesterMatrixAfterSigns) {
  for (const uint32_t d : {256U, 512U, 1024U}) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{7} * d, (uint64_t{1} << 41) + d}) {
      const std::vector<float> x = normal_values(d, d);
      std::vector<float> y(d);
      simd_.rotate(x.data(), nullptr, d, d, {kKey, first}, y.data());
      const std::vector<double> want = dense_rotation(x, first);
      for (uint32_t i = 0; i < d; ++i) ASSERT_NEAR(y[i], want[i], 1e-7) << d << " " << i;
    }
  }
}

TEST_P(RotateKernelsTest, RotationEqualsTheReference) {
  for (const uint32_t d : kSizes) {
    for (const uint64_t count : counts(d)) {
      for (const auto& x :
           {normal_values(d + 1, d + count), finite_specials(d + 1, d + count, 1e30F)}) {
        const std::vector<float> add = normal_values(d + 3, count);
        for (const float* plus : {static_cast<const float*>(nullptr), add.data() + 3}) {
          const SignStream signs{kKey, uint64_t{d} * 5};
          std::vector<float> a(d + 2, 7.0F), b = a;
          kRotateScalar.rotate(x.data() + 1, plus, count, d, signs, a.data() + 1);
          simd_.rotate(x.data() + 1, plus, count, d, signs, b.data() + 1);
          expect_same(a, b, d);
          EXPECT_EQ(std::bit_cast<uint64_t>(kRotateScalar.square_norm(x.data() + 1, plus, count)),
                    std::bit_cast<uint64_t>(simd_.square_norm(x.data() + 1, plus, count)));
        }
      }
    }
  }
}

TEST_P(RotateKernelsTest, InverseEqualsTheReference) {
  for (const uint32_t d : kSizes) {
    for (const uint64_t count : counts(d)) {
      const std::vector<float> y = finite_specials(d, d + count, 1e30F);
      const std::vector<float> x = normal_values(d, 1), add = normal_values(d, 2);
      const SignStream signs{kKey, uint64_t{d} * 3};
      for (const float weight : {1.0F, 0.3F}) {
        for (const bool plus : {false, true}) {
          std::vector<float> y1 = y, y2 = y, a(d + 2, 0.25F), b = a;
          kRotateScalar.unrotate(y1.data(), d, signs, count, weight, plus, a.data() + 1);
          simd_.unrotate(y2.data(), d, signs, count, weight, plus, b.data() + 1);
          expect_same(a, b, d);
        }
      }
      std::vector<float> y1 = y, y2 = y, a(d + 2, 0.25F), b = a;
      kRotateScalar.remainder(y1.data(), d, signs, count, x.data(), nullptr, a.data() + 1);
      simd_.remainder(y2.data(), d, signs, count, x.data(), nullptr, b.data() + 1);
      expect_same(a, b, d);
      // the residual itself as what is added
      y1 = y, y2 = y;
      a = add, b = add;
      kRotateScalar.remainder(y1.data(), d, signs, count, x.data(), a.data(), a.data());
      simd_.remainder(y2.data(), d, signs, count, x.data(), b.data(), b.data());
      expect_same(a, b, d);
    }
  }
}

TEST_P(RotateKernelsTest, RotationKeepsNormAndIsInvertible) {
  for (const uint32_t d : kSizes) {
    const std::vector<float> x = normal_values(d, d), add = normal_values(d, d + 1);
    std::vector<float> y(d), back(d, 1.0F);
    const SignStream signs{kKey, 0};
    simd_.rotate(x.data(), add.data(), d, d, signs, y.data());
    const double before = simd_.square_norm(x.data(), add.data(), d);
    EXPECT_NEAR(simd_.square_norm(y.data(), nullptr, d) / before, 1.0, 1e-6);
    std::vector<float> copy = y, residual(d);
    simd_.unrotate(copy.data(), d, signs, d, 2.0F, true, back.data());
    simd_.remainder(y.data(), d, signs, d, x.data(), add.data(), residual.data());
    for (uint32_t i = 0; i < d; ++i) {
      ASSERT_NEAR(back[i], 1.0F + 2.0F * (x[i] + add[i]), 1e-6);
      ASSERT_NEAR(residual[i], 0.0F, 1e-7);
    }
  }
}

TEST_P(RotateKernelsTest, OneElementIsSpreadOverAll) {
  for (const uint32_t d : kSizes) {
    std::vector<float> x(d), y(d);
    x[d / 3] = 3.0F;
    simd_.rotate(x.data(), nullptr, d, d, {kKey, 0}, y.data());
    for (const float v : y) ASSERT_EQ(std::abs(v), 3.0F * rotation_scale(d));
  }
}

TEST(RotateReference, FourElementsMatchHandComputation) {
  // x = [1, 2, 3, 4] with signs [+, -, +, +]; zeros after them repeat their transform in every
  // group of four, 1/16 of it instead of 1/2.
  const std::array<float, 4> x{1, 2, 3, 4}, want{3, 1, -4, 2};
  std::vector<float> block(256), y(256);
  for (uint32_t i = 0; i < 4; ++i) {
    const float flipped = i == 1 ? -x[i] : x[i];
    block[i] = static_cast<float>(sign_of(i)) * flipped;  // undoes the stream's own signs
  }
  kRotateScalar.rotate(block.data(), nullptr, 4, 256, {kKey, 0}, y.data());
  for (uint32_t i = 0; i < 256; ++i) ASSERT_EQ(y[i] * 8, want[i % 4]) << i;
}

TEST(RotateReference, ScalesAreNearestFloats) {
  for (const uint32_t d : kSizes) {
    EXPECT_EQ(rotation_scale(d), static_cast<float>(1 / std::sqrt(static_cast<double>(d)))) << d;
  }
}

TEST(RotateReference, SquareNormIsExactIfSumIs) {
  std::vector<float> x(1000);
  double want = 0;
  for (uint32_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i) - 500;
    want += static_cast<double>(x[i]) * x[i];
  }
  EXPECT_EQ(kRotateScalar.square_norm(x.data(), nullptr, 1000), want);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(block_norm(kRotateScalar.square_norm(&tiny, nullptr, 1)), tiny);
  std::fill(x.begin(), x.end(), std::numeric_limits<float>::max());
  const double huge = kRotateScalar.square_norm(x.data(), nullptr, 1000);
  EXPECT_TRUE(std::isfinite(huge));
  EXPECT_EQ(block_norm(huge), INFINITY);
  EXPECT_EQ(block_norm(NAN), INFINITY);
  EXPECT_EQ(block_norm(kRotateScalar.square_norm(x.data(), x.data(), 1)), INFINITY);
}

TEST(RotateReference, NothingOverflowsBelowLargestNorm) {
  for (const uint32_t d : kSizes) {
    // all energy in one place after the transform, the largest sums of all
    std::vector<float> x(d), y(d);
    for (uint32_t i = 0; i < d; ++i) {
      x[i] = static_cast<float>(sign_of(i)) * std::ldexp(rotation_scale(d), 119);
    }
    ASSERT_NEAR(block_norm(kRotateScalar.square_norm(x.data(), nullptr, d)) / 0x1p119, 1, 1e-6);
    kRotateScalar.rotate(x.data(), nullptr, d, d, {kKey, 0}, y.data());
    EXPECT_NEAR(y[0] / 0x1p119, 1, 1e-6);
  }
}

}  // namespace
}  // namespace laconic::kernels
