// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A device on the host that runs every kernel by its source, in a chosen order of blocks and
// threads, and reports races.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/checked_block.h"
#include "device/queue.h"

namespace laconic::test {

enum class Order : uint8_t { forward, backward, scrambled };
/// The numbers below `count`.
std::vector<uint32_t> in_order(Order order, uint32_t count);

/// A kernel of the list, run by its source.
struct CheckedKernel {
  std::string_view name;
  uint64_t args = 0;  ///< bytes
  void (*run)(device::CheckedMemory& memory, std::span<const uint32_t> blocks,
              std::span<const uint32_t> threads, Bytes args) = nullptr;

  /// A launch of its own.
  void launch(device::CheckedMemory& memory, Order order, uint64_t blocks, Bytes args) const;
};
/// Null: there is none of that name.
const CheckedKernel* find_checked_kernel(std::string_view name);

class CheckedDevice final : public device::Queue {
 public:
  explicit CheckedDevice(Order order) : order_(order) {}

  [[nodiscard]] device::CheckedMemory& memory() { return memory_; }
  [[nodiscard]] const std::vector<std::string>& faults() const { return memory_.faults(); }

 protected:
  void enqueue(std::string_view kernel, uint64_t blocks, Bytes args) override;

 private:
  Order order_;
  device::CheckedMemory memory_;
};

}  // namespace laconic::test
