// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which short parts of buckets travel together, as one exchange (decision 0045): a function of
// their order and sizes, never of time, the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/plan/layout.h"
#include "collective/plan/model.h"

namespace laconic::session {

/// Maximum bytes of a rank's payloads in joined buckets,
inline constexpr uint64_t kMostBytes = uint64_t{1} << 16U;
/// maximum elements,
inline constexpr uint64_t kMostElements = 4 * collective::kShortElements;
/// and maximum number of buckets.
inline constexpr uint32_t kMostJoined = 64;
/// Factor for elements that the engine adds itself: adding them in pieces gains only overlap, and
/// an exchange has two or three sums.
inline constexpr uint64_t kShareOfSums = 4;

/// A part of a bucket.
struct JoiningPart {
  collective::LayoutView layout;
  DType dtype = DType::f32;
  uint64_t step = 0;
};

class Joining {
 public:
  explicit Joining(const collective::Model& model);
  /// After other settings. Takes no memory.
  void refresh(const collective::Model& model);

  /// May it travel with others?
  [[nodiscard]] bool takes(const JoiningPart& part) const noexcept;
  /// With those that wait? An iteration that was broken off may have left some to the next one.
  [[nodiscard]] bool goes_with(const JoiningPart& part) const noexcept;
  /// True: they wait for no more.
  bool add(const JoiningPart& part) noexcept;
  /// Those that wait have gone.
  void clear() noexcept;
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

  /// Bytes of float32 at which buckets are cut; 0: not at all.
  [[nodiscard]] uint64_t part() const noexcept { return part_; }
  /// Elements of the most that come together.
  [[nodiscard]] uint64_t room() const noexcept { return room_; }

 private:
  struct Weight {
    uint64_t bytes = 0;     ///< of a rank's payload, at most
    uint64_t elements = 0;  ///< the larger they are the sooner what waits is sent
  };

  bool joins_ = false;  // false with a server, which adds per bucket, and with one rank
  uint64_t part_ = 0;   // bytes of the longest exchange; 0: any number
  uint64_t room_ = 0;
  std::vector<Weight> weights_;  // by parameter
  std::vector<bool> waits_;      // by parameter
  uint64_t bytes_ = 0, weight_ = 0, elements_ = 0;
  uint32_t count_ = 0;
  DType dtype_ = DType::f32;
  uint64_t step_ = 0;
};

}  // namespace laconic::session
