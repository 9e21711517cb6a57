// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sessions whose buckets and codecs are on a GPU, over the driver of the tests: the same bytes,
// means and memory as on the host, in one group with ranks of the host.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "collective/plan/model.h"
#include "engines/fake_gpu.h"
#include "kernels/cast/cast.h"
#include "laconic/session.h"
#include "laconic/sharded.h"
#include "session/driver/driver.h"
#include "session/saved_state.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}, {"c", 50, 2}};
/// The buckets of a step, in order: one exchange if they are joined.
const std::vector<std::vector<uint32_t>> kBuckets{{2, 1}, {3, 0}};
constexpr int kRefused = 999, kNoMemory = 2;  // codes of the driver's

/// One rank, on a GPU or on the host.
class Rank {
 public:
  Rank(const char* spec, uint32_t rank, LoopbackHub& hub, StrategyKind strategy,
       std::optional<device::GpuRef> gpu, std::vector<Rule> rules = {}) {
    Options o;
    o.rank = rank;
    o.world = kWorld;
    o.seed = 42;
    o.small_elements = 64;
    o.strategy = strategy;
    o.window = 2;
    o.caps = {kAllSums, false};
    std::shared_ptr<const device::Staging> staging;
    if (gpu) {
      on_gpu_ = std::make_unique<OnGpu>(*gpu);
      staging = *device::Staging::create(*load_program(*gpu), 4096);
    }
    auto made = Session::create(spec, kModel, o, rules, {}, {}, {}, staging);
    if (!made) {
      refused = made.error();
      return;
    }
    session = *std::move(made);
    driver =
        std::make_unique<session::Driver>(*session, hub.engine(rank), std::chrono::seconds(60));
  }

  struct Brought {
    Layout layout;
    std::vector<float> floats;
    std::vector<uint16_t> halves;
    void* at = nullptr;
    DType dtype = DType::f32;
  };
  /// A bucket with these gradients, where this rank has its buckets.
  Brought& bring(Layout layout, const std::vector<float>& gradient, DType dtype) {
    Brought& b = brought.emplace_back();
    b.layout = std::move(layout);
    b.floats = gradient;
    b.dtype = dtype;
    if (dtype != DType::f32) {
      b.halves.resize(gradient.size());
      kernels::narrow(kernels::cast_kernels(Isa::scalar), dtype, b.halves.data(), gradient.data(),
                      gradient.size());
    }
    if (on_gpu_)
      b.at = dtype == DType::f32 ? static_cast<void*>(on_gpu_->put(b.floats))
                                 : static_cast<void*>(on_gpu_->put(b.halves));
    else
      b.at = dtype == DType::f32 ? static_cast<void*>(b.floats.data()) : b.halves.data();
    return b;
  }
  /// The bucket's present values, as float32.
  std::vector<float> bits(Brought& b) {
    const uint64_t n = b.layout.elements;
    if (on_gpu_ && b.dtype == DType::f32) b.floats = on_gpu_->get(static_cast<float*>(b.at), n);
    if (b.dtype == DType::f32) return b.floats;
    if (on_gpu_) b.halves = on_gpu_->get(static_cast<uint16_t*>(b.at), n);
    std::vector<float> wide(n);
    kernels::widen(kernels::cast_kernels(Isa::scalar), b.dtype, wide.data(), b.halves.data(), n);
    return wide;
  }
  Result<void> submit(uint64_t step, Brought& b, bool joins = true) {
    Bucket bucket;
    bucket.buffer = b.at;
    bucket.dtype = b.dtype;
    bucket.step = step;
    return driver->submit(bucket, b.layout, {.joins = joins});
  }
  [[nodiscard]] std::vector<uint8_t> state() const {
    auto saved = session::save_state(*session, feedback::kStateVersion);
    EXPECT_TRUE(saved) << saved.error().message;
    return saved ? *std::move(saved) : std::vector<uint8_t>();
  }

  std::unique_ptr<Session> session;
  std::unique_ptr<session::Driver> driver;
  std::deque<Brought> brought;
  Error refused;

 private:
  std::unique_ptr<OnGpu> on_gpu_;
};

