// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Expected values of parameters that are sent as fixed point, by plain loops in double: written
// from docs/format/DATAGRAM.md, section 7, without the library. One object plays all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace laconic::test {

class FixedOracle {
 public:
  using Floats = std::vector<float>;
  struct Settings {
    uint32_t world = 1;
    uint64_t values = 64;  ///< lanes of a block
    bool feedback = true;
    float decay = 1;
  };
  /// One parameter, whose blocks begin with number `first`.
  FixedOracle(const Settings& settings, uint64_t count, uint64_t first)
      : s_(settings), first_(first), residual_(settings.world, Floats(count)) {}

  [[nodiscard]] uint64_t granules() const {
    return (residual_[0].size() + s_.values - 1) / s_.values;
  }
  [[nodiscard]] float range() const { return static_cast<float>(range_); }
  [[nodiscard]] const Floats& residual(uint32_t rank) const { return residual_[rank]; }

  /// Would this rank say that the sum is of no use? Before the exchange.
  [[nodiscard]] bool refuses(const std::vector<Floats>& g, uint32_t rank) const {
    if (zero(g[rank])) return false;
    double range = range_;
    if (range == 0) {
      double most = 0;
      for (uint32_t r = 0; r < s_.world; ++r) {
        if (!zero(g[r])) most = std::max(most, largest(joined(g[r], r)));
      }
      range = wanted(rounded_up(most));
    }
    return !(largest(joined(g[rank], rank)) < range);
  }
  [[nodiscard]] bool asks() const { return range_ == 0; }

  using In = std::function<bool(uint32_t rank, uint64_t granule)>;
  /// Returns the mean of all ranks. `of_use`: no rank in the sums of the bucket has refused.
  Floats exchange(const std::vector<Floats>& g, const In& in, bool of_use) {
    const uint64_t n = g[0].size();
    if (range_ == 0) {
      double most = 0;
      for (uint32_t r = 0; r < s_.world; ++r)
        if (!zero(g[r])) most = std::max(most, largest(joined(g[r], r)));
      range_ = most == 0 ? 0x1p-100 : wanted(rounded_up(most));
    }
    const double unit = range_ / std::pow(2.0, 25);
    double heard = 0;
    std::vector<double> sum(n);
    std::vector<int> divisor(n);
    for (uint32_t r = 0; r < s_.world; ++r) {
      const bool none = zero(g[r]);
      const Floats x = joined(g[r], r);
      const double most = none ? 0 : largest(x);
      const bool sends = !none && most < range_;
      for (uint64_t i = 0; i < n; ++i) {
        const bool is_in = in(r, first_ + i / s_.values);
        divisor[i] += is_in ? 1 : 0;
        if (is_in && std::isfinite(most)) heard = std::max(heard, rounded_up(most));
        const double code = sends ? std::nearbyint(static_cast<double>(x[i]) / unit) : 0;
        if (is_in) sum[i] += code;
        if (!s_.feedback) continue;
        float& e = residual_[r][i];
        if (of_use) {
          if (sends) e = is_in ? static_cast<float>(x[i] - code * unit) : x[i];
          if (!sends && !none && std::isfinite(most)) e = e + g[r][i];  // no rank has received it
        } else if (sends) {
          e = s_.decay == 1 ? x[i] - g[r][i]
                            : x[i] * (1.0F / s_.decay) - g[r][i] * (1.0F / s_.decay);
        }
      }
    }
    Floats mean(n);
    for (uint64_t i = 0; i < n && of_use; ++i)
      mean[i] = static_cast<float>(sum[i] * unit / divisor[i]);
    if (heard != 0) range_ = std::max(wanted(heard), range_ / 2);
    if (of_use) return mean;
    for (uint64_t i = 0; i < n; ++i) {  // uncompressed, in rank order
      const float part = 1.0F / static_cast<float>(s_.world);
      mean[i] = g[0][i] * part;
      for (uint32_t r = 1; r < s_.world; ++r) mean[i] += g[r][i] * part;
    }
    return mean;
  }

 private:
  static bool zero(const Floats& x) {
    return std::all_of(x.begin(), x.end(), [](float v) { return v == 0; });
  }
  /// Infinity where one is not finite.
  static double largest(const Floats& x) {
    double most = 0;
    for (const float v : x) {
      if (!std::isfinite(v)) return INFINITY;
      most = std::max(most, std::abs(double{v}));
    }
    return most;
  }
  [[nodiscard]] Floats joined(const Floats& g, uint32_t rank) const {
    Floats x = g;
    for (uint64_t i = 0; i < x.size() && s_.feedback; ++i)
      x[i] = s_.decay == 1 ? residual_[rank][i] + g[i] : s_.decay * residual_[rank][i] + g[i];
    return x;
  }
  /// Eight bits of significand.
  static double rounded_up(double x) {
    int exponent = 0;
    const double m = std::frexp(x, &exponent);
    return std::ldexp(std::ceil(std::ldexp(m, 8)), exponent - 8);
  }
  /// 64 times as much, up to the next power of two.
  static double wanted(double largest) {
    return std::clamp(std::exp2(std::floor(std::log2(largest)) + 7), 0x1p-100, 0x1p126);
  }

  Settings s_;
  uint64_t first_;
  double range_ = 0;
  std::vector<Floats> residual_;
};

}  // namespace laconic::test
