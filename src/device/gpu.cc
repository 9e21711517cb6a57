// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "device/gpu.h"

#include "base/concat.h"

namespace laconic::device {
namespace {

CudaAddress address(const void* at) { return reinterpret_cast<CudaAddress>(at); }

}  // namespace

Result<std::shared_ptr<const Gpu>> Gpu::open(const std::string& library, uint32_t ordinal,
                                             const DeviceAllocator& allocator) {
  const auto cuda = open_cuda(library);
  if (!cuda) return cuda.error();
  auto gpu = std::make_shared<Gpu>(*cuda, ordinal, allocator);
  if (auto started = gpu->start(); !started) return std::move(started).error();
  return std::shared_ptr<const Gpu>(std::move(gpu));
}

Result<void> Gpu::start() {
  const auto ok = [&](std::string_view name, int code) {
    return code == kCudaSuccess ? Result<void>() : Result<void>(error(name, code));
  };
  int count = 0, major = 0, minor = 0;
  if (auto r = ok("cuDeviceGetCount", cuda_.device.count(&count)); !r) return r;
  if (ordinal_ >= static_cast<uint32_t>(count)) {
    return Error{Errc::unsupported,
                 concat({"no GPU ", std::to_string(ordinal_), " of ", std::to_string(count),
                         " that this process can use"}),
                 "run on a machine with a GPU that this process can use"};
  }
  char name[128] = {};
  if (auto r = ok("cuDriverGetVersion", cuda_.device.version(&driver_)); !r) return r;
  if (auto r = ok("cuDeviceGet", cuda_.device.get(&device_, static_cast<int>(ordinal_))); !r)
    return r;
  if (auto r = ok("cuDeviceGetName", cuda_.device.name(name, sizeof name - 1, device_)); !r)
    return r;
  name_ = name;
  if (auto r =
          ok("cuDeviceGetAttribute", cuda_.device.attribute(&major, kCudaCapabilityMajor, device_));
      !r)
    return r;
  if (auto r =
          ok("cuDeviceGetAttribute", cuda_.device.attribute(&minor, kCudaCapabilityMinor, device_));
      !r)
    return r;
  capability_ = static_cast<uint32_t>(10 * major + minor);
  CudaContext context = nullptr;
  if (auto r = ok("cuDevicePrimaryCtxRetain", cuda_.device.context_retain(&context, device_)); !r)
    return r;
  context_ = context;
  return {};
}

Gpu::~Gpu() {
  if (context_ != nullptr) cuda_.device.context_release(device_);
}

std::string Gpu::card() const {
  return concat({name_, ", compute capability ", std::to_string(capability_ / 10), ".",
                 std::to_string(capability_ % 10)});
}

std::string Gpu::driver() const {
  return std::to_string(driver_ / 1000) + "." + std::to_string(driver_ % 1000 / 10);
}

Error Gpu::error(std::string_view call, int code) const {
  return {code == kCudaOutOfMemory ? Errc::out_of_memory : Errc::engine_failed,
          concat({call, " failed on GPU ", std::to_string(ordinal_), ": ", text_of(cuda_, code)}),
          {}};
}

// ---- memory ----

Result<void*> Gpu::allocate(uint64_t bytes) const {
  void* at = nullptr;
  if (allocator_.allocate != nullptr) {
    at = allocator_.allocate(allocator_.context, bytes);
    if (at == nullptr) {
      return Error{Errc::out_of_memory,
                   concat({"no memory for ", std::to_string(bytes), " bytes on GPU ",
                           std::to_string(ordinal_)}),
                   "use smaller buckets, or codecs on the host"};
    }
  } else {
    auto r = call("cuMemAlloc", [&](const CudaCalls& cuda) {
      CudaAddress got = 0;
      const int code = cuda.memory.alloc(&got, bytes);
      at = reinterpret_cast<void*>(got);
      return code;
    });
    if (!r) return std::move(r).error();
  }
  allocated_ += bytes;
  return at;
}

void Gpu::release(void* at, uint64_t bytes) const noexcept {
  allocated_ -= bytes;
  if (allocator_.release != nullptr)
    allocator_.release(allocator_.context, at);
  else
    (void)call("cuMemFree", [&](const CudaCalls& cuda) { return cuda.memory.free(address(at)); });
}

Result<Memory> Memory::allocate(GpuRef gpu, Where where, uint64_t bytes) {
  Memory memory;
  memory.where_ = where;
  if (bytes == 0) return memory;
  void* at = nullptr;
  if (where == Where::device) {
    auto taken = gpu->allocate(bytes);
    if (!taken) return std::move(taken).error();
    at = *taken;
  } else {
    auto r = gpu->call("cuMemHostAlloc", [&](const CudaCalls& cuda) {
      return cuda.memory.host_alloc(&at, bytes, 0);
    });
    if (!r) return std::move(r).error();
  }
  memory.gpu_ = std::move(gpu);
  memory.at_ = static_cast<uint8_t*>(at);
  memory.bytes_ = bytes;
  return memory;
}

Memory& Memory::operator=(Memory&& from) noexcept {
  std::swap(gpu_, from.gpu_);
  std::swap(where_, from.where_);
  std::swap(at_, from.at_);
  std::swap(bytes_, from.bytes_);
  return *this;
}

Result<void> Memory::grow(const GpuRef& gpu, Where where, uint64_t bytes) {
  if (bytes <= bytes_) return {};
  *this = Memory();
  auto larger = allocate(gpu, where, bytes);
  if (!larger) return std::move(larger).error();
  *this = *std::move(larger);
  return {};
}

Memory::~Memory() {
  if (at_ == nullptr) return;
  if (where_ == Where::device) {
    gpu_->release(at_, bytes_);
    return;
  }
  (void)gpu_->call("cuMemFreeHost",
                   [&](const CudaCalls& cuda) { return cuda.memory.host_free(at_); });
}

// ---- streams ----

Result<Stream> Stream::create(GpuRef gpu) {
  CudaStream stream = nullptr;
  auto r = gpu->call("cuStreamCreate", [&](const CudaCalls& cuda) {
    return cuda.stream.create(&stream, kCudaStreamNonBlocking);
  });
  if (!r) return std::move(r).error();
  return Stream(std::move(gpu), stream);
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  (void)wait();
  (void)gpu_->call("cuStreamDestroy",
                   [&](const CudaCalls& cuda) { return cuda.stream.destroy(stream_); });
}

Result<void> Stream::copy_in(void* device, const void* host, uint64_t bytes) const {
  if (bytes == 0) return {};
  return gpu_->call("cuMemcpyHtoDAsync", [&](const CudaCalls& cuda) {
    return cuda.memory.copy_to_device(address(device), host, bytes, stream_);
  });
}

Result<void> Stream::copy_out(void* host, const void* device, uint64_t bytes) const {
  if (bytes == 0) return {};
  return gpu_->call("cuMemcpyDtoHAsync", [&](const CudaCalls& cuda) {
    return cuda.memory.copy_to_host(host, address(device), bytes, stream_);
  });
}

Result<void> Stream::copy(void* to, const void* from, uint64_t bytes) const {
  if (bytes == 0) return {};
  return gpu_->call("cuMemcpyDtoDAsync", [&](const CudaCalls& cuda) {
    return cuda.memory.copy(address(to), address(from), bytes, stream_);
  });
}

Result<void> Stream::clear(void* device, uint64_t bytes) const {
  if (bytes == 0) return {};
  return gpu_->call("cuMemsetD8Async", [&](const CudaCalls& cuda) {
    return cuda.memory.set(address(device), 0, bytes, stream_);
  });
}

Result<void> Stream::follow(const Event& event) const {
  return gpu_->call("cuStreamWaitEvent", [&](const CudaCalls& cuda) {
    return cuda.stream.wait(stream_, event.handle(), 0);
  });
}

Result<void> Stream::wait() const {
  return gpu_->call("cuStreamSynchronize",
                    [&](const CudaCalls& cuda) { return cuda.stream.synchronize(stream_); });
}

// ---- events ----

Result<Event> Event::create(GpuRef gpu) {
  CudaEvent event = nullptr;
  auto r = gpu->call("cuEventCreate",
                     [&](const CudaCalls& cuda) { return cuda.event.create(&event, 0); });
  if (!r) return std::move(r).error();
  return Event(std::move(gpu), event);
}

Event::~Event() {
  if (event_ == nullptr) return;
  (void)gpu_->call("cuEventDestroy",
                   [&](const CudaCalls& cuda) { return cuda.event.destroy(event_); });
}

Result<void> Event::record(CudaStream stream) const {
  return gpu_->call("cuEventRecord",
                    [&](const CudaCalls& cuda) { return cuda.event.record(event_, stream); });
}

Result<double> Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  auto r = gpu_->call("cuEventElapsedTime", [&](const CudaCalls& cuda) {
    return cuda.event.milliseconds(&milliseconds, earlier.event_, event_);
  });
  if (!r) return std::move(r).error();
  return double{milliseconds} / 1000;
}

}  // namespace laconic::device
