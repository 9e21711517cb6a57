// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <utility>
#include <vector>

#include "laconic/engine/mpi_nodes.h"
#include "places.h"

namespace laconic {
namespace {

/// The text of a small file, or of a link; empty: there is none.
std::string text_in(const char* file, bool link) {
  std::array<char, 128> text{};
  ssize_t size = 0;
  if (link) {
    size = ::readlink(file, text.data(), text.size());
  } else if (std::FILE* const open = std::fopen(file, "re"); open != nullptr) {
    size = static_cast<ssize_t>(std::fread(text.data(), 1, text.size(), open));
    std::fclose(open);
  }
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

/// A kernel and a network; where that cannot be seen, what MPI says.
std::string this_host() {
  const std::string kernel = text_in("/proc/sys/kernel/random/boot_id", false);
  const std::string network = text_in("/proc/self/ns/net", true);
  if (!kernel.empty() && !network.empty()) return kernel + network;
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  return {name.data(), static_cast<size_t>(length)};
}

uint64_t hash_of(const std::string& text) noexcept {
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  return hash;
}

/// Every rank's host, as a hash.
Result<std::vector<uint64_t>> gather_hosts(Engine& job, uint64_t own,
                                           std::chrono::milliseconds timeout) {
  const uint32_t world = job.world();
  struct Memory {
    uint64_t own = 0;
    std::vector<uint64_t> all, bytes, zeros, offsets;
  };
  const auto memory = std::make_shared<Memory>();
  memory->own = own;
  memory->all.resize(world);
  memory->bytes.assign(world, sizeof own);
  memory->zeros.resize(world);
  for (uint32_t r = 0; r < world; ++r) memory->offsets.push_back(r * sizeof own);
  job.keep_until_end(memory);
  const Step step{.kind = StepKind::all_gather,
                  .send = reinterpret_cast<uint8_t*>(&memory->own),
                  .recv = reinterpret_cast<uint8_t*>(memory->all.data()),
                  .send_counts = memory->bytes,
                  .send_offsets = memory->zeros,
                  .recv_counts = memory->bytes,
                  .recv_offsets = memory->offsets};
  const auto ticket = job.start({&step, 1});
  if (!ticket) return ticket.error();
  if (auto done = job.wait(*ticket, std::chrono::steady_clock::now() + timeout); !done)
    return done.error();
  return memory->all;
}

}  // namespace

MpiNodes::MpiNodes(int* argc, char*** argv, MpiOptions options)
    : job_(new MpiEngine(argc, argv, options)) {
  divide(MPI_COMM_WORLD, std::move(options));
}

MpiNodes::MpiNodes(MPI_Comm communicator, MpiOptions options)
    : job_(new MpiEngine(communicator, options)) {
  divide(communicator, std::move(options));
}

/// All ranks of the job have just met: what splits communicators does not wait for long.
void MpiNodes::divide(MPI_Comm communicator, MpiOptions options) {
  status_ = job_->status();
  if (!status_) return;
  try {
    if (options.host.empty()) options.host = this_host();
    const auto hosts = gather_hosts(*job_, hash_of(options.host), options.timeout);
    if (!hosts) {
      status_ = hosts.error();
      return;
    }
    const mpi::Places places = mpi::places_of(*hosts, job_->rank());
    why_ = places.why;
    if (!why_.empty()) return;
    options.ranks_of_job = job_->world();
    const auto rank = static_cast<int>(job_->rank());
    for (const auto& [engine, color] :
         {std::pair{&across_, places.place}, {&inside_, places.node}}) {
      MPI_Comm part = MPI_COMM_NULL;
      if (MPI_Comm_split(communicator, static_cast<int>(color), rank, &part) != MPI_SUCCESS) {
        status_ = Error{Errc::engine_failed, "mpi: MPI_Comm_split failed", "restart the job"};
        return;
      }
      *engine = std::make_unique<MpiEngine>(part, options);
      MPI_Comm_free(&part);
      if (status_) status_ = (*engine)->status();
    }
  } catch (const std::bad_alloc&) {
    status_ = Errc::out_of_memory;
  }
}

Result<void> MpiNodes::status() const {
  for (const MpiEngine* engine : {job_.get(), across_.get(), inside_.get()}) {
    if (engine == nullptr) continue;
    if (auto status = engine->status(); !status) return status;
  }
  return status_;
}

/// Ranks that a failed engine has left do not come to the end of the job.
MpiNodes::~MpiNodes() {
  if (const auto failed = status(); !failed) job_->abandon(failed.error());
}

}  // namespace laconic