/// The ranks of one run. `gpus`: those that are on one.
struct Group {
  Group(const char* spec, StrategyKind strategy, const std::vector<device::GpuRef>& gpus,
        const std::vector<bool>& on_gpu, std::vector<Rule> rules = {})
      : hub(kWorld, std::chrono::seconds(60)) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      ranks.push_back(std::make_unique<Rank>(
          spec, r, hub, strategy,
          on_gpu[r] ? std::optional(gpus[r]) : std::optional<device::GpuRef>(), rules));
    }
  }
  using Change = std::function<void(uint32_t, std::vector<float>&)>;
  /// The gradients of a step, by bucket and rank, are where the ranks have their buckets.
  std::vector<std::vector<std::vector<float>>> bring(
      uint64_t number, DType dtype = DType::f32,
      const Change& change = [](uint32_t, std::vector<float>&) {}) {
    std::vector<std::vector<std::vector<float>>> all;
    for (auto& rank : ranks) rank->brought.clear();
    for (const auto& bucket : kBuckets) {
      const Layout layout = back_to_back(kModel, bucket);
      all.push_back(gradients(kWorld, layout.elements, 10 * number + bucket[0]));
      for (uint32_t r = 0; r < kWorld; ++r) {
        change(r, all.back()[r]);
        ranks[r]->bring(layout, all.back()[r], dtype);
      }
    }
    return all;
  }
  /// Gives the results of finish().
  std::vector<Result<void>> exchange(uint64_t number, bool joins = true) {
    std::vector<Result<void>> results(kWorld);
    on_all(kWorld, [&](uint32_t r) {
      for (auto& brought : ranks[r]->brought) (void)ranks[r]->submit(number, brought, joins);
      results[r] = ranks[r]->driver->finish();
    });
    return results;
  }
  std::vector<Result<void>> step(uint64_t number) {
    bring(number);
    return exchange(number);
  }
  /// The sum of a parameter's residuals over all ranks, in units of the mean.
  double held_back(const std::string& parameter) {
    double sum = 0;
    for (auto& rank : ranks) {
      auto& store = rank->session->active().store;
      EXPECT_TRUE(store.to_host());
      for (const auto& e : store.entries()) {
        const double weight = e.kind == feedback::StateKind::residual ? 1.0 / kWorld : 1.0;
        if (e.name.find("residual/" + parameter) == std::string::npos) continue;
        for (const float x : e.values) sum += weight * static_cast<double>(x);
      }
    }
    return sum;
  }

  LoopbackHub hub;
  std::vector<std::unique_ptr<Rank>> ranks;
};

std::vector<device::GpuRef> open_gpus(const Fake& fake) {
  std::vector<device::GpuRef> gpus;
  for (uint32_t r = 0; r < kWorld; ++r) gpus.push_back(*open_gpu(fake, r));
  return gpus;
}

void expect_same(Group& there, Group& here, const std::string& when) {
  for (uint32_t r = 0; r < kWorld; ++r) {
    SCOPED_TRACE(when + ", rank " + std::to_string(r));
    for (size_t b = 0; b < here.ranks[r]->brought.size(); ++b) {
      EXPECT_TRUE(same_bits(there.ranks[r]->bits(there.ranks[r]->brought[b]),
                            here.ranks[r]->bits(here.ranks[r]->brought[b])))
          << "bucket " << b;
    }
    EXPECT_EQ(there.ranks[r]->state(), here.ranks[r]->state());
  }
}

void expect_all(const std::vector<Result<void>>& results) {
  for (const auto& result : results) EXPECT_TRUE(result) << result.error().message;
}

using Case = std::tuple<const char*, StrategyKind>;
/// Two under a sanitizer: codecs differ in their kernels, which DeviceLaw runs there.
std::vector<Case> cases() {
  using enum StrategyKind;
  std::vector<Case> some{{"3lc", two_shot}, {"sidco:ratio=0.01", gather_all}};
  if (kSanitized) return some;
  some.insert(some.end(), {{"3lc", gather_all},
                           {"3lc+noef", two_shot},
                           {"int8", two_shot},
                           {"int8:round=stochastic+ef", gather_all},
                           {"topk:ratio=0.05", gather_all},
                           {"bf16", gather_all},
                           {"fp16", two_shot},
                           {"onebit", two_shot},
                           {"efsignsgd", two_shot},
                           {"signsgd", gather_all}});
  return some;
}

