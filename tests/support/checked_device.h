// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A device on the host that runs every kernel by its source, in a chosen order of blocks and
// threads, and reports races.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/checked_block.h"
#include "device/queue.h"

namespace laconic::test {

enum class Order : uint8_t { forward, backward, scrambled };

class CheckedDevice final : public device::Queue {
 public:
  explicit CheckedDevice(Order order) : order_(order) {}

  [[nodiscard]] device::CheckedMemory& memory() { return memory_; }
  [[nodiscard]] const std::vector<std::string>& faults() const { return memory_.faults(); }

 protected:
  void enqueue(std::string_view kernel, uint64_t blocks, Bytes args) override;

 private:
  [[nodiscard]] std::vector<uint32_t> in_order(uint32_t count) const;

  Order order_;
  device::CheckedMemory memory_;
};

}  // namespace laconic::test
