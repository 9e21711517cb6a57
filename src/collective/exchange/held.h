// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How much memory an exchange holds: asked of what took it, never computed from the plan.
#pragma once

#include <concepts>
#include <cstdint>

#include "base/arena.h"

namespace laconic::collective {

/// Bytes of an arena, of a vector, or of an object that has a held_bytes().
template <class Part>
[[nodiscard]] uint64_t held_by(const Part& part) noexcept {
  if constexpr (requires { part.held_bytes(); }) {
    return part.held_bytes();
  } else if constexpr (std::same_as<Part, Arena>) {
    return part.capacity();
  } else {
    return part.capacity() * sizeof(typename Part::value_type);
  }
}

/// Their sum. Bytes owned by the elements of a vector are not included.
template <class... Parts>
[[nodiscard]] uint64_t held(const Parts&... parts) noexcept {
  return (held_by(parts) + ...);
}

}  // namespace laconic::collective
