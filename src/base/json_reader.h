// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace laconic {

/// Reads JSON (RFC 8259) front to back, the counterpart of JsonText: the caller asks for what it
/// expects. After the first thing that is wrong everything answers with zeros, and loops end. Total
/// for any bytes; nesting is bounded.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  /// body(key) for each member; it has to read, or skip, the value.
  template <class Body>
  void object(Body&& body) {
    if (!open('{')) return;
    for (bool first = true; more('}', first); first = false) {
      const std::string key = text();
      if (!take(':')) return fail("expected ':' after a key");
      body(std::string_view(key));
    }
  }
  /// body() for each element; it has to read, or skip, the element.
  template <class Body>
  void array(Body&& body) {
    if (!open('[')) return;
    for (bool first = true; more(']', first); first = false) body();
  }
  std::string text();
  double number();
  uint64_t whole();  ///< 0 to 2^64 - 1, written without fraction and exponent
  bool flag();
  /// Takes a null if one comes next.
  bool null();
  void skip();

  /// Nothing may follow.
  void end();
  /// The caller's own complaint; the first one stays.
  void fail(std::string_view what);
  [[nodiscard]] bool ok() const noexcept { return trouble_.empty(); }
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }

 private:
  static constexpr int kDeepest = 16;

  [[nodiscard]] char peek();
  bool take(char c);
  bool word(std::string_view expected);
  bool open(char bracket);
  bool more(char close, bool first);
  std::string_view number_token();
  bool escape(std::string& into);
  bool hex(uint32_t& code);

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string trouble_;
};

}  // namespace laconic