class DeviceSession : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceSession, testing::ValuesIn(cases()), [](const auto& chosen) {
  std::string name;
  for (const char c : std::string(std::get<0>(chosen.param)))
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name + std::string(collective::strategy_name(std::get<1>(chosen.param)));
});

TEST_P(DeviceSession, StepsEqualThoseOfHost) {
  const auto [spec, strategy] = GetParam();
  const Fake fake;
  fake->late(20);
  {
    const auto gpus = open_gpus(fake);
    Group here(spec, strategy, gpus, {false, false, false});
    Group there(spec, strategy, gpus, {true, false, true});
    const auto both = [&](uint64_t number, DType dtype, bool joins, const auto& change) {
      for (Group* group : {&here, &there}) {
        group->bring(number, dtype, change);
        expect_all(group->exchange(number, joins));
      }
      expect_same(there, here, "step " + std::to_string(number));
    };
    const auto as_drawn = [](uint32_t, std::vector<float>&) {};
    both(0, DType::f32, true, as_drawn);
    both(1, DType::f32, false, as_drawn);
    both(2, DType::f32, false, [](uint32_t rank, std::vector<float>& g) {
      if (rank != 1) std::fill(g.begin(), g.begin() + 3000, 0.0F);
    });
    both(3, DType::f32, true, [](uint32_t rank, std::vector<float>& g) {
      if (rank == 2) g[70] = NAN;
    });
    both(4, DType::bf16, true, as_drawn);
    both(5, DType::f16, false, as_drawn);
    for (Group* group : {&here, &there}) ASSERT_TRUE(group->ranks[1]->session->flush(2));
    for (uint64_t number = 6; number < 10; ++number) both(number, DType::f32, true, as_drawn);
    for (Group* group : {&here, &there}) {
      for (auto& rank : group->ranks) ASSERT_TRUE(rank->session->scale_residuals(0.5F));
    }
    both(10, DType::f32, false, as_drawn);
    EXPECT_GT(there.ranks[0]->session->active().device->staged_bytes(), 0U);
  }
  EXPECT_EQ(faults_of(fake), "");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DeviceSessionTest, StateContinuesOnTheOtherSide) {
  const Fake fake;
  const auto gpus = open_gpus(fake);
  for (const bool to_gpu : {false, true}) {
    Group from("3lc", StrategyKind::two_shot, gpus, std::vector<bool>(kWorld, !to_gpu));
    Group to("3lc", StrategyKind::two_shot, gpus, std::vector<bool>(kWorld, to_gpu));
    for (uint64_t number = 0; number < 2; ++number) expect_all(from.step(number));
    for (uint32_t r = 0; r < kWorld; ++r)
      ASSERT_TRUE(session::load_state(*to.ranks[r]->session, from.ranks[r]->state()));
    for (Group* group : {&from, &to}) expect_all(group->step(2));
    expect_same(to, from, to_gpu ? "on a GPU" : "on the host");
  }
}

TEST(DeviceSessionTest, ChangedSettingsKeepResiduals) {
  const Fake fake;
  const auto gpus = open_gpus(fake);
  Group here("3lc", StrategyKind::two_shot, gpus, {false, false, false});
  Group there("3lc", StrategyKind::two_shot, gpus, {true, true, false});
  for (Group* group : {&here, &there}) {
    expect_all(group->step(0));
    on_all(kWorld, [&](uint32_t r) {
      SettingsChange change;
      change.spec = "int8+ef";
      const auto set = group->ranks[r]->driver->set(change);
      EXPECT_TRUE(set && *set) << set.error().message;
    });
    expect_all(group->step(1));
  }
  expect_same(there, here, "after set");
  on_all(kWorld, [&](uint32_t r) {
    SettingsChange change;
    change.spec = "randomk";
    const auto set = there.ranks[r]->driver->set(change);
    ASSERT_FALSE(set);
    EXPECT_NE(set.error().message.find("codecs=device: randomk"), std::string::npos)
        << set.error().message;
  });
  for (Group* group : {&here, &there}) expect_all(group->step(2));
  expect_same(there, here, "after a change that was refused");
}

