// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/nccl/core.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/concat.h"

namespace laconic::engines::nccl {
namespace {

using Clock = std::chrono::steady_clock;

/// Waits take microseconds or milliseconds: at first it polls without a pause.
class Pause {
 public:
  void operator()() {
    if (Clock::now() - begin_ < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  Clock::time_point begin_ = Clock::now();
};

int dtype_of(DType type) {
  return type == DType::f32    ? kNcclFloat32
         : type == DType::f16  ? kNcclFloat16
         : type == DType::bf16 ? kNcclBfloat16
         : type == DType::i32  ? kNcclUint32  // it wraps
                               : kNcclUint8;
}

constexpr const char* kLookForIt = "find the rank that stopped; this group cannot continue";

}  // namespace

Core::Core(const NcclOptions& options, NcclCalls nccl, CudaCalls cuda)
    : options_(options), nccl_(std::move(nccl)), cuda_(cuda) {}

/// Freeing memory waits for the GPU, so that it must not be done while something hangs there.
Core::~Core() {
  if (context_ == nullptr || stuck_) return;
  {
    const Current current(cuda_, context_);
    if (current.code() != kCudaSuccess) return;
    if (stream_ != nullptr && cuda_.stream.query(stream_) == kCudaNotReady) return;
    free_memory();
    if (stream_ != nullptr) cuda_.stream.destroy(stream_);
  }
  cuda_.device.context_release(device_);
}

Result<void> Core::open() {
  if (auto r =
          cuda_result("cuDeviceGet", cuda_.device.get(&device_, static_cast<int>(options_.device)));
      !r)
    return r;
  CudaContext context = nullptr;
  if (auto r =
          cuda_result("cuDevicePrimaryCtxRetain", cuda_.device.context_retain(&context, device_));
      !r)
    return r;
  context_ = context;
  const Current current(cuda_, context_);
  if (auto r = cuda_result("cuCtxPushCurrent", current.code()); !r) return r;
  return cuda_result("cuStreamCreate", cuda_.stream.create(&stream_, kCudaStreamNonBlocking));
}

Result<void> Core::join(const NcclUniqueId& id, Deadline deadline) {
  const auto world = static_cast<int>(options_.world), rank = static_cast<int>(options_.rank);
  const std::string what = concat({"not all ", std::to_string(world), " ranks have joined"});
  if (!nccl_.nonblocking()) {
    const auto comm = std::make_shared<NcclComm>(nullptr);
    auto joined = until_back(deadline, what, [self = shared_from_this(), comm, id, world, rank] {
      return self->nccl_result("ncclCommInitRank",
                               self->nccl_.comm_init_rank(comm.get(), world, id, rank));
    });
    if (joined) comm_ = *comm;
    return joined;
  }
  const Current current(cuda_, context_);
  if (auto r = cuda_result("cuCtxPushCurrent", current.code()); !r) return r;
  NcclConfig config;
  config.blocking = 0;
  if (auto r = nccl_result("ncclCommInitRankConfig",
                           nccl_.comm_init_rank_config(&comm_, world, id, rank, &config));
      !r)
    return r;
  return until(deadline, what, [&] { return settled(); });
}

Result<void> Core::execute(const BatchPlan& plan, Deadline deadline) {
  constexpr std::string_view kLate = "a batch did not complete in time";
  if (plan.calls().empty()) {
    plan.copy_own();
    return {};
  }
  const Current current(cuda_, context_);
  if (auto r = cuda_result("cuCtxPushCurrent", current.code()); !r) return r;
  if (auto r = reserve(plan.bytes()); !r) return r;
  auto* const host = static_cast<uint8_t*>(host_);
  plan.copy_in(host);
  if (plan.bytes_in() != 0) {
    if (auto r = cuda_result("cuMemcpyHtoDAsync",
                             cuda_.memory.copy_to_device(gpu_, host, plan.bytes_in(), stream_));
        !r)
      return r;
  }
  if (nccl_.nonblocking()) {
    if (auto r = group(plan, comm_); !r) return r;
    // Only now: the copy back must follow NCCL's kernels on the stream.
    if (auto r = until(deadline, kLate, [&] { return settled(); }); !r) return r;
  } else {
    const auto copy = std::make_shared<const BatchPlan>(plan);
    auto r = until_back(deadline, kLate, [self = shared_from_this(), copy, comm = comm_] {
      return self->group(*copy, comm);
    });
    if (!r) return r;
  }
  if (const uint64_t begin = plan.out_begin(), bytes = plan.bytes() - begin; bytes != 0) {
    if (auto r = cuda_result("cuMemcpyDtoHAsync",
                             cuda_.memory.copy_to_host(host + begin, gpu_ + begin, bytes, stream_));
        !r)
      return r;
  }
  plan.copy_own();
  if (auto r = until(deadline, kLate, [&] { return stream_idle(); }); !r) return r;
  plan.copy_out(host);
  return {};
}

Result<void> Core::group(const BatchPlan& plan, NcclComm comm) {
  if (auto r = nccl_result("ncclGroupStart", nccl_.group_start()); !r) return r;
  Result<void> called;
  for (const Call& c : plan.calls()) {
    called = call(c, plan, comm);
    if (!called) break;
  }
  auto ended = nccl_result("ncclGroupEnd", nccl_.group_end());  // in any case: it is the thread's
  return called ? std::move(ended) : std::move(called);
}

Result<void> Core::call(const Call& c, const BatchPlan& plan, NcclComm comm) {
  const auto at = [&](AreaOffset place) { return reinterpret_cast<void*>(gpu_ + plan.at(place)); };
  const auto peer = static_cast<int>(c.peer);
  switch (c.kind) {
    case CallKind::all_reduce:
      return nccl_result("ncclAllReduce",
                         nccl_.all_reduce(at(c.from), at(c.to), c.count, dtype_of(c.dtype),
                                          kNcclSum, comm, stream_));
    case CallKind::all_gather:
      return nccl_result("ncclAllGather", nccl_.all_gather(at(c.from), at(c.to), c.count,
                                                           kNcclUint8, comm, stream_));
    case CallKind::send:
      return nccl_result("ncclSend",
                         nccl_.send(at(c.from), c.count, kNcclUint8, peer, comm, stream_));
    case CallKind::recv:
      break;
  }
  return nccl_result("ncclRecv", nccl_.recv(at(c.to), c.count, kNcclUint8, peer, comm, stream_));
}

/// Rounded up, so that batches of about the same size do not each take new memory.
Result<void> Core::reserve(uint64_t bytes) {
  if (bytes <= reserved_) return {};
  free_memory();
  constexpr uint64_t kUnit = 1U << 20U;
  const uint64_t room = (bytes + kUnit - 1) / kUnit * kUnit;
  if (auto r = cuda_result("cuMemAlloc", cuda_.memory.alloc(&gpu_, room)); !r) return r;
  // Page-locked: copies from and to other memory would wait for the stream inside of the driver.
  if (auto r = cuda_result("cuMemHostAlloc", cuda_.memory.host_alloc(&host_, room, 0)); !r)
    return r;
  reserved_ = room;
  return {};
}

void Core::free_memory() noexcept {
  if (gpu_ != 0) cuda_.memory.free(std::exchange(gpu_, 0));
  if (host_ != nullptr) cuda_.memory.host_free(std::exchange(host_, nullptr));
  reserved_ = 0;
}

Result<bool> Core::settled() const {
  int state = kNcclSuccess;
  if (const int code = nccl_.comm_get_async_error(comm_, &state); code != kNcclSuccess)
    return nccl_error("ncclCommGetAsyncError", code);
  if (state != kNcclSuccess && state != kNcclInProgress)
    return nccl_error("the communicator", state);
  return state == kNcclSuccess;
}

Result<bool> Core::stream_idle() const {
  const int code = cuda_.stream.query(stream_);
  if (code != kCudaSuccess && code != kCudaNotReady) return cuda_error("cuStreamQuery", code);
  if (auto r = settled(); !r) return r;
  return code == kCudaSuccess;
}

Result<void> Core::until(Deadline deadline, std::string_view what,
                         const Condition& condition) const {
  for (Pause pause;; pause()) {
    auto reached = condition();
    if (!reached) return std::move(reached).error();
    if (*reached) return {};
    if (given_up_ || Clock::now() >= deadline)
      return Error{Errc::timed_out, about(what), kLookForIt};
  }
}

struct Core::Outcome {
  std::atomic<bool> there{false};
  Result<void> result;  // once there
};

std::shared_ptr<Core::Outcome> Core::aside(std::function<Result<void>()> work) {
  const auto outcome = std::make_shared<Outcome>();
  auto serve = [self = shared_from_this(), outcome, work = std::move(work)]() mutable {
    try {
      const Current current(self->cuda_, self->context_);
      outcome->result = current.code() == kCudaSuccess
                            ? work()
                            : self->cuda_result("cuCtxPushCurrent", current.code());
    } catch (const std::bad_alloc&) {
      outcome->result = Errc::out_of_memory;
    }
    work = nullptr;
    self = nullptr;
    outcome->there = true;  // this thread holds nothing any more
  };
  try {
    std::thread(std::move(serve)).detach();
  } catch (const std::system_error&) {
    outcome->result =
        Error{Errc::out_of_memory, about("cannot start the engine's thread"), "raise ulimit -u"};
    outcome->there = true;
  }
  return outcome;
}

Result<void> Core::until_back(Deadline deadline, std::string_view what,
                              std::function<Result<void>()> work) {
  const auto outcome = aside(std::move(work));
  auto r = until(deadline, what, [&]() -> Result<bool> { return outcome->there.load(); });
  return r ? std::move(outcome->result) : std::move(r);
}

template <class Work>
void Core::end(std::chrono::milliseconds most, Work work) noexcept {
  try {
    const auto outcome = aside([work = std::move(work)] {
      work();
      return Result<void>();
    });
    const auto deadline = Clock::now() + most;
    for (Pause pause; !outcome->there; pause()) {
      if (Clock::now() < deadline) continue;
      stuck_ = true;
      return;
    }
  } catch (const std::bad_alloc&) {
    stuck_ = true;
  }
}

void Core::leave() noexcept {
  if (comm_ == nullptr) return;
  end(2 * options_.grace, [self = shared_from_this(), comm = std::exchange(comm_, nullptr)] {
    const NcclCalls& nccl = self->nccl_;
    int code = kNcclSuccess, state = kNcclSuccess;
    if (nccl.nonblocking()) {
      code = nccl.comm_finalize(comm);
      state = kNcclInProgress;
      const auto deadline = Clock::now() + self->options_.grace;
      for (Pause pause; state == kNcclInProgress && Clock::now() < deadline; pause()) {
        if (code == kNcclSuccess || code == kNcclInProgress)
          code = nccl.comm_get_async_error(comm, &state);
        if (code != kNcclSuccess) break;
      }
    }
    code == kNcclSuccess&& state == kNcclSuccess ? nccl.comm_destroy(comm) : nccl.comm_abort(comm);
  });
}

void Core::abort() noexcept {
  if (comm_ == nullptr) return;
  end(options_.grace,
      [abort = nccl_.comm_abort, comm = std::exchange(comm_, nullptr)] { abort(comm); });
  const Current current(cuda_, context_);
  const auto deadline = Clock::now() + options_.grace;
  for (Pause pause; cuda_.stream.query(stream_) == kCudaNotReady && Clock::now() < deadline;)
    pause();
}

std::string Core::about(std::string_view what) const {
  return concat({"rank ", std::to_string(options_.rank), ": NCCL ", nccl_.version, ": ", what});
}

Error Core::nccl_error(std::string_view call, int code) const {
  return {code == kNcclRemoteError ? Errc::peer_failed : Errc::engine_failed,
          about(concat({call, " failed: ", text_of(nccl_, code)})),
          "set NCCL_DEBUG=WARN for details from NCCL"};
}

Error Core::cuda_error(std::string_view call, int code) const {
  return {code == kCudaOutOfMemory ? Errc::out_of_memory : Errc::engine_failed,
          about(concat({call, " failed on GPU ", std::to_string(options_.device), ": ",
                        device::text_of(cuda_, code)})),
          {}};
}

Result<void> Core::cuda_result(std::string_view call, int code) const {
  return code == kCudaSuccess ? Result<void>() : Result<void>(cuda_error(call, code));
}

Result<void> Core::nccl_result(std::string_view call, int code) const {
  return code == kNcclSuccess || code == kNcclInProgress ? Result<void>()
                                                         : Result<void>(nccl_error(call, code));
}

EngineCaps Core::caps() const noexcept {
  EngineCaps caps{kAllSums, false};
  if (nccl_.version_code < kFirstNcclWithBfloat16)
    caps.sums &= ~(1U << static_cast<uint32_t>(DType::bf16));
  return caps;
}

}  // namespace laconic::engines::nccl
