// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Controls and queries of the recording NCCL and of its CUDA driver for a test. A rank is known by
// its device.
#pragma once

#include <cstdint>

struct FakeNccl {
  /// No faults, no calls, version and number of devices as given here. Calls that
  /// block return.
  void (*reset)(int version, int devices);
  /// The next call of that name on the device gives `code`.
  void (*fail)(int device, const char* call, int code);
  /// After so many calls of the driver, asking and freeing among them, the next one gives `code`;
  /// negative: none does. Gives whether that of before did.
  bool (*fail_after)(int calls, int code);
  /// The next call of that name on the device does not return before reset().
  void (*block)(int device, const char* call);
  /// The communicator's asynchronous error from now on.
  void (*async_error)(int device, int code);
  /// No group of the device ends before its communicator has been aborted and its stream then
  /// queried this number of times; negative: not even then.
  void (*hang)(int device, int queries);
  /// Calls of the device since the last time, a line each, NUL-terminated: without those that only
  /// ask, or change a thread's context. Gives their length.
  uint64_t (*calls)(int device, char* out, uint64_t room);
  /// Communicators, streams, events, modules, contexts and pieces of memory that have not been
  /// freed, and groups that have not ended.
  uint64_t (*alive)();
  /// Compute capability of all devices, 90 for 9.0, and version of the driver, 12040 for 12.4:
  /// after reset() 9.0 and 13.0.
  void (*card)(int capability, int driver);
  /// Everything on a stream begins so much later than it could; after reset() 0.
  void (*late)(int microseconds);
  /// Races of kernels, and accesses to memory that is not there, a line each as by `calls`; none
  /// after reset().
  uint64_t (*faults)(char* out, uint64_t room);
  /// Memory of that device which a framework has allocated, and whose bytes are `here` for this
  /// process. It is never freed, and taken for written.
  void (*adopt)(int device, void* address, void* here, uint64_t bytes);
};

/// The library's only extra symbol.
extern "C" const FakeNccl* fake_nccl();
