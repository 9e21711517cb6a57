// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sharded: an optimizer that is sharded over the ranks, like 3LC's parameter server (MLSys 2019,
// section 3). Compressed gradients are pushed to the owners of their ranges; owners step float32
// masters; updates of the parameters are pulled, encoded once for all ranks. A rank holds 1/world
// of the masters and of the optimizer's state. docs/guide/sharded.md.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/session.h"

namespace laconic {

/// A range of a parameter that this rank owns.
struct OwnedRange {
  uint32_t parameter = 0;       ///< index into the list of create
  uint64_t offset = 0;          ///< first element, inside the parameter
  std::span<const float> mean;  ///< mean gradient over all ranks
  std::span<float> master;      ///< values to step; valid as long as the object lives
};

/// Use it from one thread at a time; explain() and stats() from any thread.
class Sharded {
 public:
  /// Steps the optimizer on one range. An Error is returned by step() on every rank.
  using Turn = std::function<Result<void>(const OwnedRange&)>;

  /// Collective, as Session::create, with equal `values` on all ranks. `push`, `pull`: specs of
  /// gradients and of updates. `values`: elements of each parameter, which step() changes in place;
  /// they must stay valid. options.plan, control, record and down must not be set.
  static Result<std::unique_ptr<Sharded>> create(std::string_view push, std::string_view pull,
                                                 std::vector<Parameter> parameters,
                                                 std::span<const std::span<float>> values,
                                                 Engine& engine,
                                                 const SessionOptions& options = {});

  /// As Session::submit: every rank submits the same buckets in the same order, each parameter once
  /// per step. Their memory must stay valid until step() returns.
  Result<void> push(uint64_t step, const Bucket& bucket);
  /// Completes the step: waits for all pushes, steps each of this rank's ranges, and pulls. Returns
  /// false if a gradient of some rank is not finite: nothing was changed, on any rank. After an
  /// Error, which every rank gets, means of failed owners are in the residuals, and updates of
  /// other owners are sent in this step or the next.
  Result<bool> step(const Turn& turn);
  /// Parameters of at most options.small_elements elements have no owner, nor have all parameters
  /// with one rank: after step() their mean is in the bucket, and every rank takes the same step.
  [[nodiscard]] bool is_small(uint32_t parameter) const;
  /// This rank's ranges; `mean` is empty.
  [[nodiscard]] std::vector<OwnedRange> owned() const;

  /// As Session's. The state holds the masters; the program saves parameters and the optimizer's
  /// state.
  [[nodiscard]] Result<std::vector<uint8_t>> save() const;
  Result<void> load(std::span<const uint8_t> state);
  /// Sends the residuals of pushes; pulls have none.
  Result<void> flush(uint32_t steps = 10);
  [[nodiscard]] std::string explain() const;
  [[nodiscard]] std::string stats() const;

 private:
  explicit Sharded(std::unique_ptr<Session> session) : session_(std::move(session)) {}

  std::unique_ptr<Session> session_;
  bool finite_ = true;  // of a world of one rank: all pushes of this step
};

}  // namespace laconic
