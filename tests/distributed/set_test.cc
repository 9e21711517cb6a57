// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Settings replaced by hand between two steps: on all ranks or on none, nothing lost, and from then
// on what a session of these settings would have done.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "control/replay.h"
#include "laconic/registry.h"
#include "laconic/session.h"
#include "session/describe.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

using session::Change;

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> parameters{
      {"a.weight", 60, 40}, {"b.weight", 31, 67}, {"bias", 9, 1}, {"c.weight", 12, 20}};
  return parameters;
}
const std::vector<uint32_t> kAll{3, 2, 1, 0};

/// As a driver does it: every rank prepares its change, reports its card, and ends with all cards.
std::vector<Result<void>> set_each(Ranks& group, const std::vector<Change>& changes) {
  std::vector<uint8_t> cards(group.world() * session::kAgreementBytes);
  std::vector<Result<void>> results(group.world());
  group.on_all([&](uint32_t r) {
    const auto ready = group.session(r).proposal().prepare(changes[r]);
    EXPECT_TRUE(group.session(r).proposal().open());
    std::memcpy(cards.data() + r * session::kAgreementBytes,
                group.session(r).proposal().card().data(), session::kAgreementBytes);
  });
  group.on_all([&](uint32_t r) { results[r] = group.session(r).proposal().end(cards); });
  for (uint32_t r = 0; r < group.world(); ++r) {
    EXPECT_EQ(results[r].ok(), results[0].ok());
    EXPECT_FALSE(group.session(r).proposal().open());
    if (!results[r]) {
      EXPECT_EQ(results[r].error().message, results[0].error().message);
    }
  }
  return results;
}
std::string set(Ranks& group, const Change& change) {
  const auto results = set_each(group, std::vector<Change>(group.world(), change));
  return results[0] ? "" : results[0].error().message;
}

/// For each element of the layout, what went in, came out, and is kept.
class Books {
 public:
  Books(Ranks& group, std::vector<Layout> buckets) : group_(&group), buckets_(std::move(buckets)) {
    for (const Layout& layout : buckets_) {
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        const uint64_t n = model()[layout.parameters[i]].count();
        in_[layout.parameters[i]].resize(n);
        magnitude_[layout.parameters[i]].resize(n);
      }
    }
    out_ = in_;
  }

  /// One step, from the same gradients whatever the buckets.
  void step() {
    const uint32_t world = group_->world();
    const Layout whole = back_to_back(model(), kAll);
    const auto all = gradients(world, whole.elements, step_ + 1);
    for (const Layout& layout : buckets_) {
      std::vector<std::vector<float>> buffers(world, std::vector<float>(layout.elements));
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        const uint32_t p = layout.parameters[i];
        for (uint32_t r = 0; r < world; ++r)
          std::copy_n(all[r].data() + first_of(whole, p), model()[p].count(),
                      buffers[r].data() + layout.offsets[i]);
      }
      const auto mean = exact_mean(buffers);
      for (const auto& result : group_->exchange(layout, buffers, step_))
        ASSERT_TRUE(result) << result.error().message;
      for (uint32_t r = 1; r < world; ++r) ASSERT_TRUE(same_bits(buffers[0], buffers[r]));
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        const uint32_t p = layout.parameters[i];
        for (uint64_t k = 0; k < model()[p].count(); ++k) {
          in_[p][k] += mean[layout.offsets[i] + k];
          magnitude_[p][k] += std::abs(mean[layout.offsets[i] + k]);
          out_[p][k] += static_cast<double>(buffers[0][layout.offsets[i] + k]);
          last_[p].resize(model()[p].count());
          last_[p][k] = buffers[0][layout.offsets[i] + k];
        }
      }
    }
    ++step_;
  }
  void steps(int n) {
    while (n-- > 0) ASSERT_NO_FATAL_FAILURE(step());
  }
  /// The same steps on other ranks.
  void continue_with(Ranks& group) { group_ = &group; }
  /// The means of the last step.
  [[nodiscard]] const std::map<uint32_t, std::vector<float>>& last() const { return last_; }

  /// sent + residual = input in every element, within roundings: 1e-6 of the magnitudes that were
  /// added there, and 1e-7 for what it was encoded with.
  void balance() {
    auto kept = out_;
    for (uint32_t r = 0; r < group_->world(); ++r) {
      for (const auto& e : group_->session(r).active().store.entries()) {
        const bool owned = e.kind == feedback::StateKind::owner_residual;
        if (!owned && e.kind != feedback::StateKind::residual) continue;
        const std::string name = e.name.substr(e.name.find('/') + 1);
        const size_t at = name.find('@');
        const size_t offset = at == std::string::npos ? 0 : std::stoul(name.substr(at + 1));
        for (uint32_t p = 0; p < model().size(); ++p) {
          if (model()[p].name != name.substr(0, at)) continue;
          for (size_t k = 0; k < e.values.size(); ++k)
            kept[p][offset + k] += static_cast<double>(e.values[k]) / (owned ? 1 : group_->world());
        }
      }
    }
    for (const auto& [p, values] : in_) {
      for (size_t k = 0; k < values.size(); ++k)
        ASSERT_NEAR(kept.at(p)[k], values[k], 1e-6 * magnitude_.at(p)[k] + 1e-7)
            << model()[p].name << " " << k;
    }
  }

 private:
  static uint64_t first_of(const Layout& layout, uint32_t parameter) {
    const auto at = std::ranges::find(layout.parameters, parameter) - layout.parameters.begin();
    return layout.offsets[static_cast<size_t>(at)];
  }

  Ranks* group_;
  std::vector<Layout> buckets_;
  std::map<uint32_t, std::vector<double>> in_, out_, magnitude_;
  std::map<uint32_t, std::vector<float>> last_;
  uint64_t step_ = 0;
};

