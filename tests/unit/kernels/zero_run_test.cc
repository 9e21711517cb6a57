// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/threelc/zero_run.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "unit/kernels/digit_inputs.h"

namespace laconic::kernels {
namespace {

class ZeroRunKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const ZeroRunKernels& simd = zero_run_kernels(GetParam());
  const ZeroRunKernels& reference = kZeroRunScalar;
};

INSTANTIATE_TEST_SUITE_P(EveryIsa, ZeroRunKernelsTest,
                         testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(ZeroRunKernelsTest, ZerosAreCountedAtBothEnds) {
  for (const uint64_t n : sizes()) {
    for (uint64_t at = 0; at <= n; at += 1 + at / 7) {
      std::vector<uint8_t> bytes(n + 1, kZeroByte);
      bytes[at] = 7;  // at == n: none inside
      EXPECT_EQ(simd.leading_zeros(bytes.data(), n), at);
      EXPECT_EQ(simd.trailing_zeros(bytes.data(), n), at == n ? n : n - 1 - at);
    }
  }
}

TEST_P(ZeroRunKernelsTest, RunsEqualTheReference) {
  for (const double zeros : {0.0, 0.1, 0.5, 0.85, 0.95, 0.999}) {
    for (const uint64_t n : sizes()) {
      std::vector<uint8_t> bytes = digit_bytes(n, zeros, static_cast<uint32_t>(n));
      if (n > 0) bytes.front() = bytes.back() = 3;
      std::vector<uint8_t> a(n + 64, kCanary), b = a;
      const uint64_t made = simd.run_encode(bytes.data(), n, a.data());
      ASSERT_EQ(made, reference.run_encode(bytes.data(), n, b.data())) << n;
      ASSERT_LE(made, n);
      ASSERT_EQ(a, b) << n << " " << zeros;
      ASSERT_EQ(simd.expanded_size(a.data(), made), n);

      std::vector<uint8_t> back(n + kExpandSlack);
      const Expanded all = simd.expand(a.data(), made, n, back.data());
      ASSERT_EQ(all.consumed, made);
      ASSERT_EQ(all.produced, n);
      back.resize(n);
      ASSERT_EQ(back, bytes);
    }
  }
}

TEST_P(ZeroRunKernelsTest, RunsOfEveryLengthAreFoundAtEveryPosition) {
  for (uint64_t before = 1; before < 70; ++before) {
    for (uint64_t run = 1; run < 150; ++run) {
      std::vector<uint8_t> bytes(before + run + 1, kZeroByte);
      for (uint64_t i = 0; i < before; ++i) bytes[i] = static_cast<uint8_t>(i);
      bytes.back() = 242;
      std::vector<uint8_t> a(bytes.size(), kCanary), b = a;
      const uint64_t made = simd.run_encode(bytes.data(), bytes.size(), a.data());
      ASSERT_EQ(made, reference.run_encode(bytes.data(), bytes.size(), b.data()));
      ASSERT_EQ(a, b) << before << " " << run;
    }
  }
}

TEST_P(ZeroRunKernelsTest, ExpansionMayBeCutIntoPieces) {
  std::mt19937 random(9);
  std::vector<uint8_t> coded(5000);
  for (uint8_t& b : coded) b = static_cast<uint8_t>(random());
  std::vector<uint8_t> whole(coded.size() * 14 + kExpandSlack);
  const uint64_t size =
      reference.expand(coded.data(), coded.size(), ~uint64_t{0}, whole.data()).produced;
  whole.resize(size);
  EXPECT_EQ(simd.expanded_size(coded.data(), coded.size()), size);
  std::vector<uint8_t> pieces;
  uint64_t at = 0;
  while (at < coded.size()) {
    const uint64_t want = random() % 300;
    std::vector<uint8_t> piece(want + kExpandSlack);
    const Expanded done = simd.expand(coded.data() + at, coded.size() - at, want, piece.data());
    ASSERT_TRUE(done.produced >= want || at + done.consumed == coded.size());
    pieces.insert(pieces.end(), piece.begin(),
                  piece.begin() + static_cast<ptrdiff_t>(done.produced));
    at += done.consumed;
  }
  EXPECT_EQ(pieces, whole);
}

TEST_P(ZeroRunKernelsTest, RunsOfAnyLengthHaveCorrectSize) {
  for (const uint64_t n : sizes()) {
    std::vector<uint8_t> bytes = digit_bytes(n, 0.1, 8);
    EXPECT_TRUE(simd.no_run_codes(bytes.data(), n));
    EXPECT_EQ(simd.expanded_size(bytes.data(), n), n);
    for (uint64_t at = 0; at < n; at += 1 + at / 3) {
      for (const uint8_t code : {uint8_t{243}, uint8_t{255}}) {
        const uint8_t was = std::exchange(bytes[at], code);
        EXPECT_FALSE(simd.no_run_codes(bytes.data(), n));
        EXPECT_EQ(simd.expanded_size(bytes.data(), n), n + code - 242U);
        bytes[at] = was;
      }
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
