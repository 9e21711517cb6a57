// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Compressed averaging against the engine's own all-reduce: what one rank does, over any engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "laconic/engine.h"
#include "laconic/rule.h"

namespace laconic::tools {

/// Gradients of all ranks, element by element: Laplace's law of scale 2^-10, rounded to multiples
/// of 2^-22 below 2^-6, so that sums over 256 ranks are exact in float32 in any order.
class RankGradients {
 public:
  explicit RankGradients(uint64_t seed);
  /// Elements `first` (a multiple of 8) and following of a rank.
  void fill(uint32_t rank, uint64_t first, std::span<float> out) const;

 private:
  uint64_t seed_;
  std::vector<float> magnitudes_;
};

/// The same on all ranks: measure_all_reduce() makes sure, of rules and control its sessions do.
struct AllReduceOptions {
  std::vector<std::string> specs;  ///< canonical
  uint64_t min = 0;                ///< bytes of float32; sizes double from here
  uint64_t max = 0;
  uint32_t iterations = 0;
  uint32_t warmup = 0;
  uint32_t window = 0;
  uint64_t part = 0;
  uint32_t threads = 0;
  uint64_t seed = 0;
  std::string plan;
  std::vector<Rule> rules;
  std::string control;
  std::chrono::milliseconds timeout{};
};

/// Over all ranks.
struct Measured {
  double seconds = 0;  ///< median over iterations of the slowest rank's time
  /// max |got - mean| / max |mean|, of the first call, which no feedback has changed yet: the worst
  /// of all ranks. Infinite where a value is not finite.
  double error = 0;
};

struct AllReducePoint {
  uint64_t bytes = 0;
  std::string spec;
  Measured native;  ///< one all_reduce step of float32
  Measured compressed;
  double wire_seconds = 0;   ///< the steps of a compressed call with nothing to encode and decode
  double codec_seconds = 0;  ///< of a compressed call: encoding and decoding, on the slowest rank
  uint64_t sent_bytes = 0;   ///< by rank 0 in a compressed call
  std::string explained;     ///< Session::explain() of this rank, after the last call
};

/// The columns of nccl-tests for an all-reduce, in GB/s of 10^9 bytes.
double algorithm_bandwidth(uint64_t bytes, double seconds);
double bus_bandwidth(uint64_t bytes, double seconds, uint32_t world);

/// Called on rank 0 alone.
using AllReduceObserver = std::function<void(const AllReducePoint&)>;

struct AllReduceFailure {
  Error error;
  bool everywhere = false;  ///< all ranks have this Error, and have met after it
};
/// All ranks together. Nothing: it went well. After a failure that is not everywhere, the engine is
/// dead, or other ranks wait for this one.
std::optional<AllReduceFailure> measure_all_reduce(Engine& engine, const AllReduceOptions& options,
                                                   const AllReduceObserver& observer);

}  // namespace laconic::tools
