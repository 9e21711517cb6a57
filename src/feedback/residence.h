// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "device/staging.h"

namespace laconic::feedback {

/// The place of an array's values: the host, where all code may read and change them, or, between
/// to_device and to_host, a GPU's memory.
class Residence {
 public:
  Residence() = default;
  explicit Residence(std::span<float> host) : host_(host) {}

  /// Moves the values there, and takes memory for them the first time.
  Result<void> to_device(const device::Staging& staging);
  /// Moves the values to the host's array.
  Result<void> to_host();
  /// Copies them to the host's array; they stay where they are.
  Result<void> read() const;

  [[nodiscard]] bool on_device() const noexcept { return staging_ != nullptr; }
  /// The element there that is at `host` of the array.
  [[nodiscard]] float* there(const float* host) const noexcept {
    return reinterpret_cast<float*>(memory_.at()) + (host - host_.data());
  }
  /// The values are gone with the GPU. From now on every move fails.
  void lose(const Error& why);

 private:
  std::span<float> host_;
  device::Memory memory_;  // stays taken
  const device::Staging* staging_ = nullptr;
  std::optional<Error> lost_;
};

}  // namespace laconic::feedback
