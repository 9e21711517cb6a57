// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "controls.h"

#include <fmt/format.h>

#include "base/field_text.h"
#include "command.h"
#include "control/control.h"
#include "laconic/registry.h"
#include "output.h"

namespace laconic::tools {
namespace {

std::string keys_and_defaults(const control::PolicyTable& policy) {
  std::string text;
  for (const Field& field : policy.fields) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", field.name,
                        value_text(field, field.fallback));
  }
  return text;
}

Table law_table() {
  Table table({{"control"}, {"what it does"}, {"keys and defaults"}, {"for example"}});
  for (const control::PolicyTable* policy : control::all_policies()) {
    table.add({std::string(policy->info.name), std::string(policy->info.summary),
               keys_and_defaults(*policy), std::string(policy->info.form)});
  }
  return table;
}

Table key_table() {
  Table table({{"control"}, {"key"}, {"default"}, {"accepts"}, {"meaning"}});
  for (const control::PolicyTable* policy : control::all_policies()) {
    for (const Field& field : policy->fields) {
      table.add({std::string(policy->info.name), std::string(field.name),
                 value_text(field, field.fallback), range_text(field), std::string(field.help)});
    }
  }
  return table;
}

template <class Body>
void for_each_moved(Body&& body) {
  for (const CodecTable* codec : all_codecs()) {
    for (const Field& field : codec->fields) {
      // Keys that make a table stay as they are while training runs: see Model::movable.
      if (field.actuator.marked && codec->table == nullptr) body(codec->info.name, field);
    }
  }
}

std::string_view sends_text(const Field& field) {
  return field.actuator.sends == Sends::more ? "more" : "less";
}

Table moved_table() {
  using enum Table::Align;
  Table table({{"codec"}, {"setting"}, {"a larger one sends"}, {"from", right}, {"to", right}});
  for_each_moved([&](std::string_view codec, const Field& field) {
    table.add({std::string(codec), std::string(field.name), std::string(sends_text(field)),
               value_text(field, field.actuator.min), value_text(field, field.actuator.max)});
  });
  return table;
}

Json key_json(const Field& field) {
  Json json{{"name", field.name},
            {"type", field_type_name(field.type)},
            {"default", value_text(field, field.fallback)},
            {"accepts", range_text(field)},
            {"help", field.help}};
  return json;
}

void print_controls_json() {
  Json controls = Json::array();
  for (const control::PolicyTable* policy : control::all_policies()) {
    Json keys = Json::array();
    for (const Field& field : policy->fields) keys.push_back(key_json(field));
    controls.push_back({{"name", policy->info.name},
                        {"summary", policy->info.summary},
                        {"example", policy->info.form},
                        {"keys", keys}});
  }
  Json moved = Json::array();
  for_each_moved([&](std::string_view codec, const Field& field) {
    moved.push_back({{"codec", codec},
                     {"key", field.name},
                     {"sends", sends_text(field)},
                     {"growth", field.actuator.growth == Growth::log ? "log" : "step"},
                     {"min", field.actuator.min},
                     {"max", field.actuator.max}});
  });
  print_json({{"controls", controls}, {"moves", moved}});
}

}  // namespace

int list_controls(As as) {
  if (as == As::json) {
    print_controls_json();
    return kFine;
  }
  for (const Table& table : {law_table(), key_table(), moved_table()}) {
    if (as == As::markdown) {
      table.print_markdown();
    } else {
      table.print();
    }
    fmt::print("\n");
  }
  return kFine;
}

}  // namespace laconic::tools
