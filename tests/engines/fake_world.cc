// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "fake_world.h"

#include <cstdlib>
#include <cstring>

#include "fake_nccl.h"

namespace fake {
namespace {

/// For programs that open the library by themselves.
int told(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

}  // namespace

World& world() {
  static World* const w = [] {
    auto* made = new World;
    made->devices = told("FAKE_NCCL_DEVICES", 2);
    made->wrong = static_cast<uint64_t>(told("FAKE_CUDA_WRONG", 0));
    return made;
  }();
  return *w;
}

__attribute__((tls_model("initial-exec"))) thread_local Local local;

int current() { return local.depth == 0 ? -1 : local.contexts[local.depth - 1]; }

Stream::~Stream() {
  {
    const Lock lock(world().mutex);
    ending = true;
    world().changed.notify_all();
  }
  thread.join();
}

void Stream::serve() {
  Lock lock(world().mutex);
  for (;;) {
    world().changed.wait(lock, [&] { return ending || !work.empty(); });
    if (work.empty()) return;
    if (const int late = world().late; late != 0) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(late));
      lock.lock();
    }
    const auto next = work.front();
    next(lock);
    work.pop_front();
    world().changed.notify_all();
  }
}

int begin(Lock& lock, int device, const char* name, const std::string& arguments, bool recorded) {
  World& w = world();
  if (recorded) w.calls[device] += name + (arguments.empty() ? "" : " " + arguments) + "\n";
  if (w.blocks.erase({device, name}) != 0)
    w.changed.wait(lock, [&, epoch = w.epoch] { return w.epoch != epoch; });
  if (w.calls_until_failure >= 0 && w.calls_until_failure-- == 0) return w.failure_then;
  const auto at = w.failures.find({device, name});
  if (at == w.failures.end()) return 0;
  const int code = at->second;
  w.failures.erase(at);
  return code;
}

Stream* stream_of(void* handle) {
  World& w = world();
  if (handle != nullptr)
    return w.streams.count(handle) == 0 ? nullptr : static_cast<Stream*>(handle);
  if (w.default_stream == nullptr) w.default_stream = new Stream;
  return w.default_stream;
}

uint8_t* memory_at(uint64_t address, uint64_t bytes, bool on_device) {
  World& w = world();
  auto at = w.memory.upper_bound(address);
  if (at == w.memory.begin()) return nullptr;
  --at;
  if (at->second.on_device != on_device || address + bytes > at->first + at->second.bytes)
    return nullptr;
  if (at->second.here != nullptr) return at->second.here + (address - at->first);
  return reinterpret_cast<uint8_t*>(address & ~kOnDevice);
}

namespace {

uint64_t give(const std::string& text, char* out, uint64_t room) {
  std::strncpy(out, text.c_str(), room - 1);
  out[room - 1] = '\0';
  return text.size();
}

FakeNccl controls() {
  FakeNccl c{};
  c.reset = [](int version, int devices) {
    World& w = world();
    const Lock lock(w.mutex);
    ++w.epoch;
    w.version = version;
    w.devices = devices;
    w.calls.clear();
    w.failures.clear();
    w.calls_until_failure = -1;
    w.blocks.clear();
    w.async_errors.clear();
    w.hanging.clear();
    w.last_error.clear();
    w.capability = 90;
    w.driver = 13000;
    w.late = 0;
    w.faults.clear();
    w.changed.notify_all();
    const std::lock_guard<std::mutex> running(w.kernels);
    w.checked.take_faults();
  };
  c.fail = [](int device, const char* call, int code) {
    const Lock lock(world().mutex);
    world().failures[{device, call}] = code;
  };
  c.fail_after = [](int calls, int code) {
    World& w = world();
    const Lock lock(w.mutex);
    w.failure_then = code;
    return std::exchange(w.calls_until_failure, calls) < 0;
  };
  c.block = [](int device, const char* call) {
    const Lock lock(world().mutex);
    world().blocks.insert({device, call});
  };
  c.async_error = [](int device, int code) {
    const Lock lock(world().mutex);
    world().async_errors[device] = code;
    world().last_error = "the cable is cut";
  };
  c.hang = [](int device, int queries) {
    const Lock lock(world().mutex);
    world().hanging[device] = queries;
  };
  c.calls = [](int device, char* out, uint64_t room) -> uint64_t {
    const Lock lock(world().mutex);
    return give(std::exchange(world().calls[device], {}), out, room);
  };
  c.card = [](int capability, int driver) {
    const Lock lock(world().mutex);
    world().capability = capability;
    world().driver = driver;
  };
  c.late = [](int microseconds) {
    const Lock lock(world().mutex);
    world().late = microseconds;
  };
  c.faults = [](char* out, uint64_t room) -> uint64_t {
    World& w = world();
    const Lock lock(w.mutex);
    const std::lock_guard<std::mutex> running(w.kernels);
    std::string faults = std::exchange(w.faults, {});
    for (const std::string& fault : w.checked.take_faults()) faults += fault + "\n";
    return give(faults, out, room);
  };
  c.adopt = [](int device, void* address, void* here, uint64_t bytes) {
    World& w = world();
    const Lock lock(w.mutex);
    auto* const at = static_cast<uint8_t*>(here);
    w.memory[reinterpret_cast<uint64_t>(address)] = {bytes, true, device, at};
    const std::lock_guard<std::mutex> running(w.kernels);
    w.checked.add("memory of a framework", address, at, bytes);
    w.checked.set_written(address);
  };
  c.alive = []() -> uint64_t {
    World& w = world();
    const Lock lock(w.mutex);
    return w.communicators.size() + w.streams.size() + w.memory.size() + w.events.size() +
           w.modules.size() + static_cast<uint64_t>(w.contexts + w.groups);
  };
  return c;
}

}  // namespace

}  // namespace fake

EXPORTED const FakeNccl* fake_nccl() {
  static const FakeNccl all = fake::controls();
  return &all;
}
