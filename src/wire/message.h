// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Messages of parsers: "frame: <field>: expected <what>, found <what>". Used on failure only.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "laconic/error.h"

namespace laconic::wire {

/// A value in a message: a number in decimal, or text as it is.
class Said {
 public:
  template <std::integral T>
  Said(T number) : text_(std::to_string(number)) {}   // NOLINT(google-explicit-constructor)
  Said(std::string text) : text_(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Said(const char* text) : text_(text) {}             // NOLINT(google-explicit-constructor)
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

/// "0x" and that many hexadecimal digits.
std::string hex(uint64_t value, int digits);

std::string at_least(uint64_t value);
std::string at_most(uint64_t value);

/// `what` is "frame" or "bundle".
Error mismatch(Errc code, std::string_view what, std::string_view field, const Said& expected,
               const Said& found, std::string hint = {});

}  // namespace laconic::wire
