// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Stand-ins for gradients: seeded, no two tensors alike.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace laconic::tools {

enum class GradientKind : uint8_t {
  laplace,   ///< scale 1e-3
  gaussian,  ///< deviation 1e-3
  layered,   ///< layers of 1e3 to 3e6 elements with scales over a factor 400, half Laplace, half
             ///< double gamma of shape 0.5 (heavier tails)
};

inline constexpr std::string_view kGradientKinds[] = {"laplace", "gaussian", "layered"};

void fill_gradient(GradientKind kind, uint64_t seed, std::span<float> out);

}  // namespace laconic::tools
