// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The float32 of a bucket: its own memory, or copies where it is of 16 bits or on a device.
//
// Compressed parameters of a bucket on a device stay there while its legs exchange it; others are
// copied to the host and back. A bucket that travels uncompressed is copied whole, with residuals.
#pragma once

#include <vector>

#include "base/arena.h"
#include "collective/exchange/strategy.h"
#include "device/staging.h"

namespace laconic::collective {

class FloatBucket {
 public:
  FloatBucket(const RankState& state, const Layout& layout, DType dtype)
      : state_(&state), layout_(&layout), dtype_(dtype) {}
  /// False: no memory.
  [[nodiscard]] bool reserve();
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return floats_.capacity() + halves_.capacity() + pieces_.capacity() * sizeof(pieces_[0]);
  }

  /// Sets the memory of `input`, for a bucket at `buffer`.
  void place(void* buffer, Input& input) noexcept;
  /// Does the whole bucket travel uncompressed? Before take().
  void set_whole(bool whole) noexcept { whole_ = whole; }
  /// The gradients are taken from the bucket.
  Result<void> take(void* buffer);
  /// The means go into the bucket; null: there is none.
  Result<void> give(void* buffer);

 private:
  [[nodiscard]] bool half() const noexcept { return dtype_ != DType::f32; }
  [[nodiscard]] const pipeline::DeviceBatches* device() const noexcept {
    return state_->batches().device();
  }
  [[nodiscard]] float* floats() noexcept {
    return reinterpret_cast<float*>(floats_.bytes().data());
  }
  [[nodiscard]] float* there(void* buffer) const noexcept {
    return static_cast<float*>(half() ? static_cast<void*>(wide_.at()) : buffer);
  }
  std::span<const device::Staging::Piece> raw_pieces(void* buffer);
  [[nodiscard]] device::Staging::Piece all_of(void* buffer);

  const RankState* state_;
  const Layout* layout_;
  DType dtype_;
  Arena floats_;         // of 16 bits, or of a device
  Arena halves_;         // of 16 bits and of a device
  device::Memory wide_;  // there, of 16 bits
  std::vector<device::Staging::Piece> pieces_;
  bool whole_ = false;
};

/// Memory of a layout's parameters comes to the host.
Result<void> residuals_to_host(const RankState& state, const LayoutView& layout);

/// The gradients of a bucket, wherever it is, go into the residuals. Gives how many parameters lost
/// theirs because it cannot be read. Needs no memory.
uint32_t keep_bucket(const RankState& state, const LayoutView& layout, void* buffer, DType dtype);

}  // namespace laconic::collective
