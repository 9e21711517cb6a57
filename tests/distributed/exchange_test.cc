// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every strategy × codec × number of ranks × ragged sizes, over threads: replicas bit-identical,
// nothing lost.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "laconic/registry.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter>& ragged() {
  static const std::vector<Parameter> list{
      {"fc1.weight", 61, 37}, {"fc1.bias", 61, 1}, {"tiny", 1, 1},  {"fc2.weight", 128, 129},
      {"fc2.bias", 7, 1},     {"odd", 4099, 1},    {"norm", 16, 1}, {"head.weight", 17, 33}};
  return list;
}

struct Case {
  std::string spec;
  StrategyKind strategy;
  uint32_t world;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.spec + "_" + std::string(strategy_name(info.param.strategy)) + "_" +
                     std::to_string(info.param.world);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

/// A pair, and a number that divides nothing: 2, 3 and 8 ranks meet the oracle.
const std::vector<uint32_t>& worlds() {
  static const std::vector<uint32_t> list =
      kOneWorld ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 7};
  return list;
}

/// Every codec of the registry under every strategy that its contract allows.
std::vector<Case> all_cases() {
  std::vector<std::string> specs{
      "topk:ratio=0.1",        "3lc:s=1.75",      "3lc:scale=chunk",
      "int8:round=stochastic", "int8+ef",         "bf16+ef",
      "randomk:ratio=0.1",     "powersgd:rank=2", "sidco:ratio=0.05,mode=signed",
      "topk:ratio=0.1+noef",   "dgc:ratio=0.1+ef"};
  if (kOnlyDefaults) specs.clear();
  for (const CodecTable* codec : all_codecs()) {
    if (in_exchanges(codec->info.name)) specs.emplace_back(codec->info.name);
  }
  std::vector<Case> cases;
  for (const std::string& spec : specs) {
    for (const StrategyKind strategy :
         {StrategyKind::native_sum, StrategyKind::gather_all, StrategyKind::two_shot}) {
      for (const uint32_t world : worlds()) {
        Options o;
        o.world = world;
        o.strategy = strategy;
        o.small_elements = 16;
        o.caps.sums = kAllSums;
        auto parsed = Spec::parse(spec);
        if (parsed && collective::choose_strategy(*parsed, ragged(), o))
          cases.push_back({spec, strategy, world});
      }
    }
  }
  return cases;
}

class ExchangeTest : public testing::TestWithParam<Case> {
 protected:
  Ranks ranks() {
    return Ranks(
        {GetParam().spec, GetParam().world, ragged(), GetParam().strategy, 16, 1, kAllSums});
  }
};

double total(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum;
}

/// Momentum sends more than came in, and a running mean another step's.
bool conserves(Ranks& ranks) {
  return ranks.session(0).model().spec().memory().kind == MemoryKind::residual;
}

/// Momentum's contribution to the velocities in the next step, as residual_sum().
double momentum_sum(Ranks& ranks) {
  double sum = 0;
  const MemorySettings memory = ranks.session(0).model().spec().memory();
  for (uint32_t r = 0; r < ranks.world(); ++r) {
    for (const auto& e : ranks.session(r).active().store.entries()) {
      if (e.kind != feedback::StateKind::momentum) continue;
      for (const float x : e.values) sum += static_cast<double>(memory.factor * x) / ranks.world();
    }
  }
  return sum;
}

TEST_P(ExchangeTest, ReplicasAreBitIdenticalAndNothingIsLost) {
  Ranks group = ranks();
  const Layout layout = back_to_back(ragged(), {7, 6, 5, 4, 3, 2, 1, 0});
  const bool feedback = conserves(group);
  double in = 0, out = 0, magnitude = 0;
  for (uint64_t step = 0; step < 6; ++step) {
    auto buffers = gradients(group.world(), layout.elements, step + 1);
    const auto mean = exact_mean(buffers);
    in += total(mean);
    for (const double m : mean) magnitude += std::abs(m);
    for (const auto& result : group.exchange(layout, buffers, step))
      ASSERT_TRUE(result) << result.error().message;
    for (uint32_t r = 1; r < group.world(); ++r) {
      ASSERT_EQ(std::memcmp(buffers[0].data(), buffers[r].data(), layout.elements * sizeof(float)),
                0)
          << "rank " << r;
    }
    for (const float x : buffers[0]) out += static_cast<double>(x);
  }
  if (feedback) {
    EXPECT_NEAR(in, out + residual_sum(group), 2e-5 * magnitude);
  }
}

