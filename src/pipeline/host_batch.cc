// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/host_batch.h"

namespace laconic::pipeline {
namespace {

class HostSums final : public HostBatch<SumBatch> {
 public:
  void begin(const Place& place) override {
    HostBatch::begin(place);
    for (const uint32_t i : all_) {
      Work work = work_of(i);
      own_[i].first = codec(i).start(slot(i), work);
    }
  }
  [[nodiscard]] uint32_t first(uint32_t unit) const noexcept override { return own_[unit].first; }
  [[nodiscard]] Work work(uint32_t unit) override { return work_of(unit); }

  Result<void> encode_round(uint32_t round, UnitFloats gradients, PayloadSink& sink) override {
    for (const uint32_t i : all_) {
      Own& own = own_[i];
      if (round <= own.first || round > last(i)) continue;
      UnitEncoded encoded{Outcome::zero};
      if (own.outcome == Outcome::payload) {
        Work work = work_of(i);
        encoded = codec(i).encode_round(slot(i), place(i, round), round, gradients.of(i), work,
                                        sink.room(i));
      }
      own.payload = sink.put(i, encoded);
    }
    return {};
  }
  void accept(uint32_t unit, uint32_t round, MutBytes sum) override {
    if (round < own_[unit].first || round >= last(unit)) return;
    Work work = work_of(unit);
    codec(unit).accept(slot(unit), place_, round, sum, place_.world, work);
  }
  Result<void> take_sums(Units units, SumSource& sums, UnitFloats means) override {
    for (const uint32_t i : units) {
      const Place p = place(i, last(i));
      Work work = work_of(i);
      Term sum = sums.sum(i);
      if (sum.contributors.empty() && p.prescale == 1.0F)
        sum.weight = 1.0F / static_cast<float>(p.world);
      codec(i).decode(slot(i).unit, p, {&sum, 1}, work, {means.of(i), false});
      const auto left_out = sums.left_out(i);
      if (!left_out.empty()) codec(i).put_back(slot(i), p, own_[i].payload, left_out, work);
      codec(i).commit(slot(i), p, own_[i].payload, sum.payload, p.world, means.of(i), work);
    }
    return {};
  }
};

class HostBatches final : public Batches {
 public:
  [[nodiscard]] std::unique_ptr<FrameBatch> frames(uint32_t world) const override {
    return std::make_unique<HostFrames>(world);
  }
  [[nodiscard]] std::unique_ptr<SumBatch> sums() const override {
    return std::make_unique<HostSums>();
  }
};

constexpr HostBatches kHostBatches;

}  // namespace

const Batches& host_batches() noexcept { return kHostBatches; }

}  // namespace laconic::pipeline
