// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Engines behind the C boundary: the table passes through it, a caller's mistakes are codes, and
// plug-ins of another version are refused.
#include "engines/plugin/plugin.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "engines/engine_table.h"
#include "support/on_all.h"
#include "support/sanitizer.h"
#include "support/subset.h"
#if defined(LACONIC_ASAN)
#include <sanitizer/lsan_interface.h>
#endif

namespace laconic::test {
namespace {

using engines::load_plugin;
using engines::open_plugin;
using engines::PluginOptions;

/// The plug-ins are in this program's folder.
std::string built(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("lib" + name + ".so");
}

PluginOptions member(const std::string& group, uint32_t rank, uint32_t world) {
  PluginOptions options;
  options.timeout = std::chrono::seconds(60);
  options.rank = rank;
  options.world = world;
  options.rendezvous = group;
  return options;
}

TEST(Plugin, PluginEnginePassesTable) {
  for (const uint32_t world : {1U, 3U}) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (uint32_t r = 0; r < world; ++r) {
      auto engine = open_plugin(built("fake_plugin"), member(std::to_string(world), r, world));
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_EQ((*engine)->rank(), r);
      EXPECT_EQ((*engine)->world(), world);
      EXPECT_EQ((*engine)->caps().sums, kAllSums);
      EXPECT_TRUE((*engine)->caps().short_sends);
      engines.push_back(*std::move(engine));
    }
    std::vector<TableOutcome> outcomes(world);
    on_all(world, [&](uint32_t r) {
      outcomes[r] = run_engine_table(*engines[r], {.stride = kOneWorld ? 9U : 3U});
    });
    for (const TableOutcome& outcome : outcomes)
      EXPECT_TRUE(outcome.passed()) << outcome.first_failure;
  }
}

TEST(Plugin, PluginDescribesItself) {
  const auto table = load_plugin(built("fake_plugin"));
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_STREQ((*table)->engine, "fake");
  EXPECT_STREQ((*table)->library, "Loopback 1.0");
  EXPECT_EQ((*table)->version, uint32_t{LACONIC_PLUGIN_VERSION});
}

TEST(Plugin, OtherVersionIsRefused) {
  const std::string damaged = testing::TempDir() + "/libdamaged_plugin.so";
  {
    std::ifstream whole(built("fake_plugin"), std::ios::binary);
    std::vector<char> head(3000);
    whole.read(head.data(), static_cast<std::streamsize>(head.size()));
    std::ofstream(damaged, std::ios::binary)
        .write(head.data(), static_cast<std::streamsize>(head.size()));
  }
  const std::string text = testing::TempDir() + "/libtext_plugin.so";
  std::ofstream(text) << "this is no library";
  const std::string long_text = testing::TempDir() + "/liblong_text_plugin.so";
  std::ofstream(long_text) << std::string(5000, 'x');
  for (const auto& [path, what] : std::vector<std::pair<std::string, std::string>>{
           {built("fake_plugin_1"), "it has version 2, expected 1"},
           {built("fake_plugin_2"), "its table is incomplete"},
           {built("fake_plugin_3"), "it returns no table"},
           {built("fake_plugin_4"), "it has no laconic_plugin_v1"},
           {"/no/such/libplugin.so", "cannot open shared object file"},
           {damaged, "is truncated"},
           {text, "is truncated"},
           {long_text, "invalid ELF header"}}) {
    const auto refused = open_plugin(path, member("refused", 0, 1));
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().code, Errc::engine_failed);
    EXPECT_NE(refused.error().message.find(what), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().message.find(path), std::string::npos) << refused.error().message;
  }
}

