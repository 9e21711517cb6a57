// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/report.h"

#include <algorithm>
#include <cmath>

#include "laconic/bytes.h"

namespace laconic::control {
namespace {

constexpr int kMantissaBits = 11;
constexpr uint32_t kHidden = 1U << kMantissaBits;

}  // namespace

uint16_t pack_units(double units) noexcept {
  if (!(units >= 0)) return 0;
  if (units >= kLargestUnits) return 0xFFFF;
  // The last bit kept counts 2^shift units; scaling by powers of two is exact.
  const int shift = std::max(0, std::ilogb(std::max(units, 1.0)) - kMantissaBits);
  const double scaled = std::ldexp(units, -shift);
  const double whole = std::floor(scaled);
  const double rest = scaled - whole;
  auto mantissa = static_cast<uint32_t>(whole);
  if (rest > 0.5 || (rest == 0.5 && mantissa % 2 == 1)) ++mantissa;
  // With its highest bit, a mantissa of 2048 and more adds one to the exponent, one of 4096 two.
  const uint32_t code = (static_cast<uint32_t>(shift) << kMantissaBits) + mantissa;
  return static_cast<uint16_t>(std::clamp(code, 1U, 0xFFFFU));
}

double unpack_units(uint16_t code) noexcept {
  const uint32_t exponent = static_cast<uint32_t>(code) >> kMantissaBits;
  if (exponent == 0) return code;
  const uint32_t mantissa = kHidden + (code & (kHidden - 1));
  return static_cast<double>(static_cast<uint64_t>(mantissa) << (exponent - 1));
}

std::array<uint16_t, kReportWords> report_words(const Report& r) noexcept {
  return {r.network.code(), r.encode.code(),   r.decode.code(),
          r.step.code(),    r.residual.code(), r.settings};
}

Report report_of_words(std::span<const uint16_t, kReportWords> words) noexcept {
  return {.network = Duration::from_code(words[0]),
          .encode = Duration::from_code(words[1]),
          .decode = Duration::from_code(words[2]),
          .step = Duration::from_code(words[3]),
          .residual = Ratio::from_code(words[4]),
          .settings = words[5]};
}

void store_report(const Report& report, std::span<uint8_t, kReportBytes> out) noexcept {
  store(out.data(), report_words(report));
}

Report load_report(std::span<const uint8_t, kReportBytes> bytes) noexcept {
  const auto words = load<std::array<uint16_t, kReportWords>>(bytes.data());
  return report_of_words(words);
}

Duration agreed_network(std::span<const Report> reports) noexcept {
  Duration least;
  for (const Report& report : reports) {
    if (report.missing()) continue;
    // Codes are in the order of their numbers.
    if (least.missing() || report.network.code() < least.code()) least = report.network;
  }
  return least;
}

}  // namespace laconic::control
