// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A job's part of the program in the kernel: its slots there, and when the program may answer.
// Without such a program nothing happens here.
#pragma once

#include <cstdint>

#include "aggregation/protocol/clock.h"
#include "aggregation/server/job/members.h"
#include "aggregation/server/job/terms.h"
#include "aggregation/server/kernel_path.h"

namespace laconic::aggregation {

class KernelGate {
 public:
  /// `path`: null: there is none. `terms` outlive it.
  KernelGate(KernelPath* path, const Terms& terms)
      : path_(path),
        shared_(path == nullptr ? SharedSlots{}
                                : path->take(terms.settings, terms.id(), terms.epoch, terms.key)) {}
  ~KernelGate() {
    if (is_there()) path_->give_back(shared_);
  }
  KernelGate(const KernelGate&) = delete;
  KernelGate& operator=(const KernelGate&) = delete;

  [[nodiscard]] const SharedSlots& slots() const noexcept { return shared_; }
  [[nodiscard]] bool is_there() const noexcept { return shared_.job != nullptr; }

  /// A worker is at `at`. One that has moved is answered by the process.
  void place(const Member& member, uint32_t worker, const Address& at) noexcept;
  /// The program adds and answers while nothing else is going on.
  void set(bool open) noexcept;
  /// The process sends a result that the worker asks for again. True: the program may not answer
  /// any more, because it does not reach the worker.
  bool note_unreached(uint64_t index, uint64_t ack, Member& member, uint32_t worker) noexcept;
  /// Updates when the program received datagrams of the members; returns the latest time.
  Time hear(Members& members) const noexcept;
  /// Datagrams that it took since the last call, which are counted in `stats` as well.
  [[nodiscard]] laconic_kernel_counts take_counts(JobStats& stats) noexcept;

 private:
  KernelPath* path_;
  SharedSlots shared_;
  bool in_reach_ = true;  ///< the program can answer all members
  laconic_kernel_counts counted_{};
};

}  // namespace laconic::aggregation
