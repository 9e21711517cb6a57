// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A bucket's contents as a strategy sees them: units to encode, and uncompressed parameters as one
// lane segment.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/exchange/held.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "collective/plan/layout.h"
#include "pipeline/batch_codec.h"

namespace laconic::collective {

/// A unit of this bucket.
struct BucketUnit {
  const RankPiece* piece = nullptr;
  uint32_t parameter = 0;
};

/// An uncompressed parameter: `count` floats at `offset` of the buffer, at `lane` of the bucket's
/// lane segment.
struct BucketRaw {
  uint64_t offset = 0;
  uint64_t count = 0;
  uint64_t lane = 0;
  uint32_t parameter = 0;
};

/// The strategies of a bucket, one leg each.
class Legs {
 public:
  Legs(const RankState& state, const Layout& layout) {
    const auto any = [&](StrategyKind kind) {
      return std::ranges::any_of(layout.parameters,
                                 [&](uint32_t p) { return state.parameter(p).strategy == kind; });
    };
    // Uncompressed parameters ride together: added on the way if anything is, else twice rather
    // than n − 1 times.
    for (const StrategyKind kind :
         {StrategyKind::gather_all, StrategyKind::two_shot, StrategyKind::native_sum}) {
      if (any(kind)) raw_ = kind;
    }
    for (const uint32_t p : layout.parameters) {
      const StrategyKind kind = of(state.parameter(p));
      if (std::ranges::find(kinds_, kind) == kinds_.end()) kinds_.push_back(kind);
    }
    if (kinds_.empty()) kinds_.push_back(state.model().choice().strategy);
  }
  [[nodiscard]] const std::vector<StrategyKind>& kinds() const noexcept { return kinds_; }
  /// That of a parameter. What an aggregator takes, it takes whole.
  [[nodiscard]] StrategyKind of(const RankParameter& p) const noexcept {
    return p.raw && p.strategy != StrategyKind::server_sum ? raw_ : p.strategy;
  }
  /// That of uncompressed parameters.
  [[nodiscard]] StrategyKind raw() const noexcept { return raw_; }

 private:
  std::vector<StrategyKind> kinds_;
  StrategyKind raw_ = StrategyKind::automatic;
};

/// Which of a layout's compressed parameters travel as float32, as settings are now.
struct DensePart {
  bool some = false, all = false;
};
inline DensePart dense_part(const RankState& state, const LayoutView& layout) noexcept {
  bool any = false, rest = false;
  for (const uint32_t p : layout.parameters) {
    const RankParameter& parameter = state.parameter(p);
    if (parameter.pieces.empty() && parameter.memory.values == nullptr) continue;
    (state.way(p).dense ? any : rest) = true;
  }
  return {any, any && !rest};
}
/// If some parameters are sent as float32: true if uncompressed parameters travel with them,
/// because their own leg would otherwise have nothing else. Not if an engine or server adds that
/// leg.
inline bool raw_rides_along(const RankState& state, const LayoutView& layout,
                            StrategyKind raw) noexcept {
  return !sums_lanes(raw) && std::ranges::none_of(layout.parameters, [&](uint32_t p) {
    const RankParameter& parameter = state.parameter(p);
    return parameter.strategy == raw && !parameter.pieces.empty() && !state.way(p).dense;
  });
}

/// True if payloads may have any length up to their bound. With owner turns no round could report
/// that a payload did not fit.
inline bool grants_bound(const RankState& state, const RankPiece& piece) noexcept {
  const bool exact = piece.codec->contract().exact_size &&
                     (piece.down == nullptr || piece.down->contract().exact_size);
  return exact || state.short_sends() || state.model().options().owner_turns;
}

/// The plan of one leg.
struct BucketPlan {
  std::vector<BucketUnit> units;
  std::vector<uint64_t> at;  ///< by unit: its first element in the bucket's gradient buffer
  std::vector<BucketRaw> raw;
  uint64_t lanes = 0;  ///< floats of all uncompressed parameters
  /// No payload outgrows what is granted: its size never varies, or need not be granted.
  bool exact = true;

