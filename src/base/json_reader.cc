// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/json_reader.h"

#include <charconv>

namespace laconic {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& text, uint32_t code) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6U);
    put(0x80 | (code & 63U));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12U);
    put(0x80 | (code >> 6U & 63U));
    put(0x80 | (code & 63U));
  } else {
    put(0xF0 | code >> 18U);
    put(0x80 | (code >> 12U & 63U));
    put(0x80 | (code >> 6U & 63U));
    put(0x80 | (code & 63U));
  }
}

}  // namespace

void JsonReader::fail(std::string_view what) {
  if (trouble_.empty()) trouble_ = what;
  at_ = text_.size();
}

/// The next character that is no space; 0 at the end.
char JsonReader::peek() {
  while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonReader::take(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

bool JsonReader::word(std::string_view expected) {
  (void)peek();
  if (text_.substr(at_, expected.size()) != expected) return false;
  at_ += expected.size();
  return true;
}

bool JsonReader::open(char bracket) {
  if (!ok()) return false;
  if (!take(bracket)) {
    fail(bracket == '{' ? "expected an object" : "expected a list");
  } else if (++depth_ > kDeepest) {
    fail("nested too deeply");
  }
  return ok();
}

/// Moves to the next member or element; false after the last one.
bool JsonReader::more(char close, bool first) {
  if (!ok()) return false;
  if (take(close)) {
    --depth_;
    return false;
  }
  if (!first && !take(','))
    fail(at_ == text_.size() ? "it ends too early" : "expected ',' or the end");
  if (ok() && at_ == text_.size()) fail("it ends too early");
  return ok();
}

bool JsonReader::hex(uint32_t& code) {
  if (text_.size() - at_ < 4) return false;
  const char* const first = text_.data() + at_;
  const auto [end, status] = std::from_chars(first, first + 4, code, 16);
  at_ += 4;
  return status == std::errc{} && end == first + 4;
}

bool JsonReader::escape(std::string& into) {
  constexpr std::string_view kFrom = "\"\\/bfnrt";
  constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) return false;
  const char c = text_[at_++];
  if (const std::size_t found = kFrom.find(c); found != kFrom.npos) {
    into += kTo[found];
    return true;
  }
  uint32_t code = 0;
  if (c != 'u' || !hex(code)) return false;
  if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
    uint32_t low = 0;
    if (text_.substr(at_, 2) != "\\u") return false;
    at_ += 2;
    if (!hex(low) || low < 0xDC00 || low > 0xDFFF) return false;
    code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code < 0xE000) {
    return false;
  }
  append_utf8(into, code);
  return true;
}

std::string JsonReader::text() {
  std::string read;
  if (!ok()) return read;
  if (!take('"')) {
    fail("expected a string");
    return {};
  }
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return read;
    if (static_cast<unsigned char>(c) < 0x20) {
      fail("a string contains a control character");
      return {};
    }
    if (c != '\\') {
      read += c;
    } else if (!escape(read)) {
      fail("a string contains an invalid escape");
      return {};
    }
  }
  fail("it ends too early");
  return {};
}

/// -? (0 | [1-9][0-9]*) fraction? exponent?, or nothing.
std::string_view JsonReader::number_token() {
  (void)peek();
  std::size_t i = at_;
  const auto here = [&] { return i < text_.size() ? text_[i] : '\0'; };
  const auto digits = [&] {
    const std::size_t first = i;
    while (is_digit(here())) ++i;
    return i > first;
  };
  if (here() == '-') ++i;
  if (here() == '0') {
    ++i;
  } else if (!digits()) {
    return {};
  }
  if (here() == '.') {
    ++i;
    if (!digits()) return {};
  }
  if (here() == 'e' || here() == 'E') {
    ++i;
    if (here() == '+' || here() == '-') ++i;
    if (!digits()) return {};
  }
  const std::string_view token = text_.substr(at_, i - at_);
  at_ = i;
  return token;
}

double JsonReader::number() {
  if (!ok()) return 0;
  const std::string_view token = number_token();
  double value = 0;
  const auto [end, status] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (token.empty() || status != std::errc{} || end != token.data() + token.size()) {
    fail("expected a number");
    return 0;
  }
  return value;
}

uint64_t JsonReader::whole() {
  if (!ok()) return 0;
  const std::string_view token = number_token();
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (token.empty() || status != std::errc{} || end != token.data() + token.size()) {
    fail("expected a whole number");
    return 0;
  }
  return value;
}

bool JsonReader::flag() {
  if (!ok()) return false;
  if (word("true")) return true;
  if (!word("false")) fail("expected true or false");
  return false;
}

bool JsonReader::null() { return ok() && word("null"); }

void JsonReader::skip() {
  if (!ok()) return;
  switch (peek()) {
    case '{':
      return object([this](std::string_view) { skip(); });
    case '[':
      return array([this] { skip(); });
    case '"':
      (void)text();
      return;
    case 't':
    case 'f':
      (void)flag();
      return;
    case 'n':
      if (!null()) fail("expected a value");
      return;
    default:
      (void)number();
  }
}

void JsonReader::end() {
  if (!ok()) return;
  (void)peek();
  if (at_ != text_.size()) fail("unexpected data after the end");
}

}  // namespace laconic
