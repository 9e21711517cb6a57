// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Serving: messages of a job's slot machine to its workers while the job runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/sender.h"
#include "aggregation/server/job/downlink.h"
#include "aggregation/server/job/kernel_gate.h"
#include "aggregation/server/job/members.h"
#include "aggregation/server/job/terms.h"
#include "aggregation/server/slots.h"

namespace laconic::aggregation {

class Serving {
 public:
  /// All of them outlive it.
  Serving(const Terms& terms, const Course& course, Members& members, Slots& slots,
          KernelGate& gate, JobStats& stats) noexcept
      : terms_(terms),
        course_(course),
        members_(members),
        slots_(slots),
        gate_(gate),
        stats_(stats) {}

  /// All workers are there.
  void begin(Time now, Sender& out);
  /// A datagram of a worker. False: nothing of it was taken. `wrong`: why the job cannot go on.
  bool handle(Time now, const protocol::UpHeader& header, uint64_t number, Bytes payload,
              bool stays, Sender& out, Judgement* wrong);
  /// A sum that a worker holds.
  void take_held(Time now, const protocol::DownHeader& header, uint64_t number, Bytes payload,
                 Sender& out);
  /// Deadlines, datagrams that the program in the kernel took, sums requested in vain.
  void tick(Time now, Sender& out);
  [[nodiscard]] Time next_event() const noexcept {
    return std::min(fetch_at_, slots_.next_deadline());
  }
  /// A worker waits for others.
  [[nodiscard]] bool is_waited_for() const noexcept {
    return slots_.open() != 0 || slots_.fetching() != 0 || blocked_;
  }
  /// Whether the program in the kernel may answer.
  void set_gate() noexcept;

 private:
  void answer(Verdict verdict, uint32_t worker, uint64_t number, Sender& out);
  /// Sends closed sums to all workers that lack them: by multicast once to those that the group
  /// reaches.
  void publish(Time now, Sender& out);
  void send_fetches(Time now, uint32_t most, Sender& out);
  void note_floor() noexcept;

  const Terms& terms_;
  const Course& course_;
  Members& members_;
  Slots& slots_;
  KernelGate& gate_;
  JobStats& stats_;
  bool blocked_ = false;  ///< a worker waits for the floor
  uint64_t floor_seen_ = 0;
  Time fetch_at_ = kNever, try_at_ = 0;
};

}  // namespace laconic::aggregation
