// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by the recording NCCL and its CUDA driver.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/checked_block.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fake {

constexpr uint64_t kOnDevice = 1ULL << 62U;
constexpr int kInvalidArgument = 4, kInProgress = 7;
constexpr int kInvalidValue = 1, kNoDevice = 100, kInvalidDevice = 101, kNotReady = 600;

struct Hub;
struct Stream;
using Bytes = std::vector<uint8_t>;
using Lock = std::unique_lock<std::mutex>;

struct Communicator {
  std::shared_ptr<Hub> hub;
  int rank = 0, world = 0, device = -1;
  bool blocking = true, aborted = false;
  int async_error = 0;
  int polls = 0;                 // until what is in progress has been done
  std::function<void()> launch;  // what is in progress
  Stream* stream = nullptr;      // that it goes to
};

/// The meeting point of the ranks of one communicator.
struct Hub {
  int arrived = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  // from, to
  struct Collective {
    std::map<int, Bytes> sent;
    int taken = 0;
  };
  std::map<uint64_t, Collective> collectives;
  std::map<int, uint64_t> issued;  // by rank
};

struct Operation {
  enum Kind { sum, gather, send, recv } kind;
  const uint8_t* from;
  uint8_t* to;
  uint64_t count;
  int type, peer;
};

struct Piece {
  uint64_t bytes;
  bool on_device;
  int device;
  uint8_t* here = nullptr;  // of adopt(), for this process; null: the address without kOnDevice
};

struct Event {
  uint64_t recorded = 0, reached = 0;  // the number of times
  std::chrono::steady_clock::time_point when;
};

/// Never destroyed: threads that block remain.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
#ifdef FAKE_NCCL_OLD
  int version = 2708;
#else
  int version = 22703;
#endif
  int devices = 2;
  uint64_t epoch = 0;  // reset() ends what blocks
  std::map<int, std::string> calls;
  std::map<std::pair<int, std::string>, int> failures;
  int calls_until_failure = -1, failure_then = 0;
  std::set<std::pair<int, std::string>> blocks;
  std::map<int, int> async_errors;
  std::map<int, int> hanging;  // by device: queries of the stream after an abort; < 0: for good
  std::string last_error;
  uint64_t next_id = 0;
  std::map<uint64_t, std::shared_ptr<Hub>> hubs;
  std::map<void*, std::shared_ptr<Communicator>> communicators;
  std::set<void*> streams;
  Stream* default_stream = nullptr;  // CUDA's, of null
  int contexts = 0, groups = 0;
  std::map<uint64_t, Piece> memory;
  std::map<void*, std::shared_ptr<Event>> events;
  std::set<void*> modules;
  int capability = 90, driver = 13000;
  int late = 0;        // microseconds
  uint64_t wrong = 0;  // copies from the device of that many bytes, of 1 all, have a bit changed
  std::string faults;
  // The device's memory as kernels see it. They hold `kernels` alone, not `mutex`.
  std::mutex kernels;
  laconic::device::CheckedMemory checked;
  uint64_t launches = 0;
};
World& world();

struct Group {
  int depth = 0;
  int failure = 0;
  std::vector<Operation> operations;
  std::shared_ptr<Communicator> comm;
  Stream* stream = nullptr;
};
/// Belongs to a thread. Trivial, and in memory that exists before the thread: ThreadSanitizer does
/// not see how the loader frees other kinds.
struct Local {
  Group* group;
  int contexts[16];  // their devices
  int depth;         // of these
};
extern __attribute__((tls_model("initial-exec"))) thread_local Local local;
/// The device whose context is current; -1: none.
int current();

/// A thread that executes what lies on it.
struct Stream {
  ~Stream();
  void serve();
  bool ending = false;
  std::deque<std::function<void(Lock&)>> work;  // front: in execution
  std::thread thread{[this] { serve(); }};      // last: it uses the others
};

/// Records a call; returns what was set for it, after blocking if that was set.
int begin(Lock& lock, int device, const char* name, const std::string& arguments = {},
          bool recorded = true);

/// Null if there is no such stream.
Stream* stream_of(void* handle);

/// Null unless [address, address + bytes) lies in one piece on that side.
uint8_t* memory_at(uint64_t address, uint64_t bytes, bool on_device);

}  // namespace fake
