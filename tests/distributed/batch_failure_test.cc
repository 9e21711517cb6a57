// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Batches of one rank fail, as those on a device may, at each of their calls in turn: either every
// rank reports it and residuals have all gradients, or this rank alone could not take the mean.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "collective/exchange/exchange.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using collective::Exchange;
using collective::RankState;
using pipeline::BatchCodec;
using pipeline::PayloadSink;
using pipeline::UnitFloats;

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}};

/// The number of calls until one fails; afterwards none does.
struct Fault {
  int64_t left = -1;
  bool fired = false;

  Result<void> next() {
    if (left < 0 || left-- != 0) return {};
    fired = true;
    return Error{Errc::engine_failed, "the card is lost", "restart"};
  }
};

template <class Kind>
class FailingBatch : public Kind {
 public:
  using Units = BatchCodec::Units;
  FailingBatch(std::unique_ptr<Kind> inner, Fault& fault)
      : inner_(std::move(inner)), fault_(&fault) {}

  void restart() override { inner_->restart(); }
  void add(const pipeline::BatchUnit& unit) override { inner_->add(unit); }
  [[nodiscard]] bool reserve() override { return inner_->reserve(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override { return inner_->held_bytes(); }
  [[nodiscard]] Units all() const noexcept override { return inner_->all(); }
  void begin(const Place& place) override { inner_->begin(place); }
  /// Fails in the middle.
  Result<void> encode(Units units, UnitFloats gradients, PayloadSink& sink) override {
    auto failed = fault_->next();
    if (failed) return inner_->encode(units, gradients, sink);
    EXPECT_TRUE(inner_->encode(units.first(units.size() / 2), gradients, sink));
    return failed;
  }
  [[nodiscard]] pipeline::Outcome outcome(uint32_t unit) const noexcept override {
    return inner_->outcome(unit);
  }
  void undo(Units units, UnitFloats gradients, pipeline::Undo why) override {
    inner_->undo(units, gradients, why);
  }
  void keep(Units units, UnitFloats gradients) override { inner_->keep(units, gradients); }

 protected:
  std::unique_ptr<Kind> inner_;
  Fault* fault_;
};

class FailingFrames final : public FailingBatch<pipeline::FrameBatch> {
 public:
  using FailingBatch::FailingBatch;
  [[nodiscard]] UnitFloats lend(std::span<const uint64_t> at, uint64_t floats) override {
    return inner_->lend(at, floats);
  }
  Result<void> check(std::span<const pipeline::Received> received) override {
    auto failed = fault_->next();
    return failed ? inner_->check(received) : failed;
  }
  Result<void> mean(Units units, std::span<SlotCursor> bundles, UnitFloats means) override {
    auto failed = fault_->next();
    return failed ? inner_->mean(units, bundles, means) : failed;
  }
  void commit(Units units, uint32_t contributors, UnitFloats means) override {
    inner_->commit(units, contributors, means);
  }
};

class FailingSums final : public FailingBatch<pipeline::SumBatch> {
 public:
  using FailingBatch::FailingBatch;
  [[nodiscard]] uint32_t first(uint32_t unit) const noexcept override {
    return inner_->first(unit);
  }
  [[nodiscard]] Work work(uint32_t unit) override { return inner_->work(unit); }
  Result<void> encode_round(uint32_t round, UnitFloats gradients, PayloadSink& sink) override {
    auto failed = fault_->next();
    return failed ? inner_->encode_round(round, gradients, sink) : failed;
  }
  void accept(uint32_t unit, uint32_t round, MutBytes sum) override {
    inner_->accept(unit, round, sum);
  }
  Result<void> take_sums(Units units, pipeline::SumSource& sums, UnitFloats means) override {
    auto failed = fault_->next();
    return failed ? inner_->take_sums(units, sums, means) : failed;
  }
};

class FailingBatches final : public pipeline::Batches {
 public:
  explicit FailingBatches(Fault& fault) : fault_(&fault) {}
  [[nodiscard]] std::unique_ptr<pipeline::FrameBatch> frames(uint32_t world) const override {
    return std::make_unique<FailingFrames>(pipeline::host_batches().frames(world), *fault_);
  }
  [[nodiscard]] std::unique_ptr<pipeline::SumBatch> sums() const override {
    return std::make_unique<FailingSums>(pipeline::host_batches().sums(), *fault_);
  }

 private:
  Fault* fault_;
};

struct Case {
  std::string spec;
  StrategyKind strategy;
};

/// Ranks of which rank 1 has the fault.
class Exchanges {
 public:
  Exchanges(const Case& c, Fault& fault)
      : failing_(fault),
        hub_(kWorld, std::chrono::seconds(60), EngineCaps{kAllSums, false}),
        layout_(back_to_back(kModel, {0, 1, 2})) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      auto rank = std::make_unique<Rank>();
      Options o;
      o.rank = r;
      o.world = kWorld;
      o.small_elements = 16;
      o.strategy = c.strategy;
      o.caps = hub_.engine(r).caps();
      rank->model = std::make_unique<collective::Model>(
          *collective::Model::create(*Spec::parse(c.spec), kModel, o));
      rank->codec = std::make_unique<pipeline::UnitCodec>(rank->model->spec(), best_isa(), nullptr);
      const pipeline::Batches& batches = r == 1 ? failing_ : pipeline::host_batches();
      rank->state = *RankState::create(*rank->model, {rank->codec.get(), 1}, rank->store, batches);
      rank->exchange = *Exchange::create(*rank->state, layout_, DType::f32, rank->counters);
      ranks_.push_back(std::move(rank));
    }
  }

