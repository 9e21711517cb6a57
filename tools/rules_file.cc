// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "rules_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/quoted.h"
#include "files.h"

// Header-only: the command in a wheel needs no library at run time. Errors are values.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace laconic::tools {
namespace {

constexpr std::string_view kKeys = "match, spec, control, min_elements, max_elements, optional";
constexpr std::string_view kFile = "a TOML file with [[rule]] tables";
/// Each dot may be a table in a table: more than these would not fit on a stack.
constexpr long kMostDots = 4096;

Error refused(std::string message, std::string_view hint) {
  return {Errc::invalid_argument, std::move(message), std::string(hint)};
}

std::string shown(const toml::node& node) {
  if (const auto* text = node.as_string()) return laconic::quoted(text->get());
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  return node.is_table() ? "a table" : node.is_array() ? "an array" : "a date or time";
}

/// One value of a rule; what it should have been where it is something else.
using Wanted = std::string;
Wanted take_text(const toml::node& value, std::string& into) {
  const auto* const text = value.as_string();
  if (text == nullptr || text->get().find('\0') != std::string::npos) return "a text without NUL";
  into = text->get();
  return {};
}
Wanted take_elements(const toml::node& value, int64_t least, uint64_t& into) {
  const auto* const number = value.as_integer();
  if (number == nullptr || number->get() < least) {
    return fmt::format("a whole number from {} to {}", least, std::numeric_limits<int64_t>::max());
  }
  into = static_cast<uint64_t>(number->get());
  return {};
}
Wanted take_flag(const toml::node& value, bool& into) {
  const auto* const flag = value.as_boolean();
  if (flag == nullptr) return "true or false";
  into = flag->get();
  return {};
}

Result<Rule> rule_of(const toml::node& node, const std::string& where) {
  const auto* const table = node.as_table();
  if (table == nullptr)
    return refused(fmt::format("{} is {}", where, shown(node)), fmt::format("a table: {}", kKeys));
  Rule rule;
  for (const auto& [key, value] : *table) {
    const std::string_view name = key;
    Wanted wanted;
    if (name == "match") {
      wanted = take_text(value, rule.match);
    } else if (name == "spec") {
      wanted = take_text(value, rule.spec);
    } else if (name == "control") {
      wanted = take_text(value, rule.control);
    } else if (name == "min_elements") {
      wanted = take_elements(value, 0, rule.min_elements);
    } else if (name == "max_elements") {
      wanted = take_elements(value, 1, rule.max_elements);
    } else if (name == "optional") {
      wanted = take_flag(value, rule.optional);
    } else {
      return refused(fmt::format("{} has the key {}", where, laconic::quoted(name)),
                     fmt::format("keys: {}", kKeys));
    }
    if (!wanted.empty())
      return refused(fmt::format("{}: {} is {}", where, name, shown(value)), wanted);
  }
  return rule;
}

/// The array of all [[rule]], null where there is none.
Result<const toml::array*> listed(const std::string& path, const toml::table& file) {
  std::string other;
  for (const auto& [key, value] : file) {
    if (std::string_view(key) == "rule") continue;
    other += fmt::format("{}{}", other.empty() ? "" : ", ", std::string_view(key));
  }
  const toml::node* const rules = file.get("rule");
  if (!other.empty() || (rules != nullptr && !rules->is_array())) {
    return refused(fmt::format("{}: it has {}", path, other.empty() ? "one [rule]" : other),
                   "only [[rule]] tables belong there");
  }
  return rules == nullptr ? nullptr : rules->as_array();
}

}  // namespace

Result<std::vector<Rule>> parse_rules(const std::string& path, std::string_view text) {
  // toml++ passes over it; TOML 1.0 and Python's reader know no such thing.
  if (text.starts_with("\xEF\xBB\xBF")) {
    return refused(fmt::format("{}: a byte order mark (at line 1, column 1)", path), kFile);
  }
  if (std::count(text.begin(), text.end(), '.') > kMostDots) {
    return refused(fmt::format("{}: it has more than {} dots", path, kMostDots), kFile);
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const auto& [line, column] = parsed.error().source().begin;
    return refused(fmt::format("{}: {} (at line {}, column {})", path, parsed.error().description(),
                               line, column),
                   kFile);
  }
  const auto found = listed(path, parsed.table());
  if (!found) return found.error();
  std::vector<Rule> rules;
  if (*found == nullptr) return rules;
  for (const toml::node& node : **found) {
    auto rule = rule_of(node, fmt::format("{}: rule {}", path, rules.size() + 1));
    if (!rule) return std::move(rule).error();
    rules.push_back(*std::move(rule));
  }
  return rules;
}

Result<std::vector<Rule>> read_rules(const std::string& path) {
  const auto bytes = read_file(path);
  if (!bytes) return refused(bytes.error().message, kFile);
  return parse_rules(path, {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
}

}  // namespace laconic::tools
