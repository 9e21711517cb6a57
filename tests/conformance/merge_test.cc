// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about merging in compressed form.
#include <cmath>

#include "conformance/codec_law.h"

namespace laconic::conformance {
namespace {

/// Half a unit in the last place of a lane, relative.
double lane_rounding(DType lane) {
  if (lane == DType::f16) return 0x1p-11;
  if (lane == DType::bf16) return 0x1p-8;
  return 0x1p-24;
}

TEST_P(CodecLaw, SummedPayloadsDecodeToSum) {
  if (contract_.merge != Merge::linear) return;  // not promised
  constexpr uint32_t kWorld = 3;
  for (const Unit& unit : {vector_unit(1000), vector_unit(40007), matrix_unit(65, 33)}) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Conditions three = conditions(unit);
    three.world = kWorld;
    Exchange exchange(spec_, three);
    std::vector<std::vector<float>> values;
    std::vector<Source> sources;
    for (uint32_t r = 0; r < kWorld; ++r) values.push_back(make(Data::laplace, unit.count, r + 1));
    for (const auto& v : values) sources.push_back({v.data(), nullptr});
    ASSERT_TRUE(exchange.encode(sources));
    const auto merged_terms = exchange.terms(1.0F);
    if (exchange.last().code_bits == 0) {
      ASSERT_EQ(exchange.check(merged_terms.front().payload), Errc::ok)
          << "check refuses the sum of lanes";
    }
    const std::vector<float> merged = exchange.decoded(merged_terms);
    std::vector<double> sum(unit.count), magnitude(unit.count);
    for (uint32_t r = 0; r < kWorld; ++r) {
      const Term own{exchange.payload(r), 1.0F};
      const std::vector<float> d = exchange.decoded({&own, 1});
      for (std::size_t i = 0; i < d.size(); ++i) {
        sum[i] += d[i];
        magnitude[i] += std::fabs(static_cast<double>(d[i]));
      }
    }
    // Lanes of a low-rank factor are summed before they are multiplied: their error is relative to
    // the whole, not to the element.
    double largest = 0;
    for (const double m : magnitude) largest = std::max(largest, m);
    const double allowed = 2.0 * kWorld * lane_rounding(exchange.last().lane) * largest + 1e-30;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      ASSERT_LE(std::fabs(merged[i] - sum[i]), 16 * allowed) << "element " << i;
    }
  }
}

TEST_P(CodecLaw, HeadroomCoversSummedElements) {
  if (contract_.headroom == 0) return;  // unlimited
  EXPECT_GE(contract_.headroom, 2U);
}

}  // namespace
}  // namespace laconic::conformance
