// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "aggregate/mean.h"
#include "base/arena.h"
#include "codecs/registry/registered.h"
#include "pipeline/batch_codec.h"

namespace laconic::pipeline {
namespace {

/// The common part of both kinds.
template <class Kind>
class HostBatch : public Kind {
 public:
  using Units = BatchCodec::Units;

  void restart() override {
    units_.clear();
    all_.clear();
    kept_at_.clear();
    own_.clear();
    kept_bytes_ = scratch_bytes_ = 64;
  }
  void add(const BatchUnit& unit) override {
    const Plan& plan = unit.slot->plan;
    all_.push_back(static_cast<uint32_t>(units_.size()));
    units_.push_back(unit);
    own_.emplace_back();
    kept_at_.push_back(kept_bytes_);
    kept_bytes_ += unit.encodes ? round_up(plan.kept_bytes, 64) : 0;
    scratch_bytes_ = std::max(scratch_bytes_, plan.scratch_bytes);
  }
  [[nodiscard]] bool reserve() override {
    return kept_.reserve(kept_bytes_) && scratch_.reserve(scratch_bytes_);
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(units_) + held(all_) + held(kept_at_) + held(own_) +
           kept_.capacity() + scratch_.capacity();
  }
  [[nodiscard]] Units all() const noexcept override { return all_; }

  void begin(const Place& place) override {
    place_ = place;
    std::ranges::fill(own_, Own{});
  }
  Result<void> encode(Units units, UnitFloats gradients, PayloadSink& sink) override;
  [[nodiscard]] Outcome outcome(uint32_t unit) const noexcept override {
    return own_[unit].outcome;
  }
  void undo(Units units, UnitFloats gradients, Undo why) override;
  void keep(Units units, UnitFloats gradients) override {
    for (const uint32_t i : units) codec(i).keep(slot(i), gradients.of(i));
  }

 protected:
  /// This rank's part in the exchange.
  struct Own {
    uint32_t first = 0;
    Outcome outcome = Outcome::zero;
    Bytes payload;  // of the last round
  };
  template <class T>
  static uint64_t held(const std::vector<T>& v) noexcept {
    return v.capacity() * sizeof(T);
  }
  [[nodiscard]] const UnitCodec& codec(uint32_t unit) const { return *units_[unit].codec; }
  [[nodiscard]] const UnitSlot& slot(uint32_t unit) const { return *units_[unit].slot; }
  [[nodiscard]] uint32_t last(uint32_t unit) const { return slot(unit).plan.rounds - 1; }
  [[nodiscard]] Work work_of(uint32_t unit) {
    const uint64_t bytes = units_[unit].encodes ? slot(unit).plan.kept_bytes : 0;
    return {kept_.bytes().subspan(kept_at_[unit], bytes), scratch_.bytes(), codec(unit).isa(),
            codec(unit).pool()};
  }
  /// 16-bit sums take the mean before they add, so that finite gradients cannot overflow
  /// (pytorch/pytorch#57410).
  [[nodiscard]] Place place(uint32_t unit, uint32_t round) const {
    Place p = place_;
    const DType lane = slot(unit).plan.round[round].lane;
    if (std::is_same_v<Kind, SumBatch> && (lane == DType::f16 || lane == DType::bf16))
      p.prescale = 1.0F / static_cast<float>(p.world);
    return p;
  }
  /// The error of a registered codec since the last call.
  [[nodiscard]] std::optional<Error> failure_of(uint32_t unit) const {
    const codecs::Registered* const own = codec(unit).spec().registered();
    auto why = own != nullptr ? own->take_failure() : std::nullopt;
    if (why) why->message = std::string(units_[unit].name) + ": " + why->message;
    return why;
  }

  std::vector<BatchUnit> units_;
  std::vector<uint32_t> all_;
  std::vector<uint64_t> kept_at_;
  uint64_t kept_bytes_ = 64;  // of all units, side by side
  uint64_t scratch_bytes_ = 64;
  Arena kept_, scratch_;
  Place place_;
  std::vector<Own> own_;
};

template <class Kind>
Result<void> HostBatch<Kind>::encode(Units units, UnitFloats gradients, PayloadSink& sink) {
  for (const uint32_t i : units) {
    Own& own = own_[i];
    Work work = work_of(i);
    const UnitEncoded encoded = codec(i).encode(slot(i), place(i, own.first), gradients.of(i), work,
                                                sink.room(i), own.first);
    own.outcome = encoded.outcome;
    own.payload = sink.put(i, encoded);
    if (auto failure = failure_of(i)) return *std::move(failure);
  }
  return {};
}

template <class Kind>
void HostBatch<Kind>::undo(Units units, UnitFloats gradients, Undo why) {
  for (const uint32_t i : units) {
    Own& own = own_[i];
    if (own.outcome != Outcome::payload) continue;
    Work work = work_of(i);
    codec(i).undo(slot(i), place(i, last(i)), own.payload, gradients.of(i), why, work);
    own.outcome = Outcome::zero;
    own.payload = {};
  }
}

class HostFrames final : public HostBatch<FrameBatch> {
 public:
  explicit HostFrames(uint32_t world) : slots_(world), terms_(world) {}
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return HostBatch::held_bytes() + held(slots_) + held(terms_);
  }

  Result<void> check(std::span<const Received> received) override {
    for (Received from : received) {
      for (const uint32_t i : from.units) {
        auto ok = aggregate::check_slot(codec(i).spec(), slot(i).unit, from.slots.next(), from.rank,
                                        units_[i].name);
        if (!ok) return ok;
      }
    }
    return {};
  }
  Result<void> mean(Units units, std::span<SlotCursor> bundles, UnitFloats means) override {
    const std::span<Slot> slots(slots_.data(), bundles.size());
    for (const uint32_t i : units) {
      std::ranges::transform(bundles, slots.begin(), [](SlotCursor& from) { return from.next(); });
      Work work = work_of(i);
      aggregate::mean_of_unit(codec(i).spec(), slot(i).unit, place_, slots, terms_, work,
                              means.of(i));
      if (auto failure = failure_of(i)) return *std::move(failure);
    }
    return {};
  }
  void commit(Units units, uint32_t contributors, UnitFloats means) override {
    for (const uint32_t i : units) {
      Work work = work_of(i);
      codec(i).commit(slot(i), place_, own_[i].payload, {}, contributors, means.of(i), work);
    }
  }

 private:
  std::vector<Slot> slots_;  // of one unit, by rank
  std::vector<Term> terms_;
};

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
