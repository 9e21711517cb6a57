// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/rotate/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/rotate/grid_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr RandomKey kKey{0x12345678U, 0x9ABCDEF0U};

class GridKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const GridKernels& simd_ = grid_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, GridKernelsTest, testing::ValuesIn(isas()), isa_param_name);

using Values = std::vector<uint8_t>;

const Values kDefault{0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30};

/// Uniform ones, the default, and any: random values up to every g.
std::vector<Values> tables(uint32_t bits) {
  const uint32_t size = 1U << bits;
  std::vector<Values> all(1);
  for (uint32_t z = 0; z < size; ++z) all[0].push_back(static_cast<uint8_t>(z));
  if (bits == 4) all.push_back(kDefault);
  std::mt19937_64 random(bits);
  for (uint32_t g = size; g <= kMaxGrid; g += g < kMaxGrid - 3 ? 3 : 1) {
    Values inside;
    for (uint32_t v = 1; v < g; ++v) inside.push_back(static_cast<uint8_t>(v));
    std::shuffle(inside.begin(), inside.end(), random);
    inside.resize(size - 2);
    inside.push_back(0);
    inside.push_back(static_cast<uint8_t>(g));
    std::sort(inside.begin(), inside.end());
    all.push_back(inside);
  }
  return all;
}

Grid grid_of(const Values& values) {
  return make_grid(values.size() == 16 ? 4 : values.size() == 8 ? 3 : 2, values.data());
}

/// Index i of a string of bits, the highest first.
uint32_t index_at(const std::vector<uint8_t>& codes, uint32_t bits, uint64_t i) {
  uint32_t index = 0;
  for (uint64_t at = i * bits; at < (i + 1) * bits; ++at) {
    index = 2 * index + (uint32_t{codes[at / 8]} >> (7 - at % 8) & 1U);
  }
  return index;
}

std::vector<uint8_t> packed(const std::vector<uint32_t>& indices, uint32_t bits) {
  std::vector<uint8_t> codes((indices.size() * bits + 7) / 8);
  for (uint64_t at = 0; at < indices.size() * bits; ++at) {
    const uint32_t bit = indices[at / bits] >> (bits - 1 - at % bits) & 1U;
    codes[at / 8] |= static_cast<uint8_t>(bit << (7 - at % 8));
  }
  return codes;
}

// ---- quantize ----

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> values;
};

Quantized quantize(const GridKernels& kernels, const std::vector<float>& y, const Grid& grid,
                   float range, uint64_t first, bool values) {
  const auto n = static_cast<uint32_t>(y.size());
  Quantized q{std::vector<uint8_t>(n * grid.bits / 8 + 2, 0xEE), std::vector<float>(n + 2, 9.0F)};
  kernels.quantize(y.data(), n, grid, range, {kKey, first}, q.codes.data() + 1,
                   values ? q.values.data() + 1 : nullptr);
  return q;
}

TEST_P(GridKernelsTest, QuantizeEqualsTheReference) {
  for (uint32_t bits = 2; bits <= 4; ++bits) {
    for (const Values& table : tables(bits)) {
      const Grid grid = grid_of(table);
      for (const float range : {0.02F, 0x1.8p-100F, 0x1.8p100F}) {
        std::vector<float> y = special_values(256, grid.last), near = normal_values(512, bits);
        for (float& v : y) {
          if (std::isnan(v)) v = INFINITY;
        }
        for (float& v : near) v *= range / 0.02F;
        for (const auto& x : {y, near}) {
          for (const bool values : {false, true}) {
            const Quantized a = quantize(kGridScalar, x, grid, range, 512, values);
            const Quantized b = quantize(simd_, x, grid, range, 512, values);
            expect_same(a.codes, b.codes, grid.last);
            expect_same(a.values, b.values, grid.last);
          }
        }
      }
    }
  }
}

