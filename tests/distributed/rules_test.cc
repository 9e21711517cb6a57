// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Several specs in one model: a bucket uses every strategy that its parameters need, in one batch,
// and is delivered whole or not at all. A parameter gets what a session of its spec alone gives it,
// whose oracle is oracle_test.cc.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

enum : uint32_t { kEmbed, kConv, kFc1, kFc2, kFc3, kHead, kBias, kNorm };
const std::vector<Parameter>& model() {
  static const std::vector<Parameter> parameters{{"embed.weight", 120, 40}, {"conv.weight", 30, 45},
                                                 {"fc1.weight", 61, 67},    {"fc2.weight", 50, 70},
                                                 {"fc3.weight", 90, 33},    {"head.weight", 40, 50},
                                                 {"fc1.bias", 9, 1},        {"norm.weight", 12, 1}};
  return parameters;
}

/// The call's 3lc by two_shot; topk by gather_all; fp16, powersgd, thc and none by native_sum.
std::vector<Rule> rules() {
  return {rule("embed.*", "topk:ratio=0.05"), rule("conv.*", "fp16"),
          rule("fc2.*", "powersgd:rank=2"), rule("fc3.*", "thc"), rule("head.*", "none")};
}

Setup with_rules(uint32_t world, bool short_sends = false) {
  return {"3lc", world, model(), StrategyKind::two_shot, 16, 1, kAllSums, short_sends, rules()};
}

struct Alone {
  std::string spec;
  StrategyKind strategy;
  std::vector<uint32_t> parameters;
};
/// The same by sessions of one spec each. Small parameters go with native_sum: it is there.
std::vector<Alone> alone() {
  return {{"3lc", StrategyKind::two_shot, {kFc1}},
          {"topk:ratio=0.05", StrategyKind::gather_all, {kEmbed}},
          {"fp16", StrategyKind::native_sum, {kConv, kBias, kNorm}},
          {"none", StrategyKind::native_sum, {kHead}},
          {"powersgd:rank=2", StrategyKind::native_sum, {kFc2}},
          {"thc", StrategyKind::native_sum, {kFc3}}};
}

const std::vector<uint32_t> kAll{kNorm, kHead, kFc3, kEmbed, kFc2, kBias, kFc1, kConv};

std::span<float> of(std::vector<float>& values, const Layout& layout, uint32_t parameter) {
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    if (layout.parameters[i] == parameter)
      return {values.data() + layout.offsets[i], model()[parameter].count()};
  }
  return {};
}

class Rules : public testing::TestWithParam<std::tuple<uint32_t, bool>> {
 protected:
  [[nodiscard]] static uint32_t world() { return std::get<0>(GetParam()); }
  [[nodiscard]] static test::Setup setup() { return with_rules(world(), std::get<1>(GetParam())); }
};

TEST_P(Rules, EveryParameterGetsResultOfItsSpec) {
  Ranks group(setup());
  const Layout layout = back_to_back(model(), kAll);
  std::vector<std::unique_ptr<Ranks>> singles;
  for (const Alone& a : alone())
    singles.push_back(std::make_unique<Ranks>(
        test::Setup{a.spec, world(), model(), a.strategy, 16, 1, kAllSums, setup().short_sends}));
  for (uint64_t step = 0; step < 5; ++step) {
    const auto originals = gradients(world(), layout.elements, step + 1);
    auto buffers = originals;
    for (const auto& result : group.exchange(layout, buffers, step))
      ASSERT_TRUE(result) << result.error().message;
    for (uint32_t r = 1; r < world(); ++r) ASSERT_TRUE(same_bits(buffers[0], buffers[r]));
    for (size_t s = 0; s < singles.size(); ++s) {
      const std::vector<uint32_t> mine = alone()[s].parameters;
      const Layout part = back_to_back(model(), mine);
      auto parts = std::vector<std::vector<float>>(world(), std::vector<float>(part.elements));
      for (uint32_t r = 0; r < world(); ++r) {
        auto whole = originals[r];
        for (const uint32_t p : mine) {
          const auto from = of(whole, layout, p);
          std::copy(from.begin(), from.end(), of(parts[r], part, p).begin());
        }
      }
      for (const auto& result : singles[s]->exchange(part, parts, step)) ASSERT_TRUE(result);
      for (const uint32_t p : mine) {
        const auto together = of(buffers[0], layout, p);
        const auto single = of(parts[0], part, p);
        EXPECT_EQ(std::memcmp(together.data(), single.data(), together.size_bytes()), 0)
            << model()[p].name << " in step " << step;
      }
    }
  }
  // State that each rank keeps, too.
  for (size_t s = 0; s < singles.size(); ++s) {
    for (uint32_t r = 0; r < world(); ++r) {
      for (const auto& theirs : singles[s]->session(r).active().store.entries()) {
        const bool mine = std::ranges::any_of(alone()[s].parameters, [&](uint32_t p) {
          return theirs.name.find("/" + model()[p].name) != std::string::npos;
        });
        if (!mine) continue;
        bool found = false;
        for (const auto& ours : group.session(r).active().store.entries()) {
          if (ours.name != theirs.name) continue;
          found = true;
          EXPECT_TRUE(std::ranges::equal(ours.values, theirs.values)) << ours.name;
        }
        EXPECT_TRUE(found) << theirs.name;
      }
    }
  }
}

