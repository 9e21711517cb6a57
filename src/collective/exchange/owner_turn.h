// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Between the two ways of an exchange (Options::owner_turns): every contribution is here, and the
// owner of a range moves its master by the mean. What comes down then is master - replica, so that
// what one pull does not deliver the next one carries, without a residual (decision 0050).
#pragma once

#include <vector>

#include "collective/exchange/strategy.h"
#include "wire/bundle.h"

namespace laconic::collective {

/// A range of a parameter that this rank owns, while its exchange is parked.
struct OwnedRange {
  uint32_t parameter = 0;
  uint64_t offset = 0, count = 0;  ///< elements of the parameter
  const float* mean = nullptr;     ///< of the gradient over all ranks
  float* master = nullptr;
};

class OwnerTurn {
 public:
  /// Some contribution to this owner is not finite, which its sender has said to every owner.
  [[nodiscard]] virtual bool non_finite() const noexcept = 0;
  /// The first failure that this rank knows of, its own or one that it received; null: none.
  [[nodiscard]] virtual const BundleFailure* failure() const noexcept = 0;
  /// Appends this rank's ranges. Nothing after a failure or what is not finite.
  virtual void lend(std::vector<OwnedRange>& ranges) = 0;
  /// Sum of the squares of this owner's means, small parameters included.
  [[nodiscard]] virtual double sum_of_squares() = 0;
  /// Takes the means out of the gradient, which went out uncompressed.
  virtual void adopt(const Input& input) = 0;
  /// Starts the pull. `skips`: a gradient of this step is not finite on some rank, so nothing is
  /// pulled. `failure`: a failure of this rank elsewhere in the step, which it reports to all; may
  /// be null.
  virtual void resume(bool skips, const BundleFailure* failure) = 0;
  /// After finish(): the step was skipped, by an owner at least.
  [[nodiscard]] virtual bool skipped() const noexcept = 0;

 protected:
  ~OwnerTurn() = default;
};

}  // namespace laconic::collective
