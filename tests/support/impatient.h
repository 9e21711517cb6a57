// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An engine around another that leaves contributions out of sums, and counts what passes through.
#pragma once

#include <functional>
#include <vector>

#include "laconic/engine.h"

namespace laconic::test {

/// Says who is not in which sum; the same on all ranks.
using LeavesOut = std::function<bool(uint32_t rank, uint64_t exchange, uint64_t granule)>;

/// Leaves contributions out of the sums of an engine, as a server does with those that are late.
class Impatient final : public Engine {
 public:
  Impatient(Engine& inner, LeavesOut leaves_out)
      : inner_(inner), leaves_out_(std::move(leaves_out)) {}
  ~Impatient() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return inner_.caps(); }
  Result<void> join(const AggregationJob& job, std::chrono::milliseconds timeout) override {
    return inner_.join(job, timeout);
  }
  /// Steps of all other kinds so far.
  [[nodiscard]] uint64_t others() const noexcept { return others_; }
  Result<void> run(std::span<const Step> batch) override {
    for (Step step : batch) {
      others_ += step.kind == StepKind::aggregate ? 0U : 1U;
      std::vector<Contribution> out(step.contributions.begin(), step.contributions.end());
      if (step.kind == StepKind::aggregate) step.contributions = out;
      for (uint64_t g = 0; g < out.size() && step.kind == StepKind::aggregate; ++g) {
        if (leaves_out_(rank(), exchange_, g)) {
          const auto flags = static_cast<uint8_t>((out[g].flags & kGranuleValues) | kGranuleEmpty);
          out[g] = {{}, out[g].settings, 0, flags};
        }
      }
      if (auto done = inner_.run({&step, 1}); !done) return done;
      if (step.kind != StepKind::aggregate) continue;
      for (uint64_t g = 0; g < out.size(); ++g) {
        for (uint32_t r = 0; r < world(); ++r) {
          if (!leaves_out_(r, exchange_, g)) continue;
          step.aggregates[g].bitmap &= ~(uint64_t{1} << r);
          --step.aggregates[g].divisor;
        }
      }
      ++exchange_;
    }
    return {};
  }

 private:
  Engine& inner_;
  LeavesOut leaves_out_;
  uint64_t exchange_ = 0;
  uint64_t others_ = 0;
};

}  // namespace laconic::test
