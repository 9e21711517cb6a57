// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/failure.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>
#include <vector>

#include "laconic/engine/names_of.h"

namespace laconic::aggregation {
namespace {

using protocol::Reason;
using Cause = Failure::Cause;

struct Words {
  std::string message;
  std::string_view hint{};
};

Errc code_of_refusal(Reason reason) noexcept {
  switch (reason) {
    case Reason::version:
    case Reason::world:
    case Reason::quorum:
    case Reason::token:
    case Reason::auth:
    case Reason::spec:
    case Reason::settings:
    case Reason::malformed:
      return Errc::ranks_disagree;
    case Reason::lane_overflow:
    case Reason::jobs:
      return Errc::unsupported;
    case Reason::memory:
      return Errc::out_of_memory;
    default:
      return Errc::peer_failed;
  }
}

Errc code_of_report(Reason reason) noexcept {
  const bool gone =
      reason == Reason::lost_worker || reason == Reason::lost_results || reason == Reason::left;
  return gone ? Errc::peer_failed : Errc::ranks_disagree;
}

std::vector<uint32_t> workers_of(uint64_t bitmap) {
  std::vector<uint32_t> workers;
  for (; bitmap != 0; bitmap &= bitmap - 1)
    workers.push_back(static_cast<uint32_t>(std::countr_zero(bitmap)));
  return workers;
}

Words words_of_refusal(const Failure& f) {
  const std::string text(protocol::reason_text(f.reason));
  const std::string expected = std::to_string(f.expected), found = std::to_string(f.found);
  switch (f.reason) {
    case Reason::version:
    case Reason::world:
    case Reason::quorum:
      return {text + ": expected " + expected + ", found " + found,
              "start the server and every worker with matching versions and settings"};
    case Reason::token:
      return {text, "give every worker the server's token file"};
    case Reason::auth:
      return {text, "give the workers auth=full, or start the server with --auth header"};
    case Reason::lane_overflow:
      return {text + ": at most " + expected + " workers, found " + found,
              "use wider elements (lane=16), or fewer bits"};
    case Reason::memory:
      return {text + ": " + found + " bytes are needed, " + expected + " are left",
              "start the server with a larger --memory"};
    case Reason::jobs:
      return {text, "wait for another job to end"};
    case Reason::spec:
    case Reason::settings:
    case Reason::malformed:
      return {text, "start the server and every worker with matching versions and settings"};
    default:
      return {"rank " + found + ": " + text};
  }
}

Words words_of(const Failure& f) {
  const std::string block = "block " + std::to_string(f.granule);
  const std::string expected = std::to_string(f.expected);
  constexpr std::string_view kSequence = "the ranks do not run the same sequence of exchanges";
  switch (f.cause) {
    case Cause::none:
      return {};
    case Cause::refused:
      return words_of_refusal(f);
    case Cause::reported:
      if (std::popcount(f.lost) > 1)
        return {names_of(workers_of(f.lost)) + ": the workers do not respond"};
      return {names_of({static_cast<uint32_t>(f.blamed)}) + ": " +
              std::string(protocol::reason_text(f.reason))};
    case Cause::silent:
      return {"no answer within " + expected + " ms", kIsItThere};
    case Cause::stuck:
      return {"no result within " + expected + " ms", "another rank did not reach this exchange"};
    case Cause::settings:
      return {block + " was summed with settings that differ from this rank's", kSequence};
    case Cause::length:
      return {block + " has " + std::to_string(f.found) + " bytes, expected at most " + expected,
              kSequence};
  }
  return {};
}

}  // namespace

Errc Failure::code() const noexcept {
  switch (cause) {
    case Cause::none:
      return Errc::ok;
    case Cause::refused:
      return code_of_refusal(reason);
    case Cause::reported:
      return code_of_report(reason);
    case Cause::silent:
    case Cause::stuck:
      return Errc::timed_out;
    case Cause::settings:
    case Cause::length:
      return Errc::ranks_disagree;
  }
  return Errc::internal;
}

Failure refused(const protocol::Refusal& refusal) noexcept {
  Failure f{.cause = Cause::refused, .reason = refusal.reason};
  f.expected = refusal.expected;
  f.found = refusal.found;
  if (f.code() == Errc::peer_failed) f.blamed = static_cast<int>(refusal.found);
  return f;
}

Failure reported(const protocol::DownHeader& header) noexcept {
  const auto reason = std::min(header.divisor, static_cast<uint8_t>(protocol::kLastReason + 1));
  Failure f{.cause = Cause::reported, .reason = static_cast<Reason>(reason)};
  f.blamed = header.added;
  f.lost = header.bitmap;
  return f;
}

Error error_of(const Failure& failure, const std::string& server) noexcept {
  if (!failure.exists()) return {Errc::ok, {}, {}};
  try {
    Words words = words_of(failure);
    return {failure.code(), "aggregation server " + server + ": " + std::move(words.message),
            std::string(words.hint)};
  } catch (const std::bad_alloc&) {
    return {failure.code(), {}, {}};
  }
}

}  // namespace laconic::aggregation
