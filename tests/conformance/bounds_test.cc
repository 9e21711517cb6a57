// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about sizes: a payload stays within the bound that the plan gave before any data was seen,
// and every call stays within the memory it was given (canaries around all of it).
#include "conformance/codec_law.h"

namespace laconic::conformance {
namespace {

TEST_P(CodecLaw, PayloadWithinTheBound) {
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
      static_cast<void>(exchange.own());
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
      const bool lanes = a.round[i].kind == RoundKind::lanes;
      if (lanes) {
        EXPECT_EQ(a.round[i].bytes % dtype_size(a.round[i].lane), 0U);
      }
    }
  }
}

TEST_P(CodecLaw, ContractIsConsistent) {
  if (contract_.fused) {
    EXPECT_EQ(contract_.feedback, Feedback::own);
  }
  if (contract_.feedback_default) {
    EXPECT_NE(contract_.feedback, Feedback::never);
  }
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

TEST_P(CodecLaw, EmptyUnit) {
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
