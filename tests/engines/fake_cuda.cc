// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver of the recording NCCL.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "fake_world.h"
#include "support/sanitizer.h"
#if defined(LACONIC_ASAN)
#include <sanitizer/lsan_interface.h>
#endif

namespace {

using namespace fake;

void ignore_leak([[maybe_unused]] const void* memory) {
#if defined(LACONIC_ASAN)
  __lsan_ignore_object(memory);
#endif
}

int allocate(uint64_t* address, uint64_t bytes, bool on_device, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name, std::to_string(bytes)); code != 0) return code;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  // LeakSanitizer cannot follow an address with that bit; Fake::alive counts what is not freed.
  if (on_device) ignore_leak(memory);
  *address = reinterpret_cast<uint64_t>(memory) | (on_device ? kOnDevice : 0);
  w.memory[*address] = {bytes, on_device, current()};
  if (on_device) {
    const std::lock_guard<std::mutex> running(w.kernels);
    w.checked.add("memory of the device", reinterpret_cast<void*>(*address),
                  static_cast<uint8_t*>(memory), bytes);
  }
  return 0;
}

int deallocate(uint64_t address, bool on_device, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name); code != 0) return code;
  const auto at = w.memory.find(address);
  if (at == w.memory.end() || at->second.on_device != on_device) return kInvalidValue;
  w.memory.erase(at);
  const std::lock_guard<std::mutex> running(w.kernels);
  if (on_device) w.checked.release(reinterpret_cast<void*>(address));
  std::free(reinterpret_cast<void*>(address & ~kOnDevice));
  return 0;
}

struct Side {
  uint64_t address = 0;
  bool on_device = false;
  [[nodiscard]] uint8_t* find(uint64_t bytes) const { return memory_at(address, bytes, on_device); }
};

/// Queued after what is on the stream; refused while NCCL is still putting its kernels there.
/// `from`: null for zeros.
int copy(Side to, const Side* from, uint64_t bytes, void* stream, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), name, std::to_string(bytes)); code != 0) return code;
  if (to.find(bytes) == nullptr || (from != nullptr && from->find(bytes) == nullptr) ||
      stream_of(stream) == nullptr)
    return kInvalidValue;
  for (const auto& [handle, c] : w.communicators) {
    if (c->launch && c->stream == stream) return kInvalidValue;
  }
  const bool zeros = from == nullptr;
  const Side source = zeros ? Side{} : *from;
  stream_of(stream)->work.emplace_back([=](Lock&) {
    uint8_t* const target = to.find(bytes);
    const uint8_t* const read = zeros ? nullptr : source.find(bytes);
    if (target == nullptr || (!zeros && read == nullptr)) {
      world().faults += std::string(name) + " of memory that is freed\n";
      return;
    }
    const std::lock_guard<std::mutex> running(world().kernels);
    zeros ? std::memset(target, 0, bytes) : std::memcpy(target, read, bytes);
    const uint64_t wrong = world().wrong;
    if (!to.on_device && (wrong == 1 || wrong == bytes)) target[0] ^= 1;
    if (to.on_device) world().checked.set_written(reinterpret_cast<void*>(to.address), bytes);
  });
  w.changed.notify_all();
  return 0;
}

}  // namespace

EXPORTED int cuInit(unsigned int) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, -1, "cuInit", {}, false); code != 0) return code;
  return w.devices == 0 ? kNoDevice : 0;
}

EXPORTED int cuGetErrorString(int code, const char** text) {
  *text = code == 2     ? "out of memory"
          : code == 100 ? "no CUDA-capable device is detected"
          : code == 101 ? "invalid device ordinal"
          : code == 200 ? "device kernel image is invalid"
          : code == 209 ? "no kernel image is available for execution on the device"
          : code == 222 ? "the provided PTX was compiled with an unsupported toolchain."
                        : nullptr;
  return *text != nullptr ? 0 : kInvalidValue;
}

EXPORTED int cuDeviceGetCount(int* count) {
  Lock lock(world().mutex);
  *count = world().devices;
  return begin(lock, -1, "cuDeviceGetCount", {}, false);
}

EXPORTED int cuDriverGetVersion(int* version) {
  Lock lock(world().mutex);
  *version = world().driver;
  return begin(lock, -1, "cuDriverGetVersion", {}, false);
}

EXPORTED int cuDeviceGet(int* device, int ordinal) {
  Lock lock(world().mutex);
  *device = ordinal;
  if (const int code = begin(lock, ordinal, "cuDeviceGet", {}, false); code != 0) return code;
  return ordinal < world().devices ? 0 : kInvalidDevice;
}

EXPORTED int cuDeviceGetName(char* name, int room, int device) {
  Lock lock(world().mutex);
  std::strncpy(name, "Fake GPU", static_cast<size_t>(room));
  return begin(lock, device, "cuDeviceGetName", {}, false);
}

EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int device) {
  Lock lock(world().mutex);
  const int capability = world().capability;
  if (attribute != 75 && attribute != 76) return kInvalidValue;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return begin(lock, device, "cuDeviceGetAttribute", {}, false);
}

EXPORTED int cuDevicePrimaryCtxRetain(void** context, int device) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, device, "cuDevicePrimaryCtxRetain", {}, false); code != 0)
    return code;
  ++world().contexts;
  *context = reinterpret_cast<void*>(static_cast<uint64_t>(device) + 1);
  return 0;
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int) {
  const Lock lock(world().mutex);
  --world().contexts;
  return 0;
}

EXPORTED int cuCtxPushCurrent_v2(void* context) {
  const int device = static_cast<int>(reinterpret_cast<uint64_t>(context)) - 1;
  Lock lock(world().mutex);
  if (const int code = begin(lock, device, "cuCtxPushCurrent", {}, false); code != 0) return code;
  local.contexts[local.depth++] = device;
  return 0;
}

EXPORTED int cuCtxPopCurrent_v2(void**) {
  if (local.depth == 0) return 201;
  --local.depth;
  return 0;
}

EXPORTED int cuStreamCreate(void** stream, unsigned int flags) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuStreamCreate", {}, false); code != 0) return code;
  if (flags != 1 || current() < 0) return kInvalidValue;
  *stream = new Stream;
  w.streams.insert(*stream);
  return 0;
}

EXPORTED int cuStreamDestroy_v2(void* stream) {
  {
    const Lock lock(world().mutex);
    if (world().streams.count(stream) == 0) return kInvalidValue;
    if (!static_cast<Stream*>(stream)->work.empty()) return kNotReady;  // it might never end
    world().streams.erase(stream);
  }
  delete static_cast<Stream*>(stream);
  return 0;
}

EXPORTED int cuStreamQuery(void* stream) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, current(), "cuStreamQuery", {}, false); code != 0) return code;
  World& w = world();
  if (stream_of(stream) == nullptr) return kInvalidValue;
  const auto hanging = w.hanging.find(current());
  const bool aborted = std::none_of(w.communicators.begin(), w.communicators.end(),
                                    [](const auto& c) { return c.second->device == current(); });
  if (aborted && hanging != w.hanging.end() && hanging->second > 0 && --hanging->second == 0)
    w.changed.notify_all();
  return stream_of(stream)->work.empty() ? 0 : kNotReady;
}

EXPORTED int cuStreamSynchronize(void* stream) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuStreamSynchronize", {}, false); code != 0)
    return code;
  if (stream_of(stream) == nullptr) return kInvalidValue;
  w.changed.wait(lock, [&] { return stream_of(stream)->work.empty(); });
  return 0;
}

EXPORTED int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  return allocate(address, bytes, true, "cuMemAlloc");
}
EXPORTED int cuMemFree_v2(uint64_t address) { return deallocate(address, true, "cuMemFree"); }
EXPORTED int cuMemHostAlloc(void** address, size_t bytes, unsigned int) {
  uint64_t at = 0;
  const int code = allocate(&at, bytes, false, "cuMemHostAlloc");
  *address = reinterpret_cast<void*>(at);
  return code;
}
EXPORTED int cuMemFreeHost(void* address) {
  return deallocate(reinterpret_cast<uint64_t>(address), false, "cuMemFreeHost");
}
EXPORTED int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  const Side host{reinterpret_cast<uint64_t>(from), false};
  return copy({to, true}, &host, bytes, stream, "cuMemcpyHtoDAsync");
}
EXPORTED int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  const Side device{from, true};
  return copy({reinterpret_cast<uint64_t>(to), false}, &device, bytes, stream, "cuMemcpyDtoHAsync");
}
EXPORTED int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  const Side device{from, true};
  return copy({to, true}, &device, bytes, stream, "cuMemcpyDtoDAsync");
}
EXPORTED int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  return value != 0 ? kInvalidValue : copy({to, true}, nullptr, bytes, stream, "cuMemsetD8Async");
}

/// Pinned memory is known as well; other memory of the host is not.
EXPORTED int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, -1, "cuPointerGetAttribute", {}, false); code != 0) return code;
  const bool on_device = memory_at(address, 1, true) != nullptr;
  if (!on_device && memory_at(address, 1, false) == nullptr) return kInvalidValue;
  const auto piece = std::prev(world().memory.upper_bound(address));
  const unsigned int answer = attribute == 2   ? (on_device ? 2 : 1)
                              : attribute == 9 ? static_cast<unsigned int>(piece->second.device)
                                               : 0;
  std::memcpy(value, &answer, sizeof answer);
  return 0;
}
