// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The mathematics of SIDCo (Abdelmoniem et al., MLSys 2021, arXiv 2101.10761), for the CPU and the
// device: thresholds from moments, the guard, and the choice of the number of stages. Doubles; log,
// exp, expm1, pow and sqrt are those of the C library, or of CUDA.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "kernels/sparse/moments.h"
#include "laconic/dtype.h"

namespace laconic::kernels::sidco {

[[nodiscard]] LACONIC_HOST_DEVICE constexpr double larger(double a, double b) {
  return a < b ? b : a;
}

// ---- thresholds ----

inline constexpr uint32_t kInfinityKey = 0x7F800000U;

/// A threshold, as what it selects: every element with a key of at least `key`, that is, with
/// |a| > `value`.
struct Threshold {
  uint32_t key = 1;
  float value = 0;
};
/// The threshold next to η, which may be any double.
[[nodiscard]] LACONIC_HOST_DEVICE inline Threshold threshold_at(double eta) noexcept {
  if (!(eta > 0)) return {};
  constexpr float kLargest = bits_float(kInfinityKey - 1);
  if (eta >= static_cast<double>(kLargest)) return {kInfinityKey, kLargest};
  const auto value = static_cast<float>(eta);
  return {float_bits(value) + 1, value};
}
/// Selects what has at least this magnitude.
[[nodiscard]] LACONIC_HOST_DEVICE inline Threshold threshold_from(float magnitude) noexcept {
  const uint32_t key = float_bits(magnitude) & 0x7FFFFFFFU;
  return {key, bits_float(key - 1)};
}

// ---- moments ----

/// The assumed distribution of the magnitudes a > 0.
enum class Law : uint8_t { exponential = 0, gamma_pareto = 1, pareto = 2 };

/// Moments of non-zero magnitudes, or of exceedances over a threshold.
struct Moments {
  uint64_t count = 0;
  double mean = 0;
  double variance = 0;  ///< unbiased; needs count >= 2
  double log_mean = 0;  ///< mean of ln a
};

/// Sums over all chunks of a unit, in their order.
struct Totals {
  uint64_t count = 0;
  uint32_t min_key = 0x7FFFFFFFU;
  uint32_t max_key = 0;
  double sum = 0;
  double square = 0;
  double log2_sum = 0;
};
/// Sums were taken of z = a - shift; the moments wanted are of a - low = z - (low - shift), which
/// is `offset`.
[[nodiscard]] LACONIC_HOST_DEVICE inline Moments moments_of(const Totals& t, double offset) {
  Moments m;
  m.count = t.count;
  if (t.count == 0) return m;
  const auto count = static_cast<double>(t.count);
  const double mean = t.sum / count;
  m.mean = mean - offset;
  if (t.count >= 2) m.variance = larger(0.0, (t.square - t.sum * mean) / (count - 1));
  return m;
}
/// The same of exceedances over `eta`, as distances from the smallest, which is stored in `low`.
[[nodiscard]] LACONIC_HOST_DEVICE inline Moments moments_above(const Totals& t, float shift,
                                                               float scale, double* low) {
  *low = static_cast<double>(bits_float(t.min_key) * scale);
  return moments_of(t, *low - static_cast<double>(shift));
}
/// The mean of ln a, of magnitudes that were scaled.
[[nodiscard]] LACONIC_HOST_DEVICE inline double log_mean_of(const Totals& t, float scale) {
  constexpr double kLn2 = 0.69314718055994530942;
  return kLn2 * t.log2_sum / static_cast<double>(t.count) + std::log(static_cast<double>(scale));
}

/// Squares of magnitudes within 2^±50 and sums of 2^14 of them are normal floats.
[[nodiscard]] LACONIC_HOST_DEVICE inline bool needs_scale(uint32_t max_key) {
  const int exponent = static_cast<int>(max_key >> 23) - 127;
  return exponent < -50 || exponent > 50;
}
/// A power of two that takes the largest magnitude near 1.
[[nodiscard]] LACONIC_HOST_DEVICE inline float scale_for(uint32_t max_key) {
  const int power = 127 - static_cast<int>(max_key >> 23);
  const int exponent = power < -126 ? -126 : power > 126 ? 126 : power;
  return bits_float(static_cast<uint32_t>(127 + exponent) << 23);
}

// ---- laws ----

/// Shape and scale of a fitted law, in the unit of the moments. Not known where the moments say
/// nothing about a shape: the exponential law stands in.
struct Shape {
  bool known = false;
  double shape = 0;  ///< α of the gamma law, ξ of the generalised Pareto law
  double scale = 0;
};

/// Pareto shapes nearer to 0 are taken as 0.
inline constexpr double kNoShape = 1e-9;
inline constexpr double kEpsilon = 1e-15;

/// ln Γ(x), x > 0: recurrence up to 10, then Stirling's series. (std::lgamma writes a global.)
[[nodiscard]] LACONIC_HOST_DEVICE inline double log_gamma(double x) {
  double shift = 0;
  while (x < 10) shift -= std::log(x++);
  const double y = 1 / (x * x);
  const double series = (1.0 / 12 - y * (1.0 / 360 - y * (1.0 / 1260 - y / 1680))) / x;
  constexpr double kHalfLogTwoPi = 0.91893853320467274178;
  return shift + (x - 0.5) * std::log(x) - x + kHalfLogTwoPi + series;
}

/// Σ x^i / (α (α+1) … (α+i)): the lower function is this times x^α e^-x / Γ(α). For x < α + 1.
[[nodiscard]] LACONIC_HOST_DEVICE inline double lower_series(double alpha, double x) {
  double term = 1 / alpha;
  double sum = term;
  for (int i = 1; i < 1000 && term > sum * kEpsilon; ++i) {
    term *= x / (alpha + i);
    sum += term;
  }
  return sum;
}

/// Continued fraction of the upper function over x^α e^-x, by Lentz's method. For x >= α + 1.
[[nodiscard]] LACONIC_HOST_DEVICE inline double upper_fraction(double alpha, double x) {
  constexpr double kTiny = 1e-300;
  double b = x + 1 - alpha;
  double c = 1 / kTiny;
  double d = 1 / b;
  double h = d;
  for (int i = 1; i < 1000; ++i) {
    const double a = -i * (i - alpha);
    b += 2;
    d = a * d + b;
    d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
    c = b + a / c;
    c = std::fabs(c) < kTiny ? kTiny : c;
    h *= d * c;
    if (std::fabs(d * c - 1) < kEpsilon) break;
  }
  return h;
}

/// Q(α, x): the regularised upper incomplete gamma function.
[[nodiscard]] LACONIC_HOST_DEVICE inline double upper_gamma(double alpha, double x) {
  if (x <= 0) return 1;
  const double front = std::exp(alpha * std::log(x) - x - log_gamma(alpha));
  return x < alpha + 1 ? 1 - front * lower_series(alpha, x) : front * upper_fraction(alpha, x);
}

/// Quantile of the regularised lower incomplete gamma function from above: x with Q(α, x) = δ.
[[nodiscard]] LACONIC_HOST_DEVICE inline double inverse_upper_gamma(double alpha, double delta) {
  if (delta >= 1) return 0;
  double low = 0;
  double high = alpha + 1;
  while (upper_gamma(alpha, high) > delta && high < 1e6 * (alpha + 1)) {
    low = high;
    high *= 2;
  }
  const double log_norm = log_gamma(alpha);
  double x = (low + high) / 2;
  for (int i = 0; i < 100 && high - low > 1e-14 * high; ++i) {
    const double q = upper_gamma(alpha, x);
    if (std::fabs(q - delta) < 1e-12 * delta) break;
    (q > delta ? low : high) = x;
    const double density = std::exp((alpha - 1) * std::log(x) - x - log_norm);
    const double newton = x + (q - delta) / density;
    x = newton > low && newton < high ? newton : (low + high) / 2;
  }
  return x;
}

[[nodiscard]] LACONIC_HOST_DEVICE inline Shape gamma_fit(const Moments& a) {
  const double s = std::log(a.mean) - a.log_mean;
  // Below it α exceeds 5000: nearly equal magnitudes, which no gamma law describes.
  if (!(s > 1e-4)) return {};
  const double alpha = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
  return {true, alpha, a.mean / alpha};
}

[[nodiscard]] LACONIC_HOST_DEVICE inline Shape pareto_fit(const Moments& m) {
  if (m.count < 2 || !(m.variance > 0) || !(m.mean > 0)) return {};
  const double square = m.mean * m.mean / m.variance;
  return {true, (1 - square) / 2, m.mean * (square + 1) / 2};
}

[[nodiscard]] LACONIC_HOST_DEVICE inline double exponential_threshold(double mean, double delta) {
  return mean * std::log(1 / delta);
}

/// (β/ξ)(δ^-ξ - 1), or β L for ξ near 0.
[[nodiscard]] LACONIC_HOST_DEVICE inline double pareto_threshold(const Moments& m, double delta) {
  const Shape law = pareto_fit(m);
  if (!law.known) return exponential_threshold(m.mean, delta);
  const double length = std::log(1 / delta);
  if (std::fabs(law.shape) < kNoShape) return law.scale * length;
  const double eta = law.scale / law.shape * std::expm1(law.shape * length);
  return std::isfinite(eta) ? eta : exponential_threshold(m.mean, delta);
}

[[nodiscard]] LACONIC_HOST_DEVICE inline double gamma_threshold(const Moments& m, double delta) {
  const Shape law = gamma_fit(m);
  if (!law.known) return exponential_threshold(m.mean, delta);
  return law.scale * inverse_upper_gamma(law.shape, delta);
}

/// η(δ) of the law fitted to all magnitudes: the fraction δ is expected above it.
[[nodiscard]] LACONIC_HOST_DEVICE inline double first_threshold(Law law, const Moments& a,
                                                                double delta) {
  if (law == Law::gamma_pareto) return gamma_threshold(a, delta);
  if (law == Law::pareto) return pareto_threshold(a, delta);
  return exponential_threshold(a.mean, delta);
}

/// η of a refinement: `z` are the moments of the exceedances' distance from the smallest, `low`.
[[nodiscard]] LACONIC_HOST_DEVICE inline double tail_threshold(Law law, double low,
                                                               const Moments& z, double delta) {
  const double mean = larger(z.mean, 0.0);
  if (law == Law::exponential) return low + exponential_threshold(mean, delta);
  return low + pareto_threshold({z.count, mean, z.variance, 0}, delta);
}

/// Ratio of the first stage when there are several.
inline constexpr double kFirstRatio = 0.25;
/// The ratio of each later stage, of `stages` in all.
[[nodiscard]] LACONIC_HOST_DEVICE inline double later_ratio(double delta, uint32_t stages) {
  return std::pow(delta / kFirstRatio, 1.0 / (stages - 1));
}

// ---- the guard ----

inline constexpr double kBand = 0.2;  ///< its goal: (1 ± kBand)·k
inline constexpr uint32_t kGuardPasses = 8;

[[nodiscard]] LACONIC_HOST_DEVICE inline bool in_band(uint64_t count, uint64_t k) {
  const auto c = static_cast<double>(count);
  const auto wanted = static_cast<double>(k);
  return c >= (1 - kBand) * wanted && c <= (1 + kBand) * wanted;
}

/// A list of exceedances has at most this number of elements; if more reach the last threshold,
/// there is a fit. The second part is twice what exceeds the threshold between the first and the
/// last one where there are three: from there on nothing is read from memory again.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t most_listed(uint64_t n, uint64_t wanted) {
  const uint64_t few = 4 * wanted + 4096;
  const uint64_t most = few < n / 28 ? n / 28 : few;
  return most < n ? most : n;
}
/// Whether the last threshold serves: `count` elements reach it.
[[nodiscard]] LACONIC_HOST_DEVICE inline bool serves(uint64_t count, uint64_t n, uint64_t k) {
  return count <= most_listed(n, k) && (in_band(count, k) || count > k);
}

