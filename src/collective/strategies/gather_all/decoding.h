// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Registered codecs in gather_all. A registered codec is the program's own, a table of callbacks,
// which may fail. Means are therefore decoded into separate memory, and one more round reports to
// every rank whether all could decode.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/status_round.h"

namespace laconic::collective {

class Decoding {
 public:
  explicit Decoding(const RankState& state) : status_(state) {}
  void plan(const std::vector<BucketUnit>& units) {
    may_fail_ = false;
    floats_ = 0;
    at_.clear();
    for (const BucketUnit& u : units) {
      at_.push_back(floats_);
      may_fail_ = may_fail_ || u.piece->codec->spec().registered() != nullptr;
      floats_ += u.piece->send.unit.count;
    }
  }
  /// Is any of the codecs a registered one? Else there is no such round.
  [[nodiscard]] bool may_fail() const noexcept { return may_fail_; }
  /// False: no memory.
  [[nodiscard]] bool reserve() {
    return !may_fail_ || (means_.reserve(floats_ * sizeof(float)) && status_.reserve());
  }
  void begin() noexcept { failure_.reset(); }
  /// Those of all units, back to back.
  [[nodiscard]] pipeline::UnitFloats means() noexcept {
    return {reinterpret_cast<float*>(means_.bytes().data()), at_};
  }

  /// The error of this exchange, on this rank; null: none so far.
  [[nodiscard]] const Error* failure() const noexcept { return failure_ ? &*failure_ : nullptr; }
  void fail(Error why) {
    if (!failure_) failure_ = std::move(why);
  }

  Next tell(Input& input, Step& step) {
    if (failure_) input.failure = failure();
    status_.emit(input, input.failure, step);
    return {Verdict::steps, 1};
  }
  [[nodiscard]] Result<void> hear(const Input& input) { return status_.receive(input); }

  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(at_, means_, status_); }

 private:
  StatusRound status_;
  std::vector<uint64_t> at_;  // by unit
  Arena means_;
  bool may_fail_ = false;
  uint64_t floats_ = 0;
  std::optional<Error> failure_;
};

}  // namespace laconic::collective