  BucketPlan(const RankState& state, const Layout& layout, StrategyKind leg)
      : BucketPlan(state, layout, leg, [](const RankParameter&) { return true; }) {}
  /// Adds the parameters of the leg for which takes(parameter) is true.
  template <class Takes>
  BucketPlan(const RankState& state, const Layout& layout, StrategyKind leg, Takes&& takes)
      : state_(&state), layout_(&layout), leg_(leg) {
    const Legs legs(state, layout);
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const RankParameter& p = state.parameter(layout.parameters[i]);
      if (legs.of(p) != leg || !takes(p)) continue;
      if (p.raw) {
        raw.push_back({layout.offsets[i], p.count, lanes, layout.parameters[i]});
        lanes += p.count;
      }
      for (const RankPiece& piece : p.pieces) {
        const uint64_t inside = piece.send.unit.offset - p.first;
        units.push_back({&piece, layout.parameters[i]});
        at.push_back(layout.offsets[i] + inside);
        exact = exact && grants_bound(state, piece);
      }
    }
    raw_leg_ = legs.raw();
    if (std::ranges::none_of(layout.parameters, [&](uint32_t p) {
          return state.model().dense(state.parameter(p).of);
        }))
      return;
    all_units_ = units;
    all_at_ = at;
    all_raw_ = raw;
    all_lanes_ = lanes;
  }

  /// Applies changed settings: parameters that are now sent as float32 leave this leg. Takes no
  /// memory.
  void refill() noexcept {
    if (all_units_.empty() && all_raw_.empty()) return;
    units.clear();
    at.clear();
    exact = true;
    for (size_t i = 0; i < all_units_.size(); ++i) {
      const BucketUnit& u = all_units_[i];
      if (state_->way(u.parameter).dense) continue;
      units.push_back(u);
      at.push_back(all_at_[i]);
      exact = exact && grants_bound(*state_, *u.piece);
    }
    const bool rides = leg_ == raw_leg_ && dense_part(*state_, *layout_).some &&
                       raw_rides_along(*state_, *layout_, raw_leg_);
    raw.clear();
    if (!rides) raw.insert(raw.end(), all_raw_.begin(), all_raw_.end());
    lanes = rides ? 0 : all_lanes_;
  }
  /// All of it has gone to float32.
  [[nodiscard]] bool idle() const noexcept {
    return units.empty() && raw.empty() && !(all_units_.empty() && all_raw_.empty());
  }

  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(units, at, raw, all_units_, all_at_, all_raw_);
  }

  /// Units as this rank sends them.
  void fill(pipeline::BatchCodec& batch) const {
    batch.restart();
    for (const BucketUnit& u : units)
      batch.add({u.piece->codec, &u.piece->send, state_->name_of(u.parameter)});
  }
  [[nodiscard]] pipeline::UnitFloats in(const Input& input) const {
    return {input.gradient, at, input.there};
  }

  /// body(at, lane, count) for every stretch of the lanes [begin, end): `at` is its place in the
  /// gradient buffer.
  template <class Body>
  void over_lanes(uint64_t begin, uint64_t end, Body&& body) const {
    auto r = std::upper_bound(raw.begin(), raw.end(), begin,
                              [](uint64_t lane, const BucketRaw& x) { return lane < x.lane; });
    if (r != raw.begin()) --r;
    for (; r != raw.end() && r->lane < end; ++r) {
      const uint64_t first = std::max(begin, r->lane);
      const uint64_t last = std::min(end, r->lane + r->count);
      if (first < last) body(r->offset + (first - r->lane), first, last - first);
    }
  }

 private:
  const RankState* state_;
  const Layout* layout_;
  StrategyKind leg_;
  StrategyKind raw_leg_ = StrategyKind::automatic;
  // If a control policy may choose float32: the units of the leg while it does not.
  std::vector<BucketUnit> all_units_;
  std::vector<uint64_t> all_at_;
  std::vector<BucketRaw> all_raw_;
  uint64_t all_lanes_ = 0;
};

}  // namespace laconic::collective
