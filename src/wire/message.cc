// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "wire/message.h"

#include <utility>

#include "base/concat.h"
#include "base/hex.h"

namespace laconic::wire {

std::string hex(uint64_t value, int digits) { return concat({"0x", hex_digits(value, digits)}); }

std::string at_least(uint64_t value) { return "at least " + std::to_string(value); }
std::string at_most(uint64_t value) { return "at most " + std::to_string(value); }

Error mismatch(Errc code, std::string_view what, std::string_view field, const Said& expected,
               const Said& found, std::string hint) {
  std::string text(what);
  text.append(": ").append(field);
  text.append(": expected ").append(expected.text());
  text.append(", found ").append(found.text());
  return Error{code, std::move(text), std::move(hint)};
}

}  // namespace laconic::wire