TEST_P(Rules, BucketsChangeNoValue) {
  Ranks one(setup());
  Ranks two(setup());
  const Layout whole = back_to_back(model(), kAll);
  const std::vector<Layout> buckets{back_to_back(model(), {kFc1, kEmbed, kBias}),
                                    back_to_back(model(), {kHead, kFc3, kNorm}),
                                    back_to_back(model(), {kConv, kFc2})};
  for (uint64_t step = 0; step < 3; ++step) {
    auto all = gradients(world(), whole.elements, step + 7);
    const auto originals = all;
    for (const auto& result : one.exchange(whole, all, step)) ASSERT_TRUE(result);
    for (const Layout& bucket : buckets) {
      std::vector<std::vector<float>> parts(world(), std::vector<float>(bucket.elements));
      for (uint32_t r = 0; r < world(); ++r) {
        auto from = originals[r];
        for (const uint32_t p : bucket.parameters)
          std::ranges::copy(of(from, whole, p), of(parts[r], bucket, p).begin());
      }
      for (const auto& result : two.exchange(bucket, parts, step)) ASSERT_TRUE(result);
      for (const uint32_t p : bucket.parameters) {
        // Parameters without a codec are added by any strategy that is there: the same sum, rounded
        // elsewhere.
        const bool raw = p == kBias || p == kNorm || p == kHead;
        const auto a = of(all[0], whole, p);
        const auto b = of(parts[0], bucket, p);
        for (size_t i = 0; i < a.size(); ++i) {
          if (raw) {
            ASSERT_NEAR(a[i], b[i], 1e-8);
          } else {
            ASSERT_EQ(a[i], b[i]) << model()[p].name;
          }
        }
      }
    }
  }
}

/// One batch where the first of two_shot's two rounds goes out with all others' only one.
TEST_P(Rules, PartsAreSentTogether) {
  Ranks group(setup());
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(world(), layout.elements, 3);
  for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);  // enrols
  buffers = gradients(world(), layout.elements, 4);
  std::vector<std::vector<uint32_t>> sizes(world());
  group.on_all([&](uint32_t r) {
    const auto counts = [&](std::span<Step> batch, uint32_t, session::Timing&) {
      sizes[r].push_back(static_cast<uint32_t>(batch.size()));
    };
    ASSERT_TRUE(group.drive(r, layout, buffers[r], 1, {.ran = counts}));
  });
  // two_shot's way up, topk's bundles, lanes of float32 (PowerSGD's P among them) and of float16,
  // thc's maxima; then two_shot's way down, PowerSGD's Q, thc's codes.
  const std::vector<uint32_t> expected{5, 3};
  for (uint32_t r = 0; r < world(); ++r) EXPECT_EQ(sizes[r], expected);
}

/// In each strategy in turn.
TEST_P(Rules, NonFiniteGradientSendsWholeBucketUncompressed) {
  for (const uint32_t bad : {kEmbed, kFc1, kFc2, kFc3}) {
    Ranks group(setup());
    const Layout layout = back_to_back(model(), kAll);
    auto buffers = gradients(world(), layout.elements, 5);
    for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);
    std::vector<std::vector<float>> before;
    for (uint32_t r = 0; r < world(); ++r) {
      for (const auto& e : group.session(r).active().store.entries())
        before.emplace_back(e.values.begin(), e.values.end());
    }
    buffers = gradients(world(), layout.elements, 6);
    of(buffers[world() - 1], layout, bad)[17] = std::numeric_limits<float>::infinity();
    const auto mean = exact_mean(buffers);
    for (const auto& result : group.exchange(layout, buffers, 1))
      ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(group.session(0).stats().fallbacks, 1U);
    for (uint64_t i = 0; i < layout.elements; ++i) {
      if (std::isfinite(mean[i])) {
        ASSERT_NEAR(buffers[0][i], mean[i], 1e-6);
      }
    }
    size_t k = 0;
    for (uint32_t r = 0; r < world(); ++r) {
      for (const auto& e : group.session(r).active().store.entries()) {
        const auto& old = before[k++];
        if (e.kind == feedback::StateKind::codec_state) continue;
        for (size_t i = 0; i < old.size(); ++i) ASSERT_NEAR(e.values[i], old[i], 1e-6) << e.name;
      }
    }
    // And the next one goes as always.
    buffers = gradients(world(), layout.elements, 7);
    for (const auto& result : group.exchange(layout, buffers, 2)) ASSERT_TRUE(result);
    for (uint32_t r = 1; r < world(); ++r) ASSERT_TRUE(same_bits(buffers[0], buffers[r]));
  }
}

