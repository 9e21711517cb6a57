// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// session::drive with a test in the middle of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "session/session.h"

namespace laconic::test {

/// Callbacks of a test in a rank's exchange; each may be missing.
struct Driver {
  std::function<void(collective::Exchange& exchange)> begun{};
  /// The batch with this number, from 0, is about to go out. False: the engine has failed instead.
  std::function<bool(std::span<Step> batch, uint32_t number)> issues{};
  /// It is there.
  std::function<void(std::span<Step> batch, uint32_t number, session::Timing& timing)> ran{};
};

inline Result<void> drive(session::Session& session, const collective::Bucket& bucket,
                          const collective::Layout& layout, Engine& engine, const Driver& test) {
  auto exchange = session.begin(bucket, layout);
  if (!exchange) return std::move(exchange).error();
  if (test.begun) test.begun(**exchange);
  std::array<Step, kMaxBatch> steps;
  session::Timing timing;
  for (uint32_t number = 0;; ++number) {
    auto count = session.next(**exchange, steps, timing);
    if (!count) return std::move(count).error();
    if (*count == 0) return {};
    const std::span<Step> batch(steps.data(), *count);
    if (test.issues && !test.issues(batch, number)) {
      session.abort();
      return Error{Errc::engine_failed, "the test has failed it", {}};
    }
    if (auto ran = engine.run(batch); !ran) {
      session.abort(ran.error());
      return ran;
    }
    if (test.ran) test.ran(batch, number, timing);
  }
}

}  // namespace laconic::test
