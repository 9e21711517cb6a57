// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Engines by name, for commands: what a launcher has said, which plug-in that means, ranks as
// threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "laconic/engine.h"

namespace laconic::tools {

/// The environment that an MPI launcher gives to its processes.
struct Launch {
  std::string library;  ///< "Open MPI" or "MPICH"
  std::string plugin;   ///< file name of its plug-in
  std::string packages;
  uint32_t rank = 0;
  uint32_t local_rank = 0;  ///< among those of this host
};
/// Nothing in a process that neither library's launcher has started.
std::optional<Launch> launch();
/// fail() for what is wrong in every process of a launch, as their common command line: one prints.
int fail_everywhere(const Error& error, bool json, int status);

struct EngineOptions {
  std::string name;  ///< "loopback", "mpi", "gloo"
  std::chrono::milliseconds timeout{};
  uint32_t ranks = 0;  ///< loopback: threads
  // gloo:
  uint32_t rank = 0;
  uint32_t world = 0;
  std::string rendezvous;
  std::string interface;
};

/// One rank of an engine of other processes.
struct OpenEngine {
  std::unique_ptr<Engine> engine;
  std::string library;  ///< "Open MPI 4.1.4"
};
/// "mpi" by LACONIC_MPI_LIB or else the launcher's plug-in, "gloo" by LACONIC_GLOO_LIB or else its
/// plug-in's name. All ranks together.
Result<OpenEngine> open_engine(const EngineOptions& options);

/// Why a rank ended, and which.
struct RankFailure {
  uint32_t rank = 0;
  Error error;
};
/// Runs `body` as every rank of the loopback. The first failure ends all ranks.
std::optional<RankFailure> run_loopback(const EngineOptions& options,
                                        const std::function<std::optional<Error>(Engine&)>& body);

}  // namespace laconic::tools
