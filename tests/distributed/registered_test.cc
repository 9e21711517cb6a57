// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Codecs of the program's own: they are exchanged as the library's are, and whatever a callback
// does is at worst one message on every rank.
#include <gtest/gtest.h>

#include <array>

#include "laconic/session.h"
#include "session/agreement.h"
#include "support/even_codec.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using Fault = Even::Fault;

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 301, 1}};
constexpr uint32_t kWorld = 3;

struct Job {
  explicit Job(std::string spec = "even", std::vector<Rule> rules = {}) {
    test::Setup setup{std::move(spec), kWorld, kModel, StrategyKind::automatic, 64, 1, kAllSums};
    setup.rules = std::move(rules);
    setup.codec = [this](uint32_t r) { return even[r].table(); };
    group.emplace(setup);
  }
  std::vector<Result<void>> step(uint64_t number, std::vector<std::vector<float>>& buffers) {
    return group->exchange(layout, buffers, number);
  }
  std::vector<float> entry(uint32_t rank, const std::string& name) {
    for (const auto& e : group->session(rank).active().store.entries()) {
      if (e.name == name) return {e.values.begin(), e.values.end()};
    }
    return {};
  }

  Layout layout = back_to_back(kModel, {0, 1, 2});
  std::array<Even, kWorld> even;
  std::optional<Ranks> group;
};

TEST(Registered, CodecOutputIsSentAndRestKept) {
  Job job;
  auto buffers = gradients(kWorld, job.layout.elements, 1);
  const auto g = buffers;
  for (const auto& r : job.step(0, buffers)) ASSERT_TRUE(r) << r.error().message;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_TRUE(same_bits(buffers[rank], buffers[0]));
    const std::vector<float> residual = job.entry(rank, "residual/b");
    ASSERT_EQ(residual.size(), 301U);
    for (size_t i = 0; i < residual.size(); ++i) {
      const size_t at = job.layout.offsets[2] + i;
      const float third = 1.0F / kWorld;
      const float mean = third * g[0][at] + third * g[1][at] + third * g[2][at];
      EXPECT_EQ(residual[i], i % 2 == 0 ? 0.0F : g[rank][at]) << i;
      EXPECT_EQ(buffers[rank][at], i % 2 == 0 ? mean : 0.0F) << i;
    }
    EXPECT_EQ(job.entry(rank, "state/b@0#0"), std::vector<float>{1}) << "deliveries";
  }
  for (const auto& r : job.step(1, buffers)) ASSERT_TRUE(r) << r.error().message;
  EXPECT_EQ(job.entry(2, "state/b@0#0"), std::vector<float>{2});
  for (const Even& even : job.even) EXPECT_LE(even.plans, 4U) << "three shapes, and that of a look";
}

/// Errors on one rank, and what every rank reports. With feedback a rank decodes its own payload
/// before it sends it.
using Case = std::tuple<Fault, const char*, const char*>;
class FailingCodec : public testing::TestWithParam<Case> {};

TEST_P(FailingCodec, FailureOnOneRankIsErrorOnAllAndLosesNothing) {
  const auto& [fault, words, spec] = GetParam();
  Job job(spec);
  auto buffers = gradients(kWorld, job.layout.elements, 1);
  for (const auto& r : job.step(0, buffers)) ASSERT_TRUE(r) << r.error().message;
  buffers = gradients(kWorld, job.layout.elements, 2);
  const auto g = buffers;
  const auto residuals = [&](uint32_t rank) {
    return std::array{job.entry(rank, "residual/a"), job.entry(rank, "residual/b")};
  };
  std::vector<std::array<std::vector<float>, 2>> before;
  for (uint32_t r = 0; r < kWorld; ++r) before.push_back(residuals(r));
  job.even[1].fault = fault;
  const auto results = job.step(1, buffers);
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ASSERT_FALSE(results[rank]);
    EXPECT_EQ(results[rank].error().code, Errc::peer_failed);
    EXPECT_EQ(results[rank].error().message, results[0].error().message);
    EXPECT_NE(results[rank].error().message.find("rank 1 failed in bucket 0"), std::string::npos);
    EXPECT_NE(results[rank].error().message.find(words), std::string::npos)
        << results[rank].error().message;
    EXPECT_TRUE(same_bits(buffers[rank], g[rank])) << "nothing is written before all have decoded";
    const auto after = residuals(rank);
    for (const size_t p : {size_t{0}, size_t{1}}) {
      for (size_t i = 0; i < after[p].size(); ++i)
        ASSERT_EQ(after[p][i], before[rank][p][i] + g[rank][job.layout.offsets[2 * p] + i]);
    }
    EXPECT_EQ(job.entry(rank, "state/b@0#0"), std::vector<float>{1}) << "not delivered";
  }
  job.even[1].fault = Fault::none;
  for (const auto& r : job.step(2, buffers)) EXPECT_TRUE(r) << r.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, FailingCodec,
    testing::Values(Case{Fault::encode, "a: even: no idea", "even"},
                    Case{Fault::encode_301, "b: even: no idea", "even"},
                    Case{Fault::silent, "a: even: encode failed", "even+noef"},
                    Case{Fault::longer, "encode returned 6001 bytes, plan allows 6000", "even"},
                    Case{Fault::decode, "the payload of rank 1: even: nor here", "even"},
                    Case{Fault::decode, "the payload of rank 0: even: nor here", "even+noef"},
                    Case{Fault::rank_0, "the payload of rank 0: even: nor here", "even"},
                    Case{Fault::nan, "the payload of rank 1: decode left infinity or NaN", "even"},
                    Case{Fault::nan, "the payload of rank 0: decode left infinity or NaN",
                         "even+noef"}));

