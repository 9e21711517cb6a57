// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/in_flight.h"

#include <algorithm>
#include <string>

namespace laconic::session {
namespace {

bool is_long(uint64_t elements) noexcept { return elements > collective::kShortElements; }

}  // namespace

Result<void> InFlight::check(uint64_t step, const collective::Bucket& bucket,
                             const collective::LayoutView& layout) const {
  if (count_ == 0 && parked_ == 0) return {};
  if (!has_place(layout.elements)) {
    return Error{Errc::exchange_order,
                 std::to_string(count_) + " exchanges are running, " +
                     std::to_string(count_long()) +
                     " of them long: the window has no capacity for another one of " +
                     std::to_string(layout.elements) + " elements",
                 "complete or abort one first"};
  }
  if (bucket.step != step) {
    return Error{Errc::exchange_order, "exchanges of step " + std::to_string(step) + " are running",
                 "complete a step's exchanges before the next step begins"};
  }
  const bool moves = std::ranges::any_of(
      layout.parameters, [&](uint32_t p) { return p < moving_.size() && moving_[p]; });
  if (!moves) return {};
  return Error{Errc::exchange_order, "a parameter of this bucket is already in flight",
               "each parameter may be in one bucket per step"};
}

bool InFlight::has_place(uint64_t elements) const noexcept {
  return count_ < most_in_flight(window_) && (!is_long(elements) || count_long() < window_);
}

uint32_t InFlight::count_long() const noexcept {
  return static_cast<uint32_t>(
      std::ranges::count_if(all(), [](const Running& r) { return is_long(r.elements); }));
}

InFlight::Running* InFlight::find(const collective::Exchange& exchange) noexcept {
  const auto running = std::span(running_).first(count_);
  const auto at =
      std::ranges::find_if(running, [&](const Running& r) { return r.exchange == &exchange; });
  return at == running.end() ? nullptr : &*at;
}

bool InFlight::has(const collective::Exchange& exchange) const noexcept {
  return std::ranges::any_of(all(), [&](const Running& r) { return r.exchange == &exchange; });
}

void InFlight::add(const Running& running) noexcept {
  running_[count_++] = running;
  mark(*running.exchange, true);
}

void InFlight::remove(const collective::Exchange& exchange) noexcept {
  mark(exchange, false);
  Running* const at = find(exchange);
  std::copy(at + 1, running_.data() + count_, at);
  --count_;
}

void InFlight::park(const collective::Exchange& exchange) noexcept {
  remove(exchange);
  mark(exchange, true);
  ++parked_;
}

void InFlight::end_parked(const collective::Exchange& exchange) noexcept {
  mark(exchange, false);
  --parked_;
}

void InFlight::mark(const collective::Exchange& exchange, bool moves) noexcept {
  for (const uint32_t p : exchange.layout().parameters) moving_[p] = moves;
}

}  // namespace laconic::session
