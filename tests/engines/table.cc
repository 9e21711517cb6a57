// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/table.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace laconic::test {

Found differs(const Memory& expected, const Memory& found, const std::string& what) {
  if (expected.size() != found.size()) return what + " has another size";
  for (size_t i = 0; i < found.size(); ++i) {
    if (expected[i] == found[i]) continue;
    return what + "[" + std::to_string(i) + "] is " + std::to_string(found[i]) + ", expected " +
           std::to_string(expected[i]);
  }
  return {};
}

Found differs(std::span<const float> expected, std::span<const float> found, double bound,
              const std::string& what) {
  if (expected.size() != found.size()) return what + " has another length";
  double largest = 0;
  for (const float x : expected) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const double a = static_cast<double>(expected[i]), b = static_cast<double>(found[i]);
    const bool same = std::memcmp(&expected[i], &found[i], sizeof(float)) == 0 ||
                      (std::isnan(a) && std::isnan(b));
    if (same || (bound > 0 && std::fabs(a - b) <= bound * largest)) continue;
    return what + "[" + std::to_string(i) + "] is " + std::to_string(b) + ", the oracle has " +
           std::to_string(a);
  }
  return {};
}

}  // namespace laconic::test
