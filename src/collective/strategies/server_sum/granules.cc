// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/server_sum/granules.h"

namespace laconic::collective {

uint64_t ValueGranules::add(uint64_t lanes) {
  const uint64_t bytes = sizeof(int32_t) * lanes;
  const uint64_t out = granules_->take(bytes);
  arrays_.push_back({granules_->add(ceil_div(lanes, most_)), lanes, out, granules_->take(bytes)});
  return arrays_.size() - 1;
}

void ValueGranules::place() {
  for (uint64_t i = 0; i < arrays_.size(); ++i) {
    uint64_t k = 0;
    for (Aggregate& a : ins(i)) a.lanes = part(bytes(arrays_[i].in, arrays_[i].lanes), k++);
  }
}

void ValueGranules::set_scale(uint64_t array, float scale) {
  const uint32_t settings = granules_->settings() ^ float_bits(scale) * 0x9E3779B1U;
  for (Contribution& c : outs(array)) c.settings = settings;
}

void ValueGranules::put(uint64_t array, uint16_t norm) {
  uint64_t k = 0;
  for (Contribution& c : outs(array)) {
    c.payload = part(Bytes(bytes(arrays_[array].out, arrays_[array].lanes)), k++);
    c.norm = norm;
    c.flags &= static_cast<uint8_t>(~kGranuleEmpty);
  }
}

void ValueGranules::put_norm(uint64_t array, uint16_t norm) {
  for (Contribution& c : outs(array)) {
    c.norm = norm;
    c.flags |= kGranuleValues | kGranuleEmpty;
  }
}

uint16_t ValueGranules::largest_norm(uint64_t array) const {
  uint16_t most = 0;
  for (const Aggregate& a : ins(array)) most = std::max(most, a.norm);
  return most;
}

ValueGranules::Sum ValueGranules::sum_of(uint64_t array, uint64_t granule) {
  const Aggregate& a = ins(array)[granule];
  Sum sum;
  sum.begin = granule * most_;
  sum.count = std::min(most_, arrays_[array].lanes - sum.begin);
  sum.divisor = std::max<uint32_t>(a.divisor, 1);
  sum.left_out = !granules_->is_in(a);
  if (a.length != 0) sum.lanes = {reinterpret_cast<const int32_t*>(a.lanes.data()), sum.count};
  return sum;
}

MutBytes ValueGranules::sums(uint64_t array) {
  for (Aggregate& a : ins(array)) {
    if (a.length != a.lanes.size()) std::ranges::fill(a.lanes, uint8_t{0});
  }
  return bytes(arrays_[array].in, arrays_[array].lanes);
}

}  // namespace laconic::collective
