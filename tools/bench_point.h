// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One point of the benchmark: a spec on a tensor, timed against memcpy of the same float bytes
// around every sample. Absolute times move by a factor of two when a neighbour takes the core or
// the cache; paired ratios hardly do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "error_metrics.h"
#include "laconic/isa.h"
#include "laconic/spec.h"
#include "laconic/thread_pool.h"
#include "samples.h"

namespace laconic::tools {

enum class DecodeMode : uint8_t {
  automatic,  ///< add for codecs that send few elements, write for the others
  write,      ///< out = mean
  add,        ///< out += mean
};

struct PointOptions {
  Isa isa = Isa::scalar;
  uint32_t threads = 1;
  double seconds = 1.0;
  uint32_t peers = 1;  ///< payloads decoded in one call
  DecodeMode decode = DecodeMode::automatic;
  /// Encode is the codec's own function: without the pipeline's look for zeros and NaN, and without
  /// feedback unless the codec fuses it.
  bool codec_only = false;
};

struct Point {
  std::string spec;
  uint64_t elements = 0;
  PointOptions options;
  bool feedback = false;
  bool adds = false;     ///< decode adds to the target
  bool scanned = false;  ///< the pipeline looks for NaN and infinity before the codec encodes
  uint64_t payload_bytes = 0;
  double ratio = 0;
  Timing encode;
  Timing decode;
  double clock_ghz = 0;  ///< of the core, during the samples
  ErrorMetrics error;    ///< of one encoding without feedback
};

/// Cycles of the core for one element of one payload. Unlike multiples of memcpy they compare
/// machines, where the caches hold the tensor. With several threads: of the clock on the wall.
struct Cycles {
  double encode = 0;
  double decode = 0;
};
Cycles cycles_per_element(const Point& point);

/// `values` is one rank's gradient; the other peers' are variations of it.
Result<Point> measure(const Spec& spec, std::span<const float> values, const PointOptions& options);

}  // namespace laconic::tools
