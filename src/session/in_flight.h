// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The exchanges of a session that have begun and not ended. At most `window` long ones and, where
// that is 2 or more, kMaxWindow of any size.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/exchange/exchange.h"

namespace laconic::session {

/// Exchanges that a window lets in, of any size.
constexpr uint32_t most_in_flight(uint32_t window) noexcept {
  return window > 1 ? collective::kMaxWindow : 1;
}

class InFlight {
 public:
  struct Running {
    collective::Exchange* exchange = nullptr;
    uint64_t elements = 0;   ///< of the bucket's layout, whatever exchange this rank has for it
    bool reports = false;    ///< it carries them
    bool first_next = true;  ///< no step that carries gradients has been given yet
  };

  InFlight(uint32_t window, size_t parameters) : window_(window), moving_(parameters) {}

  /// May a bucket of `layout` begin, while exchanges of step `step` run or none does?
  [[nodiscard]] Result<void> check(uint64_t step, const collective::Bucket& bucket,
                                   const collective::LayoutView& layout) const;
  [[nodiscard]] bool has_place(uint64_t elements) const noexcept;
  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  /// In the order of their begins.
  [[nodiscard]] std::span<const Running> all() const noexcept {
    return std::span(running_).first(count_);
  }
  /// Null: it does not run.
  [[nodiscard]] Running* find(const collective::Exchange& exchange) noexcept;
  [[nodiscard]] bool has(const collective::Exchange& exchange) const noexcept;
  void add(const Running& running) noexcept;
  /// One of those that run.
  void remove(const collective::Exchange& exchange) noexcept;
  /// The same, but its parameters stay in flight and its step goes on: end_parked() or add() again.
  void park(const collective::Exchange& exchange) noexcept;
  void end_parked(const collective::Exchange& exchange) noexcept;
  [[nodiscard]] uint32_t parked() const noexcept { return parked_; }

 private:
  [[nodiscard]] uint32_t count_long() const noexcept;
  void mark(const collective::Exchange& exchange, bool moves) noexcept;

  uint32_t window_;
  std::array<Running, collective::kMaxWindow> running_{};
  uint32_t count_ = 0, parked_ = 0;
  std::vector<bool> moving_;  // by parameter
};

}  // namespace laconic::session
