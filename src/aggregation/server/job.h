// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One job: its workers, and what its slot machine says to them.
#pragma once

#include <cstdint>

#include "aggregation/protocol/address.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/enrolment.h"
#include "aggregation/protocol/sender.h"
#include "aggregation/server/job/kernel_gate.h"
#include "aggregation/server/job/members.h"
#include "aggregation/server/job/serving.h"
#include "aggregation/server/job/terms.h"
#include "aggregation/server/job/watch.h"
#include "aggregation/server/kernel_path.h"
#include "aggregation/server/slots.h"

namespace laconic::aggregation {

class Job {
 public:
  /// The memory that a job takes, all of it in the constructor.
  [[nodiscard]] static uint64_t memory(const protocol::JobSettings& settings) noexcept;
  Job(const protocol::Enrolment& first, uint64_t epoch, const protocol::Token& token, Time now,
      KernelPath* kernel = nullptr, const Multicast& multicast = {});
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] uint64_t number() const noexcept { return terms_.number; }
  [[nodiscard]] uint32_t id() const noexcept { return terms_.id(); }
  [[nodiscard]] uint64_t epoch() const noexcept { return terms_.epoch; }
  [[nodiscard]] const protocol::SipKey& key() const noexcept { return terms_.key; }
  [[nodiscard]] JobState state() const noexcept { return course_.state; }
  [[nodiscard]] const protocol::JobSettings& settings() const noexcept { return terms_.settings; }
  [[nodiscard]] const JobStats& stats() const noexcept { return stats_; }
  [[nodiscard]] const Slots& slots() const noexcept { return slots_; }
  [[nodiscard]] const Members& members() const noexcept { return members_; }
  /// Datagrams that a program in the kernel took, since the last call; counted in stats() as well.
  [[nodiscard]] laconic_kernel_counts taken_in_kernel() noexcept {
    return gate_.take_counts(stats_);
  }

  /// An enrolment whose tag is right.
  Judgement enrol(Time now, const protocol::Enrolment& e, const Address& from, Sender& out);
  /// A datagram of this job, epoch and version. Returns what is wrong with it. `stays`: its bytes
  /// can be read until settle().
  protocol::DatagramFault receive(Time now, const Address& from, bool held, Bytes datagram,
                                  Sender& out, bool stays = false);
  void settle() noexcept { slots_.settle(); }
  /// A host reports that a port is closed. Counts after the second time in a row.
  void unreachable(Time now, const Address& at, Sender& out);
  void tick(Time now, Sender& out);
  [[nodiscard]] Time next_event() const noexcept;
  /// No worker needs the job any more: its memory may be freed.
  [[nodiscard]] bool is_over(Time now) const noexcept;

 private:
  [[nodiscard]] bool is_waiting() const noexcept;
  protocol::DatagramFault receive_up(Time now, const Address& from, Bytes datagram, Sender& out,
                                     bool stays);
  protocol::DatagramFault receive_held(Time now, const Address& from, Bytes datagram, Sender& out);
  void handle(Time now, const protocol::UpHeader& header, uint64_t number, Bytes payload,
              bool stays, Sender& out);
  void begin(Time now, Sender& out);
  Judgement fail(Time now, const Judgement& why, Sender& out);
  void ask(uint32_t worker, Sender& out);

  Terms terms_;
  Course course_;
  Members members_;
  KernelGate gate_;
  Slots slots_;
  JobStats stats_;
  Serving serving_;
  Watch watch_;
};

}  // namespace laconic::aggregation
