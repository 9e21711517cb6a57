// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/rules.h"

#include <gtest/gtest.h>

#include <random>

namespace laconic::control {
namespace {

struct Case {
  std::string pattern, name;
  bool matches;
};

TEST(Glob, MatchesFollowTable) {
  const std::vector<Case> cases{
      {"*", "", true},
      {"*", "a.b", true},
      {"a", "a", true},
      {"a", "ab", false},
      {"a", "", false},
      {"?", "", false},
      {"?", "a", true},
      {"*embed*.weight", "model.embed_tokens.weight", true},
      {"*embed*.weight", "model.embed_tokens.bias", false},
      {"*embed*.weight", "embed.weight", true},
      {"*.weight", "a.weight.weight", true},
      {"*.weight", "a.weight.weights", false},
      {"layers.[0-3].*", "layers.2.fc", true},
      {"layers.[0-3].*", "layers.4.fc", false},
      {"layers.[!0-3].*", "layers.4.fc", true},
      {"layers.[!0-3].*", "layers.2.fc", false},
      {"layers.?.*", "layers.12.fc", false},
      {"layers.??.*", "layers.12.fc", true},
      {"[]]", "]", true},
      {"[!]]", "]", false},
      {"[!]]", "a", true},
      {"[a-]", "-", true},
      {"[a-]", "b", false},
      {"[-a]", "-", true},
      {"[*]", "*", true},
      {"[*]", "a", false},
      {"a**b", "ab", true},
      {"a*?b", "ab", false},
      {"]", "]", true},
      {"a[b]c*d", "abcxd", true},
      {"*a*b*c", "aabbcbcc", true},
      {"*a*b*c", "aabbcbcx", false},
      {"[\xc3-\xff]*", "\xe4x", true},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(check_glob(c.pattern).ok()) << c.pattern;
    EXPECT_EQ(glob_matches(c.pattern, c.name), c.matches) << c.pattern << " " << c.name;
  }
}

/// From the definition: a star takes any beginning, tried in turn.
bool matches_by_definition(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (size_t taken = 0; taken <= name.size(); ++taken) {
      if (matches_by_definition(pattern.substr(1), name.substr(taken))) return true;
    }
    return false;
  }
  if (name.empty()) return false;
  if (pattern[0] == '?') return matches_by_definition(pattern.substr(1), name.substr(1));
  if (pattern.substr(0, 4) == "[!a]") {
    return name[0] != 'a' && matches_by_definition(pattern.substr(4), name.substr(1));
  }
  return pattern[0] == name[0] && matches_by_definition(pattern.substr(1), name.substr(1));
}

TEST(Glob, MatcherAgreesWithDefinition) {
  std::mt19937 random(1);
  const std::vector<std::string> elements{"*", "?", "a", "b", "[!a]"};
  int matched = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string pattern;
    std::string name;
    for (auto n = random() % 7 + 1; n > 0; --n) pattern += elements[random() % elements.size()];
    for (auto n = random() % 9; n > 0; --n) name += "ab"[random() % 2];
    const bool expected = matches_by_definition(pattern, name);
    matched += expected ? 1 : 0;
    ASSERT_EQ(glob_matches(pattern, name), expected) << pattern << " " << name;
  }
  EXPECT_GT(matched, 2000);
}

TEST(Glob, StarsDoNotMultiply) {  // 2^100 tries where every star is tried again
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "a*";
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(20000, 'a')));
  EXPECT_TRUE(glob_matches(pattern, std::string(20000, 'a')));
}

TEST(Glob, InvalidPatternsAreRefused) {
  EXPECT_EQ(check_glob("").error().code, Errc::invalid_argument);
  EXPECT_EQ(check_glob("a[b").error().message, "pattern 'a[b': [ without ]");
  EXPECT_FALSE(check_glob("[]").ok());
  EXPECT_FALSE(check_glob("[!]").ok());
  EXPECT_EQ(check_glob("[9-0]").error().message,
            "pattern '[9-0]': a range of [9-0] runs backwards");
  EXPECT_FALSE(check_glob(std::string(257, 'a')).ok());
  EXPECT_TRUE(check_glob(std::string(256, 'a')).ok());
  EXPECT_FALSE(glob_matches("a[b", "ab"));
}

const std::vector<std::string_view> kNames{"embed.weight", "fc1.weight", "fc1.bias", "fc2.weight"};
const std::vector<uint64_t> kSizes{1000, 500, 10, 20};

Rule rule(std::string match) {
  Rule made;
  made.match = std::move(match);
  return made;
}

TEST(Rules, FirstMatchWinsAndTheRestIsClassZero) {
  const std::vector<Rule> rules{rule("fc1.*"), rule("*.weight")};
  const auto classes = classes_of(rules, kNames, kSizes);
  ASSERT_TRUE(classes) << classes.error().message;
  EXPECT_EQ(*classes, (std::vector<uint32_t>{2, 1, 1, 2}));
  EXPECT_EQ(*classes_of({}, kNames, kSizes), (std::vector<uint32_t>{0, 0, 0, 0}));
}

TEST(Rules, SizesAreIncludedOnBothEnds) {
  std::vector<Rule> rules{rule("*"), rule("fc*")};
  rules[0].min_elements = 500;
  rules[0].max_elements = 999;
  rules[1].max_elements = 10;
  EXPECT_EQ(*classes_of(rules, kNames, kSizes), (std::vector<uint32_t>{0, 1, 2, 0}));
}

TEST(Rules, RuleWithoutParameterIsRefusedUnlessOptional) {
  std::vector<Rule> rules{rule("*.weight"), rule("conv*")};
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message,
            "rule 2 (match = 'conv*'): matches no parameter");
  rules[1].optional = true;
  EXPECT_TRUE(classes_of(rules, kNames, kSizes).ok());
  rules[1] = rule("fc2.*");
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message,
            "rule 2 (match = 'fc2.*'): rule 1 before it already matches 'fc2.weight' and its other "
            "parameters");
  rules[1] = rule("*.bias");
  rules[1].min_elements = 11;
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message,
            "rule 2 (match = '*.bias'): no parameter of that name has a size in its range; "
            "'fc1.bias' has 10 elements");
}

TEST(Rules, BadRulesAreRefusedByNumber) {
  std::vector<Rule> rules{rule("*"), rule("[")};
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message, "rule 2: pattern '[': [ without ]");
  rules[1] = rule("*");
  rules[1].min_elements = 2;
  rules[1].max_elements = 1;
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message,
            "rule 2 (match = '*'): min_elements 2 is above max_elements 1");
  rules.assign(32, rule("*"));
  for (Rule& r : rules) r.optional = true;
  EXPECT_EQ(classes_of(rules, kNames, kSizes).error().message, "32 rules exceed the limit of 31");
  rules.pop_back();
  EXPECT_TRUE(classes_of(rules, kNames, kSizes).ok());
}

}  // namespace
}  // namespace laconic::control
