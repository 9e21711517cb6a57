// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A pretend accelerator for torch (PrivateUse1), to test what only shows where work is late:
// - A stream is a thread with a queue. Operations on the device and non-blocking copies return at
//   once and happen later, each after a settable delay.
// - The host may not touch the device's memory: a read or write of it dies with SIGSEGV.
// - Freed memory is given to the next allocation of its size and stream at once, unless streams
//   that record_stream named are still at work on it.
// - Pinned memory lives until what was queued when it was freed has happened, as with CUDA.
// - With pretend_over, it is the GPU of the simulated CUDA driver of tests/engines.
// There are two devices, so that a model may lie on both. Whatever is not defined here torch
// computes on the CPU, with blocking copies.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "../engines/fake_nccl.h"

namespace {

constexpr auto kPretend = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kArena = size_t{1} << 33;  // of address space; a page is there once it is written

enum Delay { kCompute, kDown, kUp, kDelays };
std::array<std::atomic<int64_t>, kDelays>
    delays;  // microseconds before each operation that returns immediately
std::atomic<int> failing_copies, failing_pins;  // how many of the next ones fail
std::atomic<int64_t> pinned_bytes;
std::atomic<int64_t> flipped{
    -1};  // copies to the host of that many bytes arrive with one bit changed

const FakeNccl* driver = nullptr;  // of pretend_over

// ---- streams and events ----

class Stream {
 public:
  Stream() {
    std::thread([this] { work(); }).detach();
  }

  uint64_t push(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++issued_;
  }

  uint64_t issued() {
    std::lock_guard lock(mutex_);
    return issued_;
  }

  bool is_done(uint64_t number) {
    std::lock_guard lock(mutex_);
    return done_ >= number;
  }

  void wait(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }

  /// As on CUDA, an operation's error is raised where the host waits for it.
  void wait_and_check(uint64_t number) {
    wait(number);
    TORCH_CHECK(!failed_.exchange(false), "pretend: a copy failed");
  }

  void fail() { failed_ = true; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t issued_ = 0, done_ = 0;
  std::atomic<bool> failed_{false};
};

/// The operations that were queued on a stream at one moment.
struct Moment {
  Stream* stream = nullptr;
  uint64_t number = 0;
  bool is_over() const { return stream == nullptr || stream->is_done(number); }
};

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, {kPretend, device}, id);
}

/// Their threads never end, so nothing here is ever freed.
class Streams {
 public:
  Stream& of(c10::Stream s) {
    std::lock_guard lock(mutex_);
    auto& made = all_[{s.device_index(), s.id()}];
    if (made == nullptr) made = new Stream;
    return *made;
  }

  c10::Stream make(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    return stream_of(device, ++made_);
  }

  std::vector<Moment> now() {
    std::lock_guard lock(mutex_);
    std::vector<Moment> moments;
    for (auto& [id, stream] : all_) moments.push_back({stream, stream->issued()});
    return moments;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Stream*> all_;
  c10::StreamId made_ = 100;  // below are the default stream, 0, and the pool
};

Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, current_streams.at(device));
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPretend; }
  c10::Device exchangeDevice(c10::Device d) const override {
    return {kPretend, std::exchange(current_device, d.index())};
  }
  c10::Device getDevice() const override { return {kPretend, current_device}; }
  void setDevice(c10::Device d) const override { current_device = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current_device = d.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device d) const override { return current_stream(index_of(d)); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream_of(index_of(d), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    static std::atomic<c10::StreamId> next{0};
    return stream_of(index_of(d), 1 + next++ % 8);
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    return streams().make(index_of(d));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto before = current_stream(s.device_index());
    current_streams.at(s.device_index()) = s.id();
    return before;
  }
  bool queryStream(const c10::Stream& s) const override {
    return streams().of(s).is_done(streams().of(s).issued());
  }
  void synchronizeStream(const c10::Stream& s) const override {
    streams().of(s).wait_and_check(streams().of(s).issued());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    for (const Moment& m : streams().now()) m.stream->wait_and_check(m.number);
  }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment;
    Stream& stream = streams().of(s);
    *static_cast<Moment*>(*event) = {&stream, stream.issued()};
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event == nullptr) return;
    streams().of(s).push([then = *static_cast<Moment*>(event)] {
      if (then.stream != nullptr) then.stream->wait(then.number);
    });
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Moment*>(event)->is_over();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Moment then = *static_cast<Moment*>(event);
    if (then.stream != nullptr) then.stream->wait_and_check(then.number);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override;
};

