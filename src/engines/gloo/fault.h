// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Why the group of a GlooEngine is over.
#pragma once

#include <mutex>
#include <optional>

#include "group.h"
#include "laconic/engine/gloo.h"

namespace laconic::gloo {

class Fault {
 public:
  explicit Fault(Group& group) : group_(group) {}

  [[nodiscard]] std::optional<Error> known();
  /// The group is over. `why` without a message: a connection has broken, or memory is short.
  Error fail(Error why, const char* said = "") noexcept;
  /// Some rank's connection has broken.
  [[nodiscard]] bool glance();

 private:
  Error agree(Error own, const char* said);
  Error without_board(Error own, const Error& lost);

  Group& group_;
  std::mutex mutex_;  // of what follows, and of the group's watches
  std::optional<Error> known_;
};

}  // namespace laconic::gloo
