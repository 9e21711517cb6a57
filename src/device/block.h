// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The block that a kernel body runs on under nvcc: kThreads threads. On the host it is
// device/checked_block.h, with the same members. docs/decisions/0057-blocks-of-phases.md.
//
// A body alternates between phases, each(f) and alone(f), in which every thread runs f, and code
// between them, which all threads run with the same values: it may read, and no more. A barrier
// ends each(f).
#pragma once

#include "device/phases.h"

#if !defined(__CUDACC__) && !defined(LACONIC_BLOCK_OF_THREADS)  // tests: a thread per thread
#error "for nvcc alone: the host's is device/checked_block.h"
#endif

namespace laconic::device {

class Block {
 public:
  /// A variable of every thread, which outlives a phase.
  template <class T>
  class PerThread {
   public:
    __device__ explicit PerThread(const Block&, T value = T{}) : value_(value) {}
    __device__ T& operator[](uint32_t) { return value_; }

   private:
    T value_;
  };
  /// Shared memory: values that the block's threads exchange between phases.
  template <class T, uint32_t kCount>
  struct Cells {
    T at[kCount];
  };

  [[nodiscard]] __device__ uint64_t index() const { return blockIdx.x; }

  template <class F>
  __device__ void each(F&& f) {
    f(threadIdx.x);
    meet();
  }
  /// A phase without the barrier: what it writes, no other thread touches before the next one.
  template <class F>
  __device__ void alone(F&& f) {
    f(threadIdx.x);
  }
  __device__ void meet() { __syncthreads(); }

  // Memory. Pointers are device addresses; `i` counts elements.
  template <class T>
  [[nodiscard]] __device__ T read(const T* from, uint64_t i) const {
    return from[i];
  }
  template <class T>
  __device__ void write(T* to, uint64_t i, T value) const {
    to[i] = value;
  }
  template <class T, uint32_t kCount>
  [[nodiscard]] __device__ T read(const Cells<T, kCount>& cells, uint32_t i) const {
    return cells.at[i];
  }
  template <class T, uint32_t kCount>
  __device__ void write(Cells<T, kCount>& cells, uint32_t i, T value) const {
    cells.at[i] = value;
  }
  /// A T at any alignment, `offset` bytes on.
  template <class T>
  [[nodiscard]] __device__ T load(const uint8_t* from, uint64_t offset) const {
    const uint8_t* const at = from + offset;
    if (reinterpret_cast<uint64_t>(at) % sizeof(T) == 0) return *reinterpret_cast<const T*>(at);
    T value;
    for (uint32_t i = 0; i < sizeof(T); ++i) reinterpret_cast<uint8_t*>(&value)[i] = at[i];
    return value;
  }
  template <class T>
  __device__ void store(uint8_t* to, uint64_t offset, T value) const {
    uint8_t* const at = to + offset;
    if (reinterpret_cast<uint64_t>(at) % sizeof(T) == 0) {
      *reinterpret_cast<T*>(at) = value;
      return;
    }
    for (uint32_t i = 0; i < sizeof(T); ++i) at[i] = reinterpret_cast<const uint8_t*>(&value)[i];
  }
  /// *to = max(*to, value), with threads and blocks that do the same.
  __device__ void raise(uint32_t* to, uint32_t value) const { atomicMax(to, value); }
  /// to[i] += value, with threads and blocks that do the same.
  __device__ void add(uint32_t* to, uint64_t i, uint32_t value) const { atomicAdd(to + i, value); }
  template <uint32_t kCount>
  __device__ void add(Cells<uint32_t, kCount>& cells, uint32_t i, uint32_t value) const {
    atomicAdd(cells.at + i, value);
  }

  // Between phases, by all threads.

  /// Every thread's value becomes what those of its warp make together, folded 16, 8, …, 1 threads
  /// apart: a sum of floats has one association. `op(a, b)` is op(b, a).
  template <class T, class Op>
  __device__ void warp_fold(PerThread<T>& value, Op op) const {
    T& mine = value[0];
    for (uint32_t d = kWarp / 2; d > 0; d /= 2)
      mine = op(mine, __shfl_xor_sync(0xFFFFFFFFU, mine, d));
  }
  /// Every thread's value becomes the largest of its warp.
  __device__ void warp_max(PerThread<uint32_t>& value) const { warp_fold(value, Max{}); }
  /// Every thread's value becomes what those of its warp up to it make together.
  template <class T, class Op>
  __device__ void warp_scan(PerThread<T>& value, Op op) const {
    T& mine = value[0];
    for (uint32_t d = 1; d < kWarp; d *= 2) {
      const T before = __shfl_up_sync(0xFFFFFFFFU, mine, d);
      if (threadIdx.x % kWarp >= d) mine = op(before, mine);
    }
  }
};

}  // namespace laconic::device
