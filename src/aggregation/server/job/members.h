// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The workers of a job: who was admitted, with what, and who has left.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/protocol/address.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/enrolment.h"
#include "aggregation/server/slots/slot.h"

namespace laconic::aggregation {

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

  /// All results below `number` are there.
  void acknowledge(Time now, uint64_t number) noexcept;
};

class Members {
 public:
  [[nodiscard]] static uint64_t memory(const protocol::JobSettings& settings) noexcept {
    return uint64_t{settings.world} * settings.ring / 8;
  }
  explicit Members(const protocol::JobSettings& settings)
      : world_(settings.world), held_(memory(settings)) {}

  [[nodiscard]] std::span<Member> all() noexcept { return {members_.data(), world_}; }
  [[nodiscard]] std::span<const Member> all() const noexcept { return {members_.data(), world_}; }
  [[nodiscard]] Member& operator[](uint32_t worker) noexcept { return members_[worker]; }
  [[nodiscard]] const Member& operator[](uint32_t worker) const noexcept {
    return members_[worker];
  }
  [[nodiscard]] uint32_t world() const noexcept { return world_; }
  [[nodiscard]] uint8_t enrolled() const noexcept;
  /// The member that sends from there; null: none.
  [[nodiscard]] Member* sender(const Address& from, uint32_t worker) noexcept;
  [[nodiscard]] bool has_one_at(const Address& address) const noexcept;

  /// True: it is the last one. One that is enrolled already has moved, or asks again.
  bool enrol(const protocol::Enrolment& e, const Address& from) noexcept;
  using Holdings = std::array<Holding, protocol::kMaxWorkers>;
  /// The state of members at enrolment.
  [[nodiscard]] Holdings holdings() const noexcept;

  void leave(uint32_t worker) noexcept { left_ |= bit_of(worker); }
  [[nodiscard]] bool has_left(uint32_t worker) const noexcept {
    return (left_ & bit_of(worker)) != 0;
  }
  /// Bit w: worker w wants nothing more.
  [[nodiscard]] uint64_t left() const noexcept { return left_; }

 private:
  uint32_t world_;
  std::array<Member, protocol::kMaxWorkers> members_{};
  std::vector<uint8_t> held_;  ///< ring / 8 bytes for each worker, while gathering
  uint64_t left_ = 0;
};

}  // namespace laconic::aggregation
