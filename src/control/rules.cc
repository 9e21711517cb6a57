// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/rules.h"

#include <algorithm>
#include <optional>

#include "base/concat.h"
#include "base/quoted.h"

namespace laconic::control {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

/// The byte after the set that begins with the '[' at `at`; kNone if it has no end.
std::size_t end_of_set(std::string_view pattern, std::size_t at) noexcept {
  std::size_t first = at + 1;
  if (first < pattern.size() && pattern[first] == '!') ++first;
  if (first < pattern.size() && pattern[first] == ']') ++first;
  const std::size_t close = pattern.find(']', first);
  return close == kNone ? kNone : close + 1;
}

/// body(low, high) for every byte or range of the set's inside, until one answers true.
template <class Body>
bool any_range(std::string_view inside, Body&& body) {
  for (std::size_t i = 0; i < inside.size();) {
    const bool range = i + 2 < inside.size() && inside[i + 1] == '-';
    const auto low = static_cast<unsigned char>(inside[i]);
    const auto high = static_cast<unsigned char>(inside[range ? i + 2 : i]);
    if (body(low, high)) return true;
    i += range ? 3 : 1;
  }
  return false;
}

bool set_holds(std::string_view set, char c) noexcept {
  std::string_view inside = set.substr(1, set.size() - 2);
  const bool others = !inside.empty() && inside.front() == '!';
  if (others) inside.remove_prefix(1);
  const auto byte = static_cast<unsigned char>(c);
  return others != any_range(inside, [byte](unsigned char low, unsigned char high) {
           return low <= byte && byte <= high;
         });
}

/// True if the element of the pattern at `p` (not '*') matches `c`; then moves p to the next
/// element.
bool take(std::string_view pattern, std::size_t& p, char c) noexcept {
  const char element = pattern[p];
  std::size_t end = p + 1;
  bool fits = element == '?' || element == c;
  if (element == '[') {
    end = end_of_set(pattern, p);
    if (end == kNone) return false;
    fits = set_holds(pattern.substr(p, end - p), c);
  }
  if (fits) p = end;
  return fits;
}

Error bad_glob(std::string_view pattern, std::string_view what) {
  return {
      Errc::invalid_argument, concat({"pattern ", quoted(pattern), ": ", what}),
      "* matches any text, ? one character, [a-z] one of these, [!a-z] any other; [*] matches a *"};
}

Error bad_rule(std::span<const Rule> rules, std::size_t i, std::string_view what,
               std::string_view hint) {
  return {
      Errc::invalid_argument,
      concat({"rule ", std::to_string(i + 1), " (match = ", quoted(rules[i].match), "): ", what}),
      std::string(hint)};
}

Result<void> check_rules(std::span<const Rule> rules) {
  if (rules.size() > kMaxRules) {
    return Error{Errc::invalid_argument,
                 concat({std::to_string(rules.size()), " rules exceed the limit of ",
                         std::to_string(kMaxRules)}),
                 "let one pattern match several parameters: [wb]*, *.norm?.*"};
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (auto checked = check_glob(rules[i].match); !checked) {
      Error error = std::move(checked).error();
      error.message = concat({"rule ", std::to_string(i + 1), ": ", error.message});
      return error;
    }
    if (rules[i].min_elements > rules[i].max_elements) {
      return bad_rule(rules, i,
                      concat({"min_elements ", std::to_string(rules[i].min_elements),
                              " is above max_elements ", std::to_string(rules[i].max_elements)}),
                      "a rule applies to sizes from min_elements to max_elements, both included");
    }
  }
  return {};
}

bool matches(const Rule& rule, std::string_view name, uint64_t elements) noexcept {
  return rule.min_elements <= elements && elements <= rule.max_elements &&
         glob_matches(rule.match, name);
}

/// Why rule i has no parameter.
Error without_parameter(std::span<const Rule> rules, std::size_t i,
                        std::span<const std::string_view> names, std::span<const uint64_t> elements,
                        std::span<const uint32_t> classes) {
  constexpr std::string_view kHint = "optional = true allows a rule without a parameter";
  std::optional<std::size_t> named;
  for (std::size_t p = 0; p < names.size(); ++p) {
    if (!glob_matches(rules[i].match, names[p])) continue;
    if (matches(rules[i], names[p], elements[p])) {
      return bad_rule(rules, i,
                      concat({"rule ", std::to_string(classes[p]), " before it already matches ",
                              quoted(names[p]), " and its other parameters"}),
                      "the first rule that matches wins: put the narrower one first, or write "
                      "optional = true");
    }
    if (!named) named = p;
  }
  if (named) {
    return bad_rule(
        rules, i,
        concat({"no parameter of that name has a size in its range; ", quoted(names[*named]),
                " has ", std::to_string(elements[*named]), " elements"}),
        kHint);
  }
  return bad_rule(rules, i, "matches no parameter",
                  names.empty()
                      ? std::string(kHint)
                      : concat({"full names look like ", quoted(names.back()), "; ", kHint}));
}

}  // namespace

Result<void> check_glob(std::string_view pattern) {
  if (pattern.empty()) return bad_glob(pattern, "is empty");
  if (pattern.size() > kMaxPattern) {
    return bad_glob(pattern, concat({"is longer than ", std::to_string(kMaxPattern), " bytes"}));
  }
  for (std::size_t at = pattern.find('['); at < pattern.size(); at = pattern.find('[', at)) {
    const std::size_t end = end_of_set(pattern, at);
    if (end == kNone) return bad_glob(pattern, "[ without ]");
    const std::string_view inside = pattern.substr(at + 1, end - at - 2);
    if (any_range(inside.substr(inside.front() == '!' ? 1 : 0),
                  [](unsigned char low, unsigned char high) { return low > high; })) {
      return bad_glob(pattern, concat({"a range of [", inside, "] runs backwards"}));
    }
    at = end;
  }
  return {};
}

bool glob_matches(std::string_view pattern, std::string_view name) noexcept {
  // Only the last '*' has to be tried again: whatever an earlier one could take, it can.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t behind_star = kNone;
  std::size_t star_took = 0;  // the byte of the name after the text matched by the star
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      behind_star = ++p;
      star_took = n;
    } else if (p < pattern.size() && take(pattern, p, name[n])) {
      ++n;
    } else if (behind_star != kNone) {
      p = behind_star;
      n = ++star_took;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<std::vector<uint32_t>> classes_of(std::span<const Rule> rules,
                                         std::span<const std::string_view> names,
                                         std::span<const uint64_t> elements) {
  if (names.size() != elements.size()) return Errc::internal;
  if (auto checked = check_rules(rules); !checked) return std::move(checked).error();
  std::vector<uint32_t> classes(names.size(), 0);
  std::vector<bool> used(rules.size(), false);
  for (std::size_t p = 0; p < names.size(); ++p) {
    const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& rule) {
      return matches(rule, names[p], elements[p]);
    });
    if (found == rules.end()) continue;
    const auto i = static_cast<std::size_t>(found - rules.begin());
    classes[p] = static_cast<uint32_t>(i) + 1;
    used[i] = true;
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!used[i] && !rules[i].optional) {
      return without_parameter(rules, i, names, elements, classes);
    }
  }
  return classes;
}

}  // namespace laconic::control