/// Sets; where residuals cannot be carried over, all ranks receive that, and set again when the
/// residuals have been sent.
void set_behind_residuals(Ranks& group, Books& books, const Change& change, bool flushes) {
  const std::string refused = set(group, change);
  EXPECT_EQ(refused.find("has a residual that must be sent first") != std::string::npos, flushes)
      << refused;
  if (refused.empty()) return;
  for (uint32_t r = 0; r < group.world(); ++r) {
    EXPECT_TRUE(group.session(r).active().flush.releases());
    ASSERT_TRUE(group.session(r).flush(1));  // instead of ten steps
  }
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  EXPECT_FALSE(group.session(0).active().flush.releases());
  EXPECT_EQ(set(group, change), "");
}

struct Case {
  std::string spec;
  StrategyKind strategy = StrategyKind::automatic;
  bool conserves = false;  ///< sent + residual = input
  bool remembers = false;
};

/// Every codec, with a residual if it may have one, by every strategy that carries it.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const CodecTable* codec : all_codecs()) {
    const std::string name(codec->info.name);
    if (!in_exchanges(name)) continue;
    auto spec = Spec::parse(name + "+ef");
    if (!spec) spec = Spec::parse(name);
    const bool residual = spec->memory().kind == MemoryKind::residual;
    for (const auto strategy :
         {StrategyKind::gather_all, StrategyKind::two_shot, StrategyKind::native_sum}) {
      Options o;
      o.world = 2;
      o.strategy = strategy;
      o.caps.sums = kAllSums;
      o.small_elements = 16;
      if (!Session::create(spec->canonical(), model(), o)) continue;
      // 16-bit lanes are rounded by the engine that adds them.
      const bool rounded =
          strategy == StrategyKind::native_sum && (name == "fp16" || name == "bf16");
      all.push_back({spec->canonical(), strategy, (residual && !rounded) || name == "none",
                     spec->feedback()});
    }
  }
  return all;
}

std::string plan_of(const Case& c) { return std::string(collective::strategy_name(c.strategy)); }
test::Setup setup(const Case& c, uint32_t world) {
  return {c.spec, world, model(), c.strategy, 16};
}

const std::vector<Case>& partners() {
  static const std::vector<Case> all{{"none", StrategyKind::native_sum, true, false},
                                     {"topk:ratio=0.05", StrategyKind::gather_all, true, true},
                                     {"topk:ratio=0.05", StrategyKind::two_shot, true, true},
                                     {"powersgd:rank=2", StrategyKind::native_sum, true, true}};
  return all;
}

class ToAndFrom : public testing::TestWithParam<std::tuple<uint32_t, Case>> {
 protected:
  [[nodiscard]] static uint32_t world() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Case of() { return std::get<1>(GetParam()); }
};

TEST_P(ToAndFrom, NothingIsLostAndReplicasStayEqual) {
  const Case own = of();
  for (const Case& other : partners()) {
    SCOPED_TRACE(other.spec + " by " + plan_of(other));
    Ranks group(setup(own, world()));
    Books books(group, {back_to_back(model(), kAll)});
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
    const std::string plan = plan_of(own), other_plan = plan_of(other);
    set_behind_residuals(group, books, {.spec = other.spec, .plan = other_plan},
                         own.remembers && !other.remembers);
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
    set_behind_residuals(group, books, {.spec = own.spec, .plan = plan},
                         other.remembers && !own.remembers);
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
    if (own.conserves) {
      ASSERT_NO_FATAL_FAILURE(books.balance());
    }
    for (uint32_t r = 0; r < world(); ++r) {
      EXPECT_EQ(group.session(r).active().version(), 2U);
      EXPECT_EQ(group.session(r).model().spec().canonical(), own.spec);
    }
  }
}