// ---- memory ----

/// One memfd, mapped twice: without any access for everybody, and readable for the device's own.
class Memory final : public c10::Allocator {
 public:
  Memory() {
    const int file = memfd_create("pretend", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kArena) == 0, "pretend: no memory");
    outside_ = static_cast<char*>(mmap(nullptr, kArena, PROT_NONE, MAP_SHARED, file, 0));
    inside_ =
        static_cast<char*>(mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    TORCH_CHECK(outside_ != MAP_FAILED && inside_ != MAP_FAILED, "pretend: no memory");
    close(file);
  }

  char* readable(const void* device) const {
    return inside_ + (static_cast<const char*>(device) - outside_);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream = current_stream(current_device);
    const size_t size = std::max<size_t>((bytes + 511) / 512 * 512, 512);
    std::lock_guard lock(mutex_);
    auto& freed = freed_[{size, stream.device_index(), stream.id()}];
    auto found = std::find_if(freed.begin(), freed.end(), [](const Block& b) {
      return std::all_of(b.uses.begin(), b.uses.end(), [](const Moment& m) { return m.is_over(); });
    });
    char* at = nullptr;
    if (found != freed.end()) {
      at = found->at;
      freed.erase(found);
    } else {
      TORCH_CHECK(used_ + size <= kArena, "pretend: out of memory");
      at = outside_ + std::exchange(used_, used_ + size);
      if (driver != nullptr) driver->adopt(stream.device_index(), at, readable(at), size);
    }
    live_.emplace(at, Block{at, size, stream, {}, {}});
    return {at, at, &Memory::free_block, {kPretend, stream.device_index()}};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Memory::free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(readable(to), readable(from), bytes);
  }

  /// Largest number of bytes in use at a time; it does not shrink.
  size_t used() {
    std::lock_guard lock(mutex_);
    return used_;
  }

  void record(void* at, c10::Stream stream) {
    std::lock_guard lock(mutex_);
    live_.at(static_cast<char*>(at)).recorded.push_back(stream);
  }

 private:
  struct Block {
    char* at;
    size_t size;
    c10::Stream stream;
    std::vector<c10::Stream> recorded;
    std::vector<Moment> uses;  // of the recorded streams, when it was freed
  };

  static void free_block(void* at);

  std::mutex mutex_;
  char *outside_, *inside_;
  size_t used_ = 0;
  std::map<char*, Block> live_;
  std::map<std::tuple<size_t, c10::DeviceIndex, c10::StreamId>, std::vector<Block>> freed_;
};

Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

void Memory::free_block(void* at) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex_);
  auto found = m.live_.find(static_cast<char*>(at));
  Block block = std::move(found->second);
  m.live_.erase(found);
  for (const c10::Stream& s : block.recorded)
    block.uses.push_back({&streams().of(s), streams().of(s).issued()});
  m.freed_[{block.size, block.stream.device_index(), block.stream.id()}].push_back(
      std::move(block));
}

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const {
  if (data.get() != nullptr) memory().record(data.get(), s);
}

class Pinned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(failing_pins.load() == 0 || failing_pins-- == 0,
                "pretend: no memory can be pinned");
    std::lock_guard lock(mutex_);
    forget_old();
    void* at = std::aligned_alloc(64, std::max<size_t>((bytes + 63) / 64 * 64, 64));
    live_[at] = bytes;
    pinned_bytes += bytes;
    return {at, at, &Pinned::free_block, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Pinned::free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  bool holds(const void* at) {
    std::lock_guard lock(mutex_);
    auto next = live_.upper_bound(const_cast<void*>(at));
    if (next == live_.begin()) return false;
    --next;
    return static_cast<const char*>(at) <
           static_cast<char*>(next->first) + std::max<size_t>(next->second, 1);
  }

 private:
  static void free_block(void* at);

  void forget_old() {
    std::erase_if(old_, [](const auto& entry) {
      const bool over = std::all_of(entry.second.begin(), entry.second.end(),
                                    [](const Moment& m) { return m.is_over(); });
      if (over) std::free(entry.first);
      return over;
    });
  }

  std::mutex mutex_;
  std::map<void*, size_t> live_;
  std::vector<std::pair<void*, std::vector<Moment>>> old_;  // what was queued when it was freed
};

