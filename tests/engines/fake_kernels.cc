// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Modules, kernels and events of the recording NCCL's CUDA driver. A module is "fake cubin 90", a
// cubin of nvcc, or PTX. Its kernels are those of kernel_list.h, run by their source on a stream's
// thread, in another order at every launch.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "fake_world.h"
#include "support/checked_device.h"

namespace {

using namespace fake;
using laconic::test::CheckedKernel;
using laconic::test::Order;

constexpr int kInvalidImage = 200, kNoBinary = 209, kInvalidPtx = 218, kNewPtx = 222,
              kNotFound = 500;

int number_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  return at == std::string_view::npos ? -1 : std::atoi(text.data() + at + word.size());
}

/// PTX 7.x came with CUDA 11.x, 8.x with 12.x, 9.x with 13.x.
int check_ptx(std::string_view text) {
  const World& w = world();
  const int major = number_after(text, ".version "), target = number_after(text, ".target sm_");
  if (major < 0 || target < 0) return kInvalidPtx;
  const int minor = number_after(text, ".version " + std::to_string(major) + ".");
  if ((major + 4) * 1000 + minor * 10 > w.driver) return kNewPtx;
  return target > w.capability ? kNoBinary : 0;
}

int check_image(const char* image) {
  constexpr size_t kArchitecture = 49;  // in an ELF header: second byte of its flags
  const int capability = world().capability;
  int architecture = -1;
  if (std::memcmp(image, "\177ELF", 4) == 0) {
    architecture = static_cast<unsigned char>(image[kArchitecture]);
  } else {
    const std::string_view text(image);
    architecture = number_after(text, "fake cubin ");
    if (architecture < 0)
      return text.find(".version") != text.npos ? check_ptx(text) : kInvalidImage;
  }
  const bool runs = architecture / 10 == capability / 10 && architecture <= capability;
  return runs ? 0 : kNoBinary;
}

std::shared_ptr<Event> event_of(void* event) {
  const auto at = world().events.find(event);
  return at == world().events.end() ? nullptr : at->second;
}

}  // namespace

EXPORTED int cuModuleLoadData(void** module, const void* image) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuModuleLoadData"); code != 0) return code;
  if (const int code = check_image(static_cast<const char*>(image)); code != 0) return code;
  *module = new char;
  w.modules.insert(*module);
  return 0;
}

EXPORTED int cuModuleUnload(void* module) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuModuleUnload"); code != 0) return code;
  if (w.modules.erase(module) == 0) return kInvalidValue;
  delete static_cast<char*>(module);
  return 0;
}

EXPORTED int cuModuleGetFunction(void** function, void* module, const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuModuleGetFunction", name, false); code != 0)
    return code;
  if (w.modules.count(module) == 0) return kInvalidValue;
  const CheckedKernel* const kernel = laconic::test::find_checked_kernel(name);
  *function = const_cast<CheckedKernel*>(kernel);
  return kernel != nullptr ? 0 : kNotFound;
}

EXPORTED int cuLaunchKernel(void* function, unsigned int blocks, unsigned int grid_y,
                            unsigned int grid_z, unsigned int threads, unsigned int block_y,
                            unsigned int block_z, unsigned int shared, void* stream,
                            void** parameters, void** extra) {
  World& w = world();
  Lock lock(w.mutex);
  const auto* const kernel = static_cast<const CheckedKernel*>(function);
  if (kernel == nullptr) return kInvalidValue;
  const std::string text = std::string(kernel->name) + " " + std::to_string(blocks);
  if (const int code = begin(lock, current(), "cuLaunchKernel", text); code != 0) return code;
  const bool one_dimension = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
  if (!one_dimension || blocks == 0 || threads != laconic::device::kThreads || shared != 0 ||
      extra != nullptr || stream_of(stream) == nullptr)
    return kInvalidValue;
  const auto* const args = static_cast<const uint8_t*>(parameters[0]);
  constexpr Order kOrders[] = {Order::forward, Order::backward, Order::scrambled};
  const Order order = kOrders[w.launches++ % 3];
  stream_of(stream)->work.emplace_back([=, bytes = Bytes(args, args + kernel->args)](Lock& held) {
    held.unlock();
    {
      World& running = world();
      const std::lock_guard<std::mutex> alone(running.kernels);
      kernel->launch(running.checked, order, blocks, bytes);
    }
    held.lock();
  });
  w.changed.notify_all();
  return 0;
}

// ---- events ----

EXPORTED int cuEventCreate(void** event, unsigned int) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuEventCreate", {}, false); code != 0) return code;
  auto made = std::make_shared<Event>();
  *event = made.get();
  w.events[*event] = std::move(made);
  return 0;
}

EXPORTED int cuEventDestroy_v2(void* event) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuEventDestroy", {}, false); code != 0) return code;
  return w.events.erase(event) == 1 ? 0 : kInvalidValue;
}

EXPORTED int cuEventRecord(void* event, void* stream) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuEventRecord"); code != 0) return code;
  const auto known = event_of(event);
  if (known == nullptr || stream_of(stream) == nullptr) return kInvalidValue;
  const uint64_t number = ++known->recorded;
  stream_of(stream)->work.emplace_back([known, number](Lock&) {
    known->reached = number;
    known->when = std::chrono::steady_clock::now();
    world().changed.notify_all();
  });
  w.changed.notify_all();
  return 0;
}

EXPORTED int cuStreamWaitEvent(void* stream, void* event, unsigned int) {
  World& w = world();
  Lock lock(w.mutex);
  if (const int code = begin(lock, current(), "cuStreamWaitEvent"); code != 0) return code;
  const auto known = event_of(event);
  if (known == nullptr || stream_of(stream) == nullptr) return kInvalidValue;
  stream_of(stream)->work.emplace_back([known, number = known->recorded](Lock& held) {
    world().changed.wait(held, [&] { return known->reached >= number; });
  });
  w.changed.notify_all();
  return 0;
}

EXPORTED int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  Lock lock(world().mutex);
  if (const int code = begin(lock, current(), "cuEventElapsedTime", {}, false); code != 0)
    return code;
  const auto first = event_of(from), last = event_of(to);
  if (first == nullptr || last == nullptr) return kInvalidValue;
  if (first->reached != first->recorded || last->reached != last->recorded) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->when - first->when).count();
  return 0;
}
