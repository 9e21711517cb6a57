// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks whose clocks are made up, for what sessions make of time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "session/saved_state.h"
#include "support/ranks.h"

namespace laconic::test {

/// A rank's exchange, from a hundredth of a second after its step's number on: each of its batches
/// takes takes(bytes sent) seconds.
inline Result<void> drive_clocked(Ranks& group, uint32_t rank, const Layout& layout,
                                  std::vector<float>& buffer, uint64_t step,
                                  const std::function<double(double)>& takes) {
  const auto bytes = [&] { return group.session(rank).stats().counters.wire_bytes; };
  uint64_t before = 0;
  double clock = static_cast<double>(step) + 0.01;
  Driver test;
  test.begun = [&](collective::Exchange&) { before = bytes(); };
  test.ran = [&](std::span<Step>, uint32_t, session::Timing& timing) {
    timing.issued = clock;
    clock += takes(static_cast<double>(bytes() - before));
    timing.completed = clock;
    before = bytes();
  };
  return group.drive(rank, layout, buffer, step, test);
}

/// A group with simulated clocks: a network with a given number of bytes per second in each step.
class Clocked {
 public:
  using Rate = double (*)(uint64_t step);
  Clocked(Setup setup, Rate rate)
      : world_(setup.world),
        rate_(rate),
        layout_(back_to_back(setup.parameters, last_first(setup.parameters.size()))),
        clocks_(setup.world) {
    setup.now = [this](uint32_t r) { return clocks_[r]; };
    group_.emplace(std::move(setup));
  }

  /// The expected means of every step.
  std::vector<std::vector<float>> steps(uint64_t from, uint64_t to) {
    std::vector<std::vector<float>> means;
    for (uint64_t step = from; step < to; ++step)
      means.push_back(step_of(step, gradients(world_, layout_.elements, step + 1)));
    return means;
  }
  /// The mean of these.
  std::vector<float> step_of(uint64_t step, std::vector<std::vector<float>> buffers) {
    group_->on_all([&](uint32_t r) { exchange(r, step, buffers[r]); });
    for (uint32_t r = 1; r < world_; ++r) EXPECT_TRUE(same_bits(buffers[0], buffers[r]));
    return buffers[0];
  }
  /// Goes on with what another one has saved.
  void load(Clocked& other) {
    for (uint32_t r = 0; r < world_; ++r) {
      const auto state = session::save_state(other.session(r));
      ASSERT_TRUE(state) << state.error().message;
      const auto loaded = session::load_state(session(r), *state);
      ASSERT_TRUE(loaded) << loaded.error().message;
    }
  }
  Session& session(uint32_t r) { return group_->session(r); }
  /// A step that one rank fails.
  void fail_on(uint32_t bad, uint64_t step) {
    auto buffers = gradients(world_, layout_.elements, step + 1);
    group_->on_all([&](uint32_t r) {
      const auto fails = [&](collective::Exchange& exchange) {
        if (r == bad) session(r).fail(exchange, Error{Errc::invalid_argument, "on purpose", {}});
      };
      EXPECT_FALSE(group_->drive(r, layout_, buffers[r], step, {.begun = fails}));
    });
  }

  /// A step in whose first batch every rank's engine fails.
  void lose_peers_in(uint64_t step) {
    auto buffers = gradients(world_, layout_.elements, step + 1);
    group_->on_all([&](uint32_t r) {
      const auto never = [](std::span<Step>, uint32_t) { return false; };
      EXPECT_FALSE(group_->drive(r, layout_, buffers[r], step, {.issues = never}));
    });
  }

  [[nodiscard]] const Layout& layout() const { return layout_; }

 private:
  static std::vector<uint32_t> last_first(size_t count) {
    std::vector<uint32_t> order;
    for (size_t i = count; i > 0; --i) order.push_back(static_cast<uint32_t>(i - 1));
    return order;
  }
  void exchange(uint32_t r, uint64_t step, std::vector<float>& buffer) {
    clocks_[r] = static_cast<double>(step);
    const auto done = drive_clocked(*group_, r, layout_, buffer, step,
                                    [&](double sent) { return sent / rate_(step) + 1e-4 * r; });
    ASSERT_TRUE(done) << done.error().message;
  }

  uint32_t world_;
  Rate rate_;
  Layout layout_;
  std::vector<double> clocks_;
  std::optional<Ranks> group_;
};

}  // namespace laconic::test
