// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "background.h"
#include "group.h"
#include "laconic/engine/mpi.h"
#include "large_sums.h"
#include "process.h"
#include "queue.h"
#include "status.h"
#include "transfers.h"

namespace laconic {

struct MpiEngine::Parts {
  Parts(Engine& owner, MpiOptions options)
      : environment(options.environment), group(owner, status, process, std::move(options)) {}

  /// Nothing in it waits for other ranks without end.
  void open(MPI_Comm communicator) {
    if (!process.look_around(environment)) return;
    group.open(communicator);
    if (!status) return;
    transfers.reserve(4 * uint64_t{group.world()});
    if (group.world() > 1) sums.open();
  }

  const mpi::Process::Environment environment;
  std::mutex mutex;  // of all of them
  mpi::Status status;
  mpi::Process process{status};
  mpi::Group group;
  mpi::Transfers transfers{status, group};
  mpi::LargeSums sums{status, group, transfers};
  mpi::Queue queue{status, process, group, transfers, sums};
  mpi::Background background{mutex, status, process, group, transfers, queue};
};

MpiEngine::MpiEngine(int* argc, char*** argv, MpiOptions options) noexcept
    : parts_(new (std::nothrow) Parts(*this, std::move(options))) {
  if (parts_ == nullptr) return;
  parts_->status.guarded([&] {
    if (parts_->process.initialise(argc, argv)) parts_->open(MPI_COMM_WORLD);
  });
}

MpiEngine::MpiEngine(MPI_Comm communicator, MpiOptions options) noexcept
    : parts_(new (std::nothrow) Parts(*this, std::move(options))) {
  if (parts_ == nullptr) return;
  parts_->status.guarded([&] {
    if (parts_->process.ready()) parts_->open(communicator);
  });
}

MpiEngine::~MpiEngine() {
  if (parts_ == nullptr) return;
  parts_->background.end();
  if (!mpi::Process::is_open()) return;
  const bool under_way = !parts_->transfers.empty();
  if (under_way) {
    keep_until_end(parts_->sums.memory());
    parts_->status.die(Errc::engine_failed);
  }
  parts_->status.guarded([&] { parts_->group.leave(); });
  if (under_way || parts_->group.memory_in_use()) keep_for_good();
}

Result<void> MpiEngine::status() const {
  if (parts_ == nullptr) return Errc::out_of_memory;
  const std::lock_guard lock(parts_->mutex);
  return parts_->status.why();
}

void MpiEngine::abandon(const Error& why) noexcept {
  if (parts_ == nullptr) return;
  const std::lock_guard lock(parts_->mutex);
  parts_->status.guarded([&] { parts_->status.die(Error(why)); });
}

std::string MpiEngine::library() { return mpi::Process::library(); }

uint32_t MpiEngine::rank() const noexcept { return parts_ ? parts_->group.rank() : 0; }
uint32_t MpiEngine::world() const noexcept { return parts_ ? parts_->group.world() : 1; }

EngineCaps MpiEngine::caps() const noexcept {
  if (parts_ == nullptr) return {kAllSums, true};
  const uint64_t most = ~uint64_t{0} / world();
  return {kAllSums, true, std::min(parts_->group.options().large_share, most) * world()};
}

Result<void> MpiEngine::run(std::span<const Step> batch) {
  auto ticket = start(batch);
  return ticket ? wait(*ticket, Deadline::max()) : Result<void>(std::move(ticket).error());
}

Result<Ticket> MpiEngine::start(std::span<const Step> batch) {
  if (batch.size() > kMaxBatch) {
    return Error{Errc::invalid_argument,
                 "a batch has at most " + std::to_string(kMaxBatch) + " steps, found " +
                     std::to_string(batch.size()),
                 {}};
  }
  if (parts_ == nullptr) return Errc::out_of_memory;
  Parts& parts = *parts_;
  const std::lock_guard lock(parts.mutex);
  if (!parts.status) return parts.status.why().error();
  const auto started = parts.queue.add(batch);
  if (!started) return started.error();
  if (parts.process.overlaps()) {
    parts.status.guarded([&] { parts.queue.issue(); });
    if (!parts.status) return parts.status.why().error();
    parts.background.wake();
  }
  return Ticket{(*started)->number};
}

Result<void> MpiEngine::wait(Ticket ticket, Deadline deadline) {
  if (parts_ == nullptr) return Errc::out_of_memory;
  Parts& parts = *parts_;
  std::unique_lock lock(parts.mutex);
  mpi::Started* const started = parts.queue.find(ticket.number);
  if (started == nullptr) {
    return Error{Errc::exchange_order, "the engine has no such ticket",
                 "wait for each ticket once"};
  }
  parts.background.stand_back(true);
  if (parts.status) parts.status.guarded([&] { parts.queue.finish(*started, deadline, lock); });
  parts.background.stand_back(false);
  parts.background.wake();
  started->used = false;
  return started->ended() ? Result<void>() : parts.status.why();
}

}  // namespace laconic
