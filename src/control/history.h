// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Network time by size: a token bucket lets its burst pass, so small exchanges say nothing about
// how long large ones take.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "control/observation.h"

namespace laconic::control {

struct History {
  static constexpr uint64_t kAge = 500;  ///< steps after which a size is unknown again
  struct Class {
    double seconds = 0;  ///< smoothed
    double bytes = 0;
    uint64_t step = 0;  ///< of the last observation
  };
  std::array<Class, 64> classes{};  ///< by the position of the size's highest bit

  void add(const Observation& seen) noexcept {
    constexpr double kWeight = 0.2;
    Class& c = classes[static_cast<std::size_t>(std::bit_width(seen.bytes)) - 1];
    const auto bytes = static_cast<double>(seen.bytes);
    const bool fresh = c.bytes > 0 && seen.step - c.step <= kAge;
    c.seconds = fresh ? c.seconds + kWeight * (seen.network_s - c.seconds) : seen.network_s;
    c.bytes = fresh ? c.bytes + kWeight * (bytes - c.bytes) : bytes;
    c.step = seen.step;
  }

  /// How long `bytes` would take: by what was seen of that size, or else of the largest size seen.
  [[nodiscard]] double predict(uint64_t step, uint64_t bytes) const noexcept {
    for (auto i = static_cast<std::size_t>(std::bit_width(bytes)); i-- > 0;) {
      const Class& c = classes[i];
      if (c.bytes > 0 && step - c.step <= kAge) {
        return c.seconds * (static_cast<double>(bytes) / c.bytes);
      }
    }
    return 0;
  }

  [[nodiscard]] bool valid() const noexcept {
    for (const Class& c : classes) {
      const bool empty = c.bytes == 0 && c.seconds == 0;
      if (!empty && !(plausible(c.seconds) && c.bytes >= 1 && c.bytes < 0x1p64)) return false;
    }
    return true;
  }
};

}  // namespace laconic::control