Pinned& pinned() {
  static auto* const all = new Pinned;
  return *all;
}

void Pinned::free_block(void* at) {
  Pinned& p = pinned();
  std::lock_guard lock(p.mutex_);
  auto found = p.live_.find(at);
  pinned_bytes -= found->second;
  p.live_.erase(found);
  p.old_.emplace_back(at, streams().now());
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* at) const override { return pinned().holds(at); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = memory().allocate(bytes);
    Stream& stream = streams().of(current_stream(current_device));
    stream.wait(stream.issued());
    if (storage.data() != nullptr)
      memory().copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---- operators ----

/// The tensor as the device's own code sees it. Owns nothing.
at::Tensor inside(const at::Tensor& t) {
  if (!t.is_privateuseone()) return t.detach();
  void* const data =
      t.numel() == 0 ? nullptr
                     : memory().readable(t.storage().data()) + t.storage_offset() * t.itemsize();
  return at::from_blob(data, t.sizes(), t.strides(), at::TensorOptions().dtype(t.dtype()));
}

bool may_return_at_once(const at::Tensor& t) { return t.is_privateuseone() || t.is_pinned(); }

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& on_device = from.is_privateuseone() ? from : to;
  const c10::Stream queue = current_stream(on_device.device().index());
  const bool same = from.is_privateuseone() && to.is_privateuseone();
  const bool later = same || (non_blocking && may_return_at_once(from) && may_return_at_once(to));
  const Delay which = same ? kCompute : from.is_privateuseone() ? kDown : kUp;
  Stream& stream = streams().of(queue);
  const auto number =
      stream.push([&stream, later, which, source = inside(from), target = inside(to)] {
        if (later) std::this_thread::sleep_for(std::chrono::microseconds(delays[which].load()));
        if (later && which != kCompute && failing_copies.load() > 0) {
          --failing_copies;
          return stream.fail();
        }
        c10::InferenceMode no_autograd;
        target.copy_(source);
        if (later && which == kDown && static_cast<int64_t>(target.nbytes()) == flipped.load())
          *static_cast<char*>(target.mutable_data_ptr()) ^= 1;
      });
  if (!later) stream.wait_and_check(number);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  streams().of(current_stream(self.device().index())).push([target = inside(self), value] {
    std::this_thread::sleep_for(std::chrono::microseconds(delays[kCompute].load()));
    c10::InferenceMode no_autograd;
    target.fill_(value);
  });
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

at::Scalar local_scalar(const at::Tensor& self) {
  at::Tensor host = at::empty(self.sizes(), self.options().device(at::kCPU));
  copy_from(self, host, false);
  return host.item();
}

void record_stream(at::Tensor& self, c10::Stream s) {
  memory().record(self.storage().mutable_data(), s);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(at::Device(kPretend, device ? index_of(*device) : current_device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(at::Device(kPretend, device ? index_of(*device) : current_device));
  return at::detail::empty_strided_generic(size, stride, &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t bytes =
      at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size),
                                                    C10_AS_INTARRAYREF_SLOW(stride),
                                                    offset.guard_int(__FILE__, __LINE__));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {count}, {1});
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("record_stream", record_stream);
  m.impl("resize_", resize);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool registered = [] {
  c10::SetAllocator(kPretend, &memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

extern "C" {
void pretend_delay(int which, int64_t microseconds) { delays.at(which) = microseconds; }
void pretend_fail_copies(int count) { failing_copies = count; }
void pretend_fail_pins(int count) { failing_pins = count; }
void pretend_flip(int64_t bytes) { flipped = bytes; }
/// Device memory from now on is a GPU's of the simulated driver at `path`.
bool pretend_over(const char* path) {
  void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return false;
  driver = reinterpret_cast<const FakeNccl* (*)()>(dlsym(opened, "fake_nccl"))();
  return true;
}
int64_t pretend_faults(char* out, int64_t room) {
  return static_cast<int64_t>(driver->faults(out, static_cast<uint64_t>(room)));
}
void pretend_fail_driver(int calls, int code) { driver->fail_after(calls, code); }
int64_t pretend_pinned_bytes() { return pinned_bytes; }
int64_t pretend_device_bytes() { return static_cast<int64_t>(memory().used()); }
}
