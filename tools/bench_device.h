// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic bench --device: codecs' kernels on this machine's GPU, against a copy in its memory.
#pragma once

#include <string>
#include <vector>

#include "laconic/spec.h"

namespace laconic::tools {

struct DeviceBench {
  std::vector<Spec> specs;
  std::vector<std::vector<float>> inputs;
  uint32_t units = 1;    ///< more: every input is also measured cut into that many
  double seconds = 1.0;  ///< per point
  bool json = false;
};

/// Prints a row per spec and input, with `units` two. kBadAnswer, with one line, where no kernels
/// run, and where a payload or a sum is not the CPU's.
int bench_device(const DeviceBench& options);

}  // namespace laconic::tools