/// Guarded correction, section 8 of the reference: a bracket of thresholds and their counts, closed
/// by interpolation of ln(count) and by the geometric mean in turn.
struct Bracket {
  double low = 0;
  double high = 0;
  double count_low = 0;
  double count_high = 0;
  double wanted = 0;
  double eta = 0;  ///< the last one tried
  bool interpolate = true;

  LACONIC_HOST_DEVICE Bracket(uint32_t max_key, uint64_t nonzero, Threshold fitted, uint64_t k)
      : high(static_cast<double>(bits_float(max_key))),
        count_low(static_cast<double>(nonzero)),
        wanted(static_cast<double>(k)),
        eta(static_cast<double>(fitted.value)) {}

  /// The threshold to try next, as `selected` elements exceed the last one.
  [[nodiscard]] LACONIC_HOST_DEVICE Threshold next(uint64_t selected) {
    const auto count = static_cast<double>(selected);
    (count > wanted ? low : high) = eta;
    (count > wanted ? count_low : count_high) = count;
    if (interpolate) {
      const double part = (std::log(count_low) - std::log(wanted)) /
                          (std::log(count_low) - std::log(larger(count_high, 0.5)));
      eta = low + (high - low) * part;
    } else {
      eta = low == 0 ? high / 3 : std::sqrt(low * high);
    }
    interpolate = !interpolate;
    if (!(eta > low && eta < high)) eta = (low + high) / 2;
    return threshold_at(eta);
  }
};

