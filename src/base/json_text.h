// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace laconic {

/// How JSON text is laid out.
struct JsonStyle {
  std::string_view comma, colon;
  std::size_t indent = 0;  ///< spaces for each level; 0: everything in one line
  bool reals = false;      ///< a double is written as a real number: 4.0, not 4
};
inline constexpr JsonStyle kJsonLine{", ", ": "};              ///< what the library says
inline constexpr JsonStyle kJsonCompact{",", ":", 0, true};    ///< one line, for a program
inline constexpr JsonStyle kJsonIndented{",", ": ", 2, true};  ///< what commands print

/// Bytes of the character that a text begins with; where that is not UTF-8, minus the number of
/// bytes to pass over.
inline int utf8_character(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  const int more = lead < 0xC2 || lead > 0xF4 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  // No longer form than needed, no halves of a pair, nothing above U+10FFFF.
  unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i <= more; ++i) {
    const unsigned next = at(static_cast<std::size_t>(i));
    if (next < least || next > most) return -i;
    least = 0x80;
    most = 0xBF;
  }
  return more == 0 ? -1 : more + 1;
}

/// Writes JSON text front to back, without depending on a JSON library. The caller opens and closes
/// objects and lists in order. Texts may hold any bytes: what is not UTF-8 becomes U+FFFD.
class JsonText {
 public:
  JsonText() = default;
  explicit JsonText(const JsonStyle& style) : style_(style) {}
  /// In the memory of a text that is not needed any more.
  explicit JsonText(std::string memory) : text_(std::move(memory)) { text_.clear(); }

  JsonText& open(char bracket) {
    next();
    text_ += bracket;
    first_ = true;
    ++depth_;
    return *this;
  }
  JsonText& close(char bracket) {
    --depth_;
    if (!first_) new_line();
    text_ += bracket;
    first_ = false;
    return *this;
  }
  JsonText& key(std::string_view name) {
    next();
    quote(name);
    text_ += style_.colon;
    behind_key_ = true;
    return *this;
  }
  JsonText& value(std::string_view text) {
    next();
    quote(text);
    return *this;
  }
  JsonText& value(const char* text) { return value(std::string_view(text)); }
  JsonText& value(const std::string& text) { return value(std::string_view(text)); }
  JsonText& value(bool b) { return raw(b ? "true" : "false"); }
  JsonText& value(uint64_t n) { return raw(std::to_string(n)); }
  JsonText& value(uint32_t n) { return raw(std::to_string(n)); }
  JsonText& value(int64_t n) { return raw(std::to_string(n)); }
  JsonText& value(int32_t n) { return raw(std::to_string(n)); }
  JsonText& value(double x) {
    if (!std::isfinite(x)) return null();
    char buffer[32];
    char* const last = buffer + sizeof buffer;
    const double size = std::fabs(x);
    const bool fixed = size == 0 || (size >= 1e-4 && size < 1e15);  // else with an exponent
    const auto done = !style_.reals ? std::to_chars(buffer, last, x)
                                    : std::to_chars(buffer, last, x,
                                                    fixed ? std::chars_format::fixed
                                                          : std::chars_format::scientific);
    const std::string_view token(buffer, static_cast<std::size_t>(done.ptr - buffer));
    raw(token);
    if (style_.reals && token.find_first_of(".e") == token.npos) text_ += ".0";
    return *this;
  }
  JsonText& null() { return raw("null"); }
  template <class T>
  JsonText& value(const std::optional<T>& x) {
    return x ? value(*x) : null();
  }
  template <class T>
  JsonText& field(std::string_view name, const T& x) {
    return key(name).value(x);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  /// Before a key, and before a value without one.
  void next() {
    if (!behind_key_) {
      if (!first_) text_ += style_.comma;
      if (depth_ != 0) new_line();
    }
    first_ = behind_key_ = false;
  }
  void new_line() {
    if (style_.indent == 0) return;
    text_ += '\n';
    text_.append(depth_ * style_.indent, ' ');
  }
  JsonText& raw(std::string_view token) {
    next();
    text_ += token;
    return *this;
  }
  void quote(std::string_view s) {
    text_ += '"';
    while (!s.empty()) {
      const int bytes = utf8_character(s);
      const auto length = static_cast<std::size_t>(bytes < 0 ? -bytes : bytes);
      if (bytes < 0) {
        text_ += "\xEF\xBF\xBD";
      } else if (bytes == 1) {
        escape(s[0]);
      } else {
        text_ += s.substr(0, length);
      }
      s.remove_prefix(length);
    }
    text_ += '"';
  }
  void escape(char c) {
    static constexpr char kHex[] = "0123456789abcdef";
    constexpr std::string_view kFrom = "\"\\\b\f\n\r\t";
    constexpr std::string_view kTo = "\"\\bfnrt";
    const auto u = static_cast<unsigned char>(c);
    if (const std::size_t found = kFrom.find(c); found != kFrom.npos) {
      text_ += '\\';
      text_ += kTo[found];
    } else if (u < 0x20) {
      text_ += "\\u00";
      text_ += kHex[u >> 4];
      text_ += kHex[u & 15];
    } else {
      text_ += c;
    }
  }

  JsonStyle style_ = kJsonLine;
  std::string text_;
  std::size_t depth_ = 0;
  bool first_ = true;  ///< nothing stands before the next value, or only a bracket
  bool behind_key_ = false;
};

}  // namespace laconic
