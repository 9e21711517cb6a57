// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sessions through the C ABI: what create takes and refuses, and what a session says.
#include <limits>

#include "laconic/error.h"
#include "support/even_codec.h"
#include "unit/capi/world.h"

namespace laconic::test {
namespace {

constexpr int32_t code_of(Errc code) { return static_cast<int32_t>(code); }

TEST(Sessions, UnsentGradientIsKept) {
  World world({});
  laconic_session* const session = world.ranks[0].session;
  EXPECT_EQ(laconic_session_state_count(session), 2U);  // residual/w, state/flush
  ASSERT_EQ(world.exchange(), 0) << laconic_last_message();
  EXPECT_NE(std::string(laconic_session_stats(session)).find("\"exchanges\": 1"),
            std::string::npos);
  EXPECT_GT(laconic_session_residual_norm(session), 0.0);
}

TEST(Sessions, OneRankPassesGradientsThrough) {
  for (const WorldSetup& setup :
       {WorldSetup{"3lc", 1},
        {"topk:ratio=0.1", 1, LACONIC_STRATEGY_GATHER_ALL},
        {"powersgd:rank=2", 1, LACONIC_STRATEGY_NATIVE_SUM},
        {"signsgd", 1},
        {"thc:block=256", 1, LACONIC_STRATEGY_SERVER_SUM, 1U << LACONIC_F32, true}}) {
    SCOPED_TRACE(setup.spec);
    World world(setup);
    laconic_session* const session = world.ranks[0].session;
    std::vector<float>& buffer = world.ranks[0].buffer;
    ASSERT_EQ(laconic_session_flush(session, 3), 0);
    for (int step = 0; step < 2; ++step) {
      buffer = wave(World::kElements);
      buffer[3] = -0.0F;
      const std::vector<float> given = buffer;
      ASSERT_EQ(world.begin(0), 0);
      ASSERT_EQ(world.next(0), 0) << laconic_last_message();
      EXPECT_TRUE(world.ranks[0].ended) << "no step for an engine";
      world.settle();
      EXPECT_EQ(std::memcmp(buffer.data(), given.data(), 4 * given.size()), 0);
    }
    const std::string stats = laconic_session_stats(session);
    for (const char* said :
         {"\"ratio\": 1", "\"wire_bytes\": 0,", "\"exchanges\": 2,", "\"flush_steps_left\": 0,"})
      EXPECT_NE(stats.find(said), std::string::npos) << said << " in " << stats;
    EXPECT_NE(
        std::string(laconic_session_explain(session))
            .find("\"reason\": \"one rank has nothing to exchange: gradients stay as they are\""),
        std::string::npos);
    EXPECT_EQ(laconic_session_state_count(session), 0U);
    EXPECT_EQ(laconic_session_layout_matters(session), 0);
    EXPECT_EQ(laconic_session_all_raw(session), 1);
  }
}

TEST(Sessions, OneRankReportsFailures) {
  World world({"3lc", 1});
  ASSERT_EQ(world.begin(0), 0);
  ASSERT_EQ(laconic_exchange_fail(world.ranks[0].exchange, 62, "the disk is full"), 0);
  EXPECT_EQ(world.next(0), 62);
  EXPECT_NE(std::string(laconic_last_message()).find("the disk is full"), std::string::npos);
}

struct Created {
  explicit Created(const laconic_session_options& options) {
    code = laconic_session_create(&options, World::parameters(), 2, &session);
  }
  ~Created() { laconic_session_destroy(session); }
  Created(const Created&) = delete;
  Created& operator=(const Created&) = delete;
  laconic_session* session = nullptr;
  int32_t code = 0;
};

TEST(Sessions, OutOfRangeOptionsAreRefused) {
  const World world({});
  const auto refused = [&](auto change) {
    laconic_session_options options = world.options(0);
    change(options);
    const Created created(options);
    EXPECT_EQ(created.session, nullptr);
    return created.code == code_of(Errc::invalid_argument);
  };
  EXPECT_TRUE(refused([](auto& o) { o.strategy = LACONIC_STRATEGY_SERVER_SUM + 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.aggregates = 2; }));
  EXPECT_TRUE(refused([](auto& o) { o.rule_count = 1; }));  // and no rules
  EXPECT_TRUE(refused([](auto& o) { o.rule_count = LACONIC_MAX_RULES + 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.control = "dc3"; }));
  EXPECT_TRUE(refused([](auto& o) { o.codec_count = 1; }));  // and no codecs
  EXPECT_TRUE(refused([](auto& o) { o.codec_count = LACONIC_MAX_CODECS + 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.record = "/no/such/folder/run.jsonl"; }));
  EXPECT_TRUE(refused([](auto& o) { o.engine_sums = 1U << 4; }));
  EXPECT_TRUE(refused([](auto& o) { o.engine_sums = 1U << 31; }));
  EXPECT_TRUE(refused([](auto& o) { o.short_sends = 2; }));
  EXPECT_TRUE(refused([](auto& o) { o.threads = LACONIC_MAX_THREADS + 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.threads = static_cast<uint32_t>(-1); }));
  EXPECT_TRUE(refused([](auto& o) { o.world = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.rank = 2; }));
  EXPECT_TRUE(refused([](auto& o) { o.ranks_per_host = o.world + 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.reserved = 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.memory = LACONIC_MEMORY_CUDA + 1; }));
  laconic_device_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  EXPECT_TRUE(refused([&](auto& o) { o.allocator = &allocator; }));  // and no functions
  EXPECT_TRUE(refused([](auto& o) { o.struct_size = offsetof(laconic_session_options, spec); }));
  laconic_session_options options = world.options(0);
  options.window = LACONIC_MAX_WINDOW;
  EXPECT_EQ(Created(options).code, 0);
  options.window = LACONIC_MAX_WINDOW + 1;
  EXPECT_EQ(Created(options).code, code_of(Errc::value_out_of_range));
}

TEST(Sessions, CodecTablesAreAccepted) {
  const World world({});
  Even even;
  laconic_codec_table table = even.table();
  const laconic_codec_table* const tables[] = {&table, nullptr};
  laconic_session_options options = world.options(0);
  options.spec = "even+noef";
  options.codecs = tables;
  options.codec_count = 1;
  const Created created(options);
  ASSERT_EQ(created.code, 0) << laconic_last_message();
  EXPECT_NE(std::string(laconic_session_explain(created.session)).find("\"spec\": \"even+noef\""),
            std::string::npos);
  options.codec_count = 2;
  EXPECT_EQ(Created(options).code, code_of(Errc::invalid_argument)) << "the second is null";
  options.codec_count = 1;
  table.struct_size = offsetof(laconic_codec_table, commit);
  EXPECT_EQ(Created(options).code, 0) << "commit may be missing";
  table.struct_size -= 1;
  EXPECT_EQ(Created(options).code, code_of(Errc::invalid_argument));
  EXPECT_NE(laconic_parameter_id("w"), laconic_parameter_id("v"));
  EXPECT_EQ(laconic_parameter_id(nullptr), 0U);
}

TEST(Sessions, MissingOptionsAreZero) {
  const World world({});
  laconic_session_options options = world.options(0);
  options.seed = ~uint64_t{0};
  options.small_elements = ~uint64_t{0};
  options.engine_sums = ~0U;
  options.threads = options.short_sends = options.window = ~0U;
  options.part = ~uint64_t{0};
  options.struct_size = offsetof(laconic_session_options, seed);
  const Created created(options);
  ASSERT_EQ(created.code, 0) << laconic_last_message();
  const std::string text = laconic_session_explain(created.session);
  for (const char* zero : {"\"seed\": 0,", "\"small_elements\": 0,", "\"threads\": 1,",
                           "\"window\": 1,", "\"part\": 0,"})
    EXPECT_NE(text.find(zero), std::string::npos) << text;
}

TEST(Sessions, ResidualsAreScaledByPositiveFiniteFactors) {
  World world({});
  laconic_session* const session = world.ranks[0].session;
  ASSERT_EQ(world.exchange(), 0);
  const double before = laconic_session_residual_norm(session);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0F, -1.0F, infinity, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(laconic_session_scale_residuals(session, bad), code_of(Errc::invalid_argument));
  EXPECT_EQ(laconic_session_residual_norm(session), before);
  EXPECT_EQ(laconic_session_scale_residuals(session, 0.5F), 0);
  EXPECT_NEAR(laconic_session_residual_norm(session), before / 2, 1e-6 * before);
}

TEST(Sessions, FlushIsRequestedInSteps) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  laconic_session* const session = world.ranks[0].session;
  const auto left = [&](const char* steps) {
    const std::string wanted = std::string("\"flush_steps_left\": ") + steps + ",";
    return std::string(laconic_session_stats(session)).find(wanted) != std::string::npos;
  };
  for (const uint32_t bad : {0U, 65536U, ~0U})
    EXPECT_EQ(laconic_session_flush(session, bad), code_of(Errc::value_out_of_range));
  EXPECT_TRUE(left("0"));
  ASSERT_EQ(laconic_session_flush(session, 2), 0);
  EXPECT_TRUE(left("2"));
  for (int step = 0; step < 3; ++step) ASSERT_EQ(world.exchange(), 0);
  EXPECT_TRUE(left("0"));
}

TEST(Sessions, LayoutIsReleased) {
  World world({});
  laconic_session* const session = world.ranks[0].session;
  const auto layouts = [&](const char* count) {
    const std::string wanted = std::string("\"exchange_layouts\": ") + count + ",";
    return std::string(laconic_session_stats(session)).find(wanted) != std::string::npos;
  };
  ASSERT_EQ(world.exchange(), 0);
  EXPECT_TRUE(layouts("1"));
  laconic_bucket bucket = world.bucket(0);
  bucket.dtype = LACONIC_F16;  // another layout: nothing happens
  EXPECT_EQ(laconic_session_release_layout(session, &bucket), 0);
  EXPECT_TRUE(layouts("1"));
  bucket.dtype = LACONIC_F32;
  bucket.buffer = nullptr;
  EXPECT_EQ(laconic_session_release_layout(session, &bucket), 0);
  EXPECT_TRUE(layouts("0"));
  world.release(1);
  EXPECT_EQ(world.exchange(), 0) << "it may come back";
}

/// The whole number after a key that occurs once, or the first time in `text`.
uint64_t number(const std::string& text, const std::string& key) {
  const size_t at = text.find("\"" + key + "\": ");
  EXPECT_NE(at, std::string::npos) << key << " in " << text;
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + key.size() + 4));
}

