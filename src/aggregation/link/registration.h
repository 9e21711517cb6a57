// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How a worker becomes a member of a job: hello, challenge, enrolment, welcome, and again once the
// server was started again. docs/format/DATAGRAM.md section 4.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/link/failure.h"
#include "aggregation/link/pace.h"
#include "aggregation/link/results.h"
#include "aggregation/link/settings.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/sender.h"

namespace laconic::aggregation {

/// A start of the server.
struct Epoch {
  uint64_t number = 0;
  protocol::SipKey key{};
  bool known = false;  ///< the server has named it
  bool pad = false;    ///< contributions are as long as results
};

class Registration {
 public:
  /// `settings` outlive it.
  explicit Registration(const LinkSettings& settings) noexcept : settings_(&settings) {}

  [[nodiscard]] const Epoch& epoch() const noexcept { return epoch_; }
  [[nodiscard]] bool idle() const noexcept { return phase_ == Phase::idle; }
  [[nodiscard]] bool is_member() const noexcept { return phase_ == Phase::member; }
  /// The server has said something to this worker.
  [[nodiscard]] bool answered() const noexcept { return phase_ > Phase::greeting || enrolled_; }
  /// In this epoch.
  [[nodiscard]] bool enrolled() const noexcept { return enrolled_; }
  /// In any.
  [[nodiscard]] bool ever_joined() const noexcept { return ever_joined_; }
  /// While the server is asked whether it is the same, what it should get goes on.
  [[nodiscard]] bool may_send() const noexcept {
    return phase_ == Phase::member || (phase_ == Phase::greeting && enrolled_);
  }

  /// Begins, or asks whether the server is the same.
  void greet(Time at) noexcept;
  /// Perhaps the server was started again and knows nothing of this worker.
  void doubt(Time now) noexcept { hello_at_ = hello_at_ == kNever ? now : hello_at_; }
  /// A datagram of this epoch came.
  void confirm() noexcept { hello_at_ = is_member() ? kNever : hello_at_; }
  void become_member() noexcept;

  // Datagrams. False: it is not for this worker, or forged.
  [[nodiscard]] bool take_challenge(Time now, Bytes datagram, Pace& pace,
                                    Failure& failure) noexcept;
  [[nodiscard]] bool take_welcome(Bytes datagram, protocol::Welcome& welcome) const noexcept;
  [[nodiscard]] bool take_refusal(Bytes datagram, Failure& failure) const noexcept;
  [[nodiscard]] bool take_stranger(Time now, Bytes datagram, const Pace& pace) noexcept;

  /// Sends what is due.
  void send(Time now, const Results& results, const Pace& pace, Sender& sender) noexcept;
  [[nodiscard]] Time wake() const noexcept { return std::min(hello_at_, enrol_at_); }

 private:
  enum class Phase : uint8_t { idle, greeting, enrolling, member };

  [[nodiscard]] protocol::Applicant me() const noexcept {
    return {settings_->number, settings_->instance, attempt_, settings_->worker};
  }
  /// The timeout grows with every try.
  [[nodiscard]] Time next_try(Time now, const Pace& pace) noexcept;
  void send_hello(Time now, const Pace& pace, Sender& sender) noexcept;
  void send_enrolment(Time now, const Results& results, const Pace& pace, Sender& sender) noexcept;

  const LinkSettings* settings_;
  Phase phase_ = Phase::idle;
  bool ever_joined_ = false, enrolled_ = false;
  Epoch epoch_;
  uint64_t nonce_ = 0;
  uint32_t attempt_ = 0, settled_ = 0;  ///< hellos; those up to `settled_` are history
  uint32_t bad_challenges_ = 0, tries_ = 0;
  Time hello_at_ = kNever, hello_sent_ = 0;
  Time enrol_at_ = kNever;  ///< while enrolling
};

}  // namespace laconic::aggregation
