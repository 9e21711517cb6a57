// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One job: its workers, and what its slot machine says to them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "server/address.h"
#include "server/kernel_path.h"
#include "server/slots.h"
#include "wire/enrolment.h"

namespace laconic::server {

/// Where answers go.
class Outbox {
 public:
  virtual ~Outbox() = default;
  /// The header is copied during the call.
  virtual void send(const Address& to, Bytes header, Bytes payload) = 0;
  /// A header of 40 bytes and a sum behind it. They may be read until flush(): they only change
  /// when no worker needs them any more. Those of consecutive granules often lie in a row.
  virtual void send_sum(const Address& to, Bytes datagram) {
    send(to, datagram.first(wire::kDownHeaderBytes), datagram.subspan(wire::kDownHeaderBytes));
  }
  /// Nothing that was sent is read behind it: the memory of a job is about to go.
  virtual void flush() = 0;
};

struct JobStats {
  uint64_t datagrams = 0;
  uint64_t duplicates = 0;
  uint64_t stored = 0;   ///< results sent again
  uint64_t beyond = 0;   ///< the ring pushed back
  uint64_t closed = 0;   ///< sums
  uint64_t partial = 0;  ///< of these, without all workers
  uint64_t fetched = 0;  ///< sums that workers brought back
  uint64_t bad_acks = 0;
  uint64_t late = 0;                   ///< contributions that came behind the closing
  uint64_t together = 0;               ///< sums that went to the group
  std::array<uint64_t, 7> rejected{};  ///< by wire::DatagramFault
};

enum class JobState : uint8_t {
  gathering,  ///< not all workers are here (again)
  running,
  failed,  ///< kept for a while: it answers that it is over
  ended,   ///< all have left; kept for a while, too
};

/// Where sums may go once for all workers.
struct Multicast {
  wire::Group group;  ///< as workers are told
  Address address;    ///< as the outbox is
};

/// What a refusal says.
struct Judgement {
  wire::Reason reason = wire::Reason::none;
  uint64_t expected = 0;
  uint64_t found = 0;
};

class Job {
 public:
  /// The memory that a job takes, all of it in the constructor.
  [[nodiscard]] static uint64_t memory(const wire::JobSettings& settings) noexcept;
  Job(const wire::Enrolment& first, uint64_t epoch, const wire::Token& token, Time now,
      KernelPath* kernel = nullptr, const Multicast& multicast = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] uint64_t number() const noexcept { return number_; }
  [[nodiscard]] uint32_t id() const noexcept { return static_cast<uint32_t>(number_); }
  [[nodiscard]] uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] JobState state() const noexcept { return state_; }
  [[nodiscard]] const wire::JobSettings& settings() const noexcept { return settings_; }
  [[nodiscard]] const JobStats& stats() const noexcept { return stats_; }
  [[nodiscard]] const Slots& slots() const noexcept { return slots_; }
  [[nodiscard]] const wire::SipKey& key() const noexcept { return key_; }
  /// From a sum's closing to the worker's acknowledgement, smoothed; 0: nothing was measured.
  [[nodiscard]] Time round_trip(uint32_t worker) const noexcept {
    return members_[worker].round_trip;
  }
  /// A worker is registered there.
  [[nodiscard]] bool has_member_at(const Address& address) const noexcept;
  /// Datagrams that a program in the kernel took, since the last call; counted in stats() as well.
  [[nodiscard]] laconic_kernel_counts taken_in_kernel() noexcept;

  /// An enrolment whose tag is right.
  Judgement enrol(Time now, const wire::Enrolment& e, const Address& from, Outbox& out);
  /// A datagram of this job, epoch and version. Returns what is wrong with it. `stays`: its bytes
  /// can be read until settle().
  wire::DatagramFault receive(Time now, const Address& from, bool held, Bytes datagram, Outbox& out,
                              bool stays = false);
  void settle() noexcept { slots_.settle(); }
  /// A host says that nobody listens there. Twice in a row, and it is believed.
  void unreachable(Time now, const Address& at, Outbox& out);
  void tick(Time now, Outbox& out);
  [[nodiscard]] Time next_event() const noexcept;
  /// Nobody needs it any more: its memory may go.
  [[nodiscard]] bool is_over(Time now) const noexcept;

