// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The failure of a link. It is stored as numbers, which needs no memory; error_of makes the
// message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aggregation/protocol/enrolment.h"
#include "laconic/error.h"

namespace laconic::aggregation {

/// A hint, where a server does not answer.
inline constexpr std::string_view kIsItThere =
    "is `laconic serve` running there, and does the network pass UDP in both directions?";

struct Failure {
  enum class Cause : uint8_t {
    none,
    refused,   ///< the server refused this worker
    reported,  ///< the server gave the job up
    silent,    ///< no answer within `expected` ms
    stuck,     ///< no result within `expected` ms
    settings,  ///< a sum of other settings
    length,    ///< a sum of `found` bytes, more than `expected`
  };
  Cause cause = Cause::none;
  protocol::Reason reason = protocol::Reason::none;  ///< refused, reported
  int blamed = -1;                                   ///< the worker that it is about; -1: none
  uint64_t expected = 0, found = 0;
  uint64_t granule = 0;
  uint64_t lost = 0;  ///< reported: bit w: worker w is silent or gone

  [[nodiscard]] bool exists() const noexcept { return cause != Cause::none; }
  [[nodiscard]] Errc code() const noexcept;
};

[[nodiscard]] Failure refused(const protocol::Refusal& refusal) noexcept;
[[nodiscard]] Failure reported(const protocol::DownHeader& header) noexcept;

/// Without memory for words the code alone.
[[nodiscard]] Error error_of(const Failure& failure, const std::string& server) noexcept;

}  // namespace laconic::aggregation
