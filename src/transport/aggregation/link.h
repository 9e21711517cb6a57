// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A worker's side of one aggregation server: registration, a window of granules, what is sent again
// and when, results that are kept until all workers have them. No I/O, no clock, no thread;
// nothing is allocated after construction.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"
#include "transport/aggregation/granule.h"
#include "transport/aggregation/pace.h"
#include "wire/enrolment.h"

namespace laconic::transport::aggregation {

/// Takes what a link sends. The header is copied during the call; the payload is the caller's of
/// begin(), or a result that is kept: it is valid until the link is called again. `padding` zeros
/// follow it.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void send(Bytes header, Bytes payload, std::size_t padding) = 0;
};

/// A hint, where a server does not answer.
inline constexpr std::string_view kIsItThere =
    "is `laconic serve` running there, and does the network let UDP pass both ways?";

struct LinkSettings {
  wire::Token token{};
  wire::JobSettings job;
  uint64_t number = 0;    ///< of the job: random, the same on all workers
  uint64_t instance = 0;  ///< random, of this process
  uint8_t worker = 0;
  std::string server;      ///< its address, for messages
  uint32_t window = 0;     ///< datagrams under way, at most; 0: as many as the ring has slots
  bool multicast = false;  ///< asks for results to a group
};

class Link {
 public:
  explicit Link(LinkSettings settings);

  /// Begins to register. joined() follows, when all workers are there, or error().
  void connect(Time now) noexcept;
  [[nodiscard]] bool joined() const noexcept { return ever_joined_ && !on_trial_; }
  /// The server has said something to this worker.
  [[nodiscard]] bool answered() const noexcept { return phase_ > Phase::greeting || enrolled_; }
  [[nodiscard]] const std::string& server() const noexcept { return settings_.server; }

  /// Begins an exchange of `count` granules, out[0], out[stride], ...: after joined(), and after
  /// the one before is done. All workers begin the same ones. The memory is used until done().
  void begin(Time now, const Outgoing* out, Incoming* in, uint64_t count, uint64_t stride) noexcept;
  [[nodiscard]] bool done() const noexcept { return ack_ == end_; }

  /// Says that this worker wants nothing more. closed() follows when all workers have all results;
  /// until then the link has to be driven, because others may need what it keeps.
  void close(Time now) noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  /// Between exchanges, several times a second: a worker that may have results which others lack
  /// asks for the floor, and so learns that the server was started again. Nothing closes there
  /// before all workers are back, and this one may be waiting for the others elsewhere.
  void keep(Time now) noexcept;
  /// Registers again, or waits for a result.
  [[nodiscard]] bool waits() const noexcept;

  void receive(Time now, Bytes datagram) noexcept { take(now, datagram, false); }
  /// Where the server sends results for all: the link's driver listens there, and hands over what
  /// comes from the server's address. A group that is not heard costs nothing but the trial.
  [[nodiscard]] const wire::Group& group() const noexcept { return group_; }
  void receive_from_group(Time now, Bytes datagram) noexcept { take(now, datagram, true); }
  [[nodiscard]] bool hears_group() const noexcept { return hears_; }
  /// Sends what is due.
  void send(Time now, Outlet& outlet) noexcept;
  /// When to call send(), if nothing is received before.
  [[nodiscard]] Time wake(Time now) const noexcept;

  /// The link is of no use any more.
  [[nodiscard]] bool failed() const noexcept { return error_.code != Errc::ok; }
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  /// The worker that a failure is about; -1: none.
  [[nodiscard]] int blamed() const noexcept { return blamed_; }
  [[nodiscard]] LinkStats stats() const noexcept;

 private:
  enum class Phase : uint8_t { idle, greeting, enrolling, member };
  enum class Where : uint8_t { nowhere, under_way, lost };

  struct Kept {
    uint64_t number = ~uint64_t{0};
    uint64_t bitmap = 0;
    uint32_t settings = 0, length = 0;
    uint16_t norm = 0;
    uint8_t flags = 0, added = 0;
  };
  struct Flight {
    uint64_t number = 0;
    uint64_t order = 0;  ///< of its last send
    Time sent = 0;
    uint16_t before = 0, behind = 0;
    Where where = Where::nowhere;
    bool again = false;  ///< sent more than once: no sample of the round trip
    bool pull = false;   ///< without the contribution
  };
  struct LargestThree {
    std::array<uint64_t, 3> values{};
    void add(uint64_t value) noexcept {
      uint64_t* least = std::min_element(values.begin(), values.end());
      *least = std::max(*least, value);
    }
    [[nodiscard]] uint64_t third() const noexcept {
      return *std::min_element(values.begin(), values.end());
    }
  };
  struct List {
    uint16_t first = 0xFFFFU, last = 0xFFFFU;
    uint32_t size = 0;
  };

