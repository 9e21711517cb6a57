// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic rules: what a file of rules holds, and which parameter of a model each of them takes.
#include "control/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "control/control.h"
#include "files.h"
#include "laconic/spec.h"
#include "output.h"
#include "parameter_list.h"
#include "rules_file.h"

namespace laconic::tools {
namespace {

constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
constexpr const char* kOfTheCall = "the call's";

struct Options {
  std::string file;
  std::string parameters;
  bool json = false;
};

/// Parameters of one rule, or of none.
struct Taken {
  std::vector<std::string> names;
  uint64_t elements = 0;
};

/// Specs and controls as the library writes them, refused where a session would.
Result<void> make_canonical(std::vector<Rule>& rules) {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto of_rule = [&](const Error& error) {
      return Error{error.code, fmt::format("rule {}: {}", i + 1, error.message), error.hint};
    };
    if (!rules[i].spec.empty()) {
      const auto spec = Spec::parse(rules[i].spec);
      if (!spec) return of_rule(spec.error());
      rules[i].spec = spec->canonical();
    }
    if (rules[i].control.empty()) continue;
    const auto control = control::parse_control(rules[i].control);
    if (!control) return of_rule(control.error());
    rules[i].control = control->canonical;
  }
  return {};
}

/// The class of each parameter. Without a list, only what is wrong with any.
Result<std::vector<uint32_t>> classes_of(std::vector<Rule> rules, const Options& options,
                                         const std::vector<Parameter>& parameters) {
  std::vector<std::string_view> names;
  std::vector<uint64_t> elements;
  for (const Parameter& p : parameters) {
    names.push_back(p.name);
    elements.push_back(p.count());
  }
  if (options.parameters.empty()) {
    for (Rule& rule : rules) rule.optional = true;
  }
  return control::classes_of(rules, names, elements);
}

/// Parameters by rule; the last entry has those without a rule.
std::vector<Taken> taken_by(std::size_t rules, const std::vector<Parameter>& parameters,
                            const std::vector<uint32_t>& classes) {
  std::vector<Taken> taken(rules + 1);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    Taken& by = taken[(classes[p] + rules) % (rules + 1)];
    by.names.push_back(parameters[p].name);
    by.elements += parameters[p].count();
  }
  return taken;
}

// ---- results ----

Json text_json(const std::string& text) { return text.empty() ? Json() : Json(text); }

void put_taken(Json& json, const Taken& taken) {
  json["parameters"] = taken.names;
  json["elements"] = taken.elements;
}

void print_rules_json(const std::vector<Rule>& rules, const std::vector<Taken>& taken, bool model) {
  Json listed = Json::array();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    Json json{{"match", rule.match},
              {"min_elements", rule.min_elements},
              {"max_elements", rule.max_elements == kAny ? Json() : Json(rule.max_elements)},
              {"spec", text_json(rule.spec)},
              {"control", text_json(rule.control)},
              {"optional", rule.optional}};
    if (model) put_taken(json, taken[i]);
    listed.push_back(std::move(json));
  }
  Json answer{{"rules", std::move(listed)}};
  if (model) put_taken(answer["others"], taken.back());
  print_json(answer);
}

std::string sizes_text(const Rule& rule) {
  if (rule.max_elements != kAny)
    return fmt::format("{} to {}", rule.min_elements, rule.max_elements);
  return rule.min_elements == 0 ? "any" : fmt::format("from {}", rule.min_elements);
}

std::string or_the_calls(const std::string& text) { return text.empty() ? kOfTheCall : text; }

void print_rules(const std::vector<Rule>& rules, const std::vector<Taken>& taken, bool model) {
  using A = Table::Align;
  std::vector<Table::Column> columns{{"rule", A::right}, {"match"},   {"elements"},
                                     {"spec"},           {"control"}, {"optional"}};
  if (model) columns.insert(columns.end(), {{"takes", A::right}, {"of elements", A::right}});
  Table table(std::move(columns));
  const auto add = [&](std::vector<std::string> row, const Taken& by) {
    if (model) {
      row.push_back(std::to_string(by.names.size()));
      row.push_back(std::to_string(by.elements));
    }
    table.add(std::move(row));
  };
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    add({std::to_string(i + 1), rule.match, sizes_text(rule), or_the_calls(rule.spec),
         or_the_calls(rule.control), rule.optional ? "yes" : ""},
        taken[i]);
  }
  add({"-", "all others", "any", kOfTheCall, kOfTheCall, ""}, taken.back());
  table.print();
}

void print_parameters(const std::vector<Rule>& rules, const std::vector<Parameter>& parameters,
                      const std::vector<uint32_t>& classes) {
  using A = Table::Align;
  Table table({{"parameter"}, {"elements", A::right}, {"rule", A::right}, {"spec"}});
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const uint32_t by = classes[p];
    table.add({parameters[p].name, std::to_string(parameters[p].count()),
               by == 0 ? "-" : std::to_string(by),
               by == 0 ? kOfTheCall : or_the_calls(rules[by - 1].spec)});
  }
  fmt::print("\n");
  table.print();
}

int rules(const Options& options) {
  const auto of_file = [&](const Error& error) {
    return fail({error.code, fmt::format("{}: {}", options.file, error.message), error.hint},
                options.json, kBadAnswer);
  };
  const auto bytes = read_file(options.file);
  if (!bytes) return fail(bytes.error(), options.json, kUsage);
  std::vector<Parameter> parameters;
  if (!options.parameters.empty()) {
    auto read = read_parameters(options.parameters);
    if (!read) return fail(read.error(), options.json, kUsage);
    parameters = *std::move(read);
  }
  auto found =
      parse_rules(options.file, {reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!found) return fail(found.error(), options.json, kBadAnswer);
  if (const auto canonical = make_canonical(*found); !canonical) return of_file(canonical.error());
  const auto classes = classes_of(*found, options, parameters);
  if (!classes) return of_file(classes.error());
  const auto taken = taken_by(found->size(), parameters, *classes);
  const bool model = !options.parameters.empty();
  if (options.json) {
    print_rules_json(*found, taken, model);
    return kFine;
  }
  print_rules(*found, taken, model);
  if (model) print_parameters(*found, parameters, *classes);
  return kFine;
}

}  // namespace

Run add_rules(Program& program) {
  const Command command = program.add_command(
      "rules", "shows the rules in a file, and the parameters that each of them matches");
  const auto options = std::make_shared<Options>();
  command.add_option("file", options->file, "TOML with [[rule]] tables").required();
  command.add_option("--parameters", options->parameters,
                     "those of the model: FILE.json of {\"name\": shape} or of explain(), or "
                     "name:elements,name:elements");
  command.add_flag("--json", options->json, "machine-readable");
  return [options] { return rules(*options); };
}

}  // namespace laconic::tools
