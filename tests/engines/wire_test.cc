// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The calls of `laconic bench --engine` that it counts as wire: the same batches, without the
// session.
#include "../../tools/wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace laconic::tools {
namespace {

/// Rank 1 of 3. Notes its requests, and writes wherever it may.
class Noting final : public Engine {
 public:
  [[nodiscard]] uint32_t rank() const noexcept override { return 1; }
  [[nodiscard]] uint32_t world() const noexcept override { return 3; }
  [[nodiscard]] EngineCaps caps() const noexcept override { return {kAllSums, true}; }
  Result<void> run(std::span<const Step>) override { return {}; }
  Result<Ticket> start(std::span<const Step> batch) override {
    for (const Step& step : batch) {
      EXPECT_TRUE(tags.insert(step.tag).second) << step.tag;
      log.push_back(text_of(step));
      touch(step);
    }
    log.push_back(fmt::format("started {}", ++started_ - first_));
    return Ticket{started_};
  }
  Result<void> wait(Ticket ticket, Deadline) override {
    log.push_back(fmt::format("waited {}", ticket.number - first_));
    return {};
  }
  /// Tickets count on; the log counts again.
  std::vector<std::string> take_log() {
    first_ = started_;
    return std::exchange(log, {});
  }

  std::vector<std::string> log;
  std::set<uint32_t> tags;
  std::set<const uint8_t*> memory;

 private:
  static std::string text_of(const Step& s) {
    std::string text = fmt::format("{} {} {} {}", static_cast<int>(s.kind),
                                   static_cast<int>(s.dtype), s.short_sends, s.count);
    for (const auto list : {s.send_counts, s.send_offsets, s.recv_counts, s.recv_offsets})
      text += fmt::format(" [{}]", fmt::join(list, " "));
    for (const Message& m : s.messages)
      text += fmt::format(" {}:{}/{}", m.peer, m.send_bytes, m.recv_room);
    return text;
  }
  void touch(const Step& s) {
    const auto write = [&](uint8_t* at, uint64_t bytes) {
      for (uint64_t i = 0; i < bytes; ++i) at[i] = 1;
      if (bytes != 0) memory.insert(at);
    };
    if (s.kind == StepKind::all_reduce) write(s.recv, s.count * dtype_size(s.dtype));
    for (std::size_t r = 0; r < s.recv_counts.size(); ++r) {
      write(s.recv + s.recv_offsets[r], s.recv_counts[r]);
      write(s.send + s.send_offsets[r], s.send_counts[r]);
    }
    for (const Message& m : s.messages) write(m.recv, m.recv_room);
  }
  uint64_t started_ = 0, first_ = 0;
};

TEST(WireAlone, WireAloneRepeatsBatchesInOrderWithOwnMemory) {
  Noting below;
  RecordedEngine engine(below);
  EXPECT_EQ(engine.rank(), 1U);
  EXPECT_EQ(engine.world(), 3U);
  EXPECT_TRUE(engine.caps().short_sends);
  std::vector<uint8_t> memory(4096);
  {
    const std::vector<uint64_t> all{40, 40, 40}, zeros(3), sends{5, 6, 7}, offsets{0, 100, 200},
        room{64, 70, 80};
    const std::vector<Message> messages{{0, memory.data(), 11, memory.data() + 50, 12},
                                        {2, nullptr, 0, memory.data() + 90, 13}};
    const Step gather{.kind = StepKind::all_gather,
                      .short_sends = true,
                      .tag = 1,
                      .send = memory.data(),
                      .recv = memory.data() + 300,
                      .send_counts = all,
                      .send_offsets = zeros,
                      .recv_counts = room,
                      .recv_offsets = offsets};
    const Step sum{.kind = StepKind::all_reduce,
                   .dtype = DType::f16,
                   .tag = 2,
                   .count = 30,
                   .send = memory.data() + 600,
                   .recv = memory.data() + 600};
    const Step swap{.kind = StepKind::all_to_all,
                    .tag = 3,
                    .send = memory.data(),
                    .recv = memory.data() + 800,
                    .send_counts = sends,
                    .send_offsets = offsets,
                    .recv_counts = room,
                    .recv_offsets = offsets};
    const Step direct{.kind = StepKind::messages, .tag = 4, .messages = messages};
    engine.forget();
    const Deadline never = Deadline::max();
    const auto first = engine.start(std::vector{gather});
    const auto second = engine.start(std::vector{sum});
    ASSERT_TRUE(engine.wait(*first, never));
    const auto third = engine.start(std::vector{swap, direct});
    ASSERT_TRUE(engine.wait(*second, never));
    ASSERT_TRUE(engine.wait(*third, never));
  }
  // To two others each: 40; a ring's 2/3 of 60 bytes, twice; 5 and 7; 11.
  EXPECT_EQ(engine.sent_bytes(), 2U * 40 + 2 * 60 * 2 / 3 + 5 + 7 + 11);
  const auto asked = below.take_log();
  ASSERT_EQ(asked.size(), 10U);
  below.memory.clear();
  engine.prepare();
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(engine.replay(std::chrono::seconds(1)));
    EXPECT_EQ(below.take_log(), asked);
  }
  EXPECT_EQ(below.memory.size(), 1U + 3 + 1 + 3 + 3 + 2);
  for (const uint8_t* at : below.memory)
    EXPECT_TRUE(at < memory.data() || at >= memory.data() + memory.size());
}

}  // namespace
}  // namespace laconic::tools