std::string case_name(const testing::TestParamInfo<ToAndFrom::ParamType>& info) {
  std::string name = std::get<1>(info.param).spec + "_" + plan_of(std::get<1>(info.param)) + "_" +
                     std::to_string(std::get<0>(info.param));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, ToAndFrom,
                         testing::Combine(testing::ValuesIn(kOneWorld ? std::vector{2U}
                                                                      : std::vector{2U, 3U}),
                                          testing::ValuesIn(cases())),
                         case_name);

// ---- what of a setting is transport, what is state ----

/// Means and residuals are those of any other buckets.
TEST(Set, BucketsChangeNoValue) {
  for (const auto strategy : {StrategyKind::gather_all, StrategyKind::two_shot}) {
    std::vector<std::map<uint32_t, std::vector<float>>> last;
    const std::vector<std::vector<Layout>> both{
        {back_to_back(model(), kAll)},
        {back_to_back(model(), {1, 3}), back_to_back(model(), {0, 2})}};
    for (const auto& buckets : both) {
      Ranks group(setup({"3lc", strategy}, 3));
      Books books(group, buckets);
      ASSERT_NO_FATAL_FAILURE(books.steps(2));
      ASSERT_EQ(set(group, {.spec = "topk:ratio=0.05", .plan = "two_shot"}), "");
      ASSERT_NO_FATAL_FAILURE(books.steps(2));
      ASSERT_EQ(set(group, {.spec = "onebit", .plan = "gather_all"}), "");
      ASSERT_NO_FATAL_FAILURE(books.steps(2));
      ASSERT_NO_FATAL_FAILURE(books.balance());
      last.push_back(books.last());
    }
    for (const auto& [p, means] : last[0]) EXPECT_TRUE(same_bits(means, last[1].at(p)));
  }
}

void copy_state(Ranks& from, Ranks& to) {
  for (uint32_t r = 0; r < from.world(); ++r) {
    const auto& theirs = to.session(r).active().store.entries();
    const auto& ours = from.session(r).active().store.entries();
    ASSERT_EQ(theirs.size(), ours.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(theirs[i].name, ours[i].name);
      ASSERT_EQ(theirs[i].values.size(), ours[i].values.size());
      std::ranges::copy(ours[i].values, theirs[i].values.begin());
    }
    const auto header = to.session(r).active().state_header();
    EXPECT_TRUE(feedback::accepts(header, from.session(r).active().state_header()));
  }
}

/// A state that was saved after a change equals that of a session made with these settings.
TEST(Set, SavedStateMatchesNewSettings) {
  std::vector<Rule> rules{rule("b.*", "powersgd:rank=3")};
  rules[0].control = "fixed";
  const std::string control = "schedule:0=0.05,6=0.02,9=0.1";
  for (const auto strategy : {StrategyKind::gather_all, StrategyKind::two_shot}) {
    const std::string plan(collective::strategy_name(strategy));
    Ranks group(setup({"3lc", StrategyKind::two_shot}, 3));
    Books books(group, {back_to_back(model(), kAll)});
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
    ASSERT_EQ(
        set(group, {.spec = "topk:ratio=0.05", .rules = rules, .control = control, .plan = plan}),
        "");
    ASSERT_NO_FATAL_FAILURE(books.steps(3));
    test::Setup as_set = setup({"topk:ratio=0.05", strategy}, 3);
    as_set.rules = rules;
    as_set.control = control;
    Ranks resumed(as_set);
    copy_state(group, resumed);
    Books again = books;
    again.continue_with(resumed);
    ASSERT_NO_FATAL_FAILURE(books.steps(6));
    ASSERT_NO_FATAL_FAILURE(again.steps(6));
    for (const auto& [p, means] : books.last()) EXPECT_TRUE(same_bits(means, again.last().at(p)));
    EXPECT_EQ(group.session(0).model().spec().moved_text(), "topk:ratio=0.1");
    EXPECT_EQ(resumed.session(0).model().spec().moved_text(), "topk:ratio=0.1");
  }
}

std::vector<float> state_of(Ranks& group, const std::string& name, uint32_t rank = 0) {
  for (const auto& e : group.session(rank).active().store.entries()) {
    if (e.name.starts_with("state/" + name + "@")) return {e.values.begin(), e.values.end()};
  }
  return {};
}

