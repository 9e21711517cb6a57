// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads and send each other messages through queues: an engine of which only
// move() is written.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "laconic/engine.h"

namespace laconic::test {

class Mailboxes {
 public:
  explicit Mailboxes(uint32_t world, bool short_sends = false) {
    for (uint32_t r = 0; r < world; ++r)
      engines_.push_back(std::make_unique<RankEngine>(this, r, world, short_sends));
  }
  Engine& engine(uint32_t rank) { return *engines_[rank]; }

 private:
  class RankEngine final : public MessageEngine {
   public:
    RankEngine(Mailboxes* all, uint32_t rank, uint32_t world, bool short_sends)
        : all_(all), rank_(rank), world_(world), short_sends_(short_sends) {}
    [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
    [[nodiscard]] uint32_t world() const noexcept override { return world_; }
    [[nodiscard]] EngineCaps caps() const noexcept override { return {kAllSums, short_sends_}; }

   protected:
    Result<void> move(std::span<const Message> messages, uint32_t) override {
      for (const Message& m : messages) {
        if (m.send_bytes != 0) all_->put({rank_, m.peer}, {m.send, m.send + m.send_bytes});
      }
      for (const Message& m : messages) {
        if (m.recv_room == 0) continue;
        const auto bytes = all_->take({m.peer, rank_});
        const bool fits = short_sends_ ? bytes.size() <= m.recv_room : bytes.size() == m.recv_room;
        if (!fits) return Errc::exchange_order;
        std::memcpy(m.recv, bytes.data(), bytes.size());
      }
      return {};
    }

   private:
    Mailboxes* all_;
    uint32_t rank_;
    uint32_t world_;
    bool short_sends_;
  };

  using Way = std::pair<uint32_t, uint32_t>;  // from, to
  void put(Way way, std::vector<uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[way].push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::vector<uint8_t> take(Way way) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[way];
    changed_.wait(lock, [&] { return !box.empty(); });
    auto bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Way, std::deque<std::vector<uint8_t>>> boxes_;
  std::vector<std::unique_ptr<RankEngine>> engines_;
};

}  // namespace laconic::test
