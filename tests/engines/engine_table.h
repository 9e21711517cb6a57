// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One table that every engine has to pass: bare steps, then strategy x codec x model x input type,
// each compared with the oracle. Every rank of the engine runs it at the same time and compares
// what it holds itself; a rank whose comparison fails continues, so that the others do, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "laconic/engine.h"

namespace laconic::test {

struct TableOutcome {
  uint64_t cases = 0;
  uint64_t sessions = 0;  ///< among the cases; the others are bare steps
  uint64_t failures = 0;
  std::string first_failure;  ///< the case, the step, what was found and what was expected
  [[nodiscard]] bool passed() const noexcept { return cases != 0 && failures == 0; }
};

struct TableOptions {
  /// The engine adds lanes in rank order and rounds after each addition, as LoopbackHub does: then
  /// native_sum is compared bit for bit, otherwise within the bound of `sum_bound`.
  bool rank_order_sums = true;
  std::chrono::seconds timeout{60};  ///< of a batch
  /// Runs one session case in this number, beginning with the first, and all bare steps.
  uint32_t stride = 1;
  /// Leaves out bare steps of more bytes or lanes: what an engine cuts into many calls takes long.
  uint64_t longest = 3'000'001;
};

/// How far an engine's own sums of lanes of `type` may be from those in rank order, relative to the
/// largest magnitude in the vector: 8 units in the last place for each rank. float32 has more,
/// because PowerSGD's factors are orthogonalised between two sums.
double sum_bound(DType type, uint32_t world) noexcept;

/// Ends early only if the engine fails.
TableOutcome run_engine_table(Engine& engine, const TableOptions& options);
inline TableOutcome run_engine_table(Engine& engine, bool rank_order_sums) {
  return run_engine_table(engine, {.rank_order_sums = rank_order_sums});
}

}  // namespace laconic::test