bool begins_with(const std::vector<float>& longer, const std::vector<float>& shorter) {
  return same_bits({longer.begin(), longer.begin() + static_cast<int64_t>(shorter.size())},
                   shorter);
}

TEST(Set, PowerSgdKeepsColumnsSharedByBothRanks) {
  Ranks group(setup({"powersgd:rank=4", StrategyKind::native_sum}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(3));
  const auto four = state_of(group, "a.weight");
  ASSERT_EQ(set(group, {.spec = "powersgd:rank=2"}), "");
  const auto two = state_of(group, "a.weight");
  EXPECT_EQ(2 * two.size(), four.size());
  EXPECT_TRUE(begins_with(four, two));
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  const auto moved_on = state_of(group, "a.weight");
  EXPECT_FALSE(same_bits(moved_on, two));
  ASSERT_EQ(set(group, {.spec = "powersgd:rank=7"}), "");
  EXPECT_TRUE(begins_with(state_of(group, "a.weight"), moved_on));
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  ASSERT_NO_FATAL_FAILURE(books.balance());
}

/// Nothing is kept for another codec, or for the codec with fields that no policy changes.
TEST(Set, OtherCodecStateRestarts) {
  const auto first_of = [](const std::string& spec) {
    Ranks made(setup({spec}, 2));
    return state_of(made, "a.weight");
  };
  Ranks group(setup({"sidco:ratio=0.05", StrategyKind::gather_all}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(3));
  const auto adapted = state_of(group, "a.weight");
  EXPECT_FALSE(same_bits(adapted, first_of("sidco:ratio=0.05")));
  ASSERT_EQ(set(group, {.spec = "sidco:ratio=0.1"}), "");
  EXPECT_TRUE(same_bits(state_of(group, "a.weight"), adapted));
  ASSERT_EQ(set(group, {.spec = "powersgd:rank=2", .plan = "auto"}), "");
  EXPECT_TRUE(same_bits(state_of(group, "a.weight"), first_of("powersgd:rank=2")));
  ASSERT_EQ(set(group, {.spec = "sidco:ratio=0.05"}), "");
  ASSERT_NO_FATAL_FAILURE(books.steps(3));
  ASSERT_EQ(set(group, {.spec = "sidco:ratio=0.05,law=gp"}), "");
  EXPECT_TRUE(same_bits(state_of(group, "a.weight"), first_of("sidco:ratio=0.05,law=gp")));
}

/// The residual of the same range of a mean stays with its owner; that of another range joins the
/// owner's own residual.
TEST(Set, OwnersKeepResidualsOfTheirRanges) {
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 3));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  const auto owned = [&](uint32_t r) {
    std::map<std::string, std::vector<float>> found;
    for (const auto& e : group.session(r).active().store.entries()) {
      if (e.kind == feedback::StateKind::owner_residual)
        found[e.name] = {e.values.begin(), e.values.end()};
    }
    return found;
  };
  std::vector<std::map<std::string, std::vector<float>>> before;
  for (uint32_t r = 0; r < 3; ++r) before.push_back(owned(r));
  ASSERT_EQ(set(group, {.spec = "3lc:s=1.5"}), "");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(owned(r), before[r]);
  ASSERT_NO_FATAL_FAILURE(books.balance());
  ASSERT_EQ(set(group, {.plan = "gather_all"}), "");
  for (uint32_t r = 0; r < 3; ++r) EXPECT_TRUE(owned(r).empty());
  ASSERT_NO_FATAL_FAILURE(books.balance());
}

// ---- all ranks or none ----

