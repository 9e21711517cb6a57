// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The MPI requests in flight, and the part of a job that each belongs to.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../shared/cut_messages.h"
#include "../shared/large_sum.h"
#include "group.h"
#include "laconic/engine/mpi.h"
#include "status.h"

namespace laconic::mpi {

/// A batch. Its place is taken again only when it has ended.
struct Started {
  std::array<Step, kMaxBatch> steps{};
  size_t count = 0;
  uint64_t number = 0;
  bool used = false;
  size_t issued = 0;     // steps
  uint64_t pending = 0;  // requests
  std::chrono::steady_clock::time_point begun;
  [[nodiscard]] bool ended() const { return issued == count && pending == 0; }
};

enum class Kind : uint8_t { sum, send, receive, receive_short };

class Transfers {
 public:
  Transfers(Status& status, const Group& group) noexcept : status_(status), group_(group) {}

  void reserve(uint64_t more);
  [[nodiscard]] bool empty() const noexcept { return requests_.empty(); }
  /// Calls with this tag are still to come.
  [[nodiscard]] bool hold_up(int tag) const noexcept { return messages_.hold_up(tag); }

  /// One message of a step. Where lengths may differ, it ends with the first part that is not full,
  /// be it empty.
  void exchange(Started& started, const Step& step, Kind kind, uint32_t peer, uint8_t* at,
                uint64_t bytes);
  /// One whose calls are all posted at once. `term`: how many of them have not ended.
  void exchange_all(Started& started, int tag, Kind kind, uint32_t peer,
                    detail::LargeSum::Extent range, uint32_t* term);
  /// A sum by MPI, in place.
  void sum(Started& started, const Step& step);

  /// One look at all requests. True: some have ended.
  bool progress();
  /// Peers of requests that `job` waits for: "ranks 1 and 3".
  [[nodiscard]] std::string peers(const Started& started, Kind one, Kind other) const;

 private:
  using CutMessages = detail::CutMessages;
  /// The part of a job that a request belongs to; has the request's index in requests_.
  struct Posted {
    Started* started = nullptr;
    Kind kind = Kind::sum;
    int peer = -1;  // of a sum none
    int tag = 0;
    uint8_t* at = nullptr;
    uint64_t bytes = 0;  // exactly, or of receive_short the room
    size_t message = CutMessages::kNone;
    uint32_t* term = nullptr;
  };

  void post_next(Posted posted);
  void post(Posted posted, uint64_t bytes);
  MPI_Request* add(const Posted& posted);
  void ended(const Posted& posted, const MPI_Status& status);
  void forget_ended();

  Status& status_;
  const Group& group_;
  CutMessages messages_;
  std::vector<MPI_Request> requests_;
  std::vector<Posted> posted_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace laconic::mpi
