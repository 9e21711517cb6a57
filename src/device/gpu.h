// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A GPU through CUDA's driver: memory, streams, events. Every call may be made from any thread and
// leaves the thread's own context current. An Error names the call and the GPU; out_of_memory if
// memory ran out, else engine_failed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "device/driver.h"

namespace laconic::device {

/// Takes a GPU's memory from a framework, whose statistics count it, and not from the driver.
/// 256-byte aligned; null: out of memory.
struct DeviceAllocator {
  void* context = nullptr;
  void* (*allocate)(void* context, uint64_t bytes) = nullptr;
  void (*release)(void* context, void* at) = nullptr;
};

/// A GPU, whose primary context stays while this lives. What belongs to it keeps it alive.
class Gpu {
 public:
  /// `ordinal`: CUDA's index. unsupported if there is no driver or no GPU.
  static Result<std::shared_ptr<const Gpu>> open(const std::string& library, uint32_t ordinal,
                                                 const DeviceAllocator& allocator = {});
  Gpu(const CudaCalls& cuda, uint32_t ordinal, const DeviceAllocator& allocator = {})
      : cuda_(cuda), ordinal_(ordinal), allocator_(allocator) {}
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// "NVIDIA H200, compute capability 9.0".
  [[nodiscard]] std::string card() const;
  /// 90: compute capability 9.0.
  [[nodiscard]] uint32_t capability() const noexcept { return capability_; }
  /// The newest CUDA that the driver supports: "12.4".
  [[nodiscard]] std::string driver() const;

  /// `f(calls)`, the call of that name, in the context.
  template <class F>
  Result<void> call(std::string_view name, F&& f) const {
    const Current current(cuda_, context_);
    if (current.code() != kCudaSuccess) return error("cuCtxPushCurrent", current.code());
    const int code = f(cuda_);
    return code == kCudaSuccess ? Result<void>() : Result<void>(error(name, code));
  }
  [[nodiscard]] Error error(std::string_view call, int code) const;
  /// Memory on it, by the allocator. 256-byte aligned.
  [[nodiscard]] Result<void*> allocate(uint64_t bytes) const;
  void release(void* at, uint64_t bytes) const noexcept;
  /// Bytes of it that are not released.
  [[nodiscard]] uint64_t allocated() const noexcept { return allocated_; }

 private:
  Result<void> start();

  CudaCalls cuda_;
  uint32_t ordinal_;
  DeviceAllocator allocator_;  // without functions: the driver's
  CudaDevice device_ = 0;
  CudaContext context_ = nullptr;
  std::string name_;
  uint32_t capability_ = 0;
  int driver_ = 0;
  mutable std::atomic<uint64_t> allocated_{0};
};
using GpuRef = std::shared_ptr<const Gpu>;

/// A piece of memory: on the device, where the host may not touch it, or of the host and pinned.
/// No queued work may use it when it is freed.
class Memory {
 public:
  enum class Where : uint8_t { device, pinned };
  static Result<Memory> allocate(GpuRef gpu, Where where, uint64_t bytes);
  Memory() = default;
  Memory(Memory&& from) noexcept
      : gpu_(std::move(from.gpu_)),
        where_(from.where_),
        at_(std::exchange(from.at_, nullptr)),
        bytes_(std::exchange(from.bytes_, 0)) {}
  Memory& operator=(Memory&& from) noexcept;
  ~Memory();
  /// At least `bytes`, the first time and each time after. Keeps no contents when it grows.
  Result<void> grow(const GpuRef& gpu, Where where, uint64_t bytes);

  /// Null if there are no bytes. 256-byte aligned.
  [[nodiscard]] uint8_t* at() const noexcept { return at_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }

 private:
  GpuRef gpu_;
  Where where_ = Where::device;
  uint8_t* at_ = nullptr;
  uint64_t bytes_ = 0;
};

class Event;

/// A queue of work, which runs in order and waits for no other stream. The destructor waits for it.
class Stream {
 public:
  static Result<Stream> create(GpuRef gpu);
  Stream(Stream&& from) noexcept
      : gpu_(std::move(from.gpu_)), stream_(std::exchange(from.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  // Queued. Host memory may be used again after a wait; it should be pinned, else the copy may
  // wait itself.
  Result<void> copy_in(void* device, const void* host, uint64_t bytes) const;
  Result<void> copy_out(void* host, const void* device, uint64_t bytes) const;
  Result<void> copy(void* to, const void* from, uint64_t bytes) const;
  Result<void> clear(void* device, uint64_t bytes) const;
  /// Work that is queued from now on runs after the event.
  Result<void> follow(const Event& event) const;

  /// Waits for all queued work. Also reports failures of kernels.
  Result<void> wait() const;
  [[nodiscard]] CudaStream handle() const noexcept { return stream_; }

 private:
  Stream(GpuRef gpu, CudaStream stream) : gpu_(std::move(gpu)), stream_(stream) {}
  GpuRef gpu_;
  CudaStream stream_;
};

/// A point in a stream.
class Event {
 public:
  static Result<Event> create(GpuRef gpu);
  Event(Event&& from) noexcept
      : gpu_(std::move(from.gpu_)), event_(std::exchange(from.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();

  Result<void> record(CudaStream stream) const;
  /// Seconds between two events. Both have run.
  [[nodiscard]] Result<double> seconds_since(const Event& earlier) const;
  [[nodiscard]] CudaEvent handle() const noexcept { return event_; }

 private:
  Event(GpuRef gpu, CudaEvent event) : gpu_(std::move(gpu)), event_(event) {}
  GpuRef gpu_;
  CudaEvent event_;
};

}  // namespace laconic::device