/// A set() that failed has no effect.
void expect_untouched(const std::vector<Change>& changes, const std::string& says) {
  const Case of{"3lc", StrategyKind::two_shot};
  Ranks group(setup(of, 2)), never(setup(of, 2));
  Books books(group, {back_to_back(model(), kAll)}), theirs(never, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  ASSERT_NO_FATAL_FAILURE(theirs.steps(2));
  const auto results = set_each(group, changes);
  ASSERT_FALSE(results[0]);
  EXPECT_NE(results[0].error().message.find(says), std::string::npos) << results[0].error().message;
  EXPECT_EQ(results[0].error().message.find('\n'), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(books.steps(3));
  ASSERT_NO_FATAL_FAILURE(theirs.steps(3));
  for (const auto& [p, means] : books.last()) EXPECT_TRUE(same_bits(means, theirs.last().at(p)));
  EXPECT_EQ(group.session(0).active().version(), 0U);
  EXPECT_EQ(group.session(1).model().spec().canonical(), "3lc");
}

TEST(Set, DifferingRanksKeepTheirSettings) {
  expect_untouched({{.spec = "topk:ratio=0.05"}, {.spec = "topk:ratio=0.06"}},
                   "ranks disagree on the spec");
  expect_untouched({{.spec = "topk"}, {}}, "ranks disagree on the spec");
  expect_untouched({{.plan = "two_shot"}, {.plan = "gather_all"}},
                   "ranks disagree on the strategy");
  const std::vector<Rule> rules{rule("b.*", "onebit")};
  expect_untouched({{.rules = rules}, {}}, "ranks disagree on the rules");
  expect_untouched({{.control = "dc2"}, {.control = "dc2:deadline_ms=80"}},
                   "ranks disagree on the control");
}

TEST(Set, FailureOfOneRankGivesSameMessageOnAll) {
  expect_untouched({{.spec = "topk"}, {.spec = "topq"}}, "rank 1: ");
  expect_untouched({{.spec = "topq"}, {.spec = "topq"}}, "rank 0: ");
  expect_untouched({{.control = "dc3"}, {.control = "dc3"}}, "dc3");
  expect_untouched({{.plan = "three_shot"}, {.plan = "three_shot"}}, "three_shot");
  expect_untouched({{.spec = "topk", .plan = "native_sum"}, {}}, "rank 0: ");
}

TEST(Set, InvalidCardsChangeNothing) {
  constexpr size_t kRankAt = 8;  // behind the magic
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
  std::vector<uint8_t> cards(2 * session::kAgreementBytes);
  Session& s = group.session(0);
  EXPECT_FALSE(s.proposal().end(cards));  // nothing was prepared
  const auto with = [&](const std::function<void()>& damage) {
    EXPECT_TRUE(s.proposal().prepare({.spec = "topk"}));
    for (uint32_t r = 0; r < 2; ++r) {
      std::memcpy(cards.data() + r * session::kAgreementBytes, s.proposal().card().data(),
                  session::kAgreementBytes);
    }
    cards[session::kAgreementBytes + kRankAt] = 1;
    damage();
    return s.proposal().end(cards).ok();
  };
  for (size_t i = 0; i < 2 * session::kAgreementBytes; i += 5)
    EXPECT_FALSE(with([&] { cards[i] ^= 1U; })) << i;
  EXPECT_FALSE(with([&] { cards[kRankAt] = 1; }));
  EXPECT_FALSE(with([&] { cards.pop_back(); }));
  cards.resize(2 * session::kAgreementBytes);
  EXPECT_EQ(s.active().version(), 0U);
  EXPECT_TRUE(with([] {}));
  EXPECT_EQ(s.active().version(), 1U);
}

TEST(Set, SetDuringExchangesIsRefused) {
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(2, layout.elements, 1);
  Bucket bucket;
  bucket.buffer = buffers[0].data();
  ASSERT_TRUE(group.session(0).begin(bucket, layout));
  const auto refused = group.session(0).proposal().prepare({.spec = "topk"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::exchange_order);
}

TEST(Set, AggregationServerKeepsItsSettings) {
  for (const char* from : {"thc", "topk"}) {
    const bool serves = std::string(from) == "thc";
    Ranks group(setup({from, serves ? StrategyKind::server_sum : StrategyKind::automatic}, 2));
    const std::string message = set(group, {.spec = serves ? "topk" : "thc", .plan = "auto"});
    EXPECT_EQ(message.find("aggregation server") != std::string::npos, serves) << message;
  }
}

/// A rank that missed a change fails immediately, though its texts are the same.
TEST(Set, OtherVersionsAreRefused) {
  Ranks group(setup({"3lc", StrategyKind::gather_all}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(1));
  ASSERT_EQ(set(group, {}), "");
  ASSERT_NO_FATAL_FAILURE(books.steps(1));
  std::vector<uint8_t> cards;
  ASSERT_TRUE(group.session(0).proposal().prepare({}));
  ASSERT_TRUE(group.session(1).proposal().prepare({}));
  for (uint32_t r = 0; r < 2; ++r) {
    const auto& card = group.session(r).proposal().card();
    cards.insert(cards.end(), card.begin(), card.end());
  }
  ASSERT_TRUE(group.session(0).proposal().end(cards));
  const Layout layout = back_to_back(model(), {0, 1, 2, 3});  // which neither has met
  auto buffers = gradients(2, layout.elements, 9);
  group.on_all([&](uint32_t r) {
    Bucket bucket;
    bucket.buffer = buffers[r].data();
    bucket.step = 9;
    const auto result = session::drive(group.session(r), bucket, layout, group.hub().engine(r));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::ranks_disagree) << result.error().message;
  });
}

// ---- residuals go out first ----

/// The same as a flush that every rank requested.
TEST(Set, ResidualsWithoutNewPositionAreSentFirst) {
  const std::vector<Rule> rules{rule("b.*", "bf16")};
  for (const Change& change :
       {Change{.spec = "none"}, Change{.spec = "topk+noef"}, Change{.rules = rules}}) {
    Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
    Ranks flushed(setup({"3lc", StrategyKind::two_shot}, 2));
    Books books(group, {back_to_back(model(), kAll)});
    Books theirs(flushed, {back_to_back(model(), kAll)});
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
    ASSERT_NO_FATAL_FAILURE(theirs.steps(2));
    const auto results = set_each(group, {change, change});
    ASSERT_FALSE(results[0]);
    EXPECT_EQ(results[0].error().code, Errc::residuals_left) << results[0].error().message;
    EXPECT_NE(results[0].error().message.find("weight has a residual"), std::string::npos);
    EXPECT_EQ(group.session(1).stats().flush_steps_left, 10U);  // no rank reports
    ASSERT_TRUE(flushed.session(1).flush(10));
    for (int step = 0; step < 10; ++step) {
      ASSERT_NO_FATAL_FAILURE(books.steps(1));
      EXPECT_TRUE(group.session(0).active().flush.releases());
    }
    ASSERT_NO_FATAL_FAILURE(books.steps(1));
    EXPECT_FALSE(group.session(0).active().flush.releases());
    ASSERT_NO_FATAL_FAILURE(theirs.steps(11));
    for (const auto& [p, means] : books.last()) EXPECT_TRUE(same_bits(means, theirs.last().at(p)));
    ASSERT_NO_FATAL_FAILURE(books.balance());
    EXPECT_EQ(set(group, change), "");
    EXPECT_EQ(group.session(0).active().version(), 1U);
    ASSERT_NO_FATAL_FAILURE(books.steps(2));
  }
}

/// In a number of steps that is the ratio of residuals to gradients, where ranks report it.
TEST(Set, ReportsSetNumberOfReleaseSteps) {
  test::Setup made = setup({"topk:ratio=0.001", StrategyKind::gather_all}, 2);
  made.reports = true;
  Ranks group(made);
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(60));
  double gradient = 0;
  const auto all = gradients(2, back_to_back(model(), kAll).elements, 60);
  for (const float x : all[0]) gradient += static_cast<double>(x) * static_cast<double>(x);
  const double ratio = group.session(0).stats().residual_norm / std::sqrt(gradient);
  EXPECT_NE(set(group, {.spec = "none"}), "");
  const auto steps = static_cast<double>(group.session(0).stats().flush_steps_left);
  EXPECT_GT(steps, 5.0);
  EXPECT_NEAR(steps, ratio, 0.1 * ratio + 1);
}

TEST(Set, RoundingOf16BitFlushLeavesNoResidual) {
  Ranks group(setup({"topk:ratio=0.05", StrategyKind::gather_all}, 2));
  const Layout layout = back_to_back(model(), kAll);
  uint64_t step = 0;
  const auto exchange = [&] {
    const auto floats = gradients(2, layout.elements, step + 1);
    std::vector<std::vector<uint16_t>> half(2, std::vector<uint16_t>(layout.elements));
    group.on_all([&](uint32_t r) {
      for (size_t i = 0; i < half[r].size(); ++i) half[r][i] = float_to_bf16(floats[r][i]);
      Bucket bucket;
      bucket.buffer = half[r].data();
      bucket.dtype = DType::bf16;
      bucket.step = step;
      ASSERT_TRUE(session::drive(group.session(r), bucket, layout, group.hub().engine(r)));
    });
    ++step;
  };
  exchange();
  EXPECT_NE(set(group, {.spec = "none"}), "");
  for (uint32_t r = 0; r < 2; ++r) ASSERT_TRUE(group.session(r).flush(2));
  for (int i = 0; i < 2; ++i) exchange();
  EXPECT_NE(set(group, {.spec = "none"}), "");  // half of it is still there
  exchange();
  EXPECT_GT(group.session(0).stats().residual_norm, 0.0);
  for (const auto& e : group.session(1).active().store.entries()) {
    if (e.name != "residual/a.weight") continue;
    e.values[3] += 1.0F;  // loaded from elsewhere
    EXPECT_NE(set(group, {.spec = "none"}).find("rank 1: "), std::string::npos);
    e.values[3] -= 1.0F;
  }
  ASSERT_EQ(set(group, {.spec = "topk:ratio=0.01"}), "");  // which it survives
  EXPECT_GT(group.session(0).stats().residual_norm, 0.0);
}

TEST(Set, FlushInProgressContinues) {
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  ASSERT_TRUE(group.session(1).flush(3));
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  ASSERT_EQ(set(group, {.spec = "topk:ratio=0.05", .plan = "gather_all"}), "");
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 2U);
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  for (uint32_t r = 0; r < 2; ++r) EXPECT_EQ(group.session(r).stats().residual_norm, 0.0);
  ASSERT_NO_FATAL_FAILURE(books.balance());
}

// ---- what is reported ----

TEST(Set, ExplainAndStatsReportSet) {
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(5));
  const auto told = [&] { return session::explain(group.session(0)); };
  EXPECT_NE(told().find(R"("version": 0, "since_step": 0, "last_change": "")"), std::string::npos)
      << told();
  const auto before = group.session(0).stats();
  ASSERT_EQ(set(group, {.spec = "topk:ratio=0.05", .control = "schedule:0=0.05,9=0.02"}), "");
  EXPECT_NE(told().find(R"("version": 1, "since_step": 5, "last_change": "set")"),
            std::string::npos)
      << told();
  EXPECT_NE(told().find(R"("spec": "topk:ratio=0.05")"), std::string::npos);
  const auto after = group.session(0).stats();
  EXPECT_EQ(after.counters.wire_bytes, before.counters.wire_bytes);
  EXPECT_EQ(after.exchanges, before.exchanges);
  EXPECT_EQ(after.setting_changes, 1U);
  ASSERT_NO_FATAL_FAILURE(books.steps(6));
  EXPECT_GT(group.session(0).stats().counters.wire_bytes, before.counters.wire_bytes);
  EXPECT_EQ(group.session(0).stats().setting_changes, 2U);
  EXPECT_EQ(group.session(0).active().version(), 2U);
  EXPECT_NE(told().find("0.05 -> 0.02 from step 9"), std::string::npos) << told();
  ASSERT_EQ(set(group, {.control = "fixed"}), "");
  EXPECT_EQ(group.session(0).active().version(), 3U);
  EXPECT_EQ(group.session(0).stats().setting_changes, 3U);
}

