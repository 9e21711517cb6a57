// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Report: what a rank observed in one step, in the 12 bytes that other ranks receive. A rank
// decides from its own report as it is sent, rounded, so that all decide the same.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace laconic::control {

/// 16 bits for a number of units >= 0: 5 bits of exponent e above 11 of mantissa m, which mean
///     m                      e = 0
///     (2048 + m) * 2^(e-1)   e > 0
/// so that whole numbers below 4096 are exact and others within one part in 4096. To nearest, ties
/// to even. 0 means "not measured": a number that rounds to 0 becomes 1, one above kLargestUnits,
/// infinity too, becomes kLargestUnits, and what is negative or NaN was not measured.
[[nodiscard]] uint16_t pack_units(double units) noexcept;
[[nodiscard]] double unpack_units(uint16_t code) noexcept;
inline constexpr double kLargestUnits = 4095.0 * (1U << 30);

/// A number in units of 1 / `PerOne`.
template <uint32_t PerOne>
class Measured {
 public:
  constexpr Measured() = default;
  [[nodiscard]] static Measured of(double value) noexcept {
    return from_code(pack_units(value * PerOne));
  }
  [[nodiscard]] static constexpr Measured from_code(uint16_t code) noexcept {
    Measured m;
    m.code_ = code;
    return m;
  }
  [[nodiscard]] constexpr uint16_t code() const noexcept { return code_; }
  [[nodiscard]] constexpr bool missing() const noexcept { return code_ == 0; }
  /// 0 where it is missing.
  [[nodiscard]] double value() const noexcept { return unpack_units(code_) / PerOne; }
  bool operator==(const Measured&) const = default;

 private:
  uint16_t code_ = 0;
};
/// Seconds, in units of 1/16 µs: up to 76 hours.
using Duration = Measured<16'000'000>;
/// In units of 1/4096: up to 1.07e9.
using Ratio = Measured<4096>;

inline constexpr std::size_t kReportWords = 6;
inline constexpr std::size_t kReportBytes = 2 * kReportWords;

/// One rank about one step.
struct Report {
  Duration network;  ///< in collectives
  Duration encode;
  Duration decode;
  Duration step;          ///< the whole step
  Ratio residual;         ///< norm of the residual over norm of the gradient, sampled
  uint16_t settings = 0;  ///< low 16 bits of the hash of the settings in force

  /// True without a measured network time: the rank was left out, has no previous step, or sent
  /// invalid values.
  [[nodiscard]] constexpr bool missing() const noexcept { return network.missing(); }
  bool operator==(const Report&) const = default;
};

/// A report as it travels: its fields in the order above. Any words are a report, and zeros are a
/// missing one: where slots are summed, that of a rank left out.
[[nodiscard]] std::array<uint16_t, kReportWords> report_words(const Report& report) noexcept;
[[nodiscard]] Report report_of_words(std::span<const uint16_t, kReportWords> words) noexcept;
/// The same words, little endian.
void store_report(const Report& report, std::span<uint8_t, kReportBytes> out) noexcept;
[[nodiscard]] Report load_report(std::span<const uint8_t, kReportBytes> bytes) noexcept;

/// The network time alone: seconds of the rank that arrived last, which did not wait; those of
/// others include its delay. Missing if all reports are.
[[nodiscard]] Duration agreed_network(std::span<const Report> reports) noexcept;

}  // namespace laconic::control