// ---- the number of stages ----

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

  /// Zeros are a fresh one.
  [[nodiscard]] LACONIC_HOST_DEVICE static Adaptation from(const float (&state)[kFloats]) {
    if (!(state[0] >= 1)) return {};
    return {state[0], state[1], state[2], state[3], state[4], state[5]};
  }
  [[nodiscard]] static Adaptation read(std::span<const float> state) {
    float all[kFloats] = {};
    std::copy_n(state.begin(), state.size() < kFloats ? 0 : kFloats, all);
    return from(all);
  }
  LACONIC_HOST_DEVICE void put(float (&state)[kFloats]) const {
    const float all[kFloats] = {stages, direction, previous, sum, calls, updates};
    for (uint64_t i = 0; i < kFloats; ++i) state[i] = all[i];
  }
  void write(std::span<float> state) const {
    float all[kFloats];
    put(all);
    std::copy_n(all, state.size() < kFloats ? state.size() : kFloats, state.begin());
  }
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t stages_up_to(uint32_t most) const {
    return stages < static_cast<float>(most) ? static_cast<uint32_t>(stages) : most;
  }

  /// Takes in one call's selected/wanted; every fifth call may change the number of stages.
  LACONIC_HOST_DEVICE void observe(Mode mode, double selected_of_wanted, uint32_t most_stages) {
    constexpr double kTolerance = 0.2;  // ε_H = ε_L of the paper
    constexpr float kPeriod = 5;        // calls between updates, Q of the paper
    sum += static_cast<float>(selected_of_wanted);
    calls += 1;
    if (calls < kPeriod) return;
    const double now = static_cast<double>(sum / calls);
    const double before = static_cast<double>(previous);
    // Mode -3: the direction turns unless the error moved the right way from a miss on the other
    // side.
    const bool keeps =
        (now > before && before < 1 - kTolerance) || (now < before && before > 1 + kTolerance);
    if (mode == Mode::signed_direction && updates > 0 && !keeps) direction = -direction;
    const float u = mode == Mode::faithful ? 1.0F : direction;
    if (now > 1 + kTolerance) stages -= u;
    if (now < 1 - kTolerance) stages += u;
    const auto most = static_cast<float>(most_stages);
    stages = stages < 1.0F ? 1.0F : stages > most ? most : stages;
    previous = static_cast<float>(now);
    updates = 1;  // only "has there been one" is asked
    sum = 0;
    calls = 0;
  }
};

}  // namespace laconic::kernels::sidco
