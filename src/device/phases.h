// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by kernel bodies, over the host's block and nvcc's: sums and maxima over a block's
// threads, from its warps' and shared cells.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace laconic::device {

inline constexpr uint32_t kThreads = 256;  ///< of a block
inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kWarps = kThreads / kWarp;

template <class B, class T>
using PerThread = typename B::template PerThread<T>;
template <class B, class T, uint32_t kCount>
using Cells = typename B::template Cells<T, kCount>;

struct Sum {
  template <class T>
  LACONIC_HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  LACONIC_HOST_DEVICE T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

/// The largest of all threads' values, for all of them. `value` is used up.
template <class B>
[[nodiscard]] LACONIC_DEVICE uint32_t block_max(B& b, PerThread<B, uint32_t>& value,
                                                Cells<B, uint32_t, kWarps>& cells) {
  b.warp_max(value);
  b.each([&](uint32_t t) {
    if (t % kWarp == 0) b.write(cells, t / kWarp, value[t]);
  });
  uint32_t most = 0;
  for (uint32_t w = 0; w < kWarps; ++w) most = Max{}(most, b.read(cells, w));
  b.meet();  // all have read them
  return most;
}

/// Every thread's value becomes that of all threads before it (0 for the first); returns that of
/// all. 0 is the operation's neutral element.
template <class T, class B, class Op>
[[nodiscard]] LACONIC_DEVICE T scan(B& b, PerThread<B, T>& value, Cells<B, T, kThreads>& cells,
                                    Op op) {
  b.warp_scan(value, op);
  b.each([&](uint32_t t) { b.write(cells, t, value[t]); });
  b.alone([&](uint32_t t) {
    T before = 0;
    for (uint32_t last = kWarp - 1; last < t; last += kWarp)
      before = op(before, b.read(cells, last));
    value[t] = t % kWarp == 0 ? before : op(before, b.read(cells, t - 1));
  });
  T all = 0;
  for (uint32_t w = 1; w <= kWarps; ++w) all = op(all, b.read(cells, w * kWarp - 1));
  b.meet();  // all have read them
  return all;
}

/// The last of `count` rows whose `first_tile` is not above `tile`: rows without tiles come before.
template <class B, class Row>
[[nodiscard]] LACONIC_DEVICE const Row* row_at(B& b, const Row* rows, uint32_t count,
                                               uint64_t tile) {
  uint32_t low = 0, high = count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (b.read(&rows[middle].first_tile, 0) <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return rows + low;
}
template <class B, class Row>
[[nodiscard]] LACONIC_DEVICE Row row_of(B& b, const Row* rows, uint32_t count, uint64_t tile) {
  return b.read(row_at(b, rows, count, tile), 0);
}

}  // namespace laconic::device
