// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "laconic/dtype.h"

namespace laconic::mpi {
namespace {

/// Sums of 16 bits, rounded after each addition.
template <float (*widen)(uint16_t) noexcept, uint16_t (*narrow)(float) noexcept>
void add(void* in, void* inout, int* count, MPI_Datatype* /*uint16*/) {
  const auto* x = static_cast<const uint16_t*>(in);
  auto* total = static_cast<uint16_t*>(inout);
  for (int i = 0; i < *count; ++i) total[i] = narrow(widen(total[i]) + widen(x[i]));
}

}  // namespace

// ---- beginning ----

void Group::open(MPI_Comm from) {
  if (!duplicate(from)) return;
  int rank = 0, size = 0, found = 0;
  void* upper = nullptr;
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  if (!status_.good(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank") ||
      !status_.good(MPI_Comm_size(comm_, &size), "MPI_Comm_size") ||
      !status_.good(
          MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&upper), &found),
          "MPI_TAG_UB") ||
      !status_.good(MPI_Op_create(&add<f16_to_float, float_to_f16>, 1, &sum_f16_),
                    "MPI_Op_create") ||
      !status_.good(MPI_Op_create(&add<bf16_to_float, float_to_bf16>, 1, &sum_bf16_),
                    "MPI_Op_create"))
    return;
  // 32767 is what every library has. Messages that have the same tag keep their order.
  const int most = found != 0 ? *static_cast<int*>(upper) : 32767;
  while (tag_mask_ < (1U << 28) - 1 && 2 * tag_mask_ + 1 <= static_cast<uint32_t>(most))
    tag_mask_ = 2 * tag_mask_ + 1;
  rank_ = static_cast<uint32_t>(rank);
  world_ = static_cast<uint32_t>(size);
  for (uint64_t* call : {&options_.largest_call, &options_.far_call})
    *call = std::clamp<uint64_t>(*call, 4, uint64_t{1} << 30) / 4 * 4;
  waits_.spin = Idle::spin(std::max(world_, options_.ranks_of_job));
  hosts_ = std::make_shared<std::vector<uint64_t>>(world_);
  if (world_ > 1 && find_hosts() && !one_host()) waits_.yield = std::chrono::microseconds(500);
}

bool Group::duplicate(MPI_Comm from) {
  MPI_Request request = MPI_REQUEST_NULL;
  joined_ = true;
  if (!status_.good(MPI_Comm_idup(from, &comm_, &request), "MPI_Comm_idup")) return false;
  return complete(request, "MPI_Comm_idup", deadline_from_now()) || not_every_rank_came();
}

/// Every rank's host, as a hash.
bool Group::find_hosts() {
  if (options_.host.empty()) {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    if (!status_.good(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name"))
      return false;
    options_.host.assign(name.data(), static_cast<size_t>(length));
  }
  uint64_t own = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : options_.host) own = (own ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  (*hosts_)[rank_] = own;
  owner_.keep_until_end(hosts_);
  MPI_Request request = MPI_REQUEST_NULL;
  if (!status_.good(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_UINT64_T, hosts_->data(), 1, MPI_UINT64_T,
                                   comm_, &request),
                    "MPI_Iallgather"))
    return false;
  if (complete(request, "MPI_Iallgather", deadline_from_now())) return true;
  memory_in_use_ = true;
  return not_every_rank_came();
}

bool Group::not_every_rank_came() {
  status_.die(Error{Errc::timed_out,
                    "mpi: not every rank created its engine within " +
                        std::to_string(options_.timeout.count()) + " ms",
                    "find the rank that stopped"});
  return false;
}

bool Group::complete(MPI_Request& request, const char* doing, Deadline deadline) {
  for (Idle idle(waits_);; idle.pause()) {
    int done = 0;
    if (!status_.good(MPI_Test(&request, &done, MPI_STATUS_IGNORE), doing)) return false;
    if (done != 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

// ---- the end ----

/// MPICH 4.0 over UCX closes its connections in MPI_Finalize, and a rank that closed its own does
/// not answer any more: a rank that still opens or uses a connection then waits forever
/// (https://github.com/pmodels/mpich/pull/6596).
#if defined(MPICH_VERSION)
constexpr bool kFinalizeMayHang = true;
#else
constexpr bool kFinalizeMayHang = false;
#endif

void Group::leave() {
  if (status_ && process_.finalises()) meet();
  if (!status_ && joined_) return;  // other ranks may not come
  if (sum_f16_ != MPI_OP_NULL) MPI_Op_free(&sum_f16_);
  if (sum_bf16_ != MPI_OP_NULL) MPI_Op_free(&sum_bf16_);
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  if (process_.finalises()) MPI_Finalize();
}

/// All ranks have come to their ends.
void Group::meet() {
  const Deadline deadline = deadline_from_now();
  const bool may_hang = kFinalizeMayHang && world_ > 1;
  if (may_hang) talk_to_all(deadline);
  MPI_Request request = MPI_REQUEST_NULL;
  if (status_) ends_by(deadline, MPI_Ibarrier(comm_, &request), request, "MPI_Ibarrier");
  // Until all have left the barrier none may close its connections.
  if (status_ && may_hang) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

/// In place, because then every pair of ranks exchanges messages, however many there are.
void Group::talk_to_all(Deadline deadline) {
  const auto bytes = std::make_shared<std::vector<char>>(world_);
  MPI_Request request = MPI_REQUEST_NULL;
  owner_.keep_until_end(bytes);
  ends_by(deadline,
          MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_CHAR, bytes->data(), 1, MPI_CHAR, comm_, &request),
          request, "MPI_Ialltoall");
  if (!status_) memory_in_use_ = true;
}

void Group::ends_by(Deadline deadline, int code, MPI_Request& request, const char* doing) {
  if (status_.good(code, doing) && !complete(request, doing, deadline))
    status_.die(Errc::timed_out);
}

}  // namespace laconic::mpi
