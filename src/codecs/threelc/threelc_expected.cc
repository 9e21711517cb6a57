// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How long a payload of normal elements is on average. Ranks compare what they plan, so this uses
// additions, products and quotients only, which are the same everywhere; the C library's exp and
// log are not.
#include <algorithm>
#include <array>
#include <bit>

#include "codecs/threelc/threelc_layout.h"
#include "codecs/threelc/threelc_work.h"
#include "kernels/threelc/zero_run.h"

namespace laconic::codecs::threelc {
namespace {

// The median of the largest of 4^i magnitudes of standard normal numbers.
constexpr std::array<double, 21> kMedianMax{0.395, 1.362, 2.021, 2.548, 2.999, 3.399, 3.761,
                                            4.095, 4.405, 4.697, 4.972, 5.235, 5.485, 5.725,
                                            5.956, 6.179, 6.394, 6.603, 6.805, 7.002, 7.194};

// In between, linear in the logarithm, which is taken as linear between powers of two.
double median_max(uint64_t count) {
  const auto whole = static_cast<uint64_t>(std::bit_width(count)) - 1;
  const double part = static_cast<double>(count) / static_cast<double>(uint64_t{1} << whole) - 1;
  const uint64_t i = std::min<uint64_t>(whole / 2, kMedianMax.size() - 2);
  const double at = (static_cast<double>(whole - 2 * i) + part) / 2;
  return kMedianMax[i] + (kMedianMax[i + 1] - kMedianMax[i]) * at;
}

template <class T>
constexpr T power(T x, uint32_t exponent) {
  T product = 1;
  for (uint32_t i = 0; i < exponent; ++i) product *= x;
  return product;
}

// e^-y for 0 <= y << 4096, as (1 - y/4096)^4096.
double exp_minus(double y) {
  double x = 1 - y / 4096;
  for (int i = 0; i < 12; ++i) x *= x;
  return x;
}

// The chance that a standard normal number lies further from 0 than z. Abramowitz and Stegun,
// 7.1.26.
double beyond(double z) {
  const double x = z * 0.70710678118654752;
  const double t = 1 / (1 + 0.3275911 * x);
  const double sum =
      t *
      (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return sum * exp_minus(x * x);
}

// Coded bytes per column, of elements of which `share` are not 0: a byte of its own where one of
// five is not, else a part of a run of at most kLongestRun.
double bytes_per_column(double share) {
  const double zero = power(1 - share, kDigits);
  const double other = 1 - zero;
  if (other < 1e-9) return 1.0 / kernels::kLongestRun;
  return other + other * zero / (1 - power(zero, kernels::kLongestRun));
}

double coded_bytes(double s, uint64_t count) {
  const double share = beyond(s * median_max(count) / 2);
  return static_cast<double>(rows_of(count).columns) * bytes_per_column(share);
}

}  // namespace

uint64_t expected_bytes(const ThreeLc::Params& params, uint64_t count) noexcept {
  const auto s = static_cast<double>(params.s);
  if (count == 0) return 0;
  const auto ceil = [](double x) { return static_cast<uint64_t>(x) + 1; };
  if (!params.zre) return ~uint64_t{0};  // all that there may be
  if (params.scale == ThreeLc::Scale::unit) return kScaleBytes + ceil(coded_bytes(s, count));
  const Chunks chunks = chunks_of(count);
  const uint64_t last = count - chunks.first(chunks.count - 1);
  const double whole = coded_bytes(s, std::min(count, kChunkElements));
  return chunks.header_bytes() +
         ceil(static_cast<double>(chunks.count - 1) * whole + coded_bytes(s, last));
}

}  // namespace laconic::codecs::threelc
