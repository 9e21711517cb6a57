// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "feedback/residence.h"

#include <utility>

namespace laconic::feedback {

Result<void> Residence::to_device(const device::Staging& staging) {
  if (lost_) return *lost_;
  if (on_device()) return {};
  const uint64_t bytes = host_.size_bytes();
  auto taken = memory_.grow(staging.gpu(), device::Memory::Where::device, bytes);
  if (!taken) return taken;
  if (auto moved = staging.up(memory_.at(), host_.data(), bytes); !moved) return moved;
  staging_ = &staging;
  return {};
}

Result<void> Residence::to_host() {
  if (auto moved = read(); !moved) {
    if (!lost_) lose(moved.error());
    return moved;
  }
  staging_ = nullptr;
  return {};
}

Result<void> Residence::read() const {
  if (lost_) return *lost_;
  if (!on_device()) return {};
  return staging_->down(host_.data(), memory_.at(), host_.size_bytes());
}

void Residence::lose(const Error& why) { lost_ = why; }

}  // namespace laconic::feedback
