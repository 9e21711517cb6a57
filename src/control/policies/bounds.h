// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "control/policy.h"

namespace laconic::control {

/// The fields that bound what a policy moves; 0, which no text can give, is "as the codec says".
template <auto Member>
constexpr Field min_field() {
  return real_field<Member>("min", 0, 1e-9, 1e9, "smallest value; 0: as the codec says");
}
template <auto Member>
constexpr Field max_field() {
  return real_field<Member>("max", 0, 1e-9, 1e9, "largest value; 0: as the codec says");
}

}  // namespace laconic::control
