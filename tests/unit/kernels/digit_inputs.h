// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Bytes of five ternary digits, in sizes around what their kernels take per iteration.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/threelc/threelc.h"

namespace laconic::kernels {

constexpr uint8_t kCanary = 0xA5;

inline std::vector<uint64_t> sizes() {
  std::vector<uint64_t> list;
  for (uint64_t n = 0; n <= 200; ++n) list.push_back(n);
  for (const uint64_t n :
       {1023U, 1024U, 1025U, 1087U, 1088U, 1089U, 2047U, 2049U, 3100U, 8191U, 8192U, 8193U})
    list.push_back(n);
  return list;
}

/// Digit bytes of which a share is the zero byte, in runs.
inline std::vector<uint8_t> digit_bytes(uint64_t n, double zeros, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes)
    b = uniform(random) < zeros ? kZeroByte : static_cast<uint8_t>(random() % 243);
  return bytes;
}

}  // namespace laconic::kernels
