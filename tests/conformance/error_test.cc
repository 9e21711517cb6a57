// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about what is lost: nothing more than the contract allows.
#include <algorithm>
#include <cmath>

#include "conformance/codec_law.h"

namespace laconic::conformance {
namespace {

TEST_P(CodecLaw, LosslessGivesTheSameValues) {
  if (!contract_.lossless) return;  // not promised
  for (const Unit& unit : all_units()) {
    for (const Data data : kFiniteData) {
      SCOPED_TRACE(describe(unit, data));
      Exchange exchange = this->exchange(unit);
      const std::vector<float> values = make(data, unit.count);
      ASSERT_TRUE(exchange.encode(values.data()));
      expect_same_values(values, exchange.own(), "decoded");
    }
  }
}

/// |x − Q(x)|² ≤ (1 − delta)|x|². Data::tiny is left out: below the smallest normal float no
/// relative promise can hold.
TEST_P(CodecLaw, ErrorContractsAsPromised) {
  if (contract_.contraction <= 0) return;  // not promised
  constexpr double kRounding = 1e-6;       // of float arithmetic, relative to |x|²
  for (const Unit& unit : all_units()) {
    for (const Data data : kFiniteData) {
      if (data == Data::tiny) continue;
      SCOPED_TRACE(describe(unit, data));
      Exchange exchange = this->exchange(unit);
      const std::vector<float> values = make(data, unit.count);
      ASSERT_TRUE(exchange.encode(values.data()));
      EXPECT_LE(
          squared_distance(values, exchange.own()),
          (1 - static_cast<double>(contract_.contraction) + kRounding) * squared_norm(values));
    }
  }
}

struct Moments {
  double sum = 0;
  double squares = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
  }
};

/// E[Q(x)] = x: over many steps the mean error of every element, and of all together, lies within
/// six standard errors (of this seeded sample, so the outcome never changes). Where a value is sent
/// so rarely that no trial saw it, the sample has no variance: six errors of the largest size more.
TEST_P(CodecLaw, MeanIsUnbiasedAsPromised) {
  if (!contract_.unbiased) return;  // not promised
  constexpr uint64_t kTrials = 4000;
  const Unit unit = vector_unit(19);
  std::vector<float> values = make(Data::gaussian, unit.count);
  values[0] = 4 * static_cast<float>(std::sqrt(squared_norm(values)));  // what clips cuts this one
  const double scale = std::sqrt(squared_norm(values));
  Exchange exchange = this->exchange(unit);
  std::vector<Moments> error(unit.count);
  double largest = 0;
  Moments projected;  // on the input: a codec that shrinks or grows everything shows here
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    exchange.set_step(trial);
    ASSERT_TRUE(exchange.encode(values.data()));
    const std::vector<float> decoded = exchange.own();
    double along = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double e = static_cast<double>(decoded[i]) - values[i];
      error[i].add(e);
      largest = std::max(largest, std::fabs(e));
      along += e * values[i] / scale;
    }
    projected.add(along);
  }
  const auto expect_centred = [&](const Moments& m, const std::string& what) {
    const double mean = m.sum / kTrials;
    const double variance = std::max(0.0, m.squares / kTrials - mean * mean);
    EXPECT_LE(std::fabs(mean),
              6 * std::sqrt(variance / kTrials) + 6 * largest / kTrials + 1e-6 * scale)
        << what;
  };
  for (std::size_t i = 0; i < error.size(); ++i)
    expect_centred(error[i], "element " + std::to_string(i));
  expect_centred(projected, "projection on the input");
}

TEST_P(CodecLaw, ZerosStayZero) {
  if (contract_.merge == Merge::vote) return;  // a sign has no zero; all-zero units send nothing
  for (const Unit& unit : all_units()) {
    SCOPED_TRACE(describe(unit, Data::zeros));
    Exchange exchange = this->exchange(unit);
    const std::vector<float> values(unit.count, 0.0F);
    ASSERT_TRUE(exchange.encode(values.data()));
    for (const float x : exchange.own()) ASSERT_EQ(x, 0.0F);
  }
}

/// Rows of an embedding that no sample has used, and other elements without a gradient. A codec
/// that does not promise it breaks it: the promise that users read is not too modest either.
TEST_P(CodecLaw, RowsOfZerosStayZeroAsPromised) {
  bool kept = true;
  for (const Unit& unit : all_units()) {
    for (const Data data : kFiniteData) {
      SCOPED_TRACE(describe(unit, data));
      std::vector<float> values = make(data, unit.count);
      const uint64_t kind = (unit.count + static_cast<uint64_t>(data)) % 3;
      const auto used = [&](uint64_t row) {  // few, most, all but one
        return kind == 0 ? row % 7 == 2 : kind == 1 ? row % 7 != 2 : row != unit.rows / 2;
      };
      for (uint64_t i = 0; i < unit.count; ++i) {
        if (!used(i / unit.cols)) values[i] = 0;
      }
      Exchange exchange = this->exchange(unit);
      exchange.set_step(unit.count);
      ASSERT_TRUE(exchange.encode(values.data()));
      const std::vector<float> decoded = exchange.own();
      for (uint64_t i = 0; i < unit.count; ++i) {
        const bool moved = !used(i / unit.cols) && decoded[i] != 0;
        kept = kept && !moved;
        ASSERT_FALSE(moved && contract_.zero_stays_zero) << "element " << i << ": " << decoded[i];
      }
    }
  }
  EXPECT_EQ(kept, contract_.zero_stays_zero);
}

}  // namespace
}  // namespace laconic::conformance
