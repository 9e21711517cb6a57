// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One command of the `laconic` program: options are declared on a CLI11 subcommand, and what is
// returned runs when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace laconic::tools {

/// Exit statuses of every command.
enum Exit : int {
  kFine = 0,
  kBadAnswer = 1,  ///< the command worked and the answer is bad: broken frame, unusable machine
  kUsage = 2,      ///< it was asked in a way that cannot be answered
};

using Run = std::function<int()>;

Run add_list(CLI::App& program);
Run add_bench(CLI::App& program);
Run add_inspect(CLI::App& program);
Run add_verify(CLI::App& program);
Run add_doctor(CLI::App& program);
Run add_laws(CLI::App& program);
Run add_serve(CLI::App& program);
Run add_top(CLI::App& program);
Run add_replay(CLI::App& program);
Run add_rules(CLI::App& program);

}  // namespace laconic::tools
