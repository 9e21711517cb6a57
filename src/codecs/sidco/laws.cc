// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/laws.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace laconic::codecs::sidco {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;

double normal_upper(double z) { return std::erfc(z * kSqrtHalf) / 2; }

double laplace_upper(double z) { return z >= 0 ? std::exp(-z) / 2 : 1 - std::exp(z) / 2; }

double pareto_upper(double xi, double z) {
  if (std::fabs(xi) < kNoShape) return std::exp(-z);
  const double base = xi * z;
  return base <= -1 ? 0 : std::exp(-std::log1p(base) / xi);  // ξ < 0 ends at -1/ξ
}

/// The largest difference within a range of ranks. Between two elements whose values are known the
/// difference is at most what the larger rank and the smaller value, or the reverse, would give:
/// a range that cannot beat the best so far is left out.
class KsSearch {
 public:
  template <class Distribution>
  KsSearch(uint64_t n, const Distribution& at) : n_(static_cast<double>(n)) {
    const double first = seen(0, at(0));
    if (n > 1) between(0, first, n - 1, seen(n - 1, at(n - 1)), at);
  }
  [[nodiscard]] double best() const noexcept { return best_; }

 private:
  /// The distribution steps from i/n to (i + 1)/n at element i.
  double seen(uint64_t i, double value) {
    const auto rank = static_cast<double>(i);
    best_ = std::max({best_, (rank + 1) / n_ - value, value - rank / n_});
    return value;
  }
  template <class Distribution>
  void between(uint64_t i, double low, uint64_t j, double high, const Distribution& at) {
    if (j - i < 2) return;
    const double bound =
        std::max(static_cast<double>(j) / n_ - low, high - static_cast<double>(i + 1) / n_);
    if (bound <= best_) return;
    const uint64_t middle = i + (j - i) / 2;
    const double value = seen(middle, at(middle));
    between(i, low, middle, value, at);
    between(middle, value, j, high, at);
  }

  double n_;
  double best_ = 0;
};

}  // namespace

MagnitudeLaw MagnitudeLaw::exponential(double mean) { return {Kind::exponential, 0, mean}; }

std::optional<MagnitudeLaw> MagnitudeLaw::gamma(const Moments& a) {
  const Shape fit = gamma_fit(a);
  if (!fit.known) return {};
  return MagnitudeLaw(Kind::gamma, fit.shape, fit.scale);
}

std::optional<MagnitudeLaw> MagnitudeLaw::pareto(const Moments& m) {
  const Shape fit = pareto_fit(m);
  if (!fit.known) return {};
  return MagnitudeLaw(Kind::pareto, fit.shape, fit.scale);
}

std::optional<MagnitudeLaw> MagnitudeLaw::normal(std::span<const float> x) {
  if (x.size() < 2) return {};
  const auto n = static_cast<double>(x.size());
  double mean = 0;
  for (const float v : x) mean += static_cast<double>(v);
  mean /= n;
  double square = 0;
  for (const float v : x)
    square += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  const double deviation = std::sqrt(square / (n - 1));
  if (!(deviation > 0)) return {};
  return MagnitudeLaw(Kind::normal, mean, deviation);
}

std::optional<MagnitudeLaw> MagnitudeLaw::laplace(std::span<const float> x) {
  if (x.size() < 2) return {};
  std::vector<float> values(x.begin(), x.end());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const auto median = static_cast<double>(*middle);
  double distance = 0;
  for (const float v : x) distance += std::fabs(static_cast<double>(v) - median);
  if (!(distance > 0)) return {};
  return MagnitudeLaw(Kind::laplace, median, distance / static_cast<double>(x.size()));
}

MagnitudeLaw MagnitudeLaw::of_stage(Law law, bool first, const Moments& m) {
  std::optional<MagnitudeLaw> found;
  if (law == Law::gamma_pareto && first) {
    found = gamma(m);
  } else if (law != Law::exponential) {
    found = pareto(m);
  }
  return found ? *found : exponential(m.mean);
}

double MagnitudeLaw::upper(double a) const {
  if (a <= 0) return 1;
  const double z = a / scale_;
  const double centre = shape_ / scale_;
  switch (kind_) {
    case Kind::gamma:
      return upper_gamma(shape_, z);
    case Kind::pareto:
      return pareto_upper(shape_, z);
    case Kind::normal:
      return normal_upper(z - centre) + normal_upper(z + centre);
    case Kind::laplace:
      return laplace_upper(z - centre) + laplace_upper(z + centre);
    case Kind::exponential:
      break;
  }
  return std::exp(-z);
}

double ks_distance(std::span<const float> ascending, const MagnitudeLaw& law, double unit,
                   double low) {
  if (ascending.empty()) return 0;
  return KsSearch(ascending.size(),
                  [&](uint64_t i) {
                    return 1 - law.upper(static_cast<double>(ascending[i]) / unit - low);
                  })
      .best();
}

std::optional<double> compressibility(std::span<const float> ascending, uint64_t from) {
  constexpr uint64_t kRanks = 64;
  const uint64_t n = ascending.size();
  const uint64_t first = std::max<uint64_t>(from, 1);
  if (n / 2 <= first) return {};
  const double span = std::log(static_cast<double>(n / 2) / static_cast<double>(first));
  uint64_t last = 0;
  double points = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (uint64_t i = 0; i < kRanks; ++i) {
    const double part = static_cast<double>(i) / (kRanks - 1);
    const auto rank =
        static_cast<uint64_t>(std::llround(static_cast<double>(first) * std::exp(part * span)));
    if (rank == last) continue;
    last = rank;
    const double ln_rank = std::log(static_cast<double>(rank));
    const double ln_value = std::log(static_cast<double>(ascending[n - rank]));
    points += 1;
    x += ln_rank;
    y += ln_value;
    xx += ln_rank * ln_rank;
    xy += ln_rank * ln_value;
  }
  if (points < 8) return {};
  return (x * y / points - xy) / (xx - x * x / points);
}

}  // namespace laconic::codecs::sidco
