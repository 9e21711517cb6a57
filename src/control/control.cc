// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/control.h"

#include <array>
#include <tuple>
#include <utility>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/nearest.h"
#include "base/options.h"
#include "base/quoted.h"
#include "control/policy_list.h"

namespace laconic::control {
namespace {

constexpr std::size_t kMaxControl = 4096;  // bytes

template <class... L>
constexpr std::array<const PolicyTable*, sizeof...(L)> tables_of(PolicyTypes<L...> /*list*/) {
  return {&PolicyTableOf<L>::value...};
}
constexpr auto kPolicies = tables_of(PolicyList{});

const PolicyTable* find_policy(std::string_view name) {
  for (const PolicyTable* policy : kPolicies) {
    if (policy->info.name == name) return policy;
  }
  return nullptr;
}

Error unknown_policy(std::string_view name) {
  std::vector<std::string_view> names;
  for (const PolicyTable* policy : kPolicies) names.push_back(policy->info.name);
  return {Errc::invalid_argument, concat({"unknown control ", quoted(name)}),
          concat({guess(nearest(name, names)), "controls: ", joined(names),
                  " (laconic list --controls)"})};
}

void write_canonical(Control& control) {
  const PolicyTable& policy = *control.policy;
  control.canonical = policy.info.name;
  if (policy.write != nullptr) {
    policy.write(control);
    return;
  }
  ParamBlock defaults{};
  policy.defaults(defaults.bytes.data());
  char separator = ':';
  for (const Field& field : policy.fields) {
    if (field.get(control.data()) == field.get(defaults.bytes.data())) continue;
    control.canonical += separator;
    control.canonical += concat({field.name, "=", member_text(field, control.data())});
    separator = ',';
  }
}

}  // namespace

std::span<const PolicyTable* const> all_policies() noexcept { return kPolicies; }

Result<Control> parse_control(std::string_view text) {
  const OptionText where{"control", text,
                         "write policy:key=value,key=value, for example dc2:min=0.001,max=0.25"};
  if (text.size() > kMaxControl) return syntax_error(where, "longer than 4096 characters");
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (name.empty()) return syntax_error(where, "the control policy's name is missing");
  Control control;
  control.policy = find_policy(name);
  if (control.policy == nullptr) return unknown_policy(name);
  const PolicyTable& policy = *control.policy;
  policy.defaults(control.params.bytes.data());
  const bool given = colon != std::string_view::npos;
  const std::string_view options = given ? text.substr(colon + 1) : std::string_view();
  Result<void> read;
  if (policy.read != nullptr) {
    read = policy.read(text, options, control);
  } else if (given) {
    read = read_options(where, name, policy.fields, options, control.params.bytes.data());
  }
  if (read) read = policy.check(control, text);
  if (!read) return std::move(read).error();
  write_canonical(control);
  return control;
}

std::string_view reason_name(Reason reason) noexcept {
  constexpr std::array<std::string_view, 8> kNames{
      "held", "slow", "fast", "mean", "dense", "dense_is_slow", "scheduled", "recorded"};
  return kNames[static_cast<std::size_t>(reason)];
}

Result<Range> narrowed(const Range& range, std::string_view control, double min, double max) {
  Range bounds = range;
  const auto wrong = [&](std::string what, std::string hint) {
    return Error{Errc::value_out_of_range, concat({"control '", control, "': ", what}),
                 std::move(hint)};
  };
  for (const auto& [key, given, bound] : {std::tuple{std::string_view("min="), min, &bounds.min},
                                          std::tuple{std::string_view("max="), max, &bounds.max}}) {
    if (given == 0) continue;
    const bool whole = given == static_cast<double>(static_cast<int64_t>(given));
    if (given < range.lowest || given > range.highest || (range.whole && !whole)) {
      return wrong(concat({range.name, " does not accept ", key, number_text(given)}),
                   concat({range.name, " accepts ", range.whole ? "whole numbers from " : "",
                           number_text(range.lowest), " to ", number_text(range.highest)}));
    }
    *bound = given;
  }
  if (min > 0 && max > 0 && min > max) {
    return wrong(concat({"min=", number_text(min), " is above max=", number_text(max)}),
                 "swap the two");
  }
  if (range.start < bounds.min || range.start > bounds.max) {
    return wrong(concat({"the spec's ", range.name, "=", number_text(range.start),
                         " is not between min=", number_text(bounds.min),
                         " and max=", number_text(bounds.max)}),
                 "control starts at the spec's value: change the spec or the bounds");
  }
  return bounds;
}

}  // namespace laconic::control
