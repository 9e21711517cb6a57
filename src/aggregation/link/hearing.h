// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Hearing: whether the server's multicast group reaches this worker. The worker tests it by asking
// the server to send something there, repeatedly. An unreachable group costs only the test.
#pragma once

#include <cstdint>

#include "aggregation/link/granule.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/enrolment.h"

namespace laconic::aggregation {

class Hearing {
 public:
  [[nodiscard]] const protocol::Group& group() const noexcept { return group_; }
  [[nodiscard]] bool hears() const noexcept { return hears_; }
  /// The first trial, which Link::joined() waits for.
  [[nodiscard]] bool on_trial() const noexcept { return on_trial_; }
  /// The server was asked to send something there.
  [[nodiscard]] bool has_asked() const noexcept { return try_at_ != kNever; }
  [[nodiscard]] Time wake() const noexcept { return try_at_; }

  /// Sets the group; results of another group do not count.
  void follow(const protocol::Group& group) noexcept;
  /// `first`: it was no member before.
  void become_member(Time now, bool first) noexcept;
  void begin_exchange(Time now) noexcept;
  /// True: the server has to be asked now.
  [[nodiscard]] bool next_try(Time now) noexcept;
  /// Which way something new came.
  void note_way(Time now, bool by_group) noexcept;

 private:
  void begin_trial(Time now, uint32_t tries) noexcept;
  void end_trial(Time now) noexcept;

  protocol::Group group_{};
  bool hears_ = false, on_trial_ = false;
  Time try_at_ = kNever, next_trial_ = 0;
  uint32_t tries_left_ = 0, unheard_ = 0;  ///< results in a row that the group did not bring
};

}  // namespace laconic::aggregation
