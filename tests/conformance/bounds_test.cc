// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about sizes: a payload stays within the bound that the plan gave before any data was seen,
// and every call stays within the memory it was given (canaries around all of it).
#include <algorithm>
#include <cmath>

#include "conformance/codec_law.h"
#include "pipeline/unit_codec.h"

namespace laconic::conformance {
namespace {

TEST_P(CodecLaw, PayloadWithinBoundDecodesToFiniteValues) {
  for (const Unit& unit : all_units()) {
    for (const Data data : kFiniteData) {
      SCOPED_TRACE(describe(unit, data));
      Exchange exchange = this->exchange(unit);
      const std::vector<float> values = make(data, unit.count);
      ASSERT_TRUE(exchange.encode(values.data()));
      for (uint32_t round = 0; round < exchange.plan().rounds; ++round) {
        const RoundPlan& planned = exchange.plan().round[round];
        const uint64_t bytes = exchange.payload(0, round).size();
        EXPECT_LE(bytes, planned.bytes);
        if (contract_.exact_size || planned.kind != RoundKind::frame) {
          EXPECT_EQ(bytes, planned.bytes);
        }
      }
      EXPECT_EQ(exchange.check(exchange.payload()), Errc::ok)
          << "check refuses an encoder's payload";
      for (const float x : exchange.own()) ASSERT_TRUE(std::isfinite(x));
      exchange.commit();
      exchange.expect_intact();
      if (HasFailure()) return;
    }
  }
}

TEST_P(CodecLaw, PlanIsPure) {
  for (const Unit& unit : small_units()) {
    const Plan a = spec_.codec().plan(spec_.params(), unit, 4);
    const Plan b = spec_.codec().plan(spec_.params(), unit, 4);
    ASSERT_EQ(a.rounds, b.rounds);
    ASSERT_GE(a.rounds, 1U);
    ASSERT_LE(a.rounds, kMaxRounds);
    EXPECT_EQ(a.state_floats, b.state_floats);
    EXPECT_EQ(a.kept_bytes, b.kept_bytes);
    EXPECT_EQ(a.scratch_bytes, b.scratch_bytes);
    for (uint32_t i = 0; i < a.rounds; ++i) {
      EXPECT_EQ(a.round[i].bytes, b.round[i].bytes);
      EXPECT_EQ(a.round[i].expected, b.round[i].expected);
      EXPECT_LE(a.round[i].expected, a.round[i].bytes);
      const bool lanes = a.round[i].kind == RoundKind::lanes;
      if (lanes) {
        EXPECT_EQ(a.round[i].bytes % dtype_size(a.round[i].lane), 0U);
      }
    }
  }
}

/// Mean payload of normal elements of this scale, once state has adapted and warm-ups are over.
double mean_bytes(Exchange& exchange, const Contract& contract, float scale) {
  constexpr uint32_t kSamples = 6;
  double bytes = 0;
  const uint32_t before = contract.exact_size || exchange.plan().state_floats == 0 ? 0 : 40;
  exchange.set_step(uint64_t{1} << 40);
  for (uint32_t call = 0; call < before + kSamples; ++call) {
    std::vector<float> values = make(Data::gaussian, exchange.conditions().unit.count, call + 1);
    for (float& x : values) x *= scale;
    EXPECT_TRUE(exchange.encode(values.data()));
    exchange.commit();
    if (call >= before) bytes += static_cast<double>(exchange.payload().size());
  }
  return bytes / kSamples;
}

/// A plan expects the average bytes of normal elements, to a quarter. Where that depends on their
/// scale (a threshold in absolute numbers) it holds at some scale.
TEST_P(CodecLaw, ExpectedBytesMatchNormalElements) {
  for (const Unit& unit : {vector_unit(1000), matrix_unit(65, 33), vector_unit(90001)}) {
    SCOPED_TRACE(describe(unit, Data::gaussian));
    Exchange exchange = this->exchange(unit);
    const auto expected = static_cast<double>(exchange.last().expected);
    const double bytes = mean_bytes(exchange, contract_, 1.0F);
    if (contract_.exact_size) {
      EXPECT_EQ(bytes, expected);
      continue;
    }
    Exchange tiny = this->exchange(unit);
    Exchange huge = this->exchange(unit);
    const double of_tiny = mean_bytes(tiny, contract_, 0x1p-80F);
    const double of_huge = mean_bytes(huge, contract_, 0x1p80F);
    EXPECT_GE(expected + expected / 4, std::min({bytes, of_tiny, of_huge}));
    EXPECT_LE(expected - expected / 4, std::max({bytes, of_tiny, of_huge}));
  }
}

/// Up to the count that the contract names no size wraps.
TEST_P(CodecLaw, LargestUnitsHaveValidSizes) {
  const uint64_t n = contract_.max_count;
  ASSERT_LE(n, kMaxUnitCount);
  for (const uint32_t world : {1U, 65535U}) {
    Plan smaller = spec_.codec().plan(spec_.params(), vector_unit(n / 2), world);
    for (const Unit& unit : {vector_unit(n), matrix_unit(n / (1 << 15), 1 << 15)}) {
      const Plan plan = spec_.codec().plan(spec_.params(), unit, world);
      uint64_t bytes = 0, bytes_of_half = 0;
      for (uint32_t i = 0; i < kMaxRounds; ++i) {
        bytes += plan.round[i].bytes;
        bytes_of_half += smaller.round[i].bytes;
        EXPECT_LE(plan.round[i].expected, plan.round[i].bytes);
      }
      if (unit.cols == 1) {
        EXPECT_GE(bytes, bytes_of_half);
        EXPECT_GE(plan.scratch_bytes, smaller.scratch_bytes);
      }
      for (const uint64_t size : {bytes, plan.kept_bytes, plan.scratch_bytes, plan.state_floats}) {
        EXPECT_LT(size, uint64_t{1} << 50);
      }
      EXPECT_TRUE(std::isfinite(plan.largest_input) && plan.largest_input > 1e4F);
      EXPECT_EQ(pipeline::check_unit(spec_, unit), Errc::ok);
    }
  }
  EXPECT_EQ(pipeline::check_unit(spec_, vector_unit(n + 1)), Errc::shape_unsupported);
  EXPECT_EQ(pipeline::check_unit(spec_, vector_unit(~uint64_t{0})), Errc::shape_unsupported);
}

TEST_P(CodecLaw, ContractIsConsistent) {
  if (contract_.fused) {
    EXPECT_EQ(contract_.feedback, Feedback::own);
  }
  const auto may_have = [&](MemoryKind kind) { return in_memory_set(contract_.memories, kind); };
  EXPECT_TRUE(may_have(MemoryKind::none) && may_have(contract_.memory_default));
  EXPECT_EQ(may_have(MemoryKind::residual), contract_.feedback != Feedback::never);
  if (may_have(MemoryKind::ema)) {
    EXPECT_TRUE(contract_.merge == Merge::none || contract_.merge == Merge::vote);
  }
  if (may_have(MemoryKind::momentum)) {
    EXPECT_TRUE(contract_.merge == Merge::set_union && contract_.feedback == Feedback::own);
    EXPECT_NE(spec_.codec().erase, nullptr);
  }
  EXPECT_EQ(contract_.merge == Merge::vote, spec_.codec().finish != nullptr);
  if (contract_.lossless) {
    EXPECT_EQ(contract_.feedback, Feedback::never);
  }
  EXPECT_GE(contract_.contraction, 0.0F);
  EXPECT_LE(contract_.contraction, 1.0F);
  EXPECT_GE(contract_.granule, 1U);
  if (contract_.merge == Merge::linear) {
    const Plan plan = spec_.codec().plan(spec_.params(), vector_unit(1000), 2);
    EXPECT_EQ(plan.round[plan.rounds - 1].kind, RoundKind::lanes);
  }
}

TEST_P(CodecLaw, EmptyUnitRoundTrips) {
  Exchange exchange = this->exchange(vector_unit(0));
  const float nothing = 0;
  ASSERT_TRUE(exchange.encode(&nothing));
  EXPECT_EQ(exchange.check(exchange.payload()), Errc::ok);
  EXPECT_TRUE(exchange.own().empty());
  exchange.commit();
  exchange.expect_intact();
}

}  // namespace
}  // namespace laconic::conformance
