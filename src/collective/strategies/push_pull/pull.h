// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The pull of push_pull: after its turn an owner (the rank that holds the float32 master of a
// range) sends the difference between master and parameter, and every rank adds it to its own
// parameter. There is no residual: what is not delivered remains in the difference (3LC, MLSys
// 2019, section 3).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "collective/exchange/owner_turn.h"
#include "collective/strategies/two_shot/way_up.h"

namespace laconic::collective {

/// State shared by the parts of an exchange.
struct Parts {
  RankState* state = nullptr;
  const BucketPlan* plan = nullptr;
  const Shares* shares = nullptr;
  OwnShare* own = nullptr;
};

class Pull {
 public:
  explicit Pull(const Parts& parts);
  /// False: no memory.
  [[nodiscard]] bool reserve();

  void begin(const Input& input);
  /// The means of what arrived or, where the gradient went up uncompressed, what its buffer holds.
  Result<void> take_means(WayUp& up);
  void take_means();
  void lend(std::vector<OwnedRange>& ranges);
  [[nodiscard]] double sum_of_squares();
  /// After the turn. A change that is not finite is a failure.
  void encode(Told& told);
  void encode_nothing();
  /// An all-gather of the owners' bundles.
  void emit(const Told& told, Step& step);
  /// Each owner's bundle counts by itself, as others may have moved their masters: gives the first
  /// failure, and finish() comes in any case.
  Result<void> receive();
  /// Parameters move by what came down, and means of small ones go into the gradient buffer. What
  /// went up to owners that send nothing down is undone.
  Result<void> finish(WayUp& up);
  /// An owner sent nothing down, because some gradient is not finite.
  [[nodiscard]] bool skipped() const noexcept {
    return std::ranges::any_of(owners_, [](const Owner& o) { return o.said == Said::nothing; });
  }
  /// The longest flush that a rank asks for.
  [[nodiscard]] uint32_t flush() const noexcept { return flush_; }

  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(*batch_, means_, means_at_, owners_, sizes_, out_, recv_);
  }

 private:
  /// damaged: what this rank received is no bundle. Its owner has moved its masters, as far as one
  /// can know.
  enum class Said : uint8_t { damaged, failed, nothing, changes };
  struct Owner {
    Said said = Said::damaged;
    BundleView view;
  };
  [[nodiscard]] BundleId id(uint32_t owner) const {
    return parts_.state->bundle_id(BundleKind::mean, owner, input_, 0);
  }
  [[nodiscard]] const Share& own() const { return parts_.shares->of[parts_.state->rank()]; }
  [[nodiscard]] float* mean_of(uint32_t unit) { return means().of(unit); }
  [[nodiscard]] pipeline::UnitFloats means() {
    return {reinterpret_cast<float*>(means_.bytes().data()), means_at_};
  }
  Result<void> parse(uint32_t owner, Bytes bytes);
  Result<void> move_parameters(uint32_t owner, WayUp& up);
  void put_back(uint32_t owner, WayUp& up);

  Parts parts_;
  std::unique_ptr<pipeline::FrameBatch> batch_;
  Arena means_;  // of this owner's units, side by side; then their changes
  std::vector<uint64_t> means_at_;
  std::vector<Owner> owners_;
  std::optional<BundleWriter> writer_;
  Sizes sizes_;
  Arena out_, recv_;
  Input input_;
  uint32_t flush_ = 0;
  bool adopted_ = false;  // the means came out of the gradient buffer
};

}  // namespace laconic::collective
