// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The mathematics of SIDCo (Abdelmoniem et al., MLSys 2021, arXiv 2101.10761): thresholds from
// moments, and the choice of the number of stages. Pure functions of doubles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace laconic::codecs::sidco {

/// The assumed distribution of the magnitudes a > 0.
enum class Law : uint8_t { exponential = 0, gamma_pareto = 1, pareto = 2 };

/// Moments of non-zero magnitudes, or of exceedances over a threshold.
struct Moments {
  uint64_t count = 0;
  double mean = 0;
  double variance = 0;  ///< unbiased; needs count >= 2
  double log_mean = 0;  ///< mean of ln a
};

/// Q(α, x): the regularised upper incomplete gamma function.
[[nodiscard]] double upper_gamma(double alpha, double x);
/// Quantile of the regularised lower incomplete gamma function from above: x with Q(α, x) = δ.
[[nodiscard]] double inverse_upper_gamma(double alpha, double delta);

/// Pareto shapes nearer to 0 are taken as 0.
inline constexpr double kNoShape = 1e-9;
/// Shape and scale of a fitted law, in the unit of the moments. None where the moments say nothing
/// about a shape: the exponential law stands in.
struct Shape {
  double shape = 0;  ///< α of the gamma law, ξ of the generalised Pareto law
  double scale = 0;
};
[[nodiscard]] std::optional<Shape> gamma_fit(const Moments& a);
[[nodiscard]] std::optional<Shape> pareto_fit(const Moments& m);

/// η(δ) of the law fitted to all magnitudes: the fraction δ is expected above it.
[[nodiscard]] double first_threshold(Law law, const Moments& a, double delta);
/// η of a refinement: `z` are the moments of the exceedances' distance from the smallest, `low`.
[[nodiscard]] double tail_threshold(Law law, double low, const Moments& z, double delta);

/// Ratio of the first stage when there are several.
inline constexpr double kFirstRatio = 0.25;
inline constexpr uint32_t kMostStages = 30;
/// Stages from which a ratio δ gains nothing: ceil(ln δ / ln ½), from 1 to kMostStages.
[[nodiscard]] uint32_t max_stages(double delta);

/// Stages for a ratio δ without adaptation: after the first, each keeps about 1/16.
[[nodiscard]] uint32_t fixed_stages(double delta);

/// The rule that moves the number of stages, the paper's modes -1 and -3; or none.
enum class Mode : uint8_t { faithful = 0, signed_direction = 1, fixed = 2 };

/// State of a unit, as the plain floats that are saved.
struct Adaptation {
  static constexpr uint64_t kFloats = 6;

  float stages = 1;
  float direction = 1;  ///< u of the paper
  float previous = 0;   ///< mean of selected/wanted at the update before; 0: none yet
  float sum = 0;        ///< of selected/wanted since then
  float calls = 0;
  float updates = 0;

  [[nodiscard]] static Adaptation read(std::span<const float> state);
  void write(std::span<float> state) const;

  /// Takes in one call's selected/wanted; every fifth call may change the number of stages.
  void observe(Mode mode, double selected_of_wanted, uint32_t most_stages);
};

}  // namespace laconic::codecs::sidco
