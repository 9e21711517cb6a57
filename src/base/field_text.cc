// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/field_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/concat.h"
#include "base/nearest.h"

namespace laconic {
namespace {

constexpr double kLargestInteger =
    9007199254740992.0;  // 2^53: every integer up to here is a double

template <class Number>
std::string to_text(Number value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

/// "1e+05" and "1e-05" → "1e5" and "1e-5".
std::string shortest_exponent(std::string text) {
  const auto e = text.find('e');
  if (e == std::string::npos) return text;
  if (text[e + 1] == '+') text.erase(e + 1, 1);
  const auto first_digit = e + 1 + (text[e + 1] == '-' ? 1U : 0U);
  while (text.size() > first_digit + 1 && text[first_digit] == '0') text.erase(first_digit, 1);
  return text;
}

/// k M G count in thousands, Ki Mi Gi in 1024s; 0 for anything else.
double suffix_factor(std::string_view suffix) {
  constexpr std::array<std::pair<std::string_view, double>, 7> kSuffixes{{{"", 1.0},
                                                                          {"k", 1e3},
                                                                          {"M", 1e6},
                                                                          {"G", 1e9},
                                                                          {"Ki", 1024.0},
                                                                          {"Mi", 1048576.0},
                                                                          {"Gi", 1073741824.0}}};
  for (const auto& [name, factor] : kSuffixes) {
    if (suffix == name) return factor;
  }
  return 0;
}

Error not_a_number(std::string_view text) {
  return {Errc::spec_syntax, concat({"'", text, "' is not a number"}),
          "write it like 0.01, 1e-3, 256, 16k or 4Mi (no plus sign in an exponent)"};
}

Error out_of_range(const Field& field, std::string_view text) {
  return {Errc::value_out_of_range, concat({"'", text, "' is out of range"}),
          concat({field.name, " accepts ", range_text(field), "; the default is ",
                  value_text(field, field.fallback)})};
}

Error not_whole(const Field& field, std::string_view text) {
  return {Errc::value_out_of_range, concat({"'", text, "' is not a whole number"}),
          concat({field.name, " accepts ", range_text(field)})};
}

Error not_a_choice(const Field& field, std::string_view text, std::string_view near) {
  const std::string guess = near.empty() ? "" : concat({"did you mean '", near, "'? "});
  return {Errc::value_out_of_range, concat({"'", text, "' is not a choice"}),
          concat({guess, field.name, " accepts ", range_text(field)})};
}

bool in_range(const Field& field, double value) {
  return value >= field.min && (field.max_open ? value < field.max : value <= field.max);
}

/// The value converted to the member's type, using a copy of `params`.
double converted(const Field& field, ParamBlock scratch, double value) {
  field.set(scratch.bytes.data(), value);
  return field.get(scratch.bytes.data());
}

/// A bound that the member's type cannot hold exactly (0.1 in a float) is itself converted before
/// the comparison.
bool in_converted_range(const Field& field, const ParamBlock& scratch, double value) {
  const double low = std::min(field.min, converted(field, scratch, field.min));
  const double high = converted(field, scratch, field.max);
  return value >= low && (field.max_open ? value < std::min(field.max, high) : value <= high);
}

Result<double> read_number(const Field& field, std::string_view text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc::result_out_of_range) return out_of_range(field, text);
  const double factor = suffix_factor(text.substr(static_cast<std::size_t>(end - text.data())));
  if (status != std::errc{} || factor == 0 || !std::isfinite(value)) return not_a_number(text);
  value = value * factor + 0.0;  // -0 becomes 0
  if (!in_range(field, value)) return out_of_range(field, text);
  const bool whole = value == std::trunc(value) && std::fabs(value) <= kLargestInteger;
  if (field.type == FieldType::integer && !whole) return not_whole(field, text);
  return value;
}

Result<double> read_word(std::span<const std::string_view> words, const Field& field,
                         std::string_view text) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<double>(found - words.begin());
  return not_a_choice(field, text, nearest(text, {words.begin(), words.end()}));
}

constexpr std::array<std::string_view, 2> kFlagWords{"off", "on"};

Result<double> read_value(const Field& field, std::string_view text) {
  switch (field.type) {
    case FieldType::word:
      return read_word(field.words, field, text);
    case FieldType::flag:
      return read_word(kFlagWords, field, text);
    case FieldType::real:
    case FieldType::integer:
      break;
  }
  return read_number(field, text);
}

std::string joined(std::span<const std::string_view> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace

std::string number_text(double value) {
  const double magnitude = std::fabs(value);
  if (value == std::trunc(value) && magnitude < 1e7) return to_text(static_cast<int64_t>(value));
  return shortest_exponent(to_text(value));
}

std::string_view field_type_name(FieldType type) noexcept {
  constexpr std::array<std::string_view, 4> kNames{"real", "integer", "word", "flag"};
  return kNames[static_cast<std::size_t>(type)];
}

std::string value_text(const Field& field, double value) {
  switch (field.type) {
    case FieldType::word:
      return std::string(field.words[static_cast<std::size_t>(value)]);
    case FieldType::flag:
      return std::string(kFlagWords[value != 0 ? 1 : 0]);
    case FieldType::integer:
      return std::fabs(value) <= kLargestInteger ? to_text(static_cast<int64_t>(value))
                                                 : number_text(value);
    case FieldType::real:
      break;
  }
  return number_text(value);
}

std::string range_text(const Field& field) {
  if (field.type == FieldType::word) return joined(field.words);
  if (field.type == FieldType::flag) return joined(kFlagWords);
  return value_text(field, field.min) + " to " + value_text(field, field.max) +
         (field.max_open ? " (exclusive)" : "");
}

std::string member_text(const Field& field, const void* params) {
  const double value = field.get(params);
  if (field.type != FieldType::real) return value_text(field, value);
  // A float member is printed with a float's digits, unless rounding twice on the way back would
  // miss it.
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) == value && value != std::trunc(value)) {
    const std::string text = shortest_exponent(to_text(single));
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    if (static_cast<float>(back) == single && in_range(field, back)) {
      ParamBlock scratch{};
      if (converted(field, scratch, back) == value) return text;
    }
  }
  return number_text(value);
}

Result<void> read_member(const Field& field, std::string_view text, void* params) {
  const Result<double> value = read_value(field, text);
  if (!value) return value.error();
  const ParamBlock scratch{};
  if (!in_converted_range(field, scratch, converted(field, scratch, *value)))
    return out_of_range(field, text);
  field.set(params, *value);
  return {};
}

}  // namespace laconic
