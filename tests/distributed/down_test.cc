// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot whose means are encoded by another codec than the contributions: what is accepted, saved
// and reported, and how a policy or set() changes it. oracle_test.cc compares the bits.
#include <gtest/gtest.h>

#include "base/hash.h"
#include "laconic/session.h"
#include "session/describe.h"
#include "session/saved_state.h"
#include "support/even_codec.h"
#include "support/ranks.h"
#include "wire/bundle.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}, {"c", 31, 67}};
const Layout kWhole = back_to_back(kModel, {0, 1, 2, 3});

test::Setup setup(const std::string& spec, const std::string& down, uint32_t world = 3) {
  test::Setup made{spec, world, kModel};
  made.down = down;
  return made;
}

Options options(uint32_t world, StrategyKind strategy = StrategyKind::automatic) {
  Options o;
  o.world = world;
  o.small_elements = 16;
  o.strategy = strategy;
  o.caps.sums = kAllSums;
  return o;
}

/// The message, then the hint; empty: nothing is wrong.
std::string refusal(const std::string& spec, const std::string& down, Options o,
                    const std::vector<Rule>& rules = {}) {
  Even even;
  const auto own = even.table();
  o.codecs.push_back(*codecs::Registered::create(own));
  const auto made = Session::create(spec, kModel, o, rules, {}, {}, down);
  return made ? "" : made.error().message + " | " + made.error().hint;
}

TEST(Down, OtherStrategiesAndMultiRoundCodecsAreRefused) {
  EXPECT_EQ(refusal("3lc", "int8", options(4)), "");
  EXPECT_EQ(refusal("3lc", "int8", options(4, StrategyKind::two_shot)), "");
  EXPECT_EQ(refusal("3lc", "int8", options(1)), "");
  EXPECT_EQ(refusal("3lc", "int8", options(4, StrategyKind::gather_all)),
            "down=int8: strategy gather_all has no owners that send means | omit strategy "
            "or down");
  EXPECT_EQ(refusal("fp16", "int8", options(1, StrategyKind::native_sum)),
            "down=int8: strategy native_sum has no owners that send means | omit strategy "
            "or down");
  const std::string instead = " | use another codec for down, such as int8";
  EXPECT_EQ(
      refusal("3lc", "powersgd:rank=2", options(4)),
      "down=powersgd:rank=2: owners send ranges of parameters, which this codec cannot encode" +
          instead);
  EXPECT_EQ(
      refusal("3lc", "even", options(4)),
      "down=even: owners send ranges of parameters, which this codec cannot encode" + instead);
  EXPECT_EQ(refusal("3lc", "thc", options(4)),
            "down=thc: owners send means in one round, and this codec needs several" + instead);
  EXPECT_EQ(refusal("powersgd", "int8", options(4)),
            "strategy two_shot cannot carry powersgd: it needs several all-reduce rounds | "
            "omit down");
  EXPECT_EQ(refusal("even", "int8", options(4)),
            "strategy two_shot cannot carry even: it cannot encode part of a parameter | "
            "omit down");
  EXPECT_TRUE(refusal("3lc", "int9", options(4)).starts_with("down: ")) << "an unknown spec";
}

TEST(Down, TwoShotIsChosenOverPlanner) {
  for (const char* spec : {"topk:ratio=0.01", "none", "fp16", "int8"}) {
    const auto made = Session::create(spec, kModel, options(2), {}, {}, {}, "3lc");
    ASSERT_TRUE(made) << made.error().message;
    const collective::Model& model = (*made)->model();
    EXPECT_EQ(model.choice().strategy, StrategyKind::two_shot) << spec;
    EXPECT_EQ(model.choice().reason, "means are encoded by 3lc");
    EXPECT_FALSE(model.assignment(0).raw) << spec;
  }
  const auto made = Session::create("none", kModel, options(2), {}, {}, {}, "none");
  ASSERT_TRUE(made);
  EXPECT_TRUE((*made)->model().assignment(0).raw);
}

TEST(Down, RulesWithOwnSpecIgnoreDownSpec) {
  Rule still;
  still.match = "c";
  const auto made = Session::create("3lc", kModel, options(4),
                                    std::vector{rule("b", "fp16"), still}, {}, {}, "int8");
  ASSERT_TRUE(made) << made.error().message;
  const collective::Model& model = (*made)->model();
  EXPECT_EQ(model.spec(0, 1).canonical(), "int8");
  EXPECT_EQ(collective::down_of(model, 1), nullptr);
  EXPECT_EQ(model.choice(1).strategy, StrategyKind::native_sum);
  EXPECT_EQ(model.spec(2, 1).canonical(), "int8") << "a rule without one has the call's";
}

