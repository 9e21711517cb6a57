// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The queue of a codec's launches: they run one after the other.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "laconic/bytes.h"

namespace laconic::device {

/// A kernel is a type: `name`, `Args` (copied to the device, at most 4 KiB), `Shared<Block>` and
/// `run(block, shared, args)`.
class Queue {
 public:
  virtual ~Queue() = default;

  template <class Kernel>
  void launch(uint64_t blocks, const typename Kernel::Args& args) {
    using Args = typename Kernel::Args;
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= 4096);
    if (blocks != 0)
      enqueue(Kernel::name, blocks, Bytes(reinterpret_cast<const uint8_t*>(&args), sizeof args));
  }

 protected:
  virtual void enqueue(std::string_view kernel, uint64_t blocks, Bytes args) = 0;
};

}  // namespace laconic::device
