// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/native_sum/integer_lanes.h"

#include <algorithm>

namespace laconic::collective {

void IntegerLanes::add_unit(const RoundPlan& round, uint32_t rank, uint32_t world) {
  rank_ = rank;
  world_ = world;
  Region r;
  r.numbers = round.maxima;
  r.added = bytes_;
  r.maxima = r.added + 4;
  r.sums = r.maxima + round_up(world * round.maxima * sizeof(uint16_t), 4);
  r.bytes = round.lanes * dtype_size(round.lane);
  bytes_ = r.sums + round_up(r.bytes, 4);
  regions_.push_back(r);
}

void IntegerLanes::put_nothing(uint64_t unit, MutBytes all) const {
  const Region& r = regions_[unit];
  const uint64_t end = r.sums + round_up(r.bytes, 4);
  std::fill_n(all.data() + r.added, end - r.added, uint8_t{0});
}

void IntegerLanes::put(uint64_t unit, const CodecTable& codec, const void* params, const Unit& of,
                       Bytes codes, Work& work, MutBytes all) const {
  const Region& r = regions_[unit];
  store<uint32_t>(all.data() + r.added, 1);
  std::fill_n(all.data() + r.maxima, r.sums - r.maxima, uint8_t{0});
  const uint64_t slot = r.numbers * sizeof(uint16_t);
  std::copy_n(work.kept.data(), slot, all.data() + r.maxima + rank_ * slot);
  codec.expand(params, of, codes, work, all.subspan(r.sums, r.bytes));
  std::fill_n(all.data() + r.sums + r.bytes, round_up(r.bytes, 4) - r.bytes, uint8_t{0});
}

void IntegerLanes::take_maxima(uint64_t unit, Bytes all, Work& work) const {
  const Region& r = regions_[unit];
  const uint8_t* slots = all.data() + r.maxima;
  for (uint64_t k = 0; k < r.numbers; ++k) {
    uint16_t most = 0;
    for (uint64_t rank = 0; rank < world_; ++rank) {
      most = std::max(most, load<uint16_t>(slots + (rank * r.numbers + k) * sizeof(uint16_t)));
    }
    store<uint16_t>(work.kept.data() + k * sizeof(uint16_t), most);
  }
}

}  // namespace laconic::collective