TEST(Plugin, FailureToOpenGivesReason) {
  const auto refused = open_plugin(built("fake_plugin"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_EQ(refused.error().message, "fake: rank, world and rendezvous are needed");
}

TEST(Plugin, TimeoutEndsWaitAndKeepsMemoryOfBatch) {
#if defined(LACONIC_ASAN)
  const __lsan::ScopedDisabler never_freed;
#endif
  std::weak_ptr<void> kept;
  {
    auto options = member("late", 0, 2);
    options.timeout = std::chrono::milliseconds(300);
    auto engine = *open_plugin(built("fake_plugin"), options);
    const auto memory = std::make_shared<std::array<float, 4>>();
    kept = memory;
    auto* at = reinterpret_cast<uint8_t*>(memory->data());
    const Step step{.dtype = DType::f32, .count = 4, .send = at, .recv = at};
    const auto ticket = engine->start({&step, 1});
    ASSERT_TRUE(ticket);
    const auto late = engine->wait(*ticket, std::chrono::steady_clock::now());
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Errc::timed_out);
    engine->keep_until_end(memory);
  }
  EXPECT_FALSE(kept.expired());
}

// ---- the C table, by callers that make mistakes ----

class PluginTable : public testing::Test {
 protected:
  void SetUp() override {
    table_ = *load_plugin(built("fake_plugin"));
    ASSERT_EQ(open(&options_), 0) << message_.data();
  }
  void TearDown() override { table_->close(engine_); }

  int32_t open(const laconic_engine_options* options) {
    return table_->open(options, &engine_, message_.data(), message_.size());
  }
  int32_t start(const laconic_step& step) {
    return table_->start(engine_, &step, sizeof step, 1, &ticket_, message_.data(),
                         message_.size());
  }
  laconic_step sum(float* x) {
    laconic_step step{};
    step.dtype = LACONIC_F32;
    step.count = 1;
    step.send = step.recv = x;
    return step;
  }
  static constexpr auto kWrong = static_cast<int32_t>(Errc::invalid_argument);

  const laconic_plugin* table_ = nullptr;
  laconic_engine* engine_ = nullptr;
  laconic_engine_options options_{sizeof options_, 0, 1.0, 0, 1, "table", nullptr};
  uint64_t ticket_ = 0;
  std::array<char, 200> message_{};
};

TEST_F(PluginTable, NullPointersAndWrongSizesReturnCodes) {
  float x = 1;
  const laconic_step step = sum(&x);
  laconic_engine* other = nullptr;
  char* const m = message_.data();
  EXPECT_EQ(table_->open(nullptr, &other, m, 200), kWrong);
  EXPECT_EQ(table_->open(&options_, nullptr, m, 200), kWrong);
  for (const auto& spoil : std::vector<std::function<void(laconic_engine_options*)>>{
           [](auto* o) { o->struct_size = 8; }, [](auto* o) { o->reserved = 1; },
           [](auto* o) { o->timeout = -1; }, [](auto* o) { o->timeout = std::nan(""); }}) {
    laconic_engine_options spoilt = options_;
    spoil(&spoilt);
    EXPECT_EQ(table_->open(&spoilt, &other, m, 200), kWrong);
    EXPECT_EQ(other, nullptr);
  }
  laconic_engine_info info{};
  EXPECT_EQ(table_->describe(engine_, &info), kWrong);  // struct_size 0
  EXPECT_EQ(table_->describe(engine_, nullptr), kWrong);
  info.struct_size = sizeof info;
  EXPECT_EQ(table_->describe(nullptr, &info), kWrong);
  EXPECT_EQ(table_->describe(engine_, &info), 0);
  EXPECT_EQ(info.world, 1U);
  EXPECT_EQ(table_->start(nullptr, &step, sizeof step, 1, &ticket_, m, 200), kWrong);
  EXPECT_EQ(table_->start(engine_, nullptr, sizeof step, 1, &ticket_, m, 200), kWrong);
  EXPECT_EQ(table_->start(engine_, &step, sizeof step, 1, nullptr, m, 200), kWrong);
  EXPECT_EQ(table_->start(engine_, &step, 16, 1, &ticket_, m, 200), kWrong);
  EXPECT_EQ(table_->start(engine_, &step, sizeof step, LACONIC_MAX_BATCH + 1, &ticket_, m, 200),
            kWrong);
  EXPECT_EQ(table_->wait(nullptr, 1, 1.0, m, 200), kWrong);
  EXPECT_EQ(table_->wait(engine_, 1, std::nan(""), m, 200), kWrong);
  EXPECT_EQ(table_->wait(engine_, 99, 1.0, m, 200), static_cast<int32_t>(Errc::exchange_order));
  table_->close(nullptr);
}

TEST_F(PluginTable, InvalidStepsAreRefusedAndEngineContinues) {
  float x = 1;
  const std::array<uint64_t, 1> one{1};
  const laconic_message to_itself{0, 0, &x, 4, &x, 4};
  for (const auto& spoil : std::vector<std::function<void(laconic_step*)>>{
           [](auto* s) { s->kind = 4; }, [](auto* s) { s->dtype = LACONIC_U16; },
           [](auto* s) { s->dtype = 6; }, [](auto* s) { s->dtype = LACONIC_U8; },
           [](auto* s) { s->reserved = 1; }, [](auto* s) { s->short_sends = 2; },
           [](auto* s) { s->send = nullptr; }, [](auto* s) { s->kind = LACONIC_ALL_TO_ALL; },
           [&](auto* s) {
             s->kind = LACONIC_ALL_GATHER;
             s->send_counts = s->recv_counts = s->send_offsets = s->recv_offsets = one.data();
             s->recv = nullptr;
           },
           [&](auto* s) {
             s->kind = LACONIC_MESSAGES;
             s->message_count = 1;
             s->messages = &to_itself;
           }}) {
    laconic_step step = sum(&x);
    spoil(&step);
    EXPECT_EQ(start(step), kWrong);
    EXPECT_NE(message_[0], '\0');
  }
  ASSERT_EQ(start(sum(&x)), 0) << message_.data();
  EXPECT_EQ(table_->wait(engine_, ticket_, 10.0, message_.data(), message_.size()), 0);
  EXPECT_EQ(message_[0], '\0');
  EXPECT_EQ(x, 1.0F);
}

TEST_F(PluginTable, MessagesAreTruncatedAndOptional) {
  std::array<char, 8> room;
  room.fill('x');
  EXPECT_EQ(table_->wait(engine_, 99, 1.0, room.data(), 5),
            static_cast<int32_t>(Errc::exchange_order));
  EXPECT_STREQ(room.data(), "the ");
  EXPECT_EQ(room[5], 'x');
  EXPECT_EQ(table_->wait(engine_, 99, 1.0, nullptr, 0), static_cast<int32_t>(Errc::exchange_order));
  EXPECT_EQ(table_->wait(engine_, 99, 1.0, room.data(), 0),
            static_cast<int32_t>(Errc::exchange_order));
}

TEST_F(PluginTable, SixteenBatchesRunAtOnce) {
  std::array<float, 17> x{};
  std::vector<uint64_t> tickets;
  for (uint32_t turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < 16; ++i) {
      ASSERT_EQ(start(sum(&x[i])), 0) << message_.data();
      tickets.push_back(ticket_);
    }
    EXPECT_EQ(start(sum(&x[16])), static_cast<int32_t>(Errc::exchange_order));
    for (const uint64_t ticket : tickets)
      EXPECT_EQ(table_->wait(engine_, ticket, 10.0, message_.data(), message_.size()), 0);
    tickets.clear();
  }
}

}  // namespace
}  // namespace laconic::test
