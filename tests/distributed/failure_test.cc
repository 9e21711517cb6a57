// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The engine fails at every call in turn, while buckets are queued: every rank ends with a message,
// nothing touches the network afterwards, and what was not delivered is in the residuals.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}, {"c", 40, 70}};
const std::vector<std::vector<uint32_t>> kBuckets{{0, 1}, {2}, {3}};
constexpr uint32_t kWorld = 3;
constexpr uint64_t kSteps = 6;

/// Fails for good at call `at` of rank 1, before anything is sent; -1: never. Counts calls.
class Breaking final : public Engine {
 public:
  Breaking(LoopbackHub& hub, uint32_t rank, int64_t at)
      : hub_(&hub), engine_(&hub.engine(rank)), at_(at) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    if (calls_++ == at_ && rank() == 1) {
      hub_->break_off(1);
      return Error{Errc::engine_failed, "the cable is cut", {}};
    }
    return engine_->run(batch);
  }
  [[nodiscard]] int64_t calls() const { return calls_; }

 private:
  LoopbackHub* hub_;
  Engine* engine_;
  int64_t at_;
  int64_t calls_ = 0;
};

using Memory = std::vector<std::vector<float>>;

/// A rank's own residuals and, where it owns a range, world times the owner's: what a flush turns
/// the one into the other.
Memory residuals_of(Session& session) {
  Memory all(kModel.size());
  for (const auto& e : session.active().store.entries()) {
    for (size_t p = 0; p < kModel.size(); ++p) {
      if (e.name == "residual/" + kModel[p].name) all[p] = {e.values.begin(), e.values.end()};
      const std::string owned = "owner_residual/" + kModel[p].name + "@";
      if (e.name.compare(0, owned.size(), owned) != 0) continue;
      const size_t offset = std::stoul(e.name.substr(owned.size()));
      for (size_t k = 0; k < e.values.size(); ++k)
        all[p][offset + k] += static_cast<float>(kWorld) * e.values[k];
    }
  }
  return all;
}

/// residual after = residual before + gradient, within a rounding of what went through a payload.
/// A gradient that is not finite is not kept.
void expect_kept(const Memory& before, const Memory& after, const Layout& layout,
                 const std::vector<float>& gradient, const std::string& where) {
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const uint32_t p = layout.parameters[i];
    for (size_t k = 0; k < before[p].size(); ++k) {
      const float g = gradient[layout.offsets[i] + k];
      if (!std::isfinite(gradient[layout.offsets[i]])) break;
      ASSERT_NEAR(after[p][k], before[p][k] + g, 1e-5) << where << " " << kModel[p].name << k;
    }
  }
}

/// One run: a flush requested before step 2 drains in steps 3 and 4; step 5 has a NaN in "a" of
/// rank 2, so that its bucket goes uncompressed. Returns the calls of rank 1's engine.
int64_t run(const std::string& spec, StrategyKind strategy, DType dtype, int64_t at) {
  Ranks group({spec, kWorld, kModel, strategy, 64, 1, kAllSums});
  std::vector<int64_t> calls(kWorld);
  group.on_all([&](uint32_t r) {
    Breaking engine(group.hub(), r, at);
    std::string message;
    int64_t calls_at_failure = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      if (step == 2 && r == 0) {
        ASSERT_TRUE(group.session(0).flush(2));
      }
      for (const auto& order : kBuckets) {
        const Layout layout = back_to_back(kModel, order);
        auto g = gradients(kWorld, layout.elements, 10 * step + order[0])[r];
        if (step == 5 && order[0] == 0 && r == 2) g[0] = std::numeric_limits<float>::quiet_NaN();
        std::vector<uint16_t> half(g.size());
        for (size_t i = 0; i < g.size(); ++i) {
          half[i] = float_to_bf16(g[i]);
          if (dtype == DType::bf16) g[i] = bf16_to_float(half[i]);
        }
        const auto given = g;
        const Memory before = residuals_of(group.session(r));
        Bucket bucket;
        bucket.buffer = dtype == DType::bf16 ? static_cast<void*>(half.data()) : g.data();
        bucket.dtype = dtype;
        bucket.step = step;
        bucket.index = order[0];
        const auto done = session::drive(group.session(r), bucket, layout, engine);
        if (at < 0) {
          ASSERT_TRUE(done) << done.error().message;
        }
        if (done) {
          ASSERT_TRUE(message.empty()) << "an exchange after a failure";
          continue;
        }
        if (message.empty()) {
          message = done.error().message;
          calls_at_failure = engine.calls();
          EXPECT_FALSE(message.empty());
        }
        EXPECT_EQ(done.error().message, message);
        EXPECT_EQ(engine.calls(), calls_at_failure) << "the network was touched";
        expect_kept(before, residuals_of(group.session(r)), layout, given,
                    "call " + std::to_string(at) + " rank " + std::to_string(r));
      }
    }
    EXPECT_EQ(message.empty(), at < 0);
    if (at >= 0 && r == 1) {
      EXPECT_EQ(message, "the cable is cut");
    }
    calls[r] = engine.calls();
  });
  return calls[1];
}

using Case = std::tuple<const char*, StrategyKind, DType>;
class EngineFailure : public testing::TestWithParam<Case> {};

TEST_P(EngineFailure, FailureAtAnyCallLosesNothingAndEndsSession) {
  const auto& [spec, strategy, dtype] = GetParam();
  const int64_t calls = run(spec, strategy, dtype, -1);
  ASSERT_GT(calls, 20);
  for (int64_t at = 0; at < calls && !HasFailure(); at += kFailureStride)
    run(spec, strategy, dtype, at);
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineFailure,
    testing::Values(Case{"3lc", StrategyKind::two_shot, DType::f32},
                    Case{"int8+ef", StrategyKind::two_shot, DType::bf16},
                    Case{"topk:ratio=0.1", StrategyKind::gather_all, DType::f32},
                    Case{"topk:ratio=0.1", StrategyKind::gather_all, DType::bf16},
                    Case{"powersgd:rank=2", StrategyKind::native_sum, DType::f32},
                    Case{"bf16+ef", StrategyKind::native_sum, DType::f32},
                    Case{"thc:block=256", StrategyKind::native_sum, DType::f32},
                    Case{"thc:block=256", StrategyKind::server_sum, DType::f32},
                    Case{"thc:block=256", StrategyKind::server_sum, DType::bf16},
                    Case{"randomk:ratio=0.1+ef", StrategyKind::native_sum, DType::bf16}));

}  // namespace
}  // namespace laconic::test
