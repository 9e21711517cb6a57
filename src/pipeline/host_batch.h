// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Batches on the host: loops over UnitCodec.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "aggregate/mean.h"
#include "base/arena.h"
#include "codecs/registry/registered.h"
#include "pipeline/batch_codec.h"

namespace laconic::pipeline {

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

class HostFrames : public HostBatch<FrameBatch> {
 public:
  explicit HostFrames(uint32_t world) : slots_(world), terms_(world) {}
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return HostBatch::held_bytes() + held(slots_) + held(terms_) + lent_.capacity();
  }
  [[nodiscard]] UnitFloats lend(std::span<const uint64_t> at, uint64_t floats) override {
    if (!lent_.reserve(std::max<uint64_t>(floats, 1) * sizeof(float))) return {};
    return {reinterpret_cast<float*>(lent_.bytes().data()), at};
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

 protected:
  std::vector<Slot> slots_;  // of one unit, by rank
  std::vector<Term> terms_;

 private:
  Arena lent_;
};

}  // namespace laconic::pipeline
