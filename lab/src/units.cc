// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

namespace laconic::lab {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array kRateUnits{Unit{"bit", 1e0}, Unit{"kbit", 1e3}, Unit{"mbit", 1e6},
                                Unit{"gbit", 1e9}, Unit{"tbit", 1e12}};
constexpr double kKi = 1024.0;
constexpr std::array kSizeUnits{
    Unit{"", 1},         Unit{"b", 1},         Unit{"k", kKi},           Unit{"kb", kKi},
    Unit{"m", kKi* kKi}, Unit{"mb", kKi* kKi}, Unit{"g", kKi* kKi* kKi}, Unit{"gb", kKi* kKi* kKi}};
constexpr std::array kTimeUnits{Unit{"", 1e6}, Unit{"us", 1e0}, Unit{"ms", 1e3}, Unit{"s", 1e6},
                                Unit{"min", 60e6}};

constexpr double kMaxRate = 1e13;                     // ten terabit per second
constexpr double kMaxSize = kKi * kKi * kKi;          // tc holds a size in 32 bits
constexpr double kMaxTime = 365.0 * 24 * 3600 * 1e6;  // a year, in microseconds

Error bad(std::string message, std::string hint) {
  return Error{Errc::invalid_argument, std::move(message), std::move(hint)};
}

std::string quoted(std::string_view text) { return std::string("'").append(text) + "'"; }

std::string_view trim(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

struct Kind {
  std::string_view what;
  std::span<const Unit> units;
  double max;
  std::string_view hint;
};

const Kind kRate{
    "rate", kRateUnits, kMaxRate,
    "bits per second with a unit, for example 50mbit; valid units: bit, kbit, mbit, gbit, "
    "tbit (powers of 1000); 'off' for an unshaped link"};
const Kind kSize{
    "size", kSizeUnits, kMaxSize,
    "bytes, for example 64kb; valid units: b, kb, mb, gb (powers of 1024, as tc has them)"};
const Kind kTime{"time", kTimeUnits, kMaxTime,
                 "for example 10ms; valid units: us, ms, s, min; seconds without a unit"};

/// number [space] unit, in the base unit of `kind`.
Result<double> parse_quantity(std::string_view text, const Kind& kind) {
  const std::string body = lower(trim(text));
  const auto refuse = [&](std::string_view why) {
    return bad(
        "cannot read the " + std::string(kind.what) + " " + quoted(text) + ": " + std::string(why),
        std::string(kind.hint));
  };
  double value = 0;
  const auto [end, status] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (status != std::errc() || !std::isfinite(value))
    return refuse("it does not start with a number");
  if (value < 0) return refuse("it is negative");
  const auto used = static_cast<std::size_t>(end - body.data());
  const std::string_view name = trim(std::string_view(body).substr(used));
  const auto unit = std::find_if(kind.units.begin(), kind.units.end(),
                                 [&](const Unit& u) { return u.name == name; });
  if (unit == kind.units.end())
    return refuse(name.empty() ? "it has no unit" : "unknown unit " + quoted(name));
  if (value * unit->factor > kind.max) return refuse("it is too large");
  return value * unit->factor;
}

std::string format_scaled(double value, double base, std::span<const std::string_view> names) {
  std::size_t step = 0;
  while (step + 1 < names.size() && value >= base) {
    value /= base;
    ++step;
  }
  std::array<char, 64> text{};
  const auto result =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 6);
  return std::string(text.data(), result.ptr) + std::string(names[step]);
}

/// One entry "t=20 10mbit" of a schedule.
Result<RateChange> parse_change(std::string_view entry) {
  constexpr std::string_view kHint = "a schedule reads 't=0 100mbit, t=20 10mbit, t=40 off'";
  const std::string_view body = trim(entry);
  const std::size_t space = body.find(' ');
  if (!body.starts_with("t=") || space == std::string_view::npos)
    return bad("cannot read the schedule entry " + quoted(body) + ": expected 't=TIME RATE'",
               std::string(kHint));
  const Result<Duration> at = parse_time(body.substr(2, space - 2));
  if (!at) return at.error();
  const Result<BitRate> rate = parse_rate(body.substr(space));
  if (!rate) return rate.error();
  return RateChange{*at, *rate};
}

}  // namespace