uint64_t saved_bytes(laconic_session* session) {
  uint64_t floats = 0;
  for (uint32_t i = 0; i < laconic_session_state_count(session); ++i) {
    const char* name = nullptr;
    float* data = nullptr;
    uint64_t count = 0;
    EXPECT_EQ(laconic_session_state_entry(session, i, &name, &data, &count), 0);
    floats += count;
  }
  return floats * sizeof(float);
}

TEST(Sessions, MemoryUseIsReported) {
  for (const char* spec : {"topk:ratio=0.1", "topk:ratio=0.1+noef", "powersgd:rank=2", "none"}) {
    World world({spec});
    laconic_session* const session = world.ranks[0].session;
    const std::string text = laconic_session_explain(session);
    const bool feedback = std::string(spec) == "topk:ratio=0.1" || spec[0] == 'p';
    EXPECT_EQ(number(text, "residual_bytes"), feedback ? 4 * World::kWeights : 0) << spec;
    EXPECT_EQ(number(laconic_session_stats(session), "residual_bytes"),
              number(text, "residual_bytes"));
    EXPECT_EQ(number(text, "residual_bytes") + number(text, "state_bytes"), saved_bytes(session))
        << spec;
  }
}

TEST(Sessions, ExchangeMemoryFollowsLayouts) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  const auto held = [&] {
    return number(laconic_session_explain(world.ranks[0].session), "exchange_bytes");
  };
  EXPECT_EQ(held(), 0U);
  ASSERT_EQ(world.exchange(), 0);
  const uint64_t one = held();
  EXPECT_GT(one, 0U);
  ASSERT_EQ(world.exchange(), 0);
  EXPECT_EQ(held(), one) << "a layout that is known";
  world.weights_first = true;
  ASSERT_EQ(world.exchange(), 0);
  EXPECT_EQ(held(), 2 * one) << "the same parameters in another order";
  for (const bool weights_first : {false, true}) {
    world.weights_first = weights_first;
    for (uint32_t r = 0; r < 2; ++r) world.release(r);
    EXPECT_EQ(held(), weights_first ? 0U : one);
  }
}

