// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks whose clocks are made up, for what sessions make of time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "support/ranks.h"

namespace laconic::test {

/// A group whose clocks are made up: a network of so many bytes in a second in each step.
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

  /// What the means of every step are.
  std::vector<std::vector<float>> steps(uint64_t from, uint64_t to) {
    std::vector<std::vector<float>> means;
    for (uint64_t step = from; step < to; ++step) {
      auto buffers = gradients(world_, layout_.elements, step + 1);
      group_->on_all([&](uint32_t r) { exchange(r, step, buffers[r]); });
      for (uint32_t r = 1; r < world_; ++r) EXPECT_TRUE(same_bits(buffers[0], buffers[r]));
      means.push_back(buffers[0]);
    }
    return means;
  }
  /// Goes on with what another one has saved.
  void load(Clocked& other) {
    for (uint32_t r = 0; r < world_; ++r) {
      const auto& mine = session(r).store().entries();
      const auto& theirs = other.session(r).store().entries();
      ASSERT_EQ(mine.size(), theirs.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i].name, theirs[i].name);
        std::ranges::copy(theirs[i].values, mine[i].values.begin());
      }
    }
  }
  Session& session(uint32_t r) { return group_->session(r); }
  /// A step that one rank fails.
  void fail_on(uint32_t bad, uint64_t step) {
    auto buffers = gradients(world_, layout_.elements, step + 1);
    group_->on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.step = step;
      auto exchange = session(r).begin(bucket, layout_);
      ASSERT_TRUE(exchange) << exchange.error().message;
      if (r == bad) session(r).fail(**exchange, Error{Errc::invalid_argument, "on purpose", {}});
      std::array<Step, kMaxBatch> batch;
      for (;;) {
        auto count = session(r).next(**exchange, batch);
        if (!count) break;
        ASSERT_NE(*count, 0U);
        ASSERT_TRUE(group_->hub().engine(r).run({batch.data(), *count}));
      }
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
    Bucket bucket;
    bucket.buffer = buffer.data();
    bucket.step = step;
    auto exchange = session(r).begin(bucket, layout_);
    ASSERT_TRUE(exchange) << exchange.error().message;
    std::array<Step, kMaxBatch> batch;
    session::Timing last;
    double clock = static_cast<double>(step) + 0.01;
    for (;;) {
      const uint64_t before = session(r).stats().counters.wire_bytes;
      auto count = session(r).next(**exchange, batch, last);
      ASSERT_TRUE(count) << count.error().message;
      if (*count == 0) break;
      const uint64_t sent = session(r).stats().counters.wire_bytes - before;
      ASSERT_TRUE(group_->hub().engine(r).run({batch.data(), *count}));
      last.issued = clock;
      clock += static_cast<double>(sent) / rate_(step) + 1e-4 * r;
      last.completed = clock;
    }
  }

  uint32_t world_;
  Rate rate_;
  Layout layout_;
  std::vector<double> clocks_;
  std::optional<Ranks> group_;
};

}  // namespace laconic::test
