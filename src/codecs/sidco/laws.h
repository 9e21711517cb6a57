// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Whether magnitudes follow the laws that SIDCo takes them to follow: distances between a fitted
// law and what was seen. A diagnosis; encode does not use it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "codecs/sidco/sidco_fit.h"

namespace laconic::codecs::sidco {

/// A law of magnitudes with its parameters.
class MagnitudeLaw {
 public:
  static MagnitudeLaw exponential(double mean);
  /// As the codec fits them; none where it falls back to the exponential law.
  static std::optional<MagnitudeLaw> gamma(const Moments& a);
  static std::optional<MagnitudeLaw> pareto(const Moments& m);
  /// Distribution of |x| for a normal or a Laplace x that need not be centred at 0. None if the
  /// spread is 0.
  static std::optional<MagnitudeLaw> normal(std::span<const float> x);
  static std::optional<MagnitudeLaw> laplace(std::span<const float> x);
  /// The distribution that stage 1 (`first`) or a later stage of `law` fits to its moments.
  static MagnitudeLaw of_stage(Law law, bool first, const Moments& m);

  /// The probability of more than `a`; falls from 1 to 0.
  [[nodiscard]] double upper(double a) const;
  /// α or ξ; 0 for laws without a shape.
  [[nodiscard]] double shape() const noexcept { return kind_ <= Kind::pareto ? shape_ : 0; }

 private:
  enum class Kind : uint8_t { exponential, gamma, pareto, normal, laplace };
  MagnitudeLaw(Kind kind, double shape, double scale) : kind_(kind), shape_(shape), scale_(scale) {}

  Kind kind_;
  double shape_;  ///< of normal and Laplace laws: the centre
  double scale_;
};

/// The Kolmogorov-Smirnov distance: the largest difference between the law's distribution function
/// and that of `ascending`, each element a taken as a / unit - low. 0 for no elements.
[[nodiscard]] double ks_distance(std::span<const float> ascending, const MagnitudeLaw& law,
                                 double unit = 1, double low = 0);

/// The exponent p of a_(j) ~ j^-p, a_(1) being the largest: the slope of a least-squares line
/// through (ln j, ln a_(j)) at 64 ranks, evenly spaced in ln j from `from` to half of the elements.
/// None with fewer than eight different ranks.
[[nodiscard]] std::optional<double> compressibility(std::span<const float> ascending,
                                                    uint64_t from);

}  // namespace laconic::codecs::sidco