/// Reports of another configuration; what was reported about the last step before the change
/// changes nothing.
TEST(Set, SetStartsNewPartOfRecord) {
  test::Setup made = setup({"topk:ratio=0.05", StrategyKind::gather_all}, 2);
  made.control = "schedule:0=0.05,3=0.1";
  made.record = testing::TempDir() + "laconic_set.jsonl";
  std::remove(made.record.c_str());
  Ranks group(made);
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(6));
  ASSERT_EQ(set(group, {.spec = "3lc", .control = "schedule:0=1,9=1.5"}), "");
  ASSERT_NO_FATAL_FAILURE(books.steps(6));
  std::ifstream in(made.record);
  std::ostringstream text;
  text << in.rdbuf();
  const auto read = control::read_record(text.str());
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->parts.size(), 2U);
  EXPECT_EQ(read->parts[0].run.rules.at(0).spec, "topk:ratio=0.05");
  EXPECT_EQ(read->parts[1].run.rules.at(0).spec, "3lc");
  const auto& steps = read->parts[1].steps;
  ASSERT_EQ(steps.size(), 5U);
  EXPECT_EQ(steps.front().step, 6U);
  EXPECT_EQ(read->parts[0].steps.back().version, 1U);
  EXPECT_EQ(steps.front().version, 2U);  // goes on
  for (const auto& step : steps) {
    EXPECT_EQ(step.reports.size(), step.step == 6 ? 0U : 2U) << step.step;
    EXPECT_LT(step.rounds, 5U) << step.step;
  }
  const auto again = control::recompute(*read);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(again->difference);
  EXPECT_EQ(again->decisions.size(), 2U);
}