TEST_P(GridKernelsTest, IndicesDoNotDependOnCuts) {
  const Grid grid = grid_of(kDefault);
  const std::vector<float> y = normal_values(8192, 4);
  const Quantized whole = quantize(simd_, y, grid, 0.02F, 8192, true);
  for (uint32_t begin = 0; begin < 8192; begin += 256) {
    const std::vector<float> part(y.begin() + begin, y.begin() + begin + 256);
    const Quantized q = quantize(simd_, part, grid, 0.02F, 8192 + begin, true);
    for (uint32_t i = 0; i < 128; ++i) ASSERT_EQ(q.codes[1 + i], whole.codes[1 + begin / 2 + i]);
    for (uint32_t i = 0; i < 256; ++i) ASSERT_EQ(q.values[1 + i], whole.values[1 + begin + i]);
  }
}

/// Computed in double from the definition; `up` is the random number in [0, 1).
uint32_t expected_index(double y, double range, const Values& table, double up) {
  const double g = table.back();
  const double u = std::clamp((y + range) / (2 * range) * g, 0.0, g);
  uint32_t z = 0;
  while (z + 1 < table.size() && table[z + 1] <= u) ++z;
  if (z + 1 == table.size()) return z;
  return up < (u - table[z]) / (table[z + 1] - table[z]) ? z + 1 : z;
}

TEST_P(GridKernelsTest, RoundingMatchesDefinition) {
  for (uint32_t bits = 2; bits <= 4; ++bits) {
    for (const Values& table : tables(bits)) {
      const std::vector<float> y = normal_values(4096, bits + 7);
      const Quantized q = quantize(simd_, y, grid_of(table), 0.02F, 0, true);
      const std::vector<uint8_t> codes(q.codes.begin() + 1, q.codes.end());
      uint32_t others = 0;
      for (uint32_t i = 0; i < 4096; ++i) {
        // the 16 bits as the header says, the middle of their interval
        const uint32_t word = philox(kKey, i / 128 * 8 + i % 16 / 2)[2 * (i / 32 % 2) + i % 2];
        uint32_t half = i / 16 % 2 == 0 ? word & 0xFFFFU : word >> 16;
        if (i / 64 % 2 == 1) half = half % 256 * 256 + half / 256;
        const uint32_t want = expected_index(y[i], 0.02F, table, (half | 1U) / 65536.0);
        const uint32_t got = index_at(codes, bits, i);
        if (got != want) ++others;
        ASSERT_LE(got > want ? got - want : want - got, 1U);
        ASSERT_FLOAT_EQ(q.values[1 + i],
                        (table[got] - table.back() / 2.0F) * 2 * 0.02F / table.back());
      }
      EXPECT_LE(others, 4U);  // a probability of 16 bits meets its random number
    }
  }
}

TEST_P(GridKernelsTest, MeansOfIndicesAreValues) {
  // z-test over many draws, inside the range; beyond it the range's end.
  const Grid grid = grid_of(kDefault);
  constexpr uint32_t kDraws = 1024;
  for (const float a : {-3.0F, -2.0F, -0.07179582F, 0.0F, 0.3F, 1.0F, 2.1F, 5.0F}) {
    const std::vector<float> y(256, a);
    const double range = 2.1538746940614555;
    double sum = 0, squares = 0;
    for (uint32_t t = 0; t < kDraws; ++t) {
      const Quantized q =
          quantize(simd_, y, grid, static_cast<float>(range), uint64_t{256} * t, true);
      for (uint32_t i = 1; i <= 256; ++i) {
        sum += q.values[i];
        squares += static_cast<double>(q.values[i]) * q.values[i];
      }
    }
    constexpr double kAll = 256.0 * kDraws;
    const double mean = sum / kAll, variance = squares / kAll - mean * mean;
    const double inside = std::clamp(static_cast<double>(a), -range, range);
    EXPECT_LE(std::abs(mean - inside), 4.5 * std::sqrt(std::max(variance, 1e-12) / kAll) + 2e-6)
        << a;
  }
}