  [[nodiscard]] Time patience() const noexcept {
    return uint64_t{settings_.job.timeout_ms} * 1000000U;
  }
  [[nodiscard]] uint64_t ring() const noexcept { return settings_.job.ring; }
  /// While the server is asked whether it is the same, what it should get goes on.
  [[nodiscard]] bool may_send() const noexcept {
    return phase_ == Phase::member || (phase_ == Phase::greeting && enrolled_);
  }
  [[nodiscard]] Kept& kept(uint64_t number) noexcept { return kept_[number % ring()]; }
  [[nodiscard]] bool has(uint64_t number) const noexcept {
    return kept_[number % ring()].number == number;
  }
  [[nodiscard]] MutBytes memory(uint64_t number, uint64_t length) noexcept {
    return {sums_.data() + number % ring() * stride_bytes_, length};
  }
  Flight& flight(uint64_t number) noexcept { return flights_[number % ring()]; }
  void append(List& list, Flight& f, Where where) noexcept;
  void remove(Flight& f) noexcept;

  // Registration.
  void greet(Time now) noexcept;
  void take_challenge(Time now, Bytes datagram) noexcept;
  void take_welcome(Time now, Bytes datagram) noexcept;
  void take_refusal(Bytes datagram) noexcept;
  void take_stranger(Time now, Bytes datagram) noexcept;
  void become_member(Time now) noexcept;
  void set_group(const wire::Group& group) noexcept;
  void begin_trial(Time now, uint32_t tries) noexcept;
  void end_trial(Time now) noexcept;
  void send_try(Time now, Outlet& outlet) noexcept;
  void note_way(Time now, bool by_group) noexcept;
  void send_hello(Time now, Outlet& outlet) noexcept;
  void send_enrolment(Time now, Outlet& outlet) noexcept;

  // Results.
  void take(Time now, Bytes datagram, bool by_group) noexcept;
  void take_down(Time now, Bytes datagram, bool by_group) noexcept;
  bool take_result(Time now, uint64_t number, const wire::DownHeader& h, Bytes payload) noexcept;
  void take_status(Time now) noexcept;
  void take_open(uint64_t number) noexcept;
  void take_failure(const wire::DownHeader& h) noexcept;
  void store_result(uint64_t number, const wire::DownHeader& h, Bytes payload) noexcept;
  void deliver(uint64_t number) noexcept;
  void note_arrival(Time now, uint64_t number) noexcept;
  void find_holes(Time now) noexcept;

  // Sending.
  void send_window(Time now, Outlet& outlet) noexcept;
  [[nodiscard]] bool next_to_send(Time now, uint64_t* number) noexcept;
  void send_granule(Time now, uint64_t number, Outlet& outlet) noexcept;
  void send_bare(wire::DatagramType type, Outlet& outlet, uint8_t flags = 0,
                 uint16_t ahead = 0) noexcept;
  [[nodiscard]] uint8_t flags_of_all() const noexcept {
    return static_cast<uint8_t>((settings_.job.full_tags ? wire::kFull : 0) |
                                (hears_ ? wire::kGroup : 0));
  }
  void send_held(Outlet& outlet) noexcept;
  [[nodiscard]] Time times_out_at() const noexcept;
  void time_out(Time now) noexcept;
  void give_up_if_silent(Time now) noexcept;
  void fail(Errc code, std::string message, std::string hint) noexcept;

  LinkSettings settings_;
  Phase phase_ = Phase::idle;
  bool ever_joined_ = false, closing_ = false, closed_ = false;
  bool pad_ = false;
  bool has_key_ = false;   ///< of epoch_
  bool enrolled_ = false;  ///< in epoch_
  bool ack_due_ = false, floor_due_ = false, pulling_ = false;
  wire::SipKey key_{};
  uint64_t epoch_ = 0, nonce_ = 0;
  uint32_t attempt_ = 0, settled_ = 0;  ///< hellos; those up to `settled_` are history
  uint32_t bad_challenges_ = 0;
  Time hello_at_ = kNever, hello_sent_ = 0, enrol_at_ = kNever, leave_at_ = kNever;
  Time keep_at_ = 0;
  uint32_t tries_ = 0;
  Time heard_ = 0, moved_ = 0;  ///< last authentic datagram; last progress

  const Outgoing* out_ = nullptr;
  Incoming* in_ = nullptr;
  uint64_t stride_ = 1;
  uint64_t first_ = 0, end_ = 0, next_ = 0, ack_ = 0, top_ = 0, floor_ = 0;
  Time probe_at_ = 0;
  std::vector<Kept> kept_;
  std::vector<uint8_t> sums_;
  uint64_t stride_bytes_ = 0;
  std::vector<Flight> flights_;
  List under_way_, lost_;
  uint64_t order_ = 0;
  LargestThree latest_sends_;         ///< orders of first sends that were answered
  LargestThree latest_numbers_;       ///< numbers of results, and 1
  std::array<uint64_t, 64> asked_{};  ///< results that the server asked for
  std::size_t asked_count_ = 0;
  wire::Group group_{};
  bool hears_ = false, on_trial_ = false;  ///< the first trial, which joined() waits for
  Time try_at_ = kNever, next_trial_ = 0;
  uint32_t tries_left_ = 0, unheard_ = 0;  ///< results in a row that the group did not bring
  Pace pace_;
  LinkStats stats_;
  Error error_{Errc::ok, {}, {}};
  int blamed_ = -1;
};

}  // namespace laconic::transport::aggregation
