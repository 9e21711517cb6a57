// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Rates, sizes, times and shares as people type them. Every parser is total and names the valid
// units.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"

namespace laconic::lab {

using Duration = std::chrono::microseconds;

/// A rate in bits per second; kUnshaped means that nothing holds packets back.
using BitRate = uint64_t;
inline constexpr BitRate kUnshaped = 0;

/// Bytes that an Ethernet frame carries after its header.
inline constexpr uint32_t kUsualMtu = 1500;

/// "50mbit", "2.5 gbit", "off". Units bit, kbit, mbit, gbit, tbit are powers of 1000; a bare number
/// is refused.
Result<BitRate> parse_rate(std::string_view text);

/// "100mbit,10mbit": one rate or several.
Result<std::vector<BitRate>> parse_rates(std::string_view text);

/// "64kb", "1mb", "1500b", "1500": bytes, with powers of 1024 as `tc` has them.
Result<uint64_t> parse_size(std::string_view text);

/// "10ms", "1.5s", "2min", "20": seconds without a unit.
Result<Duration> parse_time(std::string_view text);

/// "1%", "0.05%": a share in [0, 1).
Result<double> parse_share(std::string_view text);

std::string format_rate(BitRate rate);
std::string format_size(uint64_t bytes);
std::string format_share(double share);
std::string format_rates(const std::vector<BitRate>& rates);
/// "5ms", "0.2ms", "3s".
std::string format_time(Duration time);

/// Seconds as a number, for JSON and tables.
double seconds(Duration time);

/// At `at` after the start the rate of every port becomes `rate`.
struct RateChange {
  Duration at{};
  BitRate rate = kUnshaped;
  bool operator==(const RateChange&) const = default;
};

/// "t=0 100mbit, t=20 10mbit, t=40s off": times must increase.
Result<std::vector<RateChange>> parse_schedule(std::string_view text);

}  // namespace laconic::lab