/// From another thread, at any time.
TEST(Set, ExplainNamesOneSettingOrTheOther) {
  Ranks group(setup({"3lc", StrategyKind::two_shot}, 2));
  Books books(group, {back_to_back(model(), kAll)});
  std::atomic<bool> ends{false};
  const std::jthread asks([&] {
    while (!ends) {
      const std::string told = session::explain(group.session(0));
      const bool before = told.find(R"({"spec": "3lc")") == 0;
      EXPECT_EQ(before, told.find(R"("codec": "3lc")") != std::string::npos) << told;
      EXPECT_EQ(before, told.find(R"("codec": "onebit")") == std::string::npos) << told;
      EXPECT_FALSE(session::describe_stats(group.session(0)).empty());
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(set(group, {.spec = i % 2 == 0 ? "onebit" : "3lc"}), "");
    books.step();
  }
  ends = true;
}

// ---- a step that is begun by hand ----

TEST(BeginStep, PendingSettingsTakeEffect) {
  test::Setup made = setup({"topk:ratio=0.05", StrategyKind::gather_all}, 2);
  made.control = "schedule:0=0.05,3=0.2";
  Ranks group(made);
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(3));
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(group.session(r).active().version(), 0U);
    for (int i = 0; i < 2; ++i) {  // the second time it changes nothing
      const auto version = group.session(r).begin_step(3);
      ASSERT_TRUE(version);
      EXPECT_EQ(*version, 1U);
      EXPECT_EQ(group.session(r).model().spec().moved_text(), "topk:ratio=0.2");
    }
    EXPECT_EQ(group.session(r).stats().steps, 4U);
    const auto behind = group.session(r).begin_step(2);
    ASSERT_FALSE(behind);
    EXPECT_EQ(behind.error().code, Errc::exchange_order);
  }
  ASSERT_NO_FATAL_FAILURE(books.steps(2));
  ASSERT_NO_FATAL_FAILURE(books.balance());
}