Result<BitRate> parse_rate(std::string_view text) {
  if (lower(trim(text)) == "off") return kUnshaped;
  const Result<double> bits = parse_quantity(text, kRate);
  if (!bits) return bits.error();
  // tc counts bytes per second; less than 8 kbit would need minutes for one packet.
  if (*bits < 8000)
    return bad("the rate " + quoted(text) + " is below 8kbit", "use 'off' for an unshaped link");
  return static_cast<BitRate>(std::llround(*bits));
}

Result<std::vector<BitRate>> parse_rates(std::string_view text) {
  std::vector<BitRate> rates;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const Result<BitRate> rate = parse_rate(rest.substr(0, comma));
    if (!rate) return rate.error();
    rates.push_back(*rate);
    if (comma == std::string_view::npos) return rates;
    rest.remove_prefix(comma + 1);
  }
}

Result<uint64_t> parse_size(std::string_view text) {
  const Result<double> bytes = parse_quantity(text, kSize);
  if (!bytes) return bytes.error();
  return static_cast<uint64_t>(std::llround(*bytes));
}

Result<Duration> parse_time(std::string_view text) {
  const Result<double> micros = parse_quantity(text, kTime);
  if (!micros) return micros.error();
  return Duration(std::llround(*micros));
}

Result<double> parse_share(std::string_view text) {
  const std::string_view body = trim(text);
  double value = 0;
  const auto [end, status] = std::from_chars(body.data(), body.data() + body.size(), value);
  const bool percent =
      trim(std::string_view(end, static_cast<std::size_t>(body.data() + body.size() - end))) == "%";
  if (status != std::errc() || !percent || !(value >= 0 && value < 100))
    return bad("cannot read the share " + quoted(text),
               "a percentage from 0% to below 100%, for example 1%");
  return value / 100;
}

std::string format_rate(BitRate rate) {
  static constexpr std::array<std::string_view, 5> kNames{"bit", "kbit", "mbit", "gbit", "tbit"};
  return rate == kUnshaped ? "off" : format_scaled(static_cast<double>(rate), 1000, kNames);
}

std::string format_size(uint64_t bytes) {
  static constexpr std::array<std::string_view, 4> kNames{"b", "kb", "mb", "gb"};
  return format_scaled(static_cast<double>(bytes), kKi, kNames);
}

std::string format_share(double share) {
  static constexpr std::array<std::string_view, 1> kNames{"%"};
  return format_scaled(share * 100, 1, kNames);
}

std::string format_rates(const std::vector<BitRate>& rates) {
  std::string text;
  for (const BitRate rate : rates) text += (text.empty() ? "" : ",") + format_rate(rate);
  return text;
}

std::string format_time(Duration time) {
  static constexpr std::array<std::string_view, 1> kSeconds{"s"}, kMillis{"ms"};
  return time.count() < 1'000'000 ? format_scaled(seconds(time) * 1e3, 1, kMillis)
                                  : format_scaled(seconds(time), 1, kSeconds);
}

double seconds(Duration time) { return static_cast<double>(time.count()) / 1e6; }

Result<std::vector<RateChange>> parse_schedule(std::string_view text) {
  std::vector<RateChange> changes;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const Result<RateChange> change = parse_change(rest.substr(0, comma));
    if (!change) return change.error();
    if (!changes.empty() && change->at <= changes.back().at)
      return bad("the times of the schedule " + quoted(text) + " do not increase",
                 "order the entries by their time");
    changes.push_back(*change);
    if (comma == std::string_view::npos) return changes;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace laconic::lab