TEST(DeviceSessionTest, SettingsThatNeedHostAreRefusedByName) {
  const Fake fake;
  const auto gpus = open_gpus(fake);
  LoopbackHub hub(kWorld);
  const auto refused = [&](const char* spec, StrategyKind strategy, std::vector<Rule> rules = {}) {
    const Rank rank(spec, 0, hub, strategy, gpus[0], std::move(rules));
    EXPECT_EQ(rank.session, nullptr) << spec;
    EXPECT_EQ(rank.refused.code, Errc::unsupported) << rank.refused.message;
    return rank.refused.message;
  };
  using enum StrategyKind;
  EXPECT_NE(refused("powersgd", automatic).find("needs the host"), std::string::npos);
  EXPECT_EQ(refused("randomk", gather_all).substr(0, 21), "codecs=device: random");
  EXPECT_EQ(refused("bf16", native_sum), "codecs=device: strategy native_sum needs the host");
  EXPECT_EQ(refused("signum", gather_all).substr(0, 20), "codecs=device: signu");
  EXPECT_NE(refused("3lc+decay=0.9", gather_all).find("needs the host"), std::string::npos);
  EXPECT_NE(refused("3lc", gather_all, {rule("a", "adaq")}).find("adaq"), std::string::npos);
  Options o;
  o.world = kWorld;
  const std::shared_ptr<const device::Staging> staging =
      *device::Staging::create(*load_program(gpus[0]));
  const auto steered = Session::create("topk", kModel, o, {}, "dc2", {}, {}, staging);
  ASSERT_FALSE(steered);
  EXPECT_EQ(steered.error().message, "codecs=device: a control policy or record needs the host");
}

TEST(DeviceSessionTest, PublicSessionTakesGradientsOnGpu) {
  const Fake fake;
  const auto gpus = open_gpus(fake);
  LoopbackHub hub(kWorld), hosts(kWorld), inside(2);
  const Layout layout = back_to_back(kModel, {0, 1, 2, 3});
  const auto brought = gradients(kWorld, layout.elements, 3);
  on_all(kWorld, [&](uint32_t r) {
    SessionOptions options;
    options.plan = "two_shot";
    auto mean = brought[r];
    auto here = laconic::Session::create("3lc", kModel, hosts.engine(r), options);
    ASSERT_TRUE(here && (*here)->average(0, mean)) << here.error().message;
    options.gpu = r;
    OnGpu gpu(gpus[r]);
    float* const there = gpu.put(brought[r]);
    auto session = laconic::Session::create("3lc", kModel, hub.engine(r), options);
    ASSERT_TRUE(session) << session.error().message;
    const auto averaged = (*session)->average(0, {there, layout.elements});
    EXPECT_TRUE(averaged) << averaged.error().message;
    EXPECT_TRUE(same_bits(gpu.get(there, layout.elements), mean));
    EXPECT_EQ(*(*session)->save(), *(*here)->save());
    EXPECT_NE((*session)->explain().find("\"codecs\": \"device\""), std::string::npos);
  });
  on_all(kWorld, [&](uint32_t r) {
    SessionOptions options;
    options.gpu = r;
    const auto sharded = Sharded::create("3lc", "3lc", {}, {}, hub.engine(r), options);
    ASSERT_FALSE(sharded);
    EXPECT_NE(sharded.error().message.find("owner_turns needs the host"), std::string::npos)
        << sharded.error().message;
  });
  on_all(2, [&](uint32_t r) {
    LoopbackHub alone(1);
    SessionOptions options;
    options.gpu = r;
    options.inside = &inside.engine(r);
    const auto nodes = laconic::Session::create("3lc", kModel, alone.engine(0), options);
    ASSERT_FALSE(nodes);
    EXPECT_NE(nodes.error().message.find("nodes of several ranks need the host"), std::string::npos)
        << nodes.error().message;
  });
}

