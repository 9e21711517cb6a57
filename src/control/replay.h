// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Replays of a record: decisions to repeat, and the same decisions computed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/record.h"

namespace laconic::control {

/// The decisions of a replay.
struct Replayed {
  std::vector<Decision> decisions;  ///< by step
  std::vector<double> first;        ///< by rule: the value in the first step; 0: unknown
  std::vector<Controlled> rules;    ///< as they were recorded, at last
};
/// In a run of `mine`: of a step that is there twice, because the run went on from before its end,
/// the last one; of a run whose settings were replaced, the parts that have the rules of `mine`.
/// Refuses the record of another model or world, one without such a part, and values that `mine`
/// cannot have.
Result<Replayed> decisions_for(const Record& record, const RecordedRun& mine);

/// Decisions from a record's reports, by its own controls or by another.
struct Recomputed {
  struct Difference {
    uint64_t line = 0;
    uint64_t step = 0;
    uint32_t rule = 0;
    std::string what;
  };
  std::vector<Decision> decisions;
  std::vector<std::size_t> ends;  ///< by part of the record: where its decisions end
  std::optional<Difference>
      difference;  ///< the first; from recorded decisions, so never with `control`
};
Result<Recomputed> recompute(const Record& record, std::string_view control = {});

}  // namespace laconic::control