  std::vector<Result<void>> step(std::vector<std::vector<float>>& buffers, uint32_t step) {
    std::vector<Result<void>> results(kWorld);
    on_all(kWorld, [&](uint32_t r) { results[r] = one(r, buffers[r], step); });
    return results;
  }
  /// The residuals of a rank, as the buffer has its gradients.
  [[nodiscard]] std::vector<float> residuals(uint32_t rank) const {
    std::vector<float> all(layout_.elements);
    for (const auto& e : ranks_[rank]->store.entries()) {
      if (e.kind != feedback::StateKind::residual) continue;
      const uint32_t p = e.name == "residual/a" ? 0 : 2;
      std::copy(e.values.begin(), e.values.end(),
                all.begin() + static_cast<int64_t>(layout_.offsets[p]));
    }
    return all;
  }
  /// The largest error feedback of a mean that the rank owns.
  [[nodiscard]] float owned(uint32_t rank) const {
    float most = 0;
    for (const auto& e : ranks_[rank]->store.entries()) {
      if (e.kind != feedback::StateKind::owner_residual) continue;
      for (const float x : e.values) most = std::max(most, std::abs(x));
    }
    return most;
  }
  /// Has element i of the buffer a residual?
  [[nodiscard]] bool remembers(uint64_t i) const {
    return i < layout_.offsets[1] || i >= layout_.offsets[2];
  }
  [[nodiscard]] uint64_t elements() const { return layout_.elements; }

 private:
  struct Rank {
    std::unique_ptr<collective::Model> model;
    std::unique_ptr<pipeline::UnitCodec> codec;
    feedback::Store store;
    std::unique_ptr<RankState> state;
    collective::Counters counters;
    std::unique_ptr<Exchange> exchange;
  };
  Result<void> one(uint32_t r, std::vector<float>& buffer, uint32_t step) {
    Exchange& exchange = *ranks_[r]->exchange;
    Bucket bucket;
    bucket.buffer = buffer.data();
    bucket.step = step;
    exchange.prepare(bucket, step, {});
    std::array<Step, kMaxBatch> batch;
    for (;;) {
      auto steps = exchange.next(batch);
      if (!steps) return std::move(steps).error();
      if (*steps == 0) return {};
      if (auto ran = hub_.engine(r).run({batch.data(), *steps}); !ran) return ran;
    }
  }

  FailingBatches failing_;
  LoopbackHub hub_;
  Layout layout_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

class BatchFailure : public testing::TestWithParam<Case> {};

TEST_P(BatchFailure, EachCallLosesNothing) {
  uint32_t everywhere = 0, alone = 0;
  for (int64_t call = 0;; ++call) {
    Fault fault;
    Exchanges ranks(GetParam(), fault);
    auto buffers = gradients(kWorld, ranks.elements(), 7);
    const auto before = buffers;
    fault.left = call;
    const auto results = ranks.step(buffers, 0);
    if (!fault.fired) break;
    ASSERT_FALSE(results[1]) << call;
    EXPECT_NE(results[1].error().message.find("the card is lost"), std::string::npos);
    if (results[0]) {  // the others have the mean
      ++alone;
      ASSERT_TRUE(results[2]) << call;
      EXPECT_TRUE(same_bits(buffers[0], buffers[2])) << call;
      continue;
    }
    ++everywhere;
    for (uint32_t r = 0; r < kWorld; ++r) {
      ASSERT_FALSE(results[r]) << call;
      EXPECT_EQ(results[r].error().message, results[1].error().message) << call;
      EXPECT_LE(ranks.owned(r), 1e-6) << call << " " << r << ": gradients are there already";
      const auto residuals = ranks.residuals(r);
      for (uint64_t i = 0; i < residuals.size(); ++i) {
        if (ranks.remembers(i)) {
          ASSERT_NEAR(residuals[i], before[r][i], 1e-6) << call << " " << r << " " << i;
        }
      }
    }
  }
  EXPECT_GE(everywhere, 1U);
  EXPECT_GE(alone, 1U);
}

/// After an exchange that failed the next one works, and takes along what was not delivered.
TEST_P(BatchFailure, NextExchangeGoesOn) {
  Fault fault;
  Exchanges ranks(GetParam(), fault);
  auto buffers = gradients(kWorld, ranks.elements(), 7);
  fault.left = 0;
  ASSERT_FALSE(ranks.step(buffers, 0)[0]);
  buffers = gradients(kWorld, ranks.elements(), 8);
  for (const auto& result : ranks.step(buffers, 1)) EXPECT_TRUE(result) << result.error().message;
  EXPECT_TRUE(same_bits(buffers[0], buffers[1]));
  EXPECT_TRUE(same_bits(buffers[0], buffers[2]));
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name =
      info.param.spec + "_" + std::string(collective::strategy_name(info.param.strategy));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, BatchFailure,
                         testing::Values(Case{"3lc", StrategyKind::gather_all},
                                         Case{"topk:ratio=0.05", StrategyKind::two_shot},
                                         Case{"fp16+ef", StrategyKind::native_sum},
                                         Case{"powersgd:rank=2", StrategyKind::native_sum},
                                         Case{"thc", StrategyKind::native_sum}),
                         name_of);

}  // namespace
}  // namespace laconic::test
