// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One running COMMAND: a rank on a host, or the launcher of all ranks.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "link.h"
#include "options.h"
#include "process.h"

namespace laconic::lab {

/// How a COMMAND ended.
struct Ending {
  int code = 0;    ///< exit status, if no signal
  int signal = 0;  ///< 0 if it ended by itself
  [[nodiscard]] bool good() const { return code == 0 && signal == 0; }
};

Ending ending_from(int wait_status);

/// "exit 3", "SIGKILL".
std::string describe(const Ending& ending);

struct Program {
  std::optional<int>
      rank;  ///< none: the launcher or, by its host, the COMMAND of --switch or --beside
  int host = 0;
  int local_rank = 0;
  std::vector<int> cores;  ///< empty: not pinned
  pid_t pid = 0;
  std::optional<Ending> ending;
  Fd out, err;  ///< our ends of its pipes; none with --raw
};

/// "rank 3", "launcher", "switch", "beside0".
std::string called(const Program& program);

/// The processors that we may use, in order.
std::vector<int> usable_cores();

/// The processors of one host: rank r runs on core r mod cores. None if hosts are not pinned.
std::vector<int> cores_of(const Options& options, const std::vector<int>& usable, int host);

/// The programs to start: the ranks, those of a host one after the other, or the launcher alone.
std::vector<Program> plan_programs(const Options& options, const std::vector<int>& usable);

/// The COMMANDs of --beside, which are not pinned.
std::vector<Program> plan_beside(const Options& options);

/// Restricts this process to `cores`, unless that is empty.
void pin(const std::vector<int>& cores);

/// Starts the COMMAND of `program` and fills in the rest of it.
Result<void> start_program(const Options& options, const Link& link, const OpenFileLimit& files,
                           Program& program);

}  // namespace laconic::lab