/// The engine fails in the first batch, and in the second, when topk's part is already delivered.
TEST_P(Rules, LostPeerLosesNothingOfAnyPart) {
  for (const uint32_t batch_of_failure : {0U, 1U}) {
    Ranks group(setup());
    const Layout layout = back_to_back(model(), kAll);
    auto buffers = gradients(world(), layout.elements, 1);
    for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);
    std::map<uint32_t, double> before;
    for (const uint32_t p : {kEmbed, kFc1, kFc2, kFc3})
      before[p] = residual_sum(group, model()[p].name);
    buffers = gradients(world(), layout.elements, 2);
    const auto undelivered = exact_mean(buffers);
    group.on_all([&](uint32_t r) {
      const auto until = [&](std::span<Step>, uint32_t number) {
        return number != batch_of_failure;
      };
      const auto failed = group.drive(r, layout, buffers[r], 1, {.issues = until});
      ASSERT_FALSE(failed);
      EXPECT_EQ(failed.error().code, Errc::engine_failed) << failed.error().message;
    });
    for (const uint32_t p : {kEmbed, kFc1, kFc2, kFc3}) {
      double gone = 0;
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        if (layout.parameters[i] != p) continue;
        for (uint64_t k = 0; k < model()[p].count(); ++k)
          gone += undelivered[layout.offsets[i] + k];
      }
      EXPECT_NEAR(residual_sum(group, model()[p].name), before[p] + gone, 1e-4) << model()[p].name;
    }
  }
}

TEST_P(Rules, FailureOfOneRankGivesSameMessageOnAll) {
  Ranks group(setup());
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(world(), layout.elements, 1);
  for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);
  std::vector<std::string> messages(world());
  group.on_all([&](uint32_t r) {
    const auto fails = [&](collective::Exchange& exchange) {
      if (r == world() - 1) exchange.fail(Error{Errc::internal, "the disk is on fire", {}});
    };
    const auto failed = group.drive(r, layout, buffers[r], 1, {.begun = fails});
    ASSERT_FALSE(failed);
    messages[r] = failed.error().message;
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("the disk is on fire"), std::string::npos) << message;
    EXPECT_EQ(message, messages[0]);
  }
  buffers = gradients(world(), layout.elements, 2);
  for (const auto& result : group.exchange(layout, buffers, 2)) EXPECT_TRUE(result);
}

/// Damage that one rank alone sees, in topk's part, while two_shot has one more round: all ranks
/// receive the error there, and every rank still has its gradient.
TEST_P(Rules, FailureInOnePartIsReportedByOthers) {
  Ranks group(setup());
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(world(), layout.elements, 1);
  for (const auto& result : group.exchange(layout, buffers, 0)) ASSERT_TRUE(result);
  std::map<uint32_t, double> before;
  for (const uint32_t p : {kEmbed, kFc1, kFc2, kFc3})
    before[p] = residual_sum(group, model()[p].name);
  buffers = gradients(world(), layout.elements, 2);
  const auto undelivered = exact_mean(buffers);
  std::vector<std::string> messages(world());
  group.on_all([&](uint32_t r) {
    const auto damages = [&](std::span<Step> batch, uint32_t number, session::Timing&) {
      for (const Step& step : batch) {
        if (number == 0 && r == 0 && step.kind == StepKind::all_gather)
          std::memset(step.recv + step.recv_offsets[1], 0x55, step.recv_counts[1]);
      }
    };
    const auto failed = group.drive(r, layout, buffers[r], 1, {.ran = damages});
    ASSERT_FALSE(failed);
    messages[r] = failed.error().message;
  });
  for (uint32_t r = 0; r < world(); ++r) EXPECT_FALSE(messages[r].empty()) << "rank " << r;
  for (uint32_t r = 1; r < world(); ++r)
    EXPECT_NE(messages[r].find("rank 0"), std::string::npos) << messages[r];
  for (const uint32_t p : {kEmbed, kFc1, kFc2, kFc3}) {
    double gone = 0;
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      if (layout.parameters[i] != p) continue;
      for (uint64_t k = 0; k < model()[p].count(); ++k) gone += undelivered[layout.offsets[i] + k];
    }
    EXPECT_NEAR(residual_sum(group, model()[p].name), before[p] + gone, 1e-4) << model()[p].name;
  }
}

