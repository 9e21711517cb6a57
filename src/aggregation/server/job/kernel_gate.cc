// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job/kernel_gate.h"

#include <algorithm>
#include <atomic>

namespace laconic::aggregation {
namespace {

constexpr uint32_t kUnreached = 8;

}  // namespace

void KernelGate::place(const Member& member, uint32_t worker, const Address& at) noexcept {
  if (member.enrolled && !(member.address == at)) in_reach_ = false;
  if (is_there() && in_reach_) in_reach_ = path_->place(shared_, worker, at);
}

void KernelGate::set(bool open) noexcept {
  if (is_there()) std::atomic_ref(shared_.job->open).store(open && in_reach_ ? 1 : 0);
}

// The program sent the result twice and the worker requests it again: its host may drop redirected
// frames (a virtual interface without generic receive offload). The process then serves it.
bool KernelGate::note_unreached(uint64_t index, uint64_t ack, Member& member,
                                uint32_t worker) noexcept {
  if (!is_there() || !in_reach_) return false;
  if ((shared_.slots[index].asked & bit_of(worker)) == 0) return false;
  if (ack > member.reached + 4 * kUnreached) {
    member.reached = ack;
    member.unreached = 0;
  }
  in_reach_ = ++member.unreached < kUnreached;
  return !in_reach_;
}

Time KernelGate::hear(Members& members) const noexcept {
  Time last = 0;
  for (uint32_t w = 0; is_there() && w < members.world(); ++w) {
    const Time heard = std::atomic_ref(shared_.job->members[w].heard).load();
    members[w].heard = std::max(members[w].heard, heard);
    last = std::max(last, heard);
  }
  return last;
}

laconic_kernel_counts KernelGate::take_counts(JobStats& stats) noexcept {
  laconic_kernel_counts news{};
  if (!is_there()) return news;
  const auto take = [&](uint64_t laconic_kernel_counts::*which) {
    const uint64_t all = std::atomic_ref(shared_.job->counts.*which).load();
    news.*which = all - counted_.*which;
    counted_.*which = all;
  };
  take(&laconic_kernel_counts::datagrams);
  take(&laconic_kernel_counts::duplicates);
  take(&laconic_kernel_counts::stored);
  take(&laconic_kernel_counts::closed);
  take(&laconic_kernel_counts::forged);
  stats.datagrams += news.datagrams;
  stats.duplicates += news.duplicates;
  stats.stored += news.stored;
  stats.closed += news.closed;
  stats.rejected[static_cast<std::size_t>(protocol::DatagramFault::tag)] += news.forged;
  return news;
}

}  // namespace laconic::aggregation
