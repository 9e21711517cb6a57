// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/results.h"

#include <algorithm>
#include <bit>

namespace laconic::aggregation {

Results::Results(const LinkSettings& settings)
    : settings_(&settings),
      kept_(settings.job.ring),
      sums_(settings.job.ring * round_up(settings.job.slot_bytes(), 64)),
      slot_bytes_(round_up(settings.job.slot_bytes(), 64)) {}

Failure Results::begin(const Outgoing* out, Incoming* in, uint64_t count,
                       uint64_t stride) noexcept {
  out_ = out;
  in_ = in;
  stride_ = stride;
  first_ = end_;
  end_ += count;
  Failure first;
  for (uint64_t number = first_; number < std::min(end_, top_); ++number) {
    if (!has(number)) continue;
    const Failure failure = deliver(number);
    if (!first.exists()) first = failure;
  }
  return first;
}

Results::Judgement Results::judge(uint64_t number, uint64_t bytes) const noexcept {
  if (number < ack_ || has(number)) return Judgement::duplicate;
  const bool fits = number < ack_ + kept_.size() && bytes <= slot_bytes_;
  return fits ? Judgement::wanted : Judgement::beyond;
}

Failure Results::store(uint64_t number, const protocol::DownHeader& h, Bytes payload) noexcept {
  kept_[number % kept_.size()] = {
      number, h.bitmap, h.settings, static_cast<uint32_t>(payload.size()),
      h.norm, h.flags,  h.added};
  std::copy(payload.begin(), payload.end(), sums_.data() + place_of(number));
  top_ = std::max(top_, number + 1);
  return in_exchange(number) ? deliver(number) : Failure{};
}

Failure Results::deliver(uint64_t number) noexcept {
  const Header& k = kept(number);
  Incoming& in = in_[(number - first_) * stride_];
  Failure failure{.granule = number};
  if (k.settings != outgoing(number).settings) {
    failure.cause = Failure::Cause::settings;
    return failure;
  }
  if (k.length > in.lanes.size()) {
    failure.cause = Failure::Cause::length;
    failure.found = k.length;
    failure.expected = in.lanes.size();
    return failure;
  }
  const Bytes lanes = sum(number);
  std::copy(lanes.begin(), lanes.end(), in.lanes.begin());
  in.bitmap = k.bitmap;
  in.length = k.length;
  in.norm = k.norm;
  in.flags = k.flags & (protocol::kEmpty | protocol::kTrouble | protocol::kValues);
  in.added = k.added;
  in.divisor = static_cast<uint8_t>(std::popcount(k.bitmap));
  if (in.divisor < settings_->job.world) ++counts_.partial;
  if ((k.bitmap >> settings_->worker & 1U) == 0) {
    ++counts_.excluded;
    behind_ = true;
  }
  return {};
}

void Results::advance() noexcept {
  while (ack_ < end_ && has(ack_)) ++ack_;
}

void Results::ask(uint64_t number) noexcept {
  if (has(number) && asked_count_ < asked_.size()) asked_[asked_count_++] = number;
}

uint64_t Results::lowest_kept() const noexcept {
  return top_ > kept_.size() ? std::min(ack_, top_ - kept_.size()) : 0;
}

void Results::write_held(uint8_t* bits) const noexcept {
  for (uint64_t i = 0; i < kept_.size(); ++i) {
    if (has(ack_ + i)) bits[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
  }
}

void Results::add_to(LinkStats& stats) const noexcept {
  stats.excluded_granules += counts_.excluded;
  stats.partial_granules += counts_.partial;
}

}  // namespace laconic::aggregation