TEST_P(Rules, FlushEmptiesResidualsOfEveryPart) {
  Ranks group(setup());
  const Layout layout = back_to_back(model(), kAll);
  for (uint64_t step = 0; step < 4; ++step) {
    if (step == 2) {
      ASSERT_TRUE(group.session(0).flush(1));
    }
    auto buffers = gradients(world(), layout.elements, step + 20);
    for (const auto& result : group.exchange(layout, buffers, step)) ASSERT_TRUE(result);
    if (step == 1) {
      EXPECT_GT(group.session(world() - 1).stats().residual_norm, 0.0);
    }
  }
  for (uint32_t r = 0; r < world(); ++r) EXPECT_EQ(group.session(r).stats().residual_norm, 0.0);
}

std::string name_of(const testing::TestParamInfo<Rules::ParamType>& info) {
  return std::to_string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_short" : "_ranks");
}
INSTANTIATE_TEST_SUITE_P(All, Rules,
                         testing::Combine(testing::ValuesIn(kOneWorld
                                                                ? std::vector<uint32_t>{2}
                                                                : std::vector<uint32_t>{2, 3}),
                                          testing::Bool()),
                         name_of);

// ---- at create ----

collective::Options options(uint32_t rank = 0) {
  collective::Options o;
  o.rank = rank;
  o.world = 2;
  o.small_elements = 16;
  o.caps.sums = kAllSums;
  return o;
}

std::string refused(const std::vector<Rule>& rules, collective::Options o = options()) {
  const auto made = Session::create("thc", model(), o, rules);
  return made ? "" : made.error().message;
}

TEST(RulesAtCreate, BadRulesAreRefusedWithMessage) {
  EXPECT_EQ(refused({rule("embed.*", "topk")}), "");
  EXPECT_NE(refused({rule("embed.*", "topk"), rule("fc*", "topq")}).find("rule 2"),
            std::string::npos);
  EXPECT_NE(refused({rule("nothing", "topk")}).find("nothing"), std::string::npos);
  EXPECT_NE(refused({rule("[a", "topk")}).find("[a"), std::string::npos);
  EXPECT_NE(refused(std::vector<Rule>(32, rule("*", "topk"))).find("31"), std::string::npos);
  collective::Options by_server = options();
  by_server.caps.aggregates = true;
  EXPECT_EQ(refused({rule("embed.*", "topk")}, by_server), "");
  EXPECT_NE(refused({rule("embed.*", "thc:bits=2")}, by_server).find("one spec"),
            std::string::npos);
  EXPECT_EQ(refused({rule("embed.*", "thc:bits=2")}), "");  // lanes of an engine carry both
}

TEST(RulesAtCreate, DifferingRulesAreReported) {
  const auto cards_of = [](const std::vector<Rule>& first, const std::vector<Rule>& second) {
    const auto a = Session::create("3lc", model(), options(0), first);
    const auto b = Session::create("3lc", model(), options(1), second);
    EXPECT_TRUE(a && b);
    std::vector<uint8_t> cards;
    for (const auto& card :
         {session::agreement_card((*a)->active()), session::agreement_card((*b)->active())})
      cards.insert(cards.end(), card.begin(), card.end());
    const auto agreed = session::check_agreement((*a)->active(), cards);
    return agreed ? "" : agreed.error().message;
  };
  EXPECT_EQ(cards_of(rules(), rules()), "");
  auto others = rules();
  others[1].spec = "bf16";
  EXPECT_NE(cards_of(rules(), others).find("the rules"), std::string::npos);
  others = rules();
  others[0].min_elements = 1;  // the same classes, by another rule
  EXPECT_NE(cards_of(rules(), others).find(others[0].match + " from 1=" + others[0].spec),
            std::string::npos);
  others.push_back(rule(std::string(200, 'x'), "fp16"));  // too long for a card
  others.push_back(rule("embed.*", "fp16"));
  for (std::size_t i = others.size() - 2; i < others.size(); ++i) others[i].optional = true;
  EXPECT_EQ(cards_of(others, others), "");
  auto more = others;
  more.back().max_elements = 1U << 20U;
  EXPECT_NE(cards_of(others, more).find("the rules"), std::string::npos);
  EXPECT_NE(cards_of(rules(), {}).find("the rules"), std::string::npos);
}

TEST(RulesAtCreate, SavedStateBelongsToItsRules) {
  const auto header_of = [](const std::vector<Rule>& rules) {
    return (*Session::create("3lc", model(), options(), rules))->active().state_header();
  };
  EXPECT_EQ(header_of({}).spec, "3lc");
  EXPECT_TRUE(feedback::accepts(header_of(rules()), header_of(rules())));
  EXPECT_FALSE(feedback::accepts(header_of(rules()), header_of({})));
  auto others = rules();
  others[0].spec = "topk:ratio=0.06";
  EXPECT_FALSE(feedback::accepts(header_of(rules()), header_of(others)));
}

}  // namespace
}  // namespace laconic::test
