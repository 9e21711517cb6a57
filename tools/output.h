// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How commands speak: tables for people, JSON for machines, errors with the next thing to try.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "laconic/error.h"

namespace laconic::tools {

/// Rows under headings, columns aligned; numbers to the right. Headings are bold on a terminal
/// (unless NO_COLOR is set) and plain elsewhere.
class Table {
 public:
  enum class Align : uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;
  void print_markdown() const;

 private:
  [[nodiscard]] std::vector<std::size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Colour is for terminals whose owner did not set NO_COLOR (no-color.org).
bool use_colour() noexcept;

void print_json(const Json& value);

/// {"error": {"code", "name", "message", "hint"}} on standard output, or a message on standard
/// error. Gives `status` back.
int fail(const Error& error, bool json, int status);

/// "4.0 MiB", "268.4 kB" would be ambiguous: powers of 1024 only.
std::string bytes_text(uint64_t bytes);

}  // namespace laconic::tools