/// A parameter's part of a bucket, added up.
double sum_of(const std::vector<float>& bucket, const Layout& layout, uint32_t parameter) {
  const auto at = static_cast<size_t>(std::ranges::find(layout.parameters, parameter) -
                                      layout.parameters.begin());
  const auto first = bucket.begin() + static_cast<ptrdiff_t>(layout.offsets[at]);
  return std::accumulate(first, first + static_cast<ptrdiff_t>(kModel[parameter].count()), 0.0);
}

/// Fails one call of the driver, on one rank, in step 0 or 1. All ranks learn of it, in that step
/// or the next, and residuals and means together hold the gradients. Gives whether the call was
/// reached; `lost` counts Errors that say something is lost.
bool fail_in_step(uint64_t step, StrategyKind strategy, int calls, int code, uint32_t* lost) {
  const Fake fake;
  bool reached = false;
  {
    const auto gpus = open_gpus(fake);
    Group group("3lc", strategy, gpus, {true, true, true});
    if (step > 0) expect_all(group.step(0));
    const std::vector<uint32_t> compressed{0, 2, 3};
    std::map<uint32_t, double> before;
    for (const uint32_t p : compressed) before[p] = group.held_back(kModel[p].name);
    const auto brought = group.bring(step);
    fake->fail_after(calls, code);
    const auto results = group.exchange(step, calls % 3 == 0);
    reached = fake->fail_after(-1, 0);
    const auto failed = [](const Result<void>& r) { return !r; };
    const bool some = std::ranges::any_of(results, failed);
    const bool loses = std::ranges::any_of(results, [](const Result<void>& r) {
      return !r && r.error().message.find("lost") != std::string::npos;
    });
    *lost += loses ? 1 : 0;
    for (size_t b = 0; b < kBuckets.size() && !loses; ++b) {
      const Layout layout = back_to_back(kModel, kBuckets[b]);
      for (const uint32_t p : compressed) {
        if (std::ranges::find(kBuckets[b], p) == kBuckets[b].end()) continue;
        double came = before[p], mean = 0;
        bool delivered = false;
        for (uint32_t r = 0; r < kWorld; ++r) {
          came += sum_of(brought[b][r], layout, p) / kWorld;
          const auto now = group.ranks[r]->bits(group.ranks[r]->brought[b]);
          if (same_bits(now, brought[b][r]) || !results[r]) continue;
          delivered = true;
          mean = sum_of(now, layout, p);
        }
        for (uint32_t r = 0; r < kWorld && !delivered; ++r) {
          const auto now = group.ranks[r]->bits(group.ranks[r]->brought[b]);
          if (!same_bits(now, brought[b][r])) mean = sum_of(now, layout, p);
        }
        EXPECT_NEAR(group.held_back(kModel[p].name) + mean, came, 1e-3)
            << "call " << calls << " " << kModel[p].name;
      }
    }
    if (some) {
      group.bring(step + 1);
      const auto next = group.exchange(step + 1);
      for (uint32_t r = 0; r < kWorld; ++r) {
        EXPECT_FALSE(results[r] && next[r]) << "call " << calls << ": rank " << r << " goes on";
      }
    }
  }
  EXPECT_EQ(faults_of(fake), "") << calls;
  // In step 0 memory grows, and the call may have been to free.
  EXPECT_LE(fake.alive(), step == 0 ? 1U : 0U) << calls;
  return reached;
}

/// Fails calls of a step, one a run, spread over all of them.
void expect_nothing_lost(uint64_t step, int code) {
  uint32_t lost = 0;
  int calls = 0;
  for (bool reached = true; reached; calls += kSanitized ? 230 : 23) {
    const auto strategy = calls % 2 == 0 ? StrategyKind::two_shot : StrategyKind::gather_all;
    reached = fail_in_step(step, strategy, calls, code, &lost);
  }
  EXPECT_GT(calls, 50);
  EXPECT_EQ(lost, 0U);
}

TEST(DeviceSessionTest, FailingCallIsToldAndLosesNothing) { expect_nothing_lost(1, kRefused); }

TEST(DeviceSessionTest, FirstExchangeWithoutMemoryLosesNothing) {
  expect_nothing_lost(0, kNoMemory);
}

}  // namespace
}  // namespace laconic::test
