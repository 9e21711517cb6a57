// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace laconic {

/// Writes JSON text front to back; the library says what it knows this way without depending on a
/// JSON library (tools parse with one). The caller opens and closes objects and lists in order.
class JsonText {
 public:
  JsonText() = default;
  /// In the memory of a text that is not needed any more.
  explicit JsonText(std::string memory) : text_(std::move(memory)) { text_.clear(); }

  JsonText& open(char bracket) {
    comma();
    text_ += bracket;
    fresh_ = true;
    return *this;
  }
  JsonText& close(char bracket) {
    text_ += bracket;
    fresh_ = false;
    return *this;
  }
  JsonText& key(std::string_view name) {
    comma();
    quote(name);
    text_ += ": ";
    fresh_ = true;
    return *this;
  }
  JsonText& value(std::string_view text) {
    comma();
    quote(text);
    return *this;
  }
  JsonText& value(const char* text) { return value(std::string_view(text)); }
  JsonText& value(bool b) { return raw(b ? "true" : "false"); }
  JsonText& value(uint64_t n) { return raw(std::to_string(n)); }
  JsonText& value(uint32_t n) { return raw(std::to_string(n)); }
  JsonText& value(double x) {
    if (!std::isfinite(x)) return null();
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
    return raw(std::string_view(buffer, static_cast<size_t>(end - buffer)));
  }
  JsonText& null() { return raw("null"); }
  template <class T>
  JsonText& field(std::string_view name, const T& x) {
    return key(name).value(x);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!fresh_) text_ += ", ";
    fresh_ = false;
  }
  JsonText& raw(std::string_view token) {
    comma();
    text_ += token;
    return *this;
  }
  void quote(std::string_view s) {
    static constexpr char kHex[] = "0123456789abcdef";
    text_ += '"';
    for (const char c : s) {
      const auto u = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (u < 0x20) {
        text_ += "\\u00";
        text_ += kHex[u >> 4];
        text_ += kHex[u & 15];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace laconic
