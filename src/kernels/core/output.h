// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace laconic::kernels {

/// How a kernel writes its output.
enum class Output : uint8_t {
  set,     ///< out = 0 + w·d
  stream,  ///< the same past the caches, for outputs larger than them
  add,     ///< out = out + w·d
};

/// Above this an output would push everything else out of a core's share of the last-level cache.
inline constexpr uint64_t kStreamBytes = uint64_t{32} << 20;

[[nodiscard]] constexpr Output choose_output(bool add, uint64_t bytes) noexcept {
  return add ? Output::add : bytes > kStreamBytes ? Output::stream : Output::set;
}

/// One operand of a weighted sum: packed elements at any alignment.
struct Weighted {
  const void* data = nullptr;
  float weight = 1.0F;
};

}  // namespace laconic::kernels
