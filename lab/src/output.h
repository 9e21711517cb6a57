// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A COMMAND's output on its way to the terminal and to the logs.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "process.h"

namespace laconic::lab {

/// Passes one stream of one rank on, line by line, so that lines of different ranks never mix.
class LineRelay {
 public:
  /// `source` must not block. `target` is a descriptor of ours; `log` may be empty.
  LineRelay(Fd source, int target, std::string prefix, Fd log);

  /// Takes what has arrived. False at the end of the stream.
  bool drain();

  /// The last line, should it lack its end.
  void finish();

  [[nodiscard]] int source() const { return source_.get(); }

  /// The reader of our output is gone.
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  void take(std::string_view bytes);
  void emit(std::string_view line);

  Fd source_;
  int target_;
  std::string prefix_;
  Fd log_;
  std::string partial_;
  bool broken_ = false;
};

}  // namespace laconic::lab
