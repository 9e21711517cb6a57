// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/options.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/nearest.h"
#include "base/quoted.h"

namespace laconic {
namespace {

Error unknown_key(std::string_view owner, std::span<const Field> fields, std::string_view key) {
  std::vector<std::string_view> names;
  for (const Field& field : fields) names.push_back(field.name);
  return {Errc::unknown_key, concat({owner, " has no key ", quoted(key)}),
          guess(nearest(key, names)) + keys_text(owner, fields)};
}

const Field* find_field(std::span<const Field> fields, std::string_view key) {
  for (const Field& field : fields) {
    if (field.name == key) return &field;
  }
  return nullptr;
}

/// Reads one "key=value" into `params`; `given` holds the keys seen before it.
Result<void> read_option(const OptionText& where, std::string_view owner,
                         std::span<const Field> fields, std::string_view option,
                         std::vector<const Field*>& given, void* params) {
  const std::size_t equals = option.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return syntax_error(where, concat({quoted(option), " is not key=value"}));
  }
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(equals + 1);
  const Field* field = find_field(fields, key);
  if (field == nullptr) return unknown_key(owner, fields, key);
  if (std::find(given.begin(), given.end(), field) != given.end()) {
    return syntax_error(where, concat({"key ", quoted(key), " is given twice"}));
  }
  given.push_back(field);
  if (value.empty()) return syntax_error(where, concat({"key ", quoted(key), " has no value"}));
  if (auto read = read_member(*field, value, params); !read) {
    Error error = std::move(read).error();
    error.message = concat({where.kind, " ", quoted(where.text), ": ", key, "=", error.message});
    return error;
  }
  return {};
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    pieces.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return pieces;
}

std::string joined(const std::vector<std::string_view>& pieces) {
  std::string text;
  for (const std::string_view piece : pieces) text += concat({text.empty() ? "" : ", ", piece});
  return text;
}

std::string guess(std::string_view near) {
  return near.empty() ? std::string() : concat({"did you mean '", near, "'? "});
}

Error syntax_error(const OptionText& where, std::string_view what) {
  return {Errc::spec_syntax, concat({where.kind, " ", quoted(where.text), ": ", what}),
          std::string(where.hint)};
}

std::string keys_text(std::string_view owner, std::span<const Field> fields) {
  if (fields.empty()) return concat({owner, " has no keys"});
  std::string text = concat({"keys of ", owner, ": "});
  for (const Field& field : fields) {
    if (&field != fields.data()) text += ", ";
    text += concat({field.name, " (", range_text(field), ", default ",
                    value_text(field, field.fallback), ")"});
  }
  return text;
}

Result<void> read_options(const OptionText& where, std::string_view owner,
                          std::span<const Field> fields, std::string_view options, void* params) {
  std::vector<const Field*> given;
  for (const std::string_view option : split(options, ',')) {
    if (auto read = read_option(where, owner, fields, option, given, params); !read) return read;
  }
  return {};
}

}  // namespace laconic