TEST_P(GridKernelsTest, ProbabilitiesMatchDefaultTable) {
  struct Row {
    float a;
    uint32_t lower;
    double probability;
  };
  const Grid grid = grid_of(kDefault);
  for (const Row& row : {Row{-3.0F, 0, 0}, Row{-2.0F, 0, 0.357204}, Row{-0.07179582F, 7, 0.25},
                         Row{0.0F, 7, 0.5}, Row{0.3F, 9, 0.044629}, Row{1.0F, 11, 0.482097},
                         Row{2.1F, 14, 0.874935}, Row{5.0F, 15, 0}}) {
    const std::vector<float> y(uint64_t{1} << 18, row.a);
    const Quantized q = quantize(simd_, y, grid, 2.1538747F, 0, false);
    const std::vector<uint8_t> codes(q.codes.begin() + 1, q.codes.end());
    uint64_t above = 0;
    for (uint64_t i = 0; i < y.size(); ++i) {
      const uint32_t index = index_at(codes, 4, i);
      ASSERT_TRUE(index == row.lower || index == row.lower + 1) << row.a << " " << index;
      above += index - row.lower;
    }
    const double n = static_cast<double>(y.size()), p = row.probability;
    EXPECT_LE(std::abs(static_cast<double>(above) / n - p), 4.5 * std::sqrt(p * (1 - p) / n) + 1e-6)
        << row.a;
  }
}

TEST(GridReference, ProbabilitiesAreExactToHalfASixteenthBit) {
  // All random numbers and many positions: the frequency is the probability to 2^-16, and exactly
  // mirrored.
  const Grid grid = grid_of(kDefault);
  std::mt19937_64 random(1);
  for (int k = 0; k < 40; ++k) {
    const auto u = static_cast<uint32_t>(random() % (30U << 16));
    const uint32_t mirror = (30U << 16) - u;
    const uint32_t z = grid.cell[u >> 16] >> 12, gap = kDefault[z + 1] - kDefault[z];
    uint64_t sum = 0, mirrored = 0;
    for (uint32_t r = 1; r < 65536; r += 2) {
      sum += grid_index(grid, u, r) - z;
      mirrored += 15 - grid_index(grid, mirror, 65536 - r) - z;
    }
    const double p = (u / 65536.0 - kDefault[z]) / gap;
    EXPECT_NEAR(static_cast<double>(sum) / 32768, p, 0x1p-16) << u;
    EXPECT_NEAR(static_cast<double>(mirrored), static_cast<double>(sum), 1) << u;
  }
  for (uint32_t z = 0; z < 16; ++z) {  // on a value there is nothing to draw
    EXPECT_EQ(grid_index(grid, uint32_t{kDefault[z]} << 16, 1), z);
    EXPECT_EQ(grid_index(grid, uint32_t{kDefault[z]} << 16, 65535), z);
  }
}

TEST(GridReference, EveryRandomByteIsHighByteOnce) {
  // 128 elements have the 128 bytes of 8 blocks in their high bytes.
  std::vector<uint32_t> bytes, high;
  for (uint32_t w = 0; w < 32; ++w) {
    const uint32_t word = philox(kKey, 80 + w / 4)[w % 4];
    for (uint32_t b = 0; b < 4; ++b) bytes.push_back(word >> 8 * b & 0xFFU);
  }
  for (uint64_t e = 1280; e < 1408; ++e) {
    high.push_back(grid_random(kKey, e) >> 8);
    EXPECT_EQ(grid_random(kKey, e) & 1U, 1U);
  }
  std::sort(bytes.begin(), bytes.end());
  std::sort(high.begin(), high.end());
  EXPECT_EQ(high, bytes);
  EXPECT_EQ(grid_random(kKey, 1280) >> 8, philox(kKey, 80)[0] >> 8 & 0xFFU);
  EXPECT_EQ(grid_random(kKey, 1280 + 64) >> 8, philox(kKey, 80)[0] & 0xFFU);
}

TEST(GridReference, ElementsSharingBitsAreNearlyIndependent) {
  // The mean of products of rounding errors of two that share, relative to their variance.
  const std::array<double, 4> probabilities{0.5, 0.25, 0.77, 0.03};
  for (const double p : probabilities) {
    for (const double q : probabilities) {
      double sum = 0;
      for (uint32_t half = 0; half < 65536; ++half) {
        const uint32_t swapped = half % 256 * 256 + half / 256;
        sum += ((half < p * 65536 ? 1 : 0) - p) * ((swapped < q * 65536 ? 1 : 0) - q);
      }
      EXPECT_LE(std::abs(sum / 65536), 0.01 * std::sqrt(p * (1 - p) * q * (1 - q)))
          << p << " " << q;
    }
  }
}

