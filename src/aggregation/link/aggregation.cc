// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/aggregation.h"

#include <algorithm>
#include <utility>

namespace laconic::aggregation {

Aggregation::Aggregation(std::vector<LinkSettings> servers) {
  links_.reserve(servers.size());
  for (LinkSettings& settings : servers) links_.emplace_back(std::move(settings));
}

void Aggregation::connect(Time now) noexcept {
  for (Link& link : links_) link.connect(now);
}

bool Aggregation::joined() const noexcept {
  return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.joined(); });
}

void Aggregation::begin(Time now, std::span<const Outgoing> out, std::span<Incoming> in) noexcept {
  const uint64_t servers = links_.size();
  for (uint64_t server = 0; server < servers; ++server) {
    const uint64_t first = (server + servers - next_ % servers) % servers;
    const uint64_t count = first < out.size() ? ceil_div(out.size() - first, servers) : 0;
    links_[server].begin(now, out.data() + first, in.data() + first, count, servers);
  }
  next_ += out.size();
}

bool Aggregation::done() const noexcept {
  return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.done(); });
}

void Aggregation::close(Time now) noexcept {
  for (Link& link : links_) link.close(now);
}

bool Aggregation::closed() const noexcept {
  return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.closed(); });
}

const Link* Aggregation::failed() const noexcept {
  const auto link =
      std::find_if(links_.begin(), links_.end(), [](const Link& l) { return l.failed(); });
  return link == links_.end() ? nullptr : &*link;
}

Time Aggregation::wake(Time now) const noexcept {
  Time next = kNever;
  for (const Link& link : links_) next = std::min(next, link.wake(now));
  return next;
}

LinkStats Aggregation::stats() const noexcept {
  LinkStats sum;
  for (const Link& link : links_) sum += link.stats();
  return sum;
}

}  // namespace laconic::aggregation
