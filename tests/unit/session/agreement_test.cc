// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "session/describe.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"w", 100, 80}, {"b", 10, 1}};

std::vector<uint8_t> cards(const std::vector<std::unique_ptr<Session>>& sessions) {
  std::vector<uint8_t> all;
  for (const auto& s : sessions) {
    const auto card = agreement_card(s->active());
    all.insert(all.end(), card.begin(), card.end());
  }
  return all;
}

std::unique_ptr<Session> rank(uint32_t r, const std::string& spec = "3lc",
                              std::vector<Parameter> model = kModel, uint64_t seed = 1) {
  Options o;
  o.rank = r;
  o.world = 3;
  o.seed = seed;
  auto s = Session::create(spec, std::move(model), o);
  EXPECT_TRUE(s) << s.error().message;
  return *std::move(s);
}

TEST(Agreement, EqualRanksAgree) {
  std::vector<std::unique_ptr<Session>> s;
  for (uint32_t r = 0; r < 3; ++r) s.push_back(rank(r));
  for (const auto& session : s) EXPECT_TRUE(check_agreement(session->active(), cards(s)));
}

TEST(Agreement, OneMessageNamesBothSpecsOnEveryRank) {
  std::vector<std::unique_ptr<Session>> s;
  s.push_back(rank(0));
  s.push_back(rank(1));
  s.push_back(rank(2, "topk:ratio=0.05"));
  const auto all = cards(s);
  const std::string sentence = check_agreement(s[0]->active(), all).error().message;
  EXPECT_NE(sentence.find("'3lc'"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("'topk:ratio=0.05'"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("rank 2"), std::string::npos) << sentence;
  for (const auto& session : s)
    EXPECT_EQ(check_agreement(session->active(), all).error().message, sentence);
}

TEST(Agreement, EachDifferenceIsNamed) {
  const auto sentence = [](std::unique_ptr<Session> odd) {
    std::vector<std::unique_ptr<Session>> s;
    s.push_back(rank(0));
    s.push_back(std::move(odd));
    s.push_back(rank(2));
    const auto result = check_agreement(s[0]->active(), cards(s));
    return result ? std::string("agreed") : result.error().message;
  };
  EXPECT_NE(sentence(rank(1, "3lc", kModel, 2)).find("seed"), std::string::npos);
  EXPECT_NE(sentence(rank(1, "3lc", {{"w", 100, 80}})).find("1 parameters"), std::string::npos);
  EXPECT_NE(sentence(rank(1, "3lc", {{"v", 100, 80}, {"b", 10, 1}})).find("names or shapes"),
            std::string::npos);
  EXPECT_NE(sentence(rank(2)).find("rank"), std::string::npos) << "two ranks of the same number";
  const auto set = [](auto change) {
    Options o;
    o.rank = 1;
    o.world = 3;
    o.seed = 1;
    change(o);
    return *Session::create("3lc", kModel, o);
  };
  EXPECT_NE(sentence(set([](Options& o) { o.caps.sums = 0b011; })).find("can add"),
            std::string::npos);
  EXPECT_NE(sentence(set([](Options& o) { o.caps.short_sends = true; })).find("can add"),
            std::string::npos);
  EXPECT_NE(sentence(set([](Options& o) { o.small_elements = 5; })).find("small_elements"),
            std::string::npos);
  EXPECT_NE(sentence(set([](Options& o) { o.strategy = StrategyKind::two_shot; })).find("strategy"),
            std::string::npos);
}

/// Decisions are made on every rank by itself.
TEST(Agreement, DifferentControlIsNamed) {
  const auto sentence = [](const std::vector<std::string>& controls,
                           const std::vector<std::string>& of_rule) {
    std::vector<std::unique_ptr<Session>> s;
    for (uint32_t r = 0; r < 2; ++r) {
      Options o;
      o.rank = r;
      o.world = 2;
      Rule rule;
      rule.match = "w";
      rule.control = of_rule[r];
      auto made = Session::create("topk", kModel, o, std::span(&rule, 1), controls[r]);
      EXPECT_TRUE(made) << made.error().message;
      s.push_back(*std::move(made));
    }
    const auto all = cards(s);
    const auto mine = check_agreement(s[0]->active(), all),
               theirs = check_agreement(s[1]->active(), all);
    EXPECT_EQ(static_cast<bool>(mine), static_cast<bool>(theirs));
    if (mine) return std::string("agreed");
    EXPECT_EQ(mine.error().code, Errc::ranks_disagree);
    EXPECT_EQ(mine.error().message, theirs.error().message);
    return mine.error().message;
  };
  const std::string dc2 = "dc2:deadline_ms=80";
  EXPECT_EQ(sentence({dc2, dc2}, {"", ""}), "agreed");
  EXPECT_EQ(sentence({"", "fixed"}, {"fixed", ""}), "agreed");
  EXPECT_EQ(sentence({dc2, "dc2:deadline_ms=90"}, {"", ""}),
            "ranks disagree on the control: rank 0 has 'fixed; w=dc2:deadline_ms=80', rank 1 has "
            "'fixed; w=dc2:deadline_ms=90'");
  EXPECT_NE(sentence({dc2, ""}, {"", ""}).find("rank 1 has 'fixed'"), std::string::npos);
  EXPECT_NE(sentence({"", ""}, {"dc2", "aimd"}).find("w=aimd"), std::string::npos);
  // Too long for a card, and different after its end.
  std::string points = "schedule:0=0.1";
  for (int i = 1; i < 40; ++i) points += "," + std::to_string(i) + "=0.2";
  EXPECT_EQ(sentence({points, points}, {"", ""}), "agreed");
  EXPECT_NE(sentence({points, points + ",50=0.3"}, {"", ""}).find("the control"),
            std::string::npos);
}

TEST(Agreement, ForeignCardIsRefused) {
  std::vector<std::unique_ptr<Session>> s;
  for (uint32_t r = 0; r < 3; ++r) s.push_back(rank(r));
  auto all = cards(s);
  std::fill(all.begin() + session::kAgreementBytes, all.begin() + 2 * session::kAgreementBytes,
            uint8_t{0xEE});
  EXPECT_FALSE(check_agreement(s[0]->active(), all));
  all.pop_back();
  EXPECT_FALSE(check_agreement(s[0]->active(), all));
}

/// A value that this rank cannot take is reported to all ranks, so the exchange begins.
TEST(Session, MisfittingLayoutsAreRefused) {
  Ranks group({.spec = "3lc", .parameters = kModel});
  std::vector<float> buffers[2] = {std::vector<float>(8010), std::vector<float>(8010)};
  bool has_buffer = true;
  DType dtype = DType::f32;
  uint64_t step = 0;
  const auto code = [&](const Layout& layout) {
    std::vector<Errc> codes(2, Errc::ok);
    group.on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = has_buffer ? buffers[r].data() : nullptr;
      bucket.dtype = dtype;
      bucket.step = step;
      const auto done = session::drive(group.session(r), bucket, layout, group.hub().engine(r));
      if (!done) codes[r] = done.error().code;
    });
    ++step;
    EXPECT_EQ(codes[0], codes[1]);
    return codes[0];
  };
  EXPECT_EQ(code({{7}, {0}, 8010}), Errc::peer_failed);
  EXPECT_EQ(code({{0}, {100}, 8010}), Errc::peer_failed);
  EXPECT_EQ(code({{0}, {~uint64_t{0}}, 8010}), Errc::peer_failed);
  EXPECT_EQ(code({{0, 1}, {0}, 8010}), Errc::peer_failed);
  const Layout fits{{0, 1}, {0, 8000}, 8010};
  EXPECT_EQ(code(fits), Errc::ok);
  EXPECT_EQ(code({{7}, {0}, 8010}), Errc::peer_failed) << "a layout that has worked stands in";
  EXPECT_EQ(code(fits), Errc::ok);
  has_buffer = false;
  EXPECT_EQ(code(fits), Errc::invalid_argument);
  has_buffer = true;
  dtype = DType::u8;
  EXPECT_EQ(code(fits), Errc::dtype_unsupported);
}

TEST(Session, ExplainGivesReasonOfChoice) {
  const auto s = rank(0, "topk");
  const std::string text = session::explain(*s);
  EXPECT_NE(text.find("\"strategy\": \"gather_all\""), std::string::npos) << text;
  EXPECT_NE(text.find("gathering loses nothing more"), std::string::npos) << text;
  EXPECT_NE(text.find("\"payload_bytes_expected\": 450, \"payload_bytes_at_most\": 450"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace laconic::test
