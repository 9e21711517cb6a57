// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace laconic::control {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Every number that has a code, in the order of the codes: counting up by 1, twice as much after
/// every 2048 codes but for the first.
std::vector<double> all_numbers() {
  std::vector<double> numbers;
  double number = 0;
  double gap = 1;
  for (int code = 0; code < 65536; ++code) {
    if (code >= 4096 && code % 2048 == 0) gap *= 2;
    numbers.push_back(number);
    number += gap;
  }
  return numbers;
}

/// The nearest number by looking at both neighbours; of two the one with the even code.
uint16_t nearest(const std::vector<double>& numbers, double x) {
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), x);
  if (above == numbers.end()) return 0xFFFF;
  auto code = static_cast<size_t>(above - numbers.begin());
  if (code > 0) {
    const double up = numbers[code] - x;
    const double down = x - numbers[code - 1];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<uint16_t>(code == 0 ? 1 : code);
}

TEST(ReportNumber, EveryEncodingRoundTrips) {
  const std::vector<double> numbers = all_numbers();
  EXPECT_EQ(numbers.back(), kLargestUnits);
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto c = static_cast<uint16_t>(code);
    ASSERT_EQ(unpack_units(c), numbers[code]) << code;
    if (code != 0) {
      ASSERT_EQ(pack_units(numbers[code]), code);
    }
  }
}

TEST(ReportNumber, NumbersRoundToNearest) {
  const std::vector<double> numbers = all_numbers();
  std::mt19937_64 random(7);
  for (size_t code = 1; code < numbers.size(); ++code) {
    const double low = numbers[code - 1];
    const double high = numbers[code];
    const double middle = low + (high - low) / 2;
    const double anywhere = std::uniform_real_distribution<double>(low, high)(random);
    for (const double x : {std::nextafter(low, kInf), std::nextafter(middle, 0), middle,
                           std::nextafter(middle, kInf), std::nextafter(high, 0), anywhere}) {
      ASSERT_EQ(pack_units(x), nearest(numbers, x)) << code << ' ' << x;
    }
  }
}

TEST(ReportNumber, UnmeasuredNumbersAreMissing) {
  EXPECT_EQ(pack_units(0), 1);
  EXPECT_EQ(pack_units(-0.0), 1);
  EXPECT_EQ(pack_units(std::numeric_limits<double>::denorm_min()), 1);
  EXPECT_EQ(pack_units(-std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(pack_units(-1), 0);
  EXPECT_EQ(pack_units(-kInf), 0);
  EXPECT_EQ(pack_units(kNan), 0);
  EXPECT_EQ(pack_units(-kNan), 0);
  EXPECT_EQ(pack_units(kInf), 0xFFFF);
  EXPECT_EQ(pack_units(std::numeric_limits<double>::max()), 0xFFFF);
  EXPECT_EQ(pack_units(std::nextafter(kLargestUnits, 0)), 0xFFFF);
  EXPECT_EQ(unpack_units(0), 0);
}

TEST(ReportNumber, SecondsAndRatiosRoundTrip) {
  // 1 µs is 16 units; 1 s is 16e6 = 1953.125 * 2^13 units, so 13 bits are cut off.
  EXPECT_EQ(Duration::of(1e-6).code(), 16);
  EXPECT_EQ(Duration::of(1).value(), 3906 * 4096 / 16e6);
  EXPECT_EQ(Duration::of(0).value(), 1 / 16e6);
  EXPECT_TRUE(Duration().missing());
  EXPECT_TRUE(Duration::of(-1).missing());
  EXPECT_FALSE(Duration::of(0).missing());
  EXPECT_GT(Duration::of(kInf).value(), 76 * 3600);
  EXPECT_EQ(Ratio::of(9).value(), 9);
  EXPECT_EQ(Ratio::of(0.25).code(), 1024);
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto seconds = Duration::from_code(static_cast<uint16_t>(code));
    const auto ratio = Ratio::from_code(static_cast<uint16_t>(code));
    if (code != 0) {
      ASSERT_EQ(Duration::of(seconds.value()), seconds) << code;
      ASSERT_EQ(Ratio::of(ratio.value()), ratio) << code;
    }
  }
}

Report sample() {
  return {.network = Duration::from_code(0x0102),
          .encode = Duration::from_code(0x0304),
          .decode = Duration::from_code(0x0506),
          .step = Duration::from_code(0x0708),
          .residual = Ratio::from_code(0x090A),
          .settings = 0x0B0C};
}

TEST(Report, BytesAreItsFieldsInOrder) {
  std::array<uint8_t, kReportBytes> bytes{};
  store_report(sample(), bytes);
  const std::array<uint8_t, 12> expected{2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11};
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(load_report(bytes), sample());
  EXPECT_EQ(report_of_words(report_words(sample())), sample());
}

TEST(Report, AnyBytesAreAReportAndRoundTrip) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 1000; ++i) {
    std::array<uint8_t, kReportBytes> bytes{};
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    std::array<uint8_t, kReportBytes> again{};
    store_report(load_report(bytes), again);
    ASSERT_EQ(again, bytes);
  }
}

TEST(Report, ZerosAreMissingReport) {
  const std::array<uint8_t, kReportBytes> zeros{};
  EXPECT_EQ(load_report(zeros), Report());
  EXPECT_TRUE(Report().missing());
  EXPECT_FALSE(sample().missing());
  Report silent = sample();
  silent.network = {};
  EXPECT_TRUE(silent.missing());
}

TEST(Report, NetworkTimeIsThatOfLastArrival) {
  std::vector<Report> reports(4);
  EXPECT_TRUE(agreed_network(reports).missing());
  EXPECT_TRUE(agreed_network({}).missing());
  // 4 ranks, one of them 40 ms late: the others wait for it.
  for (Report& report : reports) report.network = Duration::of(0.184);
  reports[2].network = Duration::of(0.143);
  EXPECT_EQ(agreed_network(reports), Duration::of(0.143));
  reports[2].network = {};
  EXPECT_EQ(agreed_network(reports), Duration::of(0.184));
}

}  // namespace
}  // namespace laconic::control