TEST(Sessions, AgreementNamesDifferences) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  EXPECT_EQ(laconic_session_check_agreement(world.ranks[0].session, world.cards().data()), 0);
  const World other({"topk:ratio=0.2", 2, LACONIC_STRATEGY_GATHER_ALL});
  ASSERT_EQ(laconic_session_agreement(other.ranks[1].session,
                                      world.cards().data() + LACONIC_AGREEMENT_BYTES),
            0);
  EXPECT_EQ(laconic_session_check_agreement(world.ranks[0].session, world.cards().data()),
            code_of(Errc::ranks_disagree));
  EXPECT_NE(std::string(laconic_last_message()).find("'topk:ratio=0.2'"), std::string::npos);
}

TEST(Sessions, ReportsAreThoseOfWholeRanks) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  laconic_session* const session = world.ranks[0].session;
  std::vector<uint8_t> reports(2 * LACONIC_REPORT_BYTES(2));
  EXPECT_EQ(laconic_session_reports(session, reports.data()), 0);
  EXPECT_EQ(laconic_session_decide_by(session, reports.data(), reports.size()), 0);
  EXPECT_EQ(laconic_session_decide_by(session, reports.data(), reports.size() - 1),
            code_of(Errc::invalid_argument));
}

laconic_settings keep_all() {
  return {
      sizeof(laconic_settings), LACONIC_KEEP, nullptr, nullptr, nullptr, LACONIC_KEEP, 0, nullptr};
}

