// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/sidco_fit.h"

#include <algorithm>
#include <cmath>

namespace laconic::codecs::sidco {
namespace {

constexpr double kEpsilon = 1e-15;

// ln Γ(x), x > 0: recurrence up to 10, then Stirling's series. (std::lgamma writes a global.)
double log_gamma(double x) {
  double shift = 0;
  while (x < 10) shift -= std::log(x++);
  const double y = 1 / (x * x);
  const double series = (1.0 / 12 - y * (1.0 / 360 - y * (1.0 / 1260 - y / 1680))) / x;
  constexpr double kHalfLogTwoPi = 0.91893853320467274178;
  return shift + (x - 0.5) * std::log(x) - x + kHalfLogTwoPi + series;
}

// Σ x^i / (α (α+1) … (α+i)): the lower function is this times x^α e^-x / Γ(α). For x < α + 1.
double lower_series(double alpha, double x) {
  double term = 1 / alpha;
  double sum = term;
  for (int i = 1; i < 1000 && term > sum * kEpsilon; ++i) {
    term *= x / (alpha + i);
    sum += term;
  }
  return sum;
}

// Continued fraction of the upper function over x^α e^-x, by Lentz's method. For x >= α + 1.
double upper_fraction(double alpha, double x) {
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

double exponential(double mean, double delta) { return mean * std::log(1 / delta); }

// (β/ξ)(δ^-ξ - 1), or β L for ξ near 0.
double pareto(const Moments& m, double delta) {
  const std::optional<Shape> law = pareto_fit(m);
  if (!law) return exponential(m.mean, delta);
  const auto [xi, beta] = *law;
  const double length = std::log(1 / delta);
  if (std::fabs(xi) < kNoShape) return beta * length;
  const double eta = beta / xi * std::expm1(xi * length);
  return std::isfinite(eta) ? eta : exponential(m.mean, delta);
}

double gamma(const Moments& m, double delta) {
  const std::optional<Shape> law = gamma_fit(m);
  if (!law) return exponential(m.mean, delta);
  return law->scale * inverse_upper_gamma(law->shape, delta);
}

constexpr double kLaterParts = 16;

constexpr double kTolerance = 0.2;  // ε_H = ε_L of the paper
constexpr float kPeriod = 5;        // calls between updates, Q of the paper

// Mode -3: the direction turns unless the error moved the right way from a miss on the other side.
bool keeps_direction(double now, double before) {
  return (now > before && before < 1 - kTolerance) || (now < before && before > 1 + kTolerance);
}

}  // namespace

double upper_gamma(double alpha, double x) {
  if (x <= 0) return 1;
  const double front = std::exp(alpha * std::log(x) - x - log_gamma(alpha));
  return x < alpha + 1 ? 1 - front * lower_series(alpha, x) : front * upper_fraction(alpha, x);
}

std::optional<Shape> gamma_fit(const Moments& a) {
  const double s = std::log(a.mean) - a.log_mean;
  // Below it α exceeds 5000: nearly equal magnitudes, which no gamma law describes.
  if (!(s > 1e-4)) return {};
  const double alpha = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
  return Shape{alpha, a.mean / alpha};
}

std::optional<Shape> pareto_fit(const Moments& m) {
  if (m.count < 2 || !(m.variance > 0) || !(m.mean > 0)) return {};
  const double square = m.mean * m.mean / m.variance;
  return Shape{(1 - square) / 2, m.mean * (square + 1) / 2};
}

double inverse_upper_gamma(double alpha, double delta) {
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

double first_threshold(Law law, const Moments& a, double delta) {
  switch (law) {
    case Law::gamma_pareto:
      return gamma(a, delta);
    case Law::pareto:
      return pareto(a, delta);
    case Law::exponential:
      break;
  }
  return exponential(a.mean, delta);
}

double tail_threshold(Law law, double low, const Moments& z, double delta) {
  const double mean = std::max(z.mean, 0.0);
  if (law == Law::exponential) return low + exponential(mean, delta);
  return low + pareto({z.count, mean, z.variance, 0}, delta);
}

uint32_t max_stages(double delta) {
  const double stages = std::ceil(std::log(delta) / std::log(0.5));
  return static_cast<uint32_t>(std::clamp(stages, 1.0, double{kMostStages}));
}

uint32_t fixed_stages(double delta) {
  const double later = std::round(std::log(kFirstRatio / delta) / std::log(kLaterParts));
  return 1 + static_cast<uint32_t>(std::max(later, 0.0));
}

Adaptation Adaptation::read(std::span<const float> state) {
  if (state.size() < kFloats || !(state[0] >= 1)) return {};
  return {state[0], state[1], state[2], state[3], state[4], state[5]};
}

void Adaptation::write(std::span<float> state) const {
  const float all[kFloats] = {stages, direction, previous, sum, calls, updates};
  std::copy_n(all, std::min<std::size_t>(kFloats, state.size()), state.begin());
}

void Adaptation::observe(Mode mode, double selected_of_wanted, uint32_t most_stages) {
  sum += static_cast<float>(selected_of_wanted);
  calls += 1;
  if (calls < kPeriod) return;
  const double now = static_cast<double>(sum / calls);
  if (mode == Mode::signed_direction && updates > 0 &&
      !keeps_direction(now, static_cast<double>(previous))) {
    direction = -direction;
  }
  const float u = mode == Mode::faithful ? 1.0F : direction;
  if (now > 1 + kTolerance) stages -= u;
  if (now < 1 - kTolerance) stages += u;
  stages = std::clamp(stages, 1.0F, static_cast<float>(most_stages));
  previous = static_cast<float>(now);
  updates = 1;  // only "has there been one" is asked
  sum = 0;
  calls = 0;
}

}  // namespace laconic::codecs::sidco
