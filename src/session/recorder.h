// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The file that record= asks for, docs/format/RECORD.md, written by rank 0. No trouble with it is
// trouble of the training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "control/record.h"
#include "session/steering.h"

namespace laconic::session {

class Recorder {
 public:
  /// Takes the memory of a step's line. Refuses a file that cannot be written, that holds anything
  /// else, or that another session writes; a last line that is cut goes.
  static Result<std::unique_ptr<Recorder>> open(const std::string& file, control::RecordedRun run);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Called after Steering::begin_step: writes a line for the step that has ended.
  void begin_step(const Steering& steering) noexcept;
  /// Settings were replaced: what follows is a part of its own.
  void go_on_with(const control::RecordedRun& run) noexcept;
  /// Nothing follows: another session may write the file.
  void end() noexcept;

  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] uint64_t steps() const noexcept { return steps_; }
  /// Why nothing is written any more; empty: it is.
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }

 private:
  Recorder(std::string file, control::RecordedRun run, int descriptor);
  void write(const std::string& text);
  void put(const control::RecordedStep& step);

  std::string file_;
  control::RecordedRun run_;
  int descriptor_;  // -1: closed
  bool begun_ = false;
  std::string line_;  // its memory
  uint64_t steps_ = 0;
  uint64_t next_ = 0;  // that may follow
  std::string trouble_;
};

/// A record that is replayed: at most 1 GiB.
Result<std::string> read_whole(const std::string& file);

}  // namespace laconic::session
