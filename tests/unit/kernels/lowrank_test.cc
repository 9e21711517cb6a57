// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/lowrank/lowrank.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "laconic/random.h"

namespace laconic::kernels {
namespace {

// Magnitudes over a factor 2^16, both signs, some zeros: rounding shows every change of
// association.
std::vector<float> numbers(uint64_t n, uint32_t seed) {
  std::vector<float> x(n);
  for (uint64_t i = 0; i < n; ++i) {
    const RandomBlock w = philox({seed, 7}, i);
    const float mantissa = static_cast<float>(static_cast<int32_t>(w[0]));
    x[i] = w[1] % 16 == 0 ? 0.0F : std::ldexp(mantissa, -static_cast<int>(w[1] >> 28) - 20);
  }
  return x;
}

std::vector<uint32_t> bits(const std::vector<float>& x) {
  std::vector<uint32_t> out;
  for (const float v : x) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

struct Case {
  uint64_t rows, cols, rank;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (uint64_t cols = 0; cols <= 70; ++cols) all.push_back({1 + cols % 9, cols, 1 + cols % 6});
  for (uint64_t rows = 0; rows <= 40; ++rows) all.push_back({rows, 1 + rows % 19, 1 + rows % 5});
  for (uint64_t rank = 1; rank <= 13; ++rank) all.push_back({21, 35, rank});
  for (uint64_t cols : {511U, 512U, 513U, 1023U, 1024U, 1040U, 2047U, 2053U}) {
    all.push_back({19, cols, 4});
    all.push_back({5, cols, 3});
  }
  all.push_back({1024, 3, 2});
  all.push_back({37, kColumnPanel, 5});
  return all;
}

class LowRankOnEveryIsa : public testing::TestWithParam<Isa> {
 protected:
  const LowRankKernels& fast = lowrank_kernels(GetParam());
  const LowRankKernels& slow = kLowRankScalar;
};

std::string name(const Case& c) {
  return std::to_string(c.rows) + "x" + std::to_string(c.cols) + " rank " + std::to_string(c.rank);
}

// One float off any vector's alignment, padded rows, vectors apart; what is not written keeps 7.
TEST_P(LowRankOnEveryIsa, ProjectHasTheBitsOfTheReference) {
  for (const Case& c : cases()) {
    const Panel panel{c.rows, c.cols, c.cols + 3};
    const auto m = numbers(1 + c.rows * panel.pitch, 1), q = numbers(1 + c.rank * (c.cols + 5), 2);
    std::vector<float> a(1 + c.rank * (c.rows + 2), 7.0F), b = a;
    fast.project(m.data() + 1, panel, {q.data() + 1, c.cols + 5, c.rank}, a.data() + 1, c.rows + 2);
    slow.project(m.data() + 1, panel, {q.data() + 1, c.cols + 5, c.rank}, b.data() + 1, c.rows + 2);
    EXPECT_EQ(bits(a), bits(b)) << name(c);
  }
}

TEST_P(LowRankOnEveryIsa, BackProjectHasTheBitsOfTheReference) {
  for (const Case& c : cases()) {
    const Panel panel{c.rows, c.cols, c.cols + 3};
    const auto m = numbers(1 + c.rows * panel.pitch, 3), p = numbers(1 + c.rank * (c.rows + 5), 4);
    std::vector<float> a(1 + c.rank * (c.cols + 2), 7.0F), b = a;
    fast.back_project(m.data() + 1, panel, {p.data() + 1, c.rows + 5, c.rank}, a.data() + 1,
                      c.cols + 2);
    slow.back_project(m.data() + 1, panel, {p.data() + 1, c.rows + 5, c.rank}, b.data() + 1,
                      c.cols + 2);
    EXPECT_EQ(bits(a), bits(b)) << name(c);
  }
}

TEST_P(LowRankOnEveryIsa, ReconstructHasTheBitsOfTheReference) {
  for (const Case& c : cases()) {
    for (const Output output : {Output::set, Output::add, Output::stream}) {
      // Streams need aligned rows, or fall back: both are tried.
      const bool aligned = output == Output::stream && c.cols % 2 == 0;
      const Panel panel{c.rows, c.cols, aligned ? (c.cols + 15) / 16 * 16 : c.cols + 3};
      const auto p = numbers(1 + c.rank * (c.rows + 1), 5), q = numbers(1 + c.rank * c.cols, 6);
      const Factor pf{p.data() + 1, c.rows + 1, c.rank}, qf{q.data() + 1, c.cols, c.rank};
      std::vector<float> a = numbers(32 + c.rows * panel.pitch, 8), b = a;
      const uint64_t offset = reinterpret_cast<uintptr_t>(a.data()) / sizeof(float) % 16;
      const uint64_t at = aligned ? (16 - offset) % 16 : 1;
      fast.reconstruct(a.data() + at, panel, pf, qf, -0.3F, output);
      slow.reconstruct(b.data() + at, panel, pf, qf, -0.3F, output);
      EXPECT_EQ(bits(a), bits(b)) << name(c);
    }
  }
}

TEST_P(LowRankOnEveryIsa, VectorStepsHaveTheBitsOfTheReference) {
  for (uint64_t n = 0; n <= 200; ++n) {
    const auto x = numbers(n + 1, 9);
    std::vector<float> a = numbers(n + 1, 10), b = a;
    const double da = fast.dot(x.data() + 1, a.data(), n), db = slow.dot(x.data() + 1, b.data(), n);
    EXPECT_EQ(std::bit_cast<uint64_t>(da), std::bit_cast<uint64_t>(db)) << n;
    fast.subtract(a.data(), 0.7123, x.data() + 1, n);
    slow.subtract(b.data(), 0.7123, x.data() + 1, n);
    EXPECT_EQ(bits(a), bits(b)) << n;
    fast.scale(a.data() + 1, 1e-3, n);
    slow.scale(b.data() + 1, 1e-3, n);
    EXPECT_EQ(bits(a), bits(b)) << n;
  }
}

TEST_P(LowRankOnEveryIsa, TinyNumbersSurviveTheDotProduct) {
  const std::vector<float> x(100, 1e-40F);
  EXPECT_GT(fast.dot(x.data(), x.data(), x.size()), 0.0);
}

// Cutting rows into panels of any size does not change P; cutting columns does not change Q'.
TEST_P(LowRankOnEveryIsa, PanelsDoNotChangeBits) {
  const uint64_t rows = 53, cols = 1300, rank = 4;
  const auto m = numbers(rows * cols, 11), p = numbers(rank * rows, 12),
             q = numbers(rank * cols, 13);
  std::vector<float> whole_p(rank * rows), parts_p = whole_p;
  std::vector<float> whole_q(rank * cols), parts_q = whole_q;
  fast.project(m.data(), {rows, cols, cols}, {q.data(), cols, rank}, whole_p.data(), rows);
  for (uint64_t i = 0; i < rows; i += 7) {
    const Panel part{std::min<uint64_t>(7, rows - i), cols, cols};
    fast.project(m.data() + i * cols, part, {q.data(), cols, rank}, parts_p.data() + i, rows);
  }
  EXPECT_EQ(bits(whole_p), bits(parts_p));
  fast.back_project(m.data(), {rows, cols, cols}, {p.data(), rows, rank}, whole_q.data(), cols);
  for (uint64_t j = 0; j < cols; j += 101) {
    const Panel part{rows, std::min<uint64_t>(101, cols - j), cols};
    fast.back_project(m.data() + j, part, {p.data(), rows, rank}, parts_q.data() + j, cols);
  }
  EXPECT_EQ(bits(whole_q), bits(parts_q));
}

INSTANTIATE_TEST_SUITE_P(Isas, LowRankOnEveryIsa,
                         testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& i) { return std::string(isa_name(i.param)); });

// The reference itself, against the definition in double.
TEST(LowRankReference, ProductsMatchDefinition) {
  const uint64_t rows = 9, cols = 37, rank = 3;
  const auto m = numbers(rows * cols, 14), p = numbers(rank * rows, 15),
             q = numbers(rank * cols, 16);
  std::vector<float> mq(rank * rows), mtp(rank * cols), pq(rows * cols);
  kLowRankScalar.project(m.data(), {rows, cols, cols}, {q.data(), cols, rank}, mq.data(), rows);
  kLowRankScalar.back_project(m.data(), {rows, cols, cols}, {p.data(), rows, rank}, mtp.data(),
                              cols);
  kLowRankScalar.reconstruct(pq.data(), {rows, cols, cols}, {p.data(), rows, rank},
                             {q.data(), cols, rank}, 0.5F, Output::set);
  for (uint64_t k = 0; k < rank; ++k) {
    for (uint64_t i = 0; i < rows; ++i) {
      double sum = 0, size = 0;
      for (uint64_t j = 0; j < cols; ++j) {
        const double x =
            static_cast<double>(m[i * cols + j]) * static_cast<double>(q[k * cols + j]);
        sum += x, size += std::abs(x);
      }
      EXPECT_NEAR(mq[k * rows + i], sum, 1e-6 * size);
    }
    for (uint64_t j = 0; j < cols; ++j) {
      double sum = 0, size = 0;
      for (uint64_t i = 0; i < rows; ++i) {
        const double x =
            static_cast<double>(m[i * cols + j]) * static_cast<double>(p[k * rows + i]);
        sum += x, size += std::abs(x);
      }
      EXPECT_NEAR(mtp[k * cols + j], sum, 1e-6 * size);
    }
  }
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < cols; ++j) {
      double sum = 0, size = 0;
      for (uint64_t k = 0; k < rank; ++k) {
        const double x =
            static_cast<double>(p[k * rows + i]) * static_cast<double>(q[k * cols + j]);
        sum += x, size += std::abs(x);
      }
      EXPECT_NEAR(pq[i * cols + j], 0.5 * sum, 1e-6 * size);
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
