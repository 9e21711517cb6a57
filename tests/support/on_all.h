// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks that are threads.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace laconic::test {

/// Runs body(rank) on every rank in parallel.
inline void on_all(uint32_t world, const std::function<void(uint32_t)>& body) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world; ++r) threads.emplace_back([&, r] { body(r); });
}

}  // namespace laconic::test
