// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums of a GlooEngine.
#pragma once

#include <cstdint>
#include <memory>

#include "group.h"
#include "laconic/engine/gloo.h"

namespace laconic::gloo {

/// Terms go round, then sums: RingSum.
class Ring {
 public:
  explicit Ring(Group& group) : group_(group) {}
  /// Once the group is connected.
  void open();
  /// Takes a sum from its beginning to its end. Throws what Gloo throws.
  void sum(const Step& step);

 private:
  class Round;

  Group& group_;
  std::unique_ptr<uint8_t[]> terms_;
};

}  // namespace laconic::gloo
