// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Who is read next: jobs take turns, and within a job its workers do (deficit round robin,
// Shreedhar and Varghese 1995). Counted are datagrams, those that come and those that they cause.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace laconic::aggregation {

/// One job's share, and which of its workers is read next.
class Turn {
 public:
  /// Datagrams in a round. Small: it is what a job waits for each of the others.
  static constexpr int64_t kQuantum = 64;

  /// read(i) reads from worker i and returns what that cost; 0: nothing is there. Ends when the
  /// share is spent or nothing is left. What the last read took too much is missing next time.
  template <class Read>
  uint64_t take(std::size_t workers, Read&& read) {
    credit_ += kQuantum;
    uint64_t spent = 0;
    for (std::size_t idle = 0; credit_ > 0 && idle < workers;) {
      next_ = (next_ + 1) % workers;
      const uint64_t cost = read(next_);
      idle = cost == 0 ? idle + 1 : 0;
      spent += cost;
      credit_ -= static_cast<int64_t>(cost);
    }
    credit_ = std::min<int64_t>(credit_, 0);  // nothing is saved up
    return spent;
  }
  /// Rounds in which it may not be read.
  [[nodiscard]] int64_t rounds_owed() const noexcept { return -credit_ / kQuantum; }
  void pass(int64_t rounds) noexcept {
    credit_ = std::min<int64_t>(credit_ + rounds * kQuantum, 0);
  }

 private:
  int64_t credit_ = 0;
  std::size_t next_ = 0;
};

/// A round of turns. `jobs` have a Turn `turn` and workers `peers`; read(job, peer) as above.
/// False: nothing was read.
template <class Jobs, class Read>
bool take_turns(Jobs& jobs, Read&& read) {
  uint64_t spent = 0;
  int64_t owed = 0;  // by who owes least
  for (auto& job : jobs) {
    spent += job.turn.take(job.peers.size(), [&](std::size_t i) { return read(job.peers[i]); });
    const int64_t rounds = job.turn.rounds_owed();
    if (rounds != 0 && (owed == 0 || rounds < owed)) owed = rounds;
  }
  // No other peer has data: rounds that only pay debts pass at once.
  if (spent == 0) {
    for (auto& job : jobs) job.turn.pass(owed);
  }
  return spent != 0 || owed != 0;
}

}  // namespace laconic::aggregation