/// Sets on all ranks and gives what check_agreement said.
int32_t set(World& world, const std::vector<laconic_settings>& settings) {
  std::vector<uint8_t> cards;
  for (uint32_t r = 0; r < world.ranks.size(); ++r) {
    laconic_session_set(world.ranks[r].session, &settings[r]);
    std::vector<uint8_t> card(LACONIC_AGREEMENT_BYTES);
    EXPECT_EQ(laconic_session_agreement(world.ranks[r].session, card.data()), 0);
    cards.insert(cards.end(), card.begin(), card.end());
  }
  std::vector<int32_t> codes;
  for (auto& rank : world.ranks)
    codes.push_back(laconic_session_check_agreement(rank.session, cards.data()));
  for (const int32_t code : codes) EXPECT_EQ(code, codes[0]);
  return codes[0];
}

std::string settings_of(const World& world, uint32_t rank) {
  const std::string told = laconic_session_explain(world.ranks[rank].session);
  return told.substr(told.find("\"settings\""));
}

TEST(Sessions, SetSucceedsOnceUnplacedResidualsAreSent) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  ASSERT_EQ(world.exchange(), 0);
  laconic_settings none = keep_all();
  none.spec = "none";
  none.strategy = LACONIC_STRATEGY_AUTO;
  EXPECT_EQ(set(world, {none, none}), code_of(Errc::residuals_left));
  const auto left = [&] {
    const std::string stats = laconic_session_stats(world.ranks[1].session);
    return stats.find("\"flush_steps_left\": 0") == std::string::npos;
  };
  for (int step = 0; step < 10; ++step) {
    ASSERT_EQ(world.exchange(), 0);
    EXPECT_TRUE(left());
  }
  ASSERT_EQ(world.exchange(), 0);
  EXPECT_FALSE(left());
  EXPECT_EQ(set(world, {none, none}), 0) << laconic_last_message();
  EXPECT_EQ(world.exchange(), 0);
}