TEST(BeginStep, BeginWaitsForExchangesOfPreviousStep) {
  Ranks group(setup({"topk:ratio=0.05", StrategyKind::gather_all}, 2));
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(2, layout.elements, 1);
  Bucket bucket;
  bucket.buffer = buffers[0].data();
  ASSERT_TRUE(group.session(0).begin_step(0));
  ASSERT_TRUE(group.session(0).begin(bucket, layout));
  EXPECT_TRUE(group.session(0).begin_step(0));
  EXPECT_FALSE(group.session(0).begin_step(1));
}

/// The first bucket of the step reports to the other ranks what it met.
TEST(BeginStep, ErrorIsReportedOnAllRanks) {
  test::Setup made = setup({"topk:ratio=0.05", StrategyKind::gather_all}, 2);
  made.control = "schedule:0=0.05,3=0.2";
  Ranks group(made);
  Books books(group, {back_to_back(model(), kAll)});
  ASSERT_NO_FATAL_FAILURE(books.steps(1));
  for (const auto& e : group.session(1).active().store.entries()) {
    if (e.name == "control/laws") e.values[5] = 0.5F;
  }
  EXPECT_FALSE(group.session(1).begin_step(1));
  const Layout layout = back_to_back(model(), kAll);
  auto buffers = gradients(2, layout.elements, 1);
  for (const auto& result : group.exchange(layout, buffers, 1)) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("state of the control"), std::string::npos);
  }
}

// ---- laconic::Session ----

TEST(PublicSet, SetIsCollective) {
  constexpr uint32_t kWorld = 3;
  LoopbackHub hub(kWorld);
  const uint64_t elements = back_to_back(model(), kAll).elements;
  std::vector<std::vector<float>> means(kWorld);
  std::vector<std::string> refused(kWorld), taken(kWorld), last(kWorld);
  on_all(kWorld, [&](uint32_t r) {
    auto session = laconic::Session::create("3lc", model(), hub.engine(r), {.small_elements = 16});
    ASSERT_TRUE(session);
    uint64_t step = 0;
    const auto average = [&] {
      means[r] = gradients(kWorld, elements, step + 1)[r];
      ASSERT_TRUE((*session)->average(step++, means[r]));
    };
    average();
    const auto other = (*session)->set({.spec = r == 1 ? "topk" : "topk:ratio=0.02"});
    refused[r] = other ? "" : other.error().message;
    average();
    const auto same = (*session)->set({.spec = "topk:ratio=0.02"});
    taken[r] = same ? "" : same.error().message;
    average();
    EXPECT_NE((*session)->explain().find("topk:ratio=0.02"), std::string::npos);
    const auto bad = (*session)->set({.plan = r == 2 ? "six_shot" : "auto"});
    last[r] = bad ? "" : bad.error().message;
    average();
  });
  for (uint32_t r = 0; r < kWorld; ++r) {
    EXPECT_NE(refused[r].find("ranks disagree on the spec"), std::string::npos) << refused[r];
    EXPECT_EQ(refused[r], refused[0]);
    EXPECT_EQ(taken[r], "");
    EXPECT_NE(last[r].find("rank 2: plan"), std::string::npos) << last[r];
    EXPECT_TRUE(same_bits(means[r], means[0]));
  }
}

}  // namespace
}  // namespace laconic::test
