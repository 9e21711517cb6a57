// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <cmath>

#include "codecs/registry/field_text.h"
#include "conformance/codec_law.h"

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
  if (field.type == FieldType::integer) return {field.min, std::floor(middle), field.max};
  const double top = field.max_open ? field.min + 0.999 * (field.max - field.min) : field.max;
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
                          codecs::value_text(field, value));
    }
  }
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecLaw, testing::ValuesIn(all_cases()), case_name);

TEST(Conformance, EveryCodecHasCases) {
  const auto cases = all_cases();
  for (const CodecTable* codec : all_codecs()) {
    const auto of_codec = std::count_if(cases.begin(), cases.end(), [&](const Case& c) {
      return Spec::parse(c.spec)->codec().info.id == codec->info.id;
    });
    EXPECT_GE(static_cast<std::size_t>(of_codec), available_isas().size());
  }
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const CodecTable* codec : all_codecs()) {
    for (const std::string& spec : specs_of(*codec)) {
      for (const Isa isa : available_isas()) cases.push_back({spec, isa});
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
