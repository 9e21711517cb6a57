// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Records of runs, docs/format/RECORD.md: JSON, a line each. Measured times do not repeat; what was
// decided by them does, from here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/controller.h"

namespace laconic::control {

inline constexpr uint32_t kRecordVersion = 1;

/// A class of the run.
struct RecordedRule {
  std::string match;  ///< the glob; empty for class 0
  std::string spec;
  std::string control;
  bool inherited = false;
  uint64_t parameters = 0;
  uint64_t elements = 0;
  std::optional<Range> range;
  bool operator==(const RecordedRule&) const = default;
};

/// The line that a run, or a run that goes on, begins with.
struct RecordedRun {
  std::string laconic;  ///< version of the library
  std::string model;    ///< hash of names and shapes
  uint32_t world = 1;
  std::vector<RecordedRule> rules;
  std::vector<uint64_t> state;  ///< of the controller where the run goes on; else empty
  bool operator==(const RecordedRun&) const = default;
};

struct RecordedSetting {
  double value = 0;  ///< 0 where nothing can be moved
  bool uncompressed = false;
  bool operator==(const RecordedSetting&) const = default;
};

/// A step: what holds in it, what was reported at its beginning, what was decided by that.
struct RecordedStep {
  uint64_t step = 0;
  uint32_t version = 0;  ///< of the settings
  std::vector<RecordedSetting> settings;
  std::vector<Figures> reports;  ///< one per rank; none: no reports were due
  uint64_t bytes = 0;            ///< received by one rank in the step that the reports are about
  uint32_t rounds = 0;           ///< of that step
  std::vector<Decision> decisions;
};

/// With a line feed each.
[[nodiscard]] std::string record_line(const RecordedRun& run);
[[nodiscard]] std::string record_line(const RecordedStep& step, const RecordedRun& run);
/// The same in `line`. Takes no memory where that has room and nothing was decided.
void put_line(const RecordedStep& step, const RecordedRun& run, std::string& line);
/// Bytes of the longest line of a step, nearly.
[[nodiscard]] std::size_t line_room(const RecordedRun& run) noexcept;

struct RecordPart {
  RecordedRun run;
  uint64_t line = 0;  ///< of the file, from 1; steps follow
  std::vector<RecordedStep> steps;
};

struct Record {
  std::vector<RecordPart> parts;  ///< one, and one more each time the run was continued
};

/// Total; errors name the line.
Result<Record> read_record(std::string_view text);

/// The Error of a line of a record.
Error bad_line(uint64_t line, std::string_view what);

}  // namespace laconic::control
