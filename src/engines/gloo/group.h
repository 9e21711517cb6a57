// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The ranks of a GlooEngine: how they find each other, their connections, and who is still there.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "interruptible.h"
#include "laconic/engine/gloo.h"
#include "laconic/engine/rendezvous.h"
#include "threads.h"

namespace laconic::gloo {

using Clock = std::chrono::steady_clock;
using Buffer = std::unique_ptr<::gloo::transport::UnboundBuffer>;

inline constexpr auto kForever = std::chrono::hours(24 * 365);
/// Gloo's collectives begin their slots with small numbers.
inline constexpr uint64_t kSlots = uint64_t{0x4C} << 56;

inline std::string hint() { return "restart the group with the remaining ranks"; }
inline Deadline soon() { return Clock::now() + std::chrono::milliseconds(500); }

class Group {
 public:
  explicit Group(const GlooOptions& options) : options_(options) {}

  /// Collective, once. `prepare` is called when ranks are connected; if it throws, all ranks get
  /// the error. `post` is called on Gloo's own thread, at most once per ask().
  Result<void> meet(const std::function<void()>& prepare, std::function<void()> post);
  void ask() noexcept { posts_->ask(); }
  /// `post` is called no more.
  void end_posts() noexcept { posts_ = nullptr; }

  [[nodiscard]] uint32_t rank() const noexcept { return options_.rank; }
  [[nodiscard]] uint32_t world() const noexcept { return options_.world; }
  /// There are others, and they have been connected.
  [[nodiscard]] bool connected() const noexcept { return context_ != nullptr; }
  [[nodiscard]] rendezvous::Board& board() noexcept { return *board_; }
  /// For a batch: tear_down() ends its waits.
  [[nodiscard]] Buffer buffer(const uint8_t* at, uint64_t bytes) {
    return batches_->createUnboundBuffer(const_cast<uint8_t*>(at), bytes);
  }

  /// Says that this rank waits for a batch.
  void sign(uint64_t batch);
  /// Those of `needed`, by rank, that have not signed. They are given until `until` to do it.
  [[nodiscard]] std::vector<uint32_t> unsigned_by(const std::vector<bool>& needed, uint64_t batch,
                                                  Deadline until);

  // One thread at a time may call these.
  /// The connection has broken without a farewell.
  [[nodiscard]] bool is_gone(uint32_t peer) noexcept;
  [[nodiscard]] bool somebody_is_gone() noexcept;
  /// `said`: by Gloo.
  [[nodiscard]] std::string who_is_gone(const char* said);
  /// Closes all connections, which is what Gloo does when a wait has timed out, and ends all waits.
  void tear_down() noexcept;

  /// Tells every peer that this rank needs nothing more from it.
  void part() noexcept;

 private:
  void connect(Deadline deadline, const std::function<void()>& prepare, std::function<void()> post);
  /// The connection stands.
  [[nodiscard]] bool takes_more(uint32_t peer) noexcept;

  const GlooOptions options_;
  std::unique_ptr<rendezvous::Board> board_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;
  std::shared_ptr<detail::GlooInterruptible> batches_;  // the same connections
  std::vector<char> farewells_;
  std::vector<Buffer> watches_;
  std::unique_ptr<detail::InGloosThread> posts_;  // last: it ends first
};

}  // namespace laconic::gloo
