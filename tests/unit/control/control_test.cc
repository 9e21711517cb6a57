// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/control.h"

#include <gtest/gtest.h>

#include "base/field_text.h"

namespace laconic::control {
namespace {

std::string canonical(std::string_view text) {
  const auto control = parse_control(text);
  return control ? control->canonical : "error: " + control.error().message;
}

TEST(Control, TextsHaveOneForm) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"fixed", "fixed"},
      {"dc2", "dc2"},
      {"dc2:target=start", "dc2"},
      {"dc2:max=0.250,min=1e-3", "dc2:min=0.001,max=0.25"},
      {"dc2:deadline_ms=80", "dc2:deadline_ms=80"},
      {"dc2:mean=0.01,target=compute", "dc2:target=compute,mean=0.01"},
      {"dc2:share=0.250,target=compute", "dc2:target=compute,share=0.25"},
      {"dc2:share=0.33", "dc2"},
      {"aimd", "aimd"},
      {"bdp:cut=0.9", "bdp:cut=0.9"},
      {"schedule:0=0.25,200=0.010", "schedule:0=0.25,200=0.01"},
      {"replay:runs/a:b,c=d.jsonl", "replay:runs/a:b,c=d.jsonl"},
  };
  for (const auto& [text, form] : cases) {
    EXPECT_EQ(canonical(text), form);
    EXPECT_EQ(canonical(form), form);
  }
}

TEST(Control, InvalidTextIsRefusedWithOneMessage) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "control '': the control policy's name is missing"},
      {"dc3", "unknown control 'dc3'"},
      {"fixed:a=1", "fixed has no key 'a'"},
      {"dc2:", "control 'dc2:': '' is not key=value"},
      {"dc2:min", "control 'dc2:min': 'min' is not key=value"},
      {"dc2:mix=1", "dc2 has no key 'mix'"},
      {"dc2:min=0.1,min=0.2", "control 'dc2:min=0.1,min=0.2': key 'min' is given twice"},
      {"dc2:deadline_ms=0", "control 'dc2:deadline_ms=0': deadline_ms='0' is out of range"},
      {"dc2:deadline_ms=-5", "control 'dc2:deadline_ms=-5': deadline_ms='-5' is out of range"},
      {"dc2:min=nan", "control 'dc2:min=nan': min='nan' is not a number"},
      {"dc2:target=middle", "control 'dc2:target=middle': target='middle' is not a choice"},
      {"dc2:target=compute,deadline_ms=1",
       "control 'dc2:target=compute,deadline_ms=1': target=compute and deadline_ms exclude each "
       "other"},
      {"dc2:share=1", "control 'dc2:share=1': share needs target=compute"},
      {"dc2:target=compute,share=0",
       "control 'dc2:target=compute,share=0': share='0' is out of range"},
      {"schedule", "control 'schedule': '' is not STEP=VALUE"},
      {"schedule:0.5=1", "control 'schedule:0.5=1': '0.5=1' is not STEP=VALUE"},
      {"schedule:-1=1", "control 'schedule:-1=1': '-1=1' is not STEP=VALUE"},
      {"schedule:0=", "control 'schedule:0=': '0=' has no value above 0"},
      {"schedule:0=nan", "control 'schedule:0=nan': '0=nan' has no value above 0"},
      {"schedule:0=-1", "control 'schedule:0=-1': '0=-1' has no value above 0"},
      {"schedule:0=1,0=2", "control 'schedule:0=1,0=2': step 0 is not after step 0"},
      {"replay", "control 'replay': the file name is missing"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(canonical(text), "error: " + message);
  EXPECT_FALSE(parse_control(std::string(5000, 'a')).ok());
  EXPECT_EQ(parse_control("dc3").error().hint.substr(0, 20), "did you mean 'dc2'? ");
}

TEST(Control, SchedulesLengthIsBounded) {
  std::string text = "schedule:0=1";
  for (int i = 1; i < 64; ++i) text += "," + std::to_string(i) + "=1";
  EXPECT_TRUE(parse_control(text).ok());
  EXPECT_FALSE(parse_control(text + ",64=1").ok());
}

TEST(Control, EveryPolicyReadsItsOwnTexts) {
  for (const PolicyTable* law : all_policies()) {
    EXPECT_TRUE(parse_control(law->info.form).ok()) << law->info.form;
    for (const Field& field : law->fields) {
      for (const double value : {field.min, field.max_open ? field.min : field.max}) {
        const std::string key = std::string(field.name) + "=" + value_text(field, value);
        std::string text = std::string(law->info.name) + ":" + key;
        // A key of one choice alone: the example makes that choice.
        if (!parse_control(text)) text = std::string(law->info.form) + "," + key;
        EXPECT_TRUE(parse_control(text).ok()) << text;
        EXPECT_EQ(canonical(canonical(text)), canonical(text));
      }
    }
  }
}

}  // namespace
}  // namespace laconic::control