TEST(Sessions, SettingsAreReplacedOnAllRanksOrNone) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  ASSERT_EQ(world.exchange(), 0);
  laconic_settings same = keep_all();
  same.spec = "3lc";
  same.strategy = LACONIC_STRATEGY_TWO_SHOT;
  laconic_settings other = same;
  other.spec = "3lc:s=1.5";
  EXPECT_EQ(set(world, {same, other}), code_of(Errc::ranks_disagree));
  EXPECT_NE(std::string(laconic_last_message()).find("'3lc:s=1.5'"), std::string::npos);
  laconic_settings wrong = same;
  wrong.reserved = 1;
  EXPECT_EQ(set(world, {same, wrong}), code_of(Errc::invalid_argument));
  EXPECT_NE(std::string(laconic_last_message()).find("rank 1: the settings' reserved"),
            std::string::npos)
      << laconic_last_message();
  EXPECT_EQ(world.exchange(), 0);
  EXPECT_NE(settings_of(world, 0).find("topk:ratio=0.1"), std::string::npos);
  EXPECT_EQ(set(world, {same, same}), 0) << laconic_last_message();
  EXPECT_EQ(world.exchange(), 0);
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_NE(settings_of(world, r).find("\"strategy\": \"two_shot\""), std::string::npos);
    EXPECT_NE(settings_of(world, r).find("\"version\": 1"), std::string::npos);
  }
  // An option that is not given stays, rules too, until there are none.
  laconic_rule rule{};
  rule.match = "*";
  rule.spec = "onebit";
  laconic_settings ruled = keep_all();
  ruled.rules = &rule;
  ruled.rule_count = 1;
  EXPECT_EQ(set(world, {ruled, ruled}), 0) << laconic_last_message();
  EXPECT_NE(settings_of(world, 0).find("onebit"), std::string::npos);
  EXPECT_EQ(set(world, {keep_all(), keep_all()}), 0);
  EXPECT_NE(settings_of(world, 1).find("onebit"), std::string::npos);
  EXPECT_EQ(world.exchange(), 0);
  ruled.rule_count = 0;
  EXPECT_EQ(set(world, {ruled, ruled}), 0);
  EXPECT_EQ(settings_of(world, 0).find("onebit"), std::string::npos);
  EXPECT_EQ(world.exchange(), 0);
}

TEST(Sessions, StepBegunByHandBeginsOnce) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  laconic_session* const session = world.ranks[0].session;
  uint32_t version = 7;
  EXPECT_EQ(laconic_session_begin_step(session, 0, &version), 0);
  EXPECT_EQ(version, 0U);
  EXPECT_EQ(laconic_session_begin_step(world.ranks[1].session, 0, &version), 0);
  ASSERT_EQ(world.exchange(), 0);
  ASSERT_EQ(set(world, {keep_all(), keep_all()}), 0);
  EXPECT_EQ(laconic_session_begin_step(session, 5, &version), 0);
  EXPECT_EQ(version, 1U);
  EXPECT_EQ(laconic_session_begin_step(session, 5, &version), 0);
  EXPECT_EQ(laconic_session_begin_step(session, 4, &version), code_of(Errc::exchange_order));
  EXPECT_NE(std::string(laconic_last_message()).find("step 4 is before step 5"), std::string::npos);
}

/// Values that a newer laconic.h may not change: programs compiled before still work.
TEST(Sessions, StructsStartAsInFirstRelease) {
  EXPECT_EQ(sizeof(laconic_parameter), 24U);
  EXPECT_EQ(offsetof(laconic_session_options, window), 52U);
  EXPECT_EQ(offsetof(laconic_bucket, offsets), 56U);
  EXPECT_EQ(offsetof(laconic_step, tag), 88U);
  EXPECT_EQ(offsetof(laconic_state_header, spec), 32U);
  EXPECT_EQ(offsetof(laconic_frame_info, frame_bytes), 88U);
  EXPECT_EQ(offsetof(laconic_place, parameter), 32U);
  EXPECT_EQ(offsetof(laconic_tensor, data), 24U);
}

}  // namespace
}  // namespace laconic::test
