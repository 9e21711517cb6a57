// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about bytes: they depend on parameters, unit, position and values, and on nothing else.
#include "conformance/codec_law.h"
#include "laconic/thread_pool.h"
#include "support/subset.h"

namespace laconic::conformance {
namespace {

/// Three ranks' values: lane rounds then carry sums, as in a real exchange.
constexpr uint32_t kWorld = 3;

struct Outcome {
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<float> mean;
};

Outcome run(const Spec& spec, Conditions conditions, Data data, uint64_t shift_values = 0) {
  conditions.world = kWorld;
  Exchange exchange(spec, conditions);
  std::vector<Guarded> values;
  std::vector<Source> sources;
  for (uint32_t r = 0; r < kWorld; ++r) {
    values.push_back(guarded_copy(make(data, conditions.unit.count, r + 1), shift_values));
    sources.push_back({values.back().floats().data(), nullptr});
  }
  EXPECT_TRUE(exchange.encode(sources));
  Outcome outcome;
  for (uint32_t r = 0; r < kWorld; ++r) {
    const Bytes payload = exchange.payload(r);
    outcome.payloads.emplace_back(payload.begin(), payload.end());
  }
  outcome.mean = exchange.mean();
  exchange.expect_intact();
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b, std::string_view what) {
  for (uint32_t r = 0; r < kWorld; ++r) expect_same_bytes(a.payloads[r], b.payloads[r], what);
  expect_same_bits(a.mean, b.mean, what);
}

TEST_P(CodecLaw, EncodingTwiceGivesSameBytesForAnyScratch) {
  for (const Unit& unit : all_units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Conditions first = conditions(unit), second = conditions(unit);
    first.fill = 0x00;
    second.fill = 0xFF;
    expect_same(run(spec_, first, Data::laplace), run(spec_, second, Data::laplace), "second run");
  }
}

TEST_P(CodecLaw, EncodingMatchesScalarReference) {
  if (GetParam().isa == Isa::scalar) return;  // this is the reference
  for (const Data data : kFiniteData) {
    const bool usual = data == Data::laplace;
    for (const Unit& unit : usual ? all_units() : std::vector<Unit>{vector_unit(17001)}) {
      SCOPED_TRACE(describe(unit, data));
      Conditions reference = conditions(unit);
      reference.isa = Isa::scalar;
      expect_same(run(spec_, reference, data), run(spec_, conditions(unit), data),
                  "scalar against SIMD");
    }
  }
}

TEST_P(CodecLaw, EncodingIsSameForAnyThreadCount) {
  std::vector<Unit> units = large_units();
  const bool default_on_best =
      GetParam().spec == spec_.codec().info.name && GetParam().isa == best_isa();
  if (default_on_best) units.push_back(vector_unit(200'003));
  for (const Unit& unit : units) {
    for (const Data data : {Data::laplace, Data::ties}) {
      if (data == Data::ties && unit.cols > 1) continue;
      SCOPED_TRACE(describe(unit, data));
      const Outcome alone = run(spec_, conditions(unit), data);
      for (const uint32_t threads : {2U, 3U}) {
        if (test::kSanitized && threads != 3) continue;
        ThreadPool pool(threads);
        Conditions threaded = conditions(unit);
        threaded.pool = &pool;
        expect_same(alone, run(spec_, threaded, data), "with threads");
      }
    }
  }
}

TEST_P(CodecLaw, AnyAlignmentIsAccepted) {
  for (const Unit& unit : {vector_unit(1000), matrix_unit(65, 33)}) {
    const Outcome aligned = run(spec_, conditions(unit), Data::laplace);
    for (const uint64_t shift : {1U, 3U, 4U}) {
      SCOPED_TRACE(shift);
      Conditions shifted = conditions(unit);
      shifted.shift = shift;
      expect_same(aligned, run(spec_, shifted, Data::laplace, 4 * shift), "unaligned");
    }
  }
}

TEST_P(CodecLaw, OtherOffsetsAndRanksDrawOtherNumbers) {
  if (!contract_.stochastic) return;  // the contract promises no own random stream
  const std::vector<float> values = make(Data::laplace, 1000);
  const std::vector<Source> sources(2, {values.data(), nullptr});
  const auto first_of = [&](const Conditions& changed) {
    Exchange exchange(spec_, changed);
    EXPECT_TRUE(exchange.encode(sources));
    const Bytes a = exchange.payload(0), b = exchange.payload(1);
    EXPECT_FALSE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << "ranks";
    return std::vector<uint8_t>(a.begin(), a.end());
  };
  Conditions base = conditions(vector_unit(1000));
  base.world = 2;
  std::array<Conditions, 4> others{base, base, base, base};
  others[0].step += 1;
  others[1].seed += 1;
  others[2].hop += 1;
  others[3].unit.parameter += 1;
  const std::vector<uint8_t> first = first_of(base);
  for (std::size_t i = 0; i < others.size(); ++i) EXPECT_NE(first_of(others[i]), first) << i;
}

}  // namespace
}  // namespace laconic::conformance
