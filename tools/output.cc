// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/json_text.h"

namespace laconic::tools {
namespace {

/// Columns that a UTF-8 text takes (every character here is one wide).
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, std::size_t width, Table::Align align) {
  const std::string gap(width - std::min(width, width_of(text)), ' ');
  return align == Table::Align::right ? gap + std::string(text) : std::string(text) + gap;
}

/// A bar would end the cell.
std::string markdown_cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

void print_line(const std::string& line) {
  const auto end = line.find_last_not_of(' ');
  fmt::print("{}\n", std::string_view(line).substr(0, end + 1));
}

}  // namespace

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = width_of(columns_[i].heading);
    for (const auto& row : rows_) width = std::max(width, width_of(row[i]));
    widths.push_back(width);
  }
  return widths;
}

void Table::print() const {
  const auto width = widths();
  std::string heading;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    heading += padded(columns_[i].heading, width[i], columns_[i].align) + "  ";
  }
  if (use_colour()) heading = "\x1b[1m" + heading + "\x1b[0m";
  print_line(heading);
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += padded(row[i], width[i], columns_[i].align) + "  ";
    print_line(line);
  }
}

void Table::print_markdown() const {
  std::string heading = "|", rule = "|";
  for (const Column& column : columns_) {
    heading += fmt::format(" {} |", markdown_cell(column.heading));
    rule += column.align == Align::right ? "---:|" : "---|";
  }
  fmt::print("{}\n{}\n", heading, rule);
  for (const auto& row : rows_) {
    std::string line = "|";
    for (const std::string& cell : row) line += fmt::format(" {} |", markdown_cell(cell));
    fmt::print("{}\n", line);
  }
}

bool use_colour() noexcept {
  const char* const no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

void print_json(const Json& value) { fmt::print("{}\n", value.dump(kJsonIndented)); }

int fail(const Error& error, bool json, int status) {
  if (json) {
    print_json({{"error",
                 {{"code", static_cast<int32_t>(error.code)},
                  {"name", errc_name(error.code)},
                  {"message", error.message},
                  {"hint", error.hint}}}});
    return status;
  }
  fmt::print(stderr, "laconic: {} ({} {})\n",
             error.message.empty() ? errc_name(error.code) : error.message, errc_name(error.code),
             static_cast<int32_t>(error.code));
  if (!error.hint.empty()) fmt::print(stderr, "  {}\n", error.hint);
  return status;
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return value == static_cast<double>(static_cast<uint64_t>(value))
             ? fmt::format("{:.0f} {}", value, kUnits[unit])
             : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace laconic::tools
