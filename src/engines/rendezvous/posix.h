// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// System calls that both kinds of board need: errors and deadlines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>

#include "base/fd.h"
#include "laconic/engine/rendezvous.h"

namespace laconic::rendezvous::detail {

/// "Connection refused"
inline std::string reason(int error) { return std::generic_category().message(error); }

inline int milliseconds_to(Deadline deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace laconic::rendezvous::detail