TEST(GridReference, PositionsMatchUniformTable) {
  // [-1, 1] at b = 2: positions [0, 1.5, 2.25, 3] and [0.75, 1.875, 2.625, 0].
  const GridPosition position(1.0F, 3);
  const std::array<float, 8> x{-1, 0, 0.5F, 1, -0.5F, 0.25F, 0.75F, -1};
  const std::array<double, 8> want{0, 1.5, 2.25, 3, 0.75, 1.875, 2.625, 0};
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(position.of(x[i]) / 65536.0, want[i]);
}

// ---- the way back ----

TEST_P(GridKernelsTest, DequantizeEqualsTheReferenceAndTheDefinition) {
  std::mt19937_64 random(2);
  for (uint32_t bits = 2; bits <= 4; ++bits) {
    for (const Values& table : tables(bits)) {
      const Grid grid = grid_of(table);
      std::vector<uint32_t> indices(512 + random() % 200);
      for (uint32_t& index : indices) index = static_cast<uint32_t>(random()) & ((1U << bits) - 1);
      const auto n = static_cast<uint32_t>(indices.size());
      const std::vector<uint8_t> codes = packed(indices, bits);
      std::vector<float> a(n + 1, 3.0F), b = a;
      kGridScalar.dequantize(codes.data(), n, grid, 0.7F, a.data());
      simd_.dequantize(codes.data(), n, grid, 0.7F, b.data());
      expect_same(a, b, n);
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_NEAR(b[i], (table[indices[i]] - table.back() / 2.0) * 2 * 0.7 / table.back(), 1e-6);
      }
    }
  }
}

template <class Lane>
void expect_means(const GridKernels& simd, decltype(GridKernels::mean8) GridKernels::*mean) {
  std::mt19937_64 random(3);
  for (const uint32_t n : {256U, 8192U, 77U}) {
    std::vector<uint8_t> bytes(1 + n * sizeof(Lane));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (const GridMean m :
         {GridMean{1, 1}, GridMean{3, 3}, GridMean{2, 5}, GridMean{0, 4}, GridMean{4369, 4369}}) {
      std::vector<float> a(n + 1, 3.0F), b = a;
      (kGridScalar.*mean)(bytes.data() + 1, n, 15, m, 0.3F, a.data());
      (simd.*mean)(bytes.data() + 1, n, 15, m, 0.3F, b.data());
      expect_same(a, b, n);
      for (uint32_t i = 0; i < n; ++i) {
        const double s = at<Lane>(bytes.data() + 1, i);
        const double want = (s - m.added * 7.5) / m.divisor * 2 * 0.3 / 15;
        ASSERT_NEAR(b[i], want, std::abs(want) * 2e-7) << i;
      }
    }
  }
}

TEST_P(GridKernelsTest, MeansEqualTheReferenceAndTheDefinition) {
  expect_means<uint8_t>(simd_, &GridKernels::mean8);
  expect_means<uint16_t>(simd_, &GridKernels::mean16);
}

