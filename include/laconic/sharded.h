// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The optimizer between push and pull: 3LC's parameter server (MLSys 2019, section 3), spread over
// the ranks. Gradients go to the owners of their ranges, compressed; owners step the optimizer on
// float32 masters of their ranges; and the change of the parameters comes back, compressed once for
// all ranks. A rank holds 1/world of the masters and of the optimizer's state.
// docs/guide/sharded.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/session.h"

namespace laconic {

/// A range of a parameter that this rank owns, in its turn.
struct OwnedRange {
  uint32_t parameter = 0;       ///< place in the list of create
  uint64_t offset = 0;          ///< its first element of the parameter
  std::span<const float> mean;  ///< of the gradient over all ranks
  std::span<float> master;      ///< what the optimizer moves; as long as the object lives
};

/// One thread at a time; explain() and stats() from any thread.
class Sharded {
 public:
  /// Steps the optimizer on one range. An Error is that of every rank's step().
  using Turn = std::function<Result<void>(const OwnedRange&)>;

  /// All ranks together, as Session::create, with equal values on all ranks. `push` and `pull`:
  /// specs of the two ways. `values`: each parameter's elements, which step() moves in place; they
  /// stay where they are. options.plan, control, record and down are not for it.
  static Result<std::unique_ptr<Sharded>> create(std::string_view push, std::string_view pull,
                                                 std::vector<Parameter> parameters,
                                                 std::span<const std::span<float>> values,
                                                 Engine& engine,
                                                 const SessionOptions& options = {});

  /// As Session::submit: every rank the same buckets in the same order, each parameter once in a
  /// step. Their memory stays where it is until step() returns.
  Result<void> push(uint64_t step, const Bucket& bucket);
  /// Ends the step: waits for all pushes, gives each of this rank's ranges its turn, and pulls.
  /// False: some rank's gradient is not finite; nothing moved, on any rank. After an Error, which
  /// is every rank's, means of owners that failed lie in the residuals, and what other owners have
  /// stepped comes down, now or with the next step.
  Result<bool> step(const Turn& turn);
  /// Parameters of at most options.small_elements, and all of a world of one rank, have no owner:
  /// after step() their mean is in the bucket, and every rank takes the same step.
  [[nodiscard]] bool is_small(uint32_t parameter) const;
  /// This rank's ranges, without means.
  [[nodiscard]] std::vector<OwnedRange> owned() const;

  /// As Session's. The state holds the masters; parameters and the optimizer's state are the
  /// program's to save.
  [[nodiscard]] Result<std::vector<uint8_t>> save() const;
  Result<void> load(std::span<const uint8_t> state);
  /// Pays the residuals of pushes; pulls have none.
  Result<void> flush(uint32_t steps = 10);
  [[nodiscard]] std::string explain() const;
  [[nodiscard]] std::string stats() const;

 private:
  explicit Sharded(std::unique_ptr<Session> session) : session_(std::move(session)) {}

  std::unique_ptr<Session> session_;
  bool finite_ = true;  // of a world of one rank: all pushes of this step
};

}  // namespace laconic
