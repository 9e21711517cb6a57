// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine/nccl.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/concat.h"
#include "engines/nccl/core.h"

namespace laconic {

namespace nccl = engines::nccl;
using Clock = std::chrono::steady_clock;

Result<NcclFound> find_nccl(const NcclLibraries& libraries) {
  const auto calls = nccl::open_nccl(libraries.nccl);
  if (!calls) return calls.error();
  NcclFound found{calls->version_code, calls->version, 0, {}};
  const auto cuda = device::open_cuda(libraries.cuda);
  if (!cuda) {
    found.why_not = cuda.error().message;
    return found;
  }
  int gpus = 0;
  if (const int code = cuda->device.count(&gpus); code != device::kCudaSuccess) {
    found.why_not = concat({"cuDeviceGetCount failed: ", device::text_of(*cuda, code)});
  } else if (gpus == 0) {
    found.why_not = "no GPU that this process can use";
  }
  found.gpus = static_cast<uint32_t>(gpus);
  return found;
}

struct NcclEngine::Impl {
  std::shared_ptr<nccl::Core> core;
  nccl::BatchPlan plan;
  NcclOptions options;
  Result<void> failure;
};

namespace {

/// All zero if rank 0 has none: the others get an error.
Result<nccl::NcclUniqueId> unique_id(const Result<nccl::NcclCalls>& calls,
                                     const NcclOptions& options, const NcclShare& share,
                                     Result<void> so_far) {
  nccl::NcclUniqueId id{};
  if (options.rank == 0 && so_far) {
    if (const int code = calls->get_unique_id(&id); code != nccl::kNcclSuccess) {
      id = {};
      so_far = Error{Errc::engine_failed,
                     concat({"rank 0: NCCL ", calls->version,
                             ": ncclGetUniqueId failed: ", nccl::text_of(*calls, code)}),
                     "set NCCL_DEBUG=WARN for details from NCCL"};
    }
  }
  uint8_t bytes[sizeof id];
  std::memcpy(bytes, &id, sizeof id);
  auto shared = share(bytes);
  std::memcpy(&id, bytes, sizeof id);
  if (!so_far) return std::move(so_far).error();
  if (!shared) return std::move(shared).error();
  if (std::all_of(std::begin(bytes), std::end(bytes), [](uint8_t b) { return b == 0; })) {
    return Error{Errc::peer_failed, "rank 0 cannot use NCCL", "see rank 0's error"};
  }
  return id;
}

}  // namespace

Result<std::unique_ptr<NcclEngine>> NcclEngine::create(const NcclOptions& options,
                                                       const NcclShare& share) {
  if (options.rank >= options.world || options.world > INT32_MAX) {
    return Error{Errc::invalid_argument,
                 concat({"there is no rank ", std::to_string(options.rank), " among ",
                         std::to_string(options.world)}),
                 "rank must be below world"};
  }
  try {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    const auto calls = nccl::open_nccl(options.libraries.nccl);
    Result<void> ready = calls ? Result<void>() : Result<void>(calls.error());
    if (ready) {
      const auto cuda = device::open_cuda(options.libraries.cuda);
      if (cuda) impl->core = std::make_shared<nccl::Core>(options, *calls, *cuda);
      ready = cuda ? impl->core->open() : Result<void>(cuda.error());
    }
    const auto id = unique_id(calls, options, share, std::move(ready));
    if (!id) return id.error();
    if (auto joined = impl->core->join(*id, Clock::now() + options.timeout); !joined) {
      impl->core->abort();
      return std::move(joined).error();
    }
    return std::unique_ptr<NcclEngine>(new NcclEngine(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return Errc::out_of_memory;
  }
}

NcclEngine::NcclEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NcclEngine::~NcclEngine() {
  impl_->core->give_up();
  stop();
  impl_->core->leave();
}

uint32_t NcclEngine::rank() const noexcept { return impl_->options.rank; }
uint32_t NcclEngine::world() const noexcept { return impl_->options.world; }
EngineCaps NcclEngine::caps() const noexcept { return impl_->core->caps(); }

Result<void> NcclEngine::run(std::span<const Step> batch) {
  Impl& impl = *impl_;
  if (!impl.failure) return impl.failure;
  try {
    impl.failure = impl.plan.make(batch, rank(), world(), caps());
    if (impl.failure)
      impl.failure = impl.core->execute(impl.plan, Clock::now() + impl.options.timeout);
  } catch (const std::bad_alloc&) {
    impl.failure = Errc::out_of_memory;
  }
  if (!impl.failure) impl.core->abort();
  return impl.failure;
}

Result<void> NcclEngine::wait(Ticket ticket, Deadline deadline) {
  auto waited = Engine::wait(ticket, deadline);
  if (waited || waited.error().code != Errc::timed_out) return waited;
  impl_->core->give_up();
  auto ended =
      Engine::wait(ticket, Clock::now() + 2 * impl_->options.grace + std::chrono::seconds(1));
  // No such ticket: it had ended, with this very Error.
  const bool again = ended || ended.error().code == Errc::exchange_order;
  return again ? std::move(waited) : std::move(ended);
}

}  // namespace laconic
