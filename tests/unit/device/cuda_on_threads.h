// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The parts of CUDA that device/block.h uses, with a thread of the host for each of a block:
// shuffles, barriers, atomics. A block at a time.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/phases.h"

#define LACONIC_BLOCK_OF_THREADS
#define __device__

namespace laconic::test {

struct Index {
  uint32_t x = 0;
};

/// Shared by the threads of a block.
struct ThreadedBlock {
  struct Warp {
    std::barrier<> barrier{device::kWarp};
    uint64_t lanes[device::kWarp] = {};
  };
  std::barrier<> barrier{device::kThreads};
  Warp warps[device::kWarps];
};

inline thread_local ThreadedBlock* this_block = nullptr;

/// The value of lane `from` of the warp, `from` being a function of this lane.
template <class T, class From>
T shuffle(T value, From from);

}  // namespace laconic::test

inline thread_local laconic::test::Index threadIdx, blockIdx;

template <class T, class From>
T laconic::test::shuffle(T value, From from) {
  ThreadedBlock::Warp& warp = this_block->warps[threadIdx.x / device::kWarp];
  const uint32_t lane = threadIdx.x % device::kWarp;
  static_assert(sizeof(T) <= sizeof warp.lanes[lane]);
  std::memcpy(&warp.lanes[lane], &value, sizeof value);
  warp.barrier.arrive_and_wait();
  std::memcpy(&value, &warp.lanes[from(lane)], sizeof value);
  warp.barrier.arrive_and_wait();
  return value;
}

inline void __syncthreads() { laconic::test::this_block->barrier.arrive_and_wait(); }
template <class T>
T __shfl_xor_sync(uint32_t, T value, uint32_t mask) {
  return laconic::test::shuffle(value, [&](uint32_t lane) { return lane ^ mask; });
}
template <class T>
T __shfl_up_sync(uint32_t, T value, uint32_t delta) {
  return laconic::test::shuffle(value,
                                [&](uint32_t lane) { return lane < delta ? lane : lane - delta; });
}
inline void atomicMax(uint32_t* at, uint32_t value) {
  const std::atomic_ref<uint32_t> most(*at);
  uint32_t seen = most.load();
  while (seen < value && !most.compare_exchange_weak(seen, value)) {
  }
}
inline void atomicAdd(uint32_t* at, uint32_t value) { std::atomic_ref<uint32_t>(*at) += value; }