TEST(Down, RangesAlignToBlocksOfBothCodecs) {
  const auto made = Session::create("3lc", {{"w", 20000, 1}, {"few", 3000, 1}}, options(3), {}, {},
                                    {}, "int8:block=256");
  ASSERT_TRUE(made) << made.error().message;
  const auto& cut = (*made)->model().assignment(0);
  ASSERT_EQ(cut.pieces.size(), 3U);
  for (const auto& piece : cut.pieces) EXPECT_EQ(piece.unit.offset % 1280, 0U);
  EXPECT_EQ(cut.pieces[1].unit.offset, 5 * 1280U);
  const auto& whole = (*made)->model().assignment(1);
  EXPECT_EQ(whole.pieces.size(), 1U) << "3000 elements are not 3 times 1280";
}

TEST(Down, PredictedBytesCoverBothDirections) {
  const auto sent = [](const std::string& spec, const std::string& down) {
    auto group = Ranks(setup(spec, down, 4));
    auto g = gradients(4, kWhole.elements, 1);
    for (const auto& done : group.exchange(kWhole, g, 0)) EXPECT_TRUE(done);
    const uint64_t enrolment = 3 * 640;
    return std::pair{collective::bytes_of_class(group.session(0).model(), 0),
                     group.session(0).stats().counters.wire_bytes - enrolment};
  };
  for (const auto& [spec, down] : {std::pair{"int8:block=64", "none"}, {"none", "int8:block=64"}}) {
    const auto [predicted, found] = sent(spec, down);
    EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(found),
                0.05 * static_cast<double>(found))
        << spec << " up, " << down << " down";
  }
  const auto [both, found] = sent("int8:block=64", "none");
  EXPECT_GT(both, 9 * sent("int8:block=64", "int8:block=64").first / 4) << found;
}

TEST(Down, AgreementAndSavedStateIncludeDownSpec) {
  const auto header = [](const std::string& spec, const std::string& down) {
    return (*Session::create(spec, kModel, options(2, StrategyKind::two_shot), {}, {}, {}, down))
        ->active()
        .state_header();
  };
  EXPECT_EQ(header("3lc", "").spec, "3lc");
  EXPECT_EQ(header("3lc", "int8").spec, "3lc;down=int8");
  EXPECT_NE(header("3lc", "int8").agreement, header("3lc", "").agreement);
  EXPECT_NE(header("3lc", "int8").agreement, header("3lc", "int8:block=64").agreement);

  LoopbackHub hub(2, std::chrono::seconds(60));
  std::vector<std::string> why(2);
  on_all(2, [&](uint32_t r) {
    SessionOptions o;
    o.down = r == 0 ? "int8" : "";
    const auto made = laconic::Session::create("3lc", kModel, hub.engine(r), o);
    why[r] = made ? "" : made.error().message;
  });
  EXPECT_EQ(why[0],
            "ranks disagree on the spec: rank 0 has '3lc with down=int8', rank 1 has '3lc'");
  EXPECT_EQ(why[1], why[0]);
}

TEST(Down, SavedStateContinuesBitForBit) {
  for (const auto& [spec, down] : {std::pair{"3lc", "topk:ratio=0.1"},
                                   {"none", "3lc"},
                                   {"topk:ratio=0.1+momentum=0.75", "randomk:ratio=0.1"}}) {
    Ranks whole(setup(spec, down)), second(setup(spec, down));
    for (uint64_t step = 0; step < 6; ++step) {
      auto g = gradients(3, kWhole.elements, step + 1);
      auto again = g;
      for (uint32_t r = 0; step == 3 && r < 3; ++r) {
        const auto saved = session::save_state(whole.session(r));
        ASSERT_TRUE(saved);
        ASSERT_TRUE(session::load_state(second.session(r), *saved));
      }
      for (const auto& done : whole.exchange(kWhole, g, step)) ASSERT_TRUE(done);
      if (step < 3) continue;
      for (const auto& done : second.exchange(kWhole, again, step)) ASSERT_TRUE(done);
      for (uint32_t r = 0; r < 3; ++r) {
        EXPECT_TRUE(same_bits(g[r], again[r])) << spec << ", " << down;
        EXPECT_EQ(*session::save_state(whole.session(r)), *session::save_state(second.session(r)));
      }
    }
    Ranks other(setup(spec, "int8"));
    const auto refused =
        session::load_state(other.session(0), *session::save_state(whole.session(0)));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::state_spec);
  }
}

TEST(Down, ExplainNamesDownSpec) {
  Ranks group(setup("3lc", "int8"));
  const std::string told = session::explain(group.session(0));
  EXPECT_NE(told.find(R"("spec": "3lc", "down": "int8")"), std::string::npos) << told;
  EXPECT_NE(told.find(R"("mean_bytes_at_most": )"), std::string::npos) << told;
  Ranks same(setup("3lc", ""));
  EXPECT_NE(session::explain(same.session(0)).find(R"("spec": "3lc", "down": null)"),
            std::string::npos);
}

