// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic bench --engine: compressed averaging compared with the engine's own all-reduce.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command.h"
#include "laconic/spec.h"

namespace laconic::tools {

/// As the words of the command line have it.
struct EngineBench {
  std::string engine;  ///< empty: `laconic bench` of codecs alone
  uint32_t ranks = 2;
  uint32_t rank = 0;
  uint32_t world = 0;
  std::string rendezvous;
  std::string interface;
  std::string min = "4K";
  std::string max = "64M";
  std::string part = "8M";
  std::string plan = "auto";
  std::string rules;
  std::string control;
  uint32_t iterations = 20;
  uint32_t warmup = 5;
  uint32_t window = 2;
  uint64_t seed = 0;
  double timeout = 300;
};

/// Declares --engine and what goes with it. Gives --engine, which options of codecs alone exclude.
Option add_engine_options(const Command& command, EngineBench& options);
/// In every rank; one of them prints.
int bench_engine(const Command& command, const EngineBench& options, const std::vector<Spec>& specs,
                 uint32_t threads, bool json);

}  // namespace laconic::tools
