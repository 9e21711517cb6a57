// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Syntax shared by specs and controls: name [ ":" key=value { "," key=value } ], and its errors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"
#include "laconic/fields.h"

namespace laconic {

/// The text that options stand in, for its errors.
struct OptionText {
  std::string_view kind;  ///< "spec"
  std::string_view text;  ///< all of it
  std::string_view hint;  ///< how such a text looks
};

/// "a,b,c" → "a", "b", "c"; one empty piece for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator);

/// "a, b, c"
std::string joined(const std::vector<std::string_view>& pieces);

/// "did you mean 'near'? ", or nothing.
std::string guess(std::string_view near);

/// spec_syntax: "spec 'topk:ratio': what".
Error syntax_error(const OptionText& where, std::string_view what);

/// "keys of topk: ratio (1e-9 to 1, default 0.01)"
std::string keys_text(std::string_view owner, std::span<const Field> fields);

/// Reads "key=value,key=value" into the `params` of `owner`, each key once at most.
Result<void> read_options(const OptionText& where, std::string_view owner,
                          std::span<const Field> fields, std::string_view options, void* params);

}  // namespace laconic
