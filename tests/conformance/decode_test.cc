// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about decode: out = ((base + w0·d0) + w1·d1) + …, each product and sum rounded on its own,
// whatever the number of terms; the same on every rank.
#include "conformance/codec_law.h"

namespace laconic::conformance {
namespace {

/// An exchange of `world` ranks after its rounds, with Laplace values.
class Encoded3 {
 public:
  Encoded3(const Spec& spec, Conditions conditions, uint32_t world, Data data = Data::laplace)
      : exchange(spec, at(conditions, world)) {
    std::vector<Source> sources;
    for (uint32_t r = 0; r < world; ++r)
      values_.push_back(make(data, conditions.unit.count, r + 1));
    for (const auto& v : values_) sources.push_back({v.data(), nullptr});
    EXPECT_TRUE(exchange.encode(sources));
  }

 private:
  static Conditions at(Conditions conditions, uint32_t world) {
    conditions.world = world;
    return conditions;
  }
  std::vector<std::vector<float>> values_;

 public:
  Exchange exchange;
};

std::vector<float> decode_into(Exchange& exchange, std::span<const Term> terms,
                               const std::vector<float>* base) {
  const uint64_t n = exchange.conditions().unit.count;
  Guarded out = base != nullptr ? guarded_copy(*base) : Guarded(n * sizeof(float), 0x7F);
  exchange.decode(0, terms, {out.floats().data(), base != nullptr});
  EXPECT_TRUE(out.intact()) << "decode wrote outside its target";
  return {out.floats().begin(), out.floats().end()};
}

std::vector<Unit> units() {
  return {vector_unit(1), vector_unit(1000), vector_unit(40007), matrix_unit(65, 33)};
}

TEST_P(CodecLaw, DecodingManyTermsEqualsOneByOne) {
  for (const Unit& unit : units()) {
    for (const uint32_t world : {2U, 3U, 8U, 11U, 40U}) {
      if (unit.count > 10000 && world != 8) continue;
      if (world == 40 && unit.count != 1000) continue;
      if (contract_.headroom != 0 && world > contract_.headroom) continue;  // lanes overflow
      SCOPED_TRACE(describe(unit, Data::laplace) + ", " + std::to_string(world) + " terms");
      Encoded3 encoded(spec_, conditions(unit), world);
      Exchange& exchange = encoded.exchange;
      std::vector<Term> terms;
      for (uint32_t r = 0; r < world; ++r) {
        terms.push_back({exchange.payload(r), r % 3 == 1 ? -0.75F : 0.3F});
      }
      const std::vector<float> base = make(Data::gaussian, unit.count, 99);
      for (const std::vector<float>* start :
           {static_cast<const std::vector<float>*>(nullptr), &base}) {
        const std::vector<float> together = decode_into(exchange, terms, start);
        std::vector<float> one_by_one =
            start != nullptr ? base : std::vector<float>(unit.count, 0.0F);
        for (const Term& term : terms) one_by_one = decode_into(exchange, {&term, 1}, &one_by_one);
        expect_same_values(together, one_by_one, start != nullptr ? "onto a base" : "from zero");
      }
    }
  }
}

TEST_P(CodecLaw, WeightsAndBaseAreRoundedSeparately) {
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Encoded3 encoded(spec_, conditions(unit), 1);
    Exchange& exchange = encoded.exchange;
    const std::vector<float> d = exchange.own();
    const std::vector<float> base = make(Data::gaussian, unit.count, 99);
    for (const float weight : {1.0F, -1.0F, 0.3F, 1.0F / 3}) {
      const Term term{exchange.payload(), weight};
      std::vector<float> scaled(unit.count), added(unit.count);
      for (std::size_t i = 0; i < d.size(); ++i) {
        const volatile float product = weight * d[i];  // volatile: never a fused multiply-add
        scaled[i] = product;
        added[i] = base[i] + product;
      }
      expect_same_values(scaled, decode_into(exchange, {&term, 1}, nullptr), "weighted");
      expect_same_values(added, decode_into(exchange, {&term, 1}, &base), "added");
    }
  }
}

TEST_P(CodecLaw, DecodingTwiceGivesSameValues) {
  for (const Unit& unit : units()) {
    Encoded3 encoded(spec_, conditions(unit), 3);
    const std::vector<float> first = encoded.exchange.mean();
    expect_same_bits(first, encoded.exchange.mean(), "second decode");
  }
}

TEST_P(CodecLaw, NoTermsGiveBase) {
  const Unit unit = vector_unit(1000);
  Encoded3 encoded(spec_, conditions(unit), 1);
  const std::vector<float> base = make(Data::gaussian, unit.count, 99);
  expect_same_values(base, decode_into(encoded.exchange, {}, &base), "base");
  expect_same_values(std::vector<float>(unit.count, 0.0F),
                     decode_into(encoded.exchange, {}, nullptr), "zero");
}

TEST_P(CodecLaw, RanksDecodeSameMean) {
  for (const Unit& unit : units()) {
    Encoded3 encoded(spec_, conditions(unit), 3);
    const std::vector<float> first = encoded.exchange.mean(0);
    for (const uint32_t rank : {1U, 2U})
      expect_same_bits(first, encoded.exchange.mean(rank), "another rank");
  }
}

}  // namespace
}  // namespace laconic::conformance
