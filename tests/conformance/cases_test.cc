// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "base/field_text.h"
#include "conformance/codec_law.h"
#include "laconic/registry.h"
#include "support/subset.h"

namespace laconic::conformance {
namespace {

std::vector<double> interesting_values(const Field& field) {
  if (field.type == FieldType::word || field.type == FieldType::flag) {
    std::vector<double> all;
    for (double v = field.min; v <= field.max; ++v) all.push_back(v);
    return all;
  }
  // Ranges of ratios span decades: their middle is the geometric one.
  double middle = field.min > 0 ? std::sqrt(field.min * field.max) : (field.min + field.max) / 2;
  if (test::kSanitized && field.type == FieldType::integer) return {field.min, field.max};
  if (field.type == FieldType::integer) return {field.min, std::floor(middle), field.max};
  const double top = field.max_open ? field.min + 0.999 * (field.max - field.min) : field.max;
  if (test::kSanitized) return {field.min, top};
  return {field.min, middle, top};
}

void add_once(std::vector<std::string>& specs, const std::string& text) {
  const auto spec = Spec::parse(text);
  if (!spec) {
    ADD_FAILURE() << text << ": " << spec.error().message;
    return;
  }
  if (std::find(specs.begin(), specs.end(), spec->canonical()) == specs.end())
    specs.push_back(spec->canonical());
}

std::vector<std::string> specs_of(const CodecTable& codec) {
  std::vector<std::string> specs{std::string(codec.info.name)};
  for (const Field& field : codec.fields) {
    for (const double value : interesting_values(field)) {
      add_once(specs, std::string(codec.info.name) + ":" + std::string(field.name) + "=" +
                          value_text(field, value));
    }
  }
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecLaw, testing::ValuesIn(all_cases()), case_name);

bool is_default(const std::string& spec) { return spec == Spec::parse(spec)->codec().info.name; }

/// Default settings run on every instruction set, other settings on the best one alone: its bytes
/// are held against the scalar reference, whose own laws a build without Highway looks at.
std::vector<Isa> isas_for(const std::string& spec) {
  if (is_default(spec)) return {available_isas().begin(), available_isas().end()};
  return {best_isa()};
}

TEST(Conformance, DefaultsRunOnEveryIsaAndSettingsOnTheBest) {
  const auto cases = all_cases();
  for (const CodecTable* codec : all_codecs()) {
    std::set<std::string> specs;
    std::set<Isa> of_default;
    for (const Case& c : cases) {
      if (Spec::parse(c.spec)->codec().info.id != codec->info.id) continue;
      if (is_default(c.spec)) of_default.insert(c.isa);
      if (c.isa == best_isa()) specs.insert(c.spec);
    }
    EXPECT_EQ(of_default.size(), available_isas().size()) << codec->info.name;
    EXPECT_EQ(specs.size(), specs_of(*codec).size()) << codec->info.name;
  }
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const CodecTable* codec : all_codecs()) {
    for (const std::string& spec : specs_of(*codec)) {
      for (const Isa isa : isas_for(spec)) cases.push_back({spec, isa});
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.spec + "_" + std::string(isa_name(info.param.isa));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace laconic::conformance
