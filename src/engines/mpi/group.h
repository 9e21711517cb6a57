// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The ranks of an MpiEngine: a communicator of its own, from the first meeting to the last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "idle.h"
#include "laconic/engine/mpi.h"
#include "process.h"
#include "status.h"

namespace laconic::mpi {

class Group {
 public:
  /// `owner` keeps what MPI may write to until it ends.
  Group(Engine& owner, Status& status, const Process& process, MpiOptions options)
      : owner_(owner), status_(status), process_(process), options_(std::move(options)) {}

  /// All processes of `from` together.
  void open(MPI_Comm from);
  /// Meets the others once more, if all is well, and frees what MPI gave.
  void leave();
  /// A call that has not ended may write to what `owner` keeps.
  [[nodiscard]] bool memory_in_use() const noexcept { return memory_in_use_; }

  [[nodiscard]] const MpiOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Idle::Waits& waits() const noexcept { return waits_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] uint32_t world() const noexcept { return world_; }
  [[nodiscard]] bool one_host() const {
    return std::all_of(hosts_->begin(), hosts_->end(),
                       [&](uint64_t h) { return h == hosts_->front(); });
  }
  /// Bytes of a call.
  [[nodiscard]] uint64_t call_to(uint32_t peer) const {
    return (*hosts_)[peer] == (*hosts_)[rank_] ? options_.largest_call
                                               : std::min(options_.far_call, options_.largest_call);
  }
  [[nodiscard]] int tag_of(const Step& step) const {
    return static_cast<int>(step.tag & tag_mask_);
  }
  [[nodiscard]] MPI_Op sum_of(DType type) const {
    return dtype_size(type) == 4 ? MPI_SUM : type == DType::f16 ? sum_f16_ : sum_bf16_;
  }

 private:
  bool duplicate(MPI_Comm from);
  bool find_hosts();
  bool not_every_rank_came();
  [[nodiscard]] Deadline deadline_from_now() const {
    return std::chrono::steady_clock::now() + options_.timeout;
  }
  bool complete(MPI_Request& request, const char* doing, Deadline deadline);
  void meet();
  void talk_to_all(Deadline deadline);
  void ends_by(Deadline deadline, int code, MPI_Request& request, const char* doing);

  Engine& owner_;
  Status& status_;
  const Process& process_;
  MpiOptions options_;
  Idle::Waits waits_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Op sum_f16_ = MPI_OP_NULL, sum_bf16_ = MPI_OP_NULL;
  bool joined_ = false;  // other ranks may have met this one
  bool memory_in_use_ = false;
  uint32_t rank_ = 0, world_ = 1, tag_mask_ = 32767;
  std::shared_ptr<std::vector<uint64_t>> hosts_;  // by rank
};

}  // namespace laconic::mpi