/// A policy changes the spec of the contributions.
TEST(Down, DownSpecStaysWhenPolicyMovesSpec) {
  test::Setup made = setup("topk:ratio=0.05", "topk:ratio=0.5");
  made.control = "schedule:0=0.05,2=0.2,4=0.01";
  Ranks group(made);
  for (uint64_t step = 0; step < 6; ++step) {
    auto g = gradients(3, kWhole.elements, step + 1);
    for (const auto& done : group.exchange(kWhole, g, step)) ASSERT_TRUE(done);
    const collective::Model& model = group.session(0).model();
    EXPECT_EQ(model.spec(0).moved_text(), step < 2   ? "topk:ratio=0.05"
                                          : step < 4 ? "topk:ratio=0.2"
                                                     : "topk");
    EXPECT_EQ(model.spec(0, 1).moved_text(), "topk:ratio=0.5");
  }
  const std::string told = session::explain(group.session(0));
  EXPECT_NE(told.find(R"("down": "topk:ratio=0.5")"), std::string::npos) << told;
}

std::string set(Ranks& group, const session::Change& change) {
  std::vector<uint8_t> cards(group.world() * session::kAgreementBytes);
  std::vector<Result<void>> results(group.world());
  for (uint32_t r = 0; r < group.world(); ++r) {
    (void)group.session(r).proposal().prepare(change);
    std::memcpy(cards.data() + r * session::kAgreementBytes,
                group.session(r).proposal().card().data(), session::kAgreementBytes);
  }
  for (uint32_t r = 0; r < group.world(); ++r) results[r] = group.session(r).proposal().end(cards);
  return results[0] ? "" : results[0].error().message;
}

/// The difference between input and output is kept, whatever is set in between.
TEST(Down, ResidualsSurviveSet) {
  Ranks group(setup("int8", "3lc"));
  std::vector<double> owed(kWhole.elements);
  uint64_t step = 0;
  const auto run = [&](int steps) {
    for (; steps > 0; --steps, ++step) {
      auto g = gradients(3, kWhole.elements, step + 1);
      const auto mean = exact_mean(g);
      for (const auto& done : group.exchange(kWhole, g, step)) ASSERT_TRUE(done);
      for (size_t k = 0; k < owed.size(); ++k) owed[k] += mean[k] - double{g[0][k]};
    }
  };
  const auto balance = [&] {
    double sum = 0;
    for (const double x : owed) sum += x;
    EXPECT_NEAR(residual_sum(group), sum, 0.02);
  };
  ASSERT_NO_FATAL_FAILURE(run(3));
  ASSERT_NO_FATAL_FAILURE(balance());
  EXPECT_EQ(set(group, {.spec = "int8:round=stochastic"}), "") << "owners keep theirs";
  ASSERT_NO_FATAL_FAILURE(run(2));
  ASSERT_NO_FATAL_FAILURE(balance());
  EXPECT_NE(set(group, {.down = "int8"}).find("keeps no residuals"), std::string::npos);
  for (int n = 0; n < 20 && group.session(0).stats().flush_steps_left == 0; ++n) run(1);
  while (group.session(0).stats().flush_steps_left != 0) run(1);
  EXPECT_EQ(residual_sum(group), 0.0);
  EXPECT_EQ(set(group, {.down = "int8"}), "");
  EXPECT_EQ(set(group, {.plan = "gather_all"}),
            "rank 0: down=int8: strategy gather_all has no owners that send means");
  EXPECT_EQ(set(group, {.spec = "3lc", .plan = "gather_all", .down = ""}), "");
  ASSERT_NO_FATAL_FAILURE(run(2));
}

/// An owner whose bundle has a payload longer than the way down allows, and one that is shorter by
/// as much: bounds of the way up would let it pass.
class Shifting final : public Engine {
 public:
  explicit Shifting(Engine& engine) : engine_(&engine) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    uint8_t* own = batch[0].send;
    if (rank() == 0 && batch[0].kind == StepKind::all_gather && own[5] == 1) shift(own);
    return engine_->run(batch);
  }

 private:
  static void shift(uint8_t* bundle) {
    uint8_t* const slots = bundle + kBundleHeaderBytes;
    store(slots, load<uint32_t>(slots) + 4);
    store(slots + 4, load<uint32_t>(slots + 4) - 4);
    const auto bytes = load<uint64_t>(bundle + 32);
    store(bundle + 8, hash64(Bytes(bundle + 16, bytes - 16), load<uint64_t>(bundle)));
  }
  Engine* engine_;
};

TEST(Down, PayloadOverBoundOfWayDownIsRefused) {
  Ranks group(setup("none", "int8:block=64"));
  auto g = gradients(3, kWhole.elements, 1);
  std::vector<Result<void>> results(3);
  group.on_all([&](uint32_t r) {
    Shifting engine(group.hub().engine(r));
    Bucket bucket;
    bucket.buffer = g[r].data();
    results[r] = session::drive(group.session(r), bucket, kWhole, engine);
  });
  for (uint32_t r = 0; r < 3; ++r) {
    ASSERT_FALSE(results[r]) << r;
    EXPECT_EQ(results[r].error().code, Errc::bound_exceeded) << results[r].error().message;
  }
}

}  // namespace
}  // namespace laconic::test
