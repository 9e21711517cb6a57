// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace laconic::tools {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kShownDimensions = 32;  // NumPy's own limit until version 2

/// Reads a Python dict literal of a str, a bool and a tuple of whole numbers: `ok` stays false
/// after the first error.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool read(NpyHeader& header) {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (ok_ && !at('}')) {
      const std::string key = text();
      expect(':');
      if (key == "descr" && !descr) {
        header.descr = text();
        descr = true;
      } else if (key == "fortran_order" && !order) {
        header.fortran_order = flag();
        order = true;
      } else if (key == "shape" && !shape) {
        header.shape = tuple();
        shape = true;
      } else {
        ok_ = false;
      }
      if (!at('}')) expect(',');
    }
    expect('}');
    skip();
    return ok_ && rest_.empty() && descr && order && shape;
  }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size())); }
  bool at(char c) {
    skip();
    return !rest_.empty() && rest_.front() == c;
  }
  void expect(char c) {
    ok_ = ok_ && at(c);
    if (ok_) rest_.remove_prefix(1);
  }
  bool word(std::string_view w) {
    skip();
    if (!rest_.starts_with(w)) return false;
    rest_.remove_prefix(w.size());
    return true;
  }
  bool flag() {
    if (word("True")) return true;
    ok_ = ok_ && word("False");
    return false;
  }
  /// Printable and without escapes: neither a key nor an element type of numbers has others.
  std::string text() {
    skip();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) {
      ok_ = false;
      return {};
    }
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) {
      ok_ = false;
      return {};
    }
    std::string value(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    ok_ =
        ok_ && std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
    return value;
  }
  std::vector<uint64_t> tuple() {
    std::vector<uint64_t> numbers;
    expect('(');
    while (ok_ && !at(')')) {
      uint64_t number = 0;
      const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      ok_ = status == std::errc{} && numbers.size() < kShownDimensions;
      if (!ok_) break;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      numbers.push_back(number);
      if (!at(')')) expect(',');
    }
    expect(')');
    return numbers;
  }

  std::string_view rest_;
  bool ok_ = true;
};

Error broken(std::string what) { return {Errc::invalid_argument, std::move(what), {}}; }

}  // namespace

bool is_npy(Bytes bytes) noexcept {
  return bytes.size() >= kMagic.size() &&
         std::equal(kMagic.begin(), kMagic.end(), bytes.begin(),
                    [](char c, uint8_t byte) { return static_cast<uint8_t>(c) == byte; });
}

Result<NpyHeader> parse_npy(Bytes bytes) {
  if (!is_npy(bytes)) return broken("is no .npy file: it does not begin with \\x93NUMPY");
  const std::size_t at = kMagic.size() + 2;  // after the version
  if (bytes.size() < at + 4) return broken("ends within its .npy header");
  const uint8_t version = bytes[kMagic.size()];
  if (version < 1 || version > 3) {
    return broken("has a .npy header of version " + std::to_string(version) +
                  ", of which 1 to 3 are known");
  }
  const std::size_t width = version == 1 ? 2 : 4;
  uint64_t length = 0;
  for (std::size_t i = 0; i < width; ++i) length |= uint64_t{bytes[at + i]} << (8 * i);
  const uint64_t start = at + width;
  if (length > bytes.size() - start) return broken("ends within its .npy header");
  NpyHeader header;
  const auto* text = reinterpret_cast<const char*>(bytes.data() + start);
  if (!Reader({text, static_cast<std::size_t>(length)}).read(header))
    return broken("has a .npy header that is not a dict of descr, fortran_order and shape");
  header.data_offset = start + length;
  return header;
}

}  // namespace laconic::tools
