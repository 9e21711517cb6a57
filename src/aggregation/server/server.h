// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An aggregation server without I/O and without a clock: datagrams and times go in, datagrams come
// out. src/aggregation/io drives it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/sender.h"
#include "aggregation/server/budget.h"
#include "aggregation/server/job.h"

namespace laconic::aggregation {

struct ServerSettings {
  protocol::Token token{};
  /// Random, another one at every start: of it come epochs and nonces.
  std::array<uint8_t, 32> secret{};
  uint64_t memory = uint64_t{256} << 20U;  ///< of all jobs
  uint32_t jobs = 64;
  bool full_tags = false;        ///< jobs whose tags cover headers alone are refused
  bool pad = false;              ///< workers must send data as long as results
  Multicast multicast{};         ///< for jobs that ask for it; no group: there is none
  KernelPath* kernel = nullptr;  ///< outlives the server; null: there is none
};

struct ServerStats {
  uint64_t datagrams = 0;
  uint64_t in_kernel = 0;              ///< of these, taken or refused by the program there
  std::array<uint64_t, 7> rejected{};  ///< by protocol::DatagramFault
  uint64_t strangers = 0;              ///< datagrams of no job
  uint64_t unanswered = 0;             ///< strangers above their budget
  uint64_t refusals = 0;
};

class Server {
 public:
  explicit Server(const ServerSettings& settings);

  /// Any bytes from anywhere. `stays`: they can be read until settle(), and what they add may be
  /// added then: all at once what came for one sum. Answers are the same.
  void receive(Time now, const Address& from, Bytes datagram, Sender& out, bool stays = false);
  /// The bytes that stayed may go now.
  void settle() noexcept;
  /// Bytes that stay are still wanted.
  [[nodiscard]] bool owes() const noexcept;
  /// A host reports that the port of an address is closed.
  void unreachable(Time now, const Address& at, Sender& out);
  /// Deadlines, silent workers, jobs that are over.
  void tick(Time now, Sender& out);
  /// When to call tick(), if nothing is received before.
  [[nodiscard]] Time next_event() const noexcept;

  [[nodiscard]] std::span<const std::unique_ptr<Job>> jobs() const noexcept { return jobs_; }
  [[nodiscard]] const ServerStats& stats() const noexcept { return stats_; }
  [[nodiscard]] uint64_t memory_used() const noexcept { return used_; }

 private:
  [[nodiscard]] Job* find(uint32_t id) noexcept;
  [[nodiscard]] uint64_t nonce_for(const Address& from, const protocol::Applicant& who,
                                   uint64_t epoch) const noexcept;
  /// True for a hello from a holder of the token. Without a token it proves nothing.
  [[nodiscard]] bool is_vouched_for(Bytes hello) const noexcept;
  /// `kept`: number of replies reserved for others.
  bool may_answer(Time now, const Address& to, uint32_t kept = 0) noexcept;
  void hello(Time now, const Address& from, uint8_t version, Bytes datagram, Sender& out);
  void enrol(Time now, const Address& from, Bytes datagram, Sender& out);
  Judgement admit(Time now, const protocol::Enrolment& e, const Address& from, Sender& out);
  void refuse(Time now, const Address& to, const protocol::Applicant& who,
              const Judgement& judgement, bool stranger, Sender& out);
  void stranger(Time now, const Address& from, const protocol::DatagramStart& start, uint64_t size,
                Sender& out);
  void count(protocol::DatagramFault fault) noexcept {
    if (fault != protocol::DatagramFault::none) ++stats_.rejected[static_cast<std::size_t>(fault)];
  }
  void count_kernel(Job& job) noexcept;
  void drop(std::size_t index, Sender& out);
  void drop_one_that_is_over(Sender& out);

  ServerSettings settings_;
  protocol::SipKey nonce_key_{}, hello_key_{};
  uint64_t next_epoch_ = 0;
  std::vector<std::unique_ptr<Job>> jobs_;
  uint64_t used_ = 0;
  Budget answers_;  ///< to strangers
  ServerStats stats_;
};

}  // namespace laconic::aggregation
