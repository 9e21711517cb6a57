// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/server_sum/values.h"

#include <algorithm>

#include "pipeline/fixed_point.h"

namespace laconic::collective {

namespace fixed = pipeline::fixed;
using pipeline::Outcome;

Values::Values(const RankState& state, const BucketPlan& plan, ValueGranules& granules,
               Counters& counters)
    : granules_(&granules), counters_(&counters) {
  for (const BucketRaw& r : plan.raw) {
    const RankParameter& p = state.parameter(r.parameter);
    items_.push_back({&p.fixed, p.codec, r.offset});
    granules.add(r.count);
  }
}

bool Values::start() {
  bool known = true;
  for (uint64_t i = 0; i < items_.size(); ++i) {
    const float saved = items_[i].slot->state[0];
    items_[i].way = Way::nothing;
    set_range(i, saved == 0 ? 0 : fixed::nearest_range(saved));
    known = known && saved != 0;
  }
  return known;
}

void Values::set_range(uint64_t i, float range) {
  items_[i].range = range;
  granules_->set_scale(i, range);
}

bool Values::encode(const float* gradient, std::span<float> agreed) {
  bool good = true;
  std::fill(agreed.begin(), agreed.end(), 0.0F);
  for (uint64_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const auto measured = fixed::measure(*item.codec, *item.slot, gradient + item.offset);
    item.largest = measured.largest;
    counters_->residual_resets += measured.residual_reset ? 1U : 0U;
    if (measured.outcome == Outcome::zero) continue;
    if (item.range == 0) agreed[i] = item.largest;  // not finite: all ranks see it there
    if (measured.outcome == Outcome::non_finite) {
      ++counters_->non_finite_units;
      good = false;
    } else if (item.range == 0) {
      item.way = Way::asks;
    } else {
      good = send(i, gradient) && good;
    }
  }
  return good;
}

bool Values::encode_rest(const float* gradient, std::span<const float> agreed) {
  bool good = true;
  for (uint64_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    if (item.range != 0) continue;
    set_range(i, fixed::next_range(0, fixed::short_magnitude(agreed[i])));
    if (item.way == Way::asks) good = send(i, gradient) && good;
  }
  return good;
}

bool Values::send(uint64_t i, const float* gradient) {
  Item& item = items_[i];
  const uint16_t norm = fixed::short_magnitude(item.largest);
  if (!(item.largest < item.range)) {
    item.way = Way::too_large;
    ++counters_->out_of_range;
    granules_->put_norm(i, norm);
    return false;
  }
  item.way = Way::sent;
  fixed::encode(*item.codec, *item.slot, gradient + item.offset, item.range,
                granules_->room(i).data());
  granules_->put(i, norm);
  return true;
}

void Values::move_range(uint64_t i) {
  const Item& item = items_[i];
  item.slot->state[0] = fixed::next_range(item.range, granules_->largest_norm(i));
}

void Values::finish(float* gradient) {
  for (uint64_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    float* const mean = gradient + item.offset;
    // No other rank knows of the failure: this rank was left out of all granules.
    if (item.way == Way::too_large) item.codec->keep(*item.slot, mean);
    for (uint64_t g = 0; g < granules_->granules_of(i); ++g) {
      const ValueGranules::Sum sum = granules_->sum_of(i, g);
      if (sum.lanes.empty()) {
        std::fill_n(mean + sum.begin, sum.count, 0.0F);
      } else {
        fixed::decode(sum.lanes, item.range, sum.divisor, mean + sum.begin);
      }
      if (!sum.left_out || item.way != Way::sent) continue;
      fixed::put_back(*item.slot, item.range, sum.begin,
                      granules_->room(i).subspan(sum.begin, sum.count));
    }
    move_range(i);
  }
}

void Values::learn() {
  for (uint64_t i = 0; i < items_.size(); ++i) move_range(i);
}

void Values::undo(pipeline::Undo why, const float* gradient) {
  for (uint64_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    const float* const own = gradient + item.offset;
    const bool travels = why == pipeline::Undo::gradient_travels;
    if (item.way == Way::nothing) continue;
    if (item.way == Way::sent) {
      fixed::put_back(*item.slot, item.range, 0, granules_->room(i));
      if (travels) fixed::take_gradient(*item.codec, *item.slot, own);
    } else if (!travels) {
      item.codec->keep(*item.slot, own);
    }
  }
}

}  // namespace laconic::collective