/// Its bundle is in order, its payload is not what a codec of that name makes.
TEST(Registered, UndecodablePayloadIsErrorOnAllRanks) {
  Job job;
  auto buffers = gradients(kWorld, job.layout.elements, 1);
  const auto g = buffers;
  struct Short {
    static int32_t encode(void*, const laconic_codec_call*, const float*, void*, uint64_t,
                          uint64_t* bytes, char*, uint64_t) {
      *bytes = 0;
      return 0;
    }
  };
  test::Setup setup{"even", kWorld, kModel, StrategyKind::automatic, 64, 1, kAllSums};
  setup.codec = [&](uint32_t r) {
    laconic_codec_table table = job.even[r].table();
    if (r == 2) table.encode = &Short::encode;
    table.feedback = LACONIC_FEEDBACK_OFF;  // otherwise that rank's own decode reports it
    return table;
  };
  Ranks group(setup);
  for (const auto& r : group.exchange(job.layout, buffers, 0)) {
    ASSERT_FALSE(r);
    EXPECT_NE(r.error().message.find("rank 0 failed in bucket 0"), std::string::npos);
    EXPECT_NE(r.error().message.find("a: the payload of rank 2: even: another length"),
              std::string::npos);
  }
  for (uint32_t r = 0; r < kWorld; ++r) EXPECT_TRUE(same_bits(buffers[r], g[r]));
}

TEST(Registered, NanIsSentUncompressedAndResidualsStay) {
  Job job;
  auto buffers = gradients(kWorld, job.layout.elements, 1);
  for (const auto& r : job.step(0, buffers)) ASSERT_TRUE(r) << r.error().message;
  const std::vector<float> before = job.entry(0, "residual/b");
  buffers = gradients(kWorld, job.layout.elements, 2);
  buffers[1][5] = std::numeric_limits<float>::infinity();
  for (const auto& r : job.step(1, buffers)) ASSERT_TRUE(r) << r.error().message;
  EXPECT_TRUE(std::isinf(buffers[0][5]));
  EXPECT_EQ(job.entry(0, "residual/b"), before);
}

TEST(Registered, RulesMixRegisteredAndBuiltinCodecs) {
  Job job("even", {rule("b", "topk:ratio=0.5"), rule("a", "even+noef")});
  auto buffers = gradients(kWorld, job.layout.elements, 1);
  for (const auto& r : job.step(0, buffers)) ASSERT_TRUE(r) << r.error().message;
  for (uint32_t r = 0; r < kWorld; ++r) {
    EXPECT_TRUE(same_bits(buffers[r], buffers[0]));
    EXPECT_TRUE(job.entry(r, "residual/a").empty());
    EXPECT_EQ(job.entry(r, "residual/b").size(), 301U);
  }
}

TEST(Registered, DifferingPlansFailAtAttach) {
  std::array<Even, 2> even;
  even[1].bytes = 100000;
  std::vector<uint8_t> cards;
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t r = 0; r < 2; ++r) {
    Options o;
    o.rank = r;
    o.world = 2;
    o.codecs.push_back(*codecs::Registered::create(even[r].table()));
    auto made = Session::create("even", {{"w", 300, 300}}, o);
    ASSERT_TRUE(made) << made.error().message;
    const auto card = agreement_card((*made)->active());
    cards.insert(cards.end(), card.begin(), card.end());
    sessions.push_back(*std::move(made));
  }
  for (const auto& session : sessions) {
    const auto same = check_agreement(session->active(), cards);
    ASSERT_FALSE(same);
    EXPECT_EQ(same.error().code, Errc::ranks_disagree);
  }
}

TEST(Registered, ImpossibleTableOrPlanIsRefused) {
  Even even;
  const auto refused = [&](auto&& change) {
    laconic_codec_table table = even.table();
    change(table);
    const auto made = codecs::Registered::create(table);
    return made ? Errc::ok : made.error().code;
  };
  EXPECT_EQ(refused([](auto&) {}), Errc::ok);
  for (const char* name : {static_cast<const char*>(nullptr), "", "a+b", "a|b", "topk", "int8:k=1"})
    EXPECT_EQ(refused([&](auto& t) { t.name = name; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](auto& t) { t.encode = nullptr; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](auto& t) { t.decode = nullptr; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](auto& t) { t.plan = nullptr; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](auto& t) { t.feedback = 3; }), Errc::invalid_argument);

  even.bytes = ~uint64_t{0};
  Options o;
  o.world = 2;
  o.codecs.push_back(*codecs::Registered::create(even.table()));
  const auto huge = Session::create("even", {{"w", 300, 300}}, o);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Errc::shape_unsupported);
  o.strategy = StrategyKind::two_shot;
  const auto cut = Session::create("even", {{"w", 300, 300}}, o);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, Errc::unsupported);
  EXPECT_EQ(Session::create("even:k=1", {{"w", 3, 3}}, o).error().code, Errc::unknown_codec);
}

TEST(Registered, PublicSessionTakesIt) {
  LoopbackHub hub(2);
  std::array<Even, 2> even;
  std::array<std::vector<float>, 2> gradient{std::vector<float>(4, 1.0F),
                                             std::vector<float>(4, 3.0F)};
  on_all(2, [&](uint32_t r) {
    const laconic_codec_table table = even[r].table();
    SessionOptions options;
    options.small_elements = 0;
    options.codecs.push_back(&table);
    auto session = laconic::Session::create("even", {{"w", 4, 1}}, hub.engine(r), options);
    ASSERT_TRUE(session) << session.error().message;
    ASSERT_TRUE((*session)->average(0, gradient[r]));
  });
  EXPECT_EQ(gradient[0], (std::vector<float>{2, 0, 2, 0}));
}

}  // namespace
}  // namespace laconic::test
