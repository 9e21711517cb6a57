// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "gradients.h"

#include <algorithm>
#include <cmath>

#include "laconic/random.h"

namespace laconic::tools {
namespace {

constexpr double kScale = 1e-3;

/// Numbers in (0, 1), two per counter.
class Uniform {
 public:
  explicit Uniform(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}
  double next() {
    if (at_ == block_.size()) {
      block_ = philox(key_, counter_++);
      at_ = 0;
    }
    return (block_[at_++] + 0.5) * 0x1p-32;
  }

 private:
  RandomKey key_;
  uint64_t counter_ = 0;
  RandomBlock block_{};
  std::size_t at_ = 4;
};

double laplace(Uniform& u) {
  const double x = 2 * u.next() - 1;
  return std::copysign(-std::log1p(-std::fabs(x)), x);
}

double gaussian(Uniform& u) {
  const double radius = std::sqrt(-2 * std::log(u.next()));
  return radius * std::cos(6.283185307179586 * u.next());
}

/// A gamma variable of shape 1/2 is half a squared Gaussian.
double double_gamma(Uniform& u) {
  const double x = gaussian(u);
  return std::copysign(x * x / 2, u.next() - 0.5);
}

template <class Draw>
void fill(std::span<float> out, double scale, Uniform& u, Draw draw) {
  for (float& x : out) x = static_cast<float>(scale * draw(u));
}

void fill_layers(std::span<float> out, Uniform& u) {
  for (std::size_t at = 0; at < out.size();) {
    const auto size = static_cast<std::size_t>(1e3 * std::pow(3e3, u.next()));
    const auto layer = out.subspan(at, std::min(size, out.size() - at));
    const double scale = kScale * std::pow(400.0, u.next() - 0.5);
    u.next() < 0.5 ? fill(layer, scale, u, laplace) : fill(layer, scale, u, double_gamma);
    at += layer.size();
  }
}

}  // namespace

void fill_gradient(GradientKind kind, uint64_t seed, std::span<float> out) {
  Uniform u(seed);
  switch (kind) {
    case GradientKind::laplace:
      return fill(out, kScale, u, laplace);
    case GradientKind::gaussian:
      return fill(out, kScale, u, gaussian);
    case GradientKind::layered:
      return fill_layers(out, u);
  }
}

}  // namespace laconic::tools