TEST_P(GridKernelsTest, SumsOfThreeWorkersMatchHandComputation) {
  const std::vector<std::vector<uint32_t>> workers{{3, 12, 0, 15}, {15, 0, 8, 7}, {8, 7, 15, 15}};
  const std::vector<std::vector<uint8_t>> bytes{{0x3C, 0x0F}, {0xF0, 0x87}, {0x87, 0xFF}};
  std::array<uint8_t, 4> lanes{};
  std::array<uint16_t, 4> wide{};
  for (uint32_t w = 0; w < 3; ++w) {
    EXPECT_EQ(packed(workers[w], 4), bytes[w]);
    const auto run8 = w == 0 ? simd_.expand8 : simd_.add8;
    const auto run16 = w == 0 ? simd_.expand16 : simd_.add16;
    run8(bytes[w].data(), 4, 4, kDefault.data(), lanes.data());
    run16(bytes[w].data(), 4, 4, kDefault.data(), wide.data());
  }
  EXPECT_EQ(lanes, (std::array<uint8_t, 4>{53, 37, 46, 74}));
  EXPECT_EQ(wide, (std::array<uint16_t, 4>{53, 37, 46, 74}));
  // d = 16, norm 8: range t_p · 8 / 4
  const std::array<float, 4> want{0.765822F, -0.765822F, 0.095728F, 2.776105F};
  std::array<float, 4> y{};
  simd_.mean8(lanes.data(), 4, 30, {3, 3}, 4.307749F, y.data());
  for (uint32_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], want[i], 1e-6);
}

// ---- lanes ----

TEST_P(GridKernelsTest, ElementsAreTableValues) {
  std::mt19937_64 random(5);
  for (uint32_t bits = 2; bits <= 4; ++bits) {
    for (uint64_t n = 0; n < 1100; n += n < 300 ? 1 : 97) {
      Values table(16);
      for (uint8_t& v : table) v = static_cast<uint8_t>(random());
      std::vector<uint32_t> indices(n);
      for (uint32_t& index : indices) index = static_cast<uint32_t>(random()) & ((1U << bits) - 1);
      const std::vector<uint8_t> codes = packed(indices, bits);
      std::vector<uint8_t> narrow(n + 2, 0xEE), wide(2 * n + 2, 0xEE);
      for (uint32_t turn = 0; turn < 3; ++turn) {
        const auto run8 = turn == 0 ? simd_.expand8 : simd_.add8;
        const auto run16 = turn == 0 ? simd_.expand16 : simd_.add16;
        run8(codes.data(), n, bits, table.data(), narrow.data() + 1);
        run16(codes.data(), n, bits, table.data(), wide.data() + 1);
        for (uint64_t i = 0; i < n; ++i) {
          const uint32_t sum = (turn + 1) * table[indices[i]];
          ASSERT_EQ(narrow[1 + i], sum & 0xFFU) << bits << " " << n << " " << i;
          ASSERT_EQ(at<uint16_t>(wide.data() + 1, i), sum) << bits << " " << n << " " << i;
        }
      }
      ASSERT_EQ(narrow[0] + narrow[n + 1] + wide[0] + wide[2 * n + 1], 4 * 0xEE);
    }
  }
}

TEST_P(GridKernelsTest, SumsOfManyEqualAddedValues) {
  std::mt19937_64 random(6);
  for (uint32_t bits = 2; bits <= 4; ++bits) {
    for (const uint64_t n : {0U, 8U, 200U, 256U, 1024U, 1032U, 1500U, 8192U, 9000U}) {
      Values table(16);
      for (uint8_t& v : table) v = static_cast<uint8_t>(random());
      std::vector<std::vector<uint8_t>> codes;
      std::vector<const uint8_t*> operands;
      std::vector<uint8_t> want(n), got(n + 2, 0xEE);
      for (uint32_t count = 1; count <= 9; ++count) {
        codes.emplace_back((n * bits + 7) / 8);
        for (uint8_t& byte : codes.back()) byte = static_cast<uint8_t>(random());
        operands.push_back(codes.back().data());
        for (uint64_t i = 0; i < n; ++i) {
          want[i] = static_cast<uint8_t>(want[i] + table[index_at(codes.back(), bits, i)]);
        }
        simd_.sum8(operands.data(), count, n, bits, table.data(), got.data() + 1);
        for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(got[1 + i], want[i]) << bits << " " << n;
        ASSERT_EQ(got[0] + got[n + 1], 2 * 0xEE);
        simd_.add_all8(operands.data(), count, n, bits, table.data(), got.data() + 1);
        for (uint64_t i = 0; i < n; ++i) {
          ASSERT_EQ(got[1 + i], static_cast<uint8_t>(2 * want[i])) << bits << " " << n;
        }
        ASSERT_EQ(got[0] + got[n + 1], 2 * 0xEE);
      }
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