TEST_P(ExchangeTest, BucketsChangeNoValue) {
  // Engine sums of floats may depend on the place in the buffer; the loopback adds in rank order,
  // so here they do not.
  Ranks one = ranks();
  Ranks two = ranks();
  const Layout whole = back_to_back(ragged(), {0, 1, 2, 3, 4, 5, 6, 7});
  const Layout front = back_to_back(ragged(), {5, 3, 1});
  const Layout rest = back_to_back(ragged(), {7, 0, 2, 6, 4});
  for (uint64_t step = 0; step < 3; ++step) {
    auto a = gradients(one.world(), whole.elements, step + 10);
    const auto pick = [&](const Layout& layout) {
      std::vector<std::vector<float>> parts;
      for (const auto& g : a) {
        std::vector<float> part(layout.elements);
        for (size_t i = 0; i < layout.parameters.size(); ++i) {
          std::copy_n(g.begin() + static_cast<ptrdiff_t>(whole.offsets[layout.parameters[i]]),
                      ragged()[layout.parameters[i]].count(),
                      part.begin() + static_cast<ptrdiff_t>(layout.offsets[i]));
        }
        parts.push_back(std::move(part));
      }
      return parts;
    };
    auto b = pick(front);
    auto c = pick(rest);
    for (const auto& result : one.exchange(whole, a, step))
      ASSERT_TRUE(result) << result.error().message;
    for (const auto& result : two.exchange(front, b, step))
      ASSERT_TRUE(result) << result.error().message;
    for (const auto& result : two.exchange(rest, c, step))
      ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(pick(front)[0], b[0]);
    EXPECT_EQ(pick(rest)[0], c[0]);
  }
}

TEST_P(ExchangeTest, NonFiniteGradientIsSentUncompressedAndResidualsStay) {
  Ranks group = ranks();
  const Layout layout = back_to_back(ragged(), {0, 1, 2, 3, 4, 5, 6, 7});
  auto buffers = gradients(group.world(), layout.elements, 5);
  for (const auto& result : group.exchange(layout, buffers, 0))
    ASSERT_TRUE(result) << result.error().message;
  std::vector<std::vector<float>> before;
  for (uint32_t r = 0; r < group.world(); ++r) {
    for (const auto& e : group.session(r).active().store.entries())
      before.emplace_back(e.values.begin(), e.values.end());
  }
  buffers = gradients(group.world(), layout.elements, 6);
  const uint32_t bad = group.world() - 1;
  const uint64_t at = layout.offsets[3] + 17;  // fc2.weight, compressed under every spec but none
  buffers[bad][at] = std::numeric_limits<float>::infinity();
  const auto mean = exact_mean(buffers);
  for (const auto& result : group.exchange(layout, buffers, 1))
    ASSERT_TRUE(result) << result.error().message;
  for (uint32_t r = 0; r < group.world(); ++r)
    EXPECT_FALSE(std::isfinite(buffers[r][at])) << "rank " << r;
  const bool guarded = group.session(0).model().spec().feedback();
  if (!guarded) return;
  EXPECT_EQ(group.session(0).stats().fallbacks, 1U);
  for (uint64_t i = 0; i < layout.elements; ++i) {
    if (i != at) {
      ASSERT_NEAR(buffers[0][i], mean[i], 1e-6);
    }
  }
  size_t k = 0;
  for (uint32_t r = 0; r < group.world(); ++r) {
    for (const auto& e : group.session(r).active().store.entries()) {
      const auto& old = before[k++];
      for (size_t i = 0; i < old.size(); ++i) {
        if (e.name == "residual/fc2.weight" && r == bad) {
          if (e.values[i] != old[i] && group.session(0).model().assignment(3).pieces.size() == 1) {
            FAIL() << "the non-finite unit's own residual changed";
          }
        }
        if (e.kind != feedback::StateKind::codec_state) {
          ASSERT_NEAR(e.values[i], old[i], 1e-6) << e.name;
        }
      }
    }
  }
}