 private:
  struct Member {
    Address address;
    uint64_t instance = 0;
    uint32_t attempt = 0;
    Time heard = 0;
    uint64_t kept = 0, ack = 0;  // as registered
    uint64_t reached = 0;        ///< its ack when it began to count
    uint32_t unreached = 0;      ///< results that the process sent after the program had, twice
    bool enrolled = false;
    bool wants_group = false, hears_group = false;
    Time refused = 0;    ///< when its port was said to be closed, and nothing has come since
    uint64_t timed = 0;  ///< an ack above it ends a round trip; none: 0
    Time timed_since = 0, round_trip = 0;
  };

  [[nodiscard]] Time timeout() const noexcept { return uint64_t{settings_.timeout_ms} * 1000000U; }
  [[nodiscard]] std::span<Member> members() noexcept { return {members_.data(), settings_.world}; }
  [[nodiscard]] std::span<const Member> members() const noexcept {
    return {members_.data(), settings_.world};
  }
  [[nodiscard]] uint8_t enrolled() const noexcept;
  [[nodiscard]] bool is_waiting() const noexcept;
  Member* sender(const Address& from, uint8_t worker) noexcept;
  wire::DatagramFault receive_up(Time now, const Address& from, Bytes datagram, Outbox& out,
                                 bool stays);
  wire::DatagramFault receive_held(Time now, const Address& from, Bytes datagram, Outbox& out);
  void end_round_trip(Time now, Member& member, uint64_t ack) noexcept;
  void begin(Time now, Outbox& out);
  void handle(Time now, Member& member, const wire::UpHeader& header, uint64_t number,
              Bytes payload, Outbox& out, bool stays);
  void answer(Verdict verdict, const Member& member, uint32_t worker, uint64_t number, Outbox& out);
  void leave(Time now, uint32_t worker, Outbox& out);
  [[nodiscard]] bool has_left(uint32_t worker) const noexcept {
    return (left_ >> worker & 1U) != 0;
  }
  void publish(Time now, Outbox& out);
  using SumHeader = std::array<uint8_t, wire::kDownHeaderBytes>;
  /// A closed sum as it goes to any worker. Empty: its header is `beside`.
  [[nodiscard]] Bytes write_datagram(uint64_t number, SumHeader& beside) noexcept;
  void send_sum(const Address& to, uint64_t number, Outbox& out);
  void send_status(const Address& to, wire::DatagramType type, uint64_t number, Outbox& out);
  void send_failure(const Address& to, Outbox& out);
  void send_welcome(const Member& member, uint32_t worker, Outbox& out);
  void send_fetches(Time now, uint32_t most, Outbox& out);
  void fail(Time now, wire::Reason reason, uint32_t worker, Outbox& out);
  void probe(Time now, Outbox& out);
  void ask(const Member& member, uint32_t worker, Outbox& out);
  void find_silent(Time now, Outbox& out);
  void note_waiting(Time now) noexcept;
  void set_gate() noexcept;
  void note_unreached(uint64_t number, uint32_t worker) noexcept;
  void hear_kernel() noexcept;

  wire::JobSettings settings_;
  uint64_t number_ = 0, epoch_ = 0;
  wire::SipKey key_{};
  JobState state_ = JobState::gathering;
  KernelPath* kernel_ = nullptr;
  SharedSlots shared_;
  Multicast multicast_;
  bool in_reach_ = true;  ///< the program in the kernel can answer all members
  laconic_kernel_counts counted_{};
  Slots slots_;
  std::array<Member, wire::kMaxWorkers> members_;
  std::vector<uint8_t> held_;  ///< ring / 8 bytes for each worker, while gathering
  wire::Reason reason_ = wire::Reason::none;
  uint8_t blamed_ = 0;
  uint64_t lost_ = 0;     ///< bit w: worker w has been silent
  uint64_t left_ = 0;     ///< workers that want nothing more
  bool blocked_ = false;  ///< somebody was told to wait for the floor
  uint64_t floor_seen_ = 0;
  Time waiting_ = kNever;  ///< since when anybody waits for anything
  Time heard_ = 0;         ///< last from anybody
  Time over_ = kNever;     ///< when it failed or ended
  Time fetch_at_ = kNever, ticked_ = 0, probe_at_ = 0, try_at_ = 0;
  JobStats stats_;
};

}  // namespace laconic::server