/// One rank asks before step 2; step 3 and, in three parts, steps 4 and 5 drain.
TEST_P(ExchangeTest, FlushSendsResidualAndEmptiesIt) {
  for (const uint64_t parts : {1U, 3U}) {
    Ranks group = ranks();
    const bool feedback = group.session(0).model().spec().feedback();
    const Layout layout = back_to_back(ragged(), {0, 1, 2, 3, 4, 5, 6, 7});
    double in = 0, out = 0, magnitude = 0;
    for (uint64_t step = 0; step < 3 + parts; ++step) {
      if (step == 2) {
        ASSERT_TRUE(group.session(group.world() / 2).flush(static_cast<uint32_t>(parts)));
      }
      auto buffers = gradients(group.world(), layout.elements, step + 20);
      const auto mean = exact_mean(buffers);
      in += total(mean);
      for (const double m : mean) magnitude += std::abs(m);
      for (const auto& result : group.exchange(layout, buffers, step)) ASSERT_TRUE(result);
      for (const float x : buffers[0]) out += static_cast<double>(x);
      const uint64_t left = !feedback ? 0 : step < 2 ? 0 : step == 2 ? parts : 2 + parts - step;
      for (uint32_t r = 0; r < group.world(); ++r)
        EXPECT_EQ(group.session(r).stats().flush_steps_left, left) << "step " << step;
    }
    if (conserves(group)) {
      EXPECT_NEAR(in, out, 2e-5 * magnitude);  // an engine's 16-bit sum rounds
    }
    for (uint32_t r = 0; r < group.world(); ++r) {
      EXPECT_EQ(group.session(r).stats().residual_norm, 0.0);
      EXPECT_EQ(group.session(r).stats().flushes, feedback ? parts : 0U);
    }
  }
}

TEST_P(ExchangeTest, LostPeerLosesNothing) {
  Ranks group = ranks();
  const Layout layout = back_to_back(ragged(), {0, 1, 2, 3, 4, 5, 6, 7});
  auto buffers = gradients(group.world(), layout.elements, 1);
  for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);
  const double kept = residual_sum(group) + momentum_sum(group);
  buffers = gradients(group.world(), layout.elements, 2);
  const auto undelivered = exact_mean(buffers);
  std::vector<std::vector<float>> copies = buffers;
  group.hub().break_off(group.world() - 1);
  for (const auto& result : group.exchange(layout, buffers, 1)) EXPECT_FALSE(result);
  if (!group.session(0).model().spec().feedback()) return;
  double compressed = 0;  // what went into units (small parameters keep no residual)
  for (uint32_t i = 0; i < ragged().size(); ++i) {
    if (group.session(0).model().assignment(i).raw) continue;
    for (uint64_t k = 0; k < ragged()[i].count(); ++k)
      compressed += undelivered[layout.offsets[i] + k];
  }
  EXPECT_NEAR(residual_sum(group), kept + compressed, 1e-4);
}

TEST_P(ExchangeTest, FailureOfOneRankGivesSameMessageOnAll) {
  Ranks group = ranks();
  const Layout layout = back_to_back(ragged(), {0, 1, 2, 3, 4, 5, 6, 7});
  auto buffers = gradients(group.world(), layout.elements, 1);
  std::vector<std::string> sentences(group.world());
  group.on_all([&](uint32_t r) {
    const auto fails = [&](collective::Exchange& exchange) {
      if (r == group.world() / 2) exchange.fail(Error{Errc::internal, "the disk is on fire", {}});
    };
    const auto failed = group.drive(r, layout, buffers[r], 0, {.begun = fails});
    ASSERT_FALSE(failed);
    sentences[r] = failed.error().message;
  });
  for (const std::string& s : sentences) {
    EXPECT_NE(s.find("the disk is on fire"), std::string::npos) << s;
    EXPECT_EQ(s, sentences[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeTest, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace laconic::test
