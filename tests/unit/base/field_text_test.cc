// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/field_text.h"

#include <gtest/gtest.h>

#include <array>
#include <clocale>
#include <cstring>

#include "base/nearest.h"

namespace laconic {
namespace {

struct Params {
  float s = 1.0F;
  double exact = 0.5;
  uint32_t block = 256;
  uint8_t law = 0;
  bool runs = true;
};

constexpr std::array<std::string_view, 3> kLaws{"exp", "gamma", "gp"};
constexpr Field kS = real_field<&Params::s>("s", 1, 1, 2, "scale", true);
constexpr Field kExact = real_field<&Params::exact>("exact", 0.5, 1e-6, 0.9, "a double");
constexpr Field kBlock = integer_field<&Params::block>("block", 256, 1, 65536, "elements");
constexpr Field kLaw = word_field<&Params::law>("law", 0, kLaws, "law");
constexpr Field kRuns = flag_field<&Params::runs>("runs", true, "runs");

Errc read(const Field& field, std::string_view text, Params* params) {
  const auto done = read_member(field, text, params);
  return done ? Errc::ok : done.error().code;
}

TEST(FieldText, NumbersAreShortAndHaveNoPlus) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.01), "0.01");
  EXPECT_EQ(number_text(1e-6), "1e-6");
  EXPECT_EQ(number_text(1e20), "1e20");
  EXPECT_EQ(number_text(1e300), "1e300");
  EXPECT_EQ(number_text(65536), "65536");
}

TEST(FieldText, Suffixes) {
  Params params;
  ASSERT_EQ(read(kBlock, "1k", &params), Errc::ok);
  EXPECT_EQ(params.block, 1000U);
  ASSERT_EQ(read(kBlock, "64Ki", &params), Errc::ok);
  EXPECT_EQ(params.block, 65536U);
  ASSERT_EQ(read(kBlock, "0.5Ki", &params), Errc::ok);
  EXPECT_EQ(params.block, 512U);
  ASSERT_EQ(read(kBlock, "1e3", &params), Errc::ok);
  EXPECT_EQ(params.block, 1000U);
}

TEST(FieldText, NonNumbersAreRefused) {
  Params params;
  for (const char* text :
       {"x", "1.5.2", "0x10", "1K", "1kk", "nan", "inf", "infinity", "-", ".", "1e", " 1", "1 "}) {
    EXPECT_EQ(read(kBlock, text, &params), Errc::spec_syntax) << text;
  }
  for (const char* text : {"0", "-1", "65537", "1G", "1.5", "1e999", "1e-999"}) {
    EXPECT_EQ(read(kBlock, text, &params), Errc::value_out_of_range) << text;
  }
  EXPECT_EQ(params.block, 256U);
}

TEST(FieldText, RangeHoldsBeforeAndAfterConversion) {
  Params params;
  EXPECT_EQ(read(kS, "1.99999999", &params), Errc::value_out_of_range);  // 2.0 in a float
  EXPECT_EQ(read(kS, "0.99999999999", &params), Errc::value_out_of_range);
  EXPECT_EQ(params.s, 1.0F);
  EXPECT_EQ(read(kS, "1.9999998", &params), Errc::ok);
  EXPECT_LT(params.s, 2.0F);
}

TEST(FieldText, MembersReadBackExactly) {
  Params params;
  for (const float s : {1.0F, 1.1F, 1.5F, 1.9999999F, 1.0000001F, 1.3333334F}) {
    params.s = s;
    Params back;
    ASSERT_EQ(read(kS, member_text(kS, &params), &back), Errc::ok) << member_text(kS, &params);
    EXPECT_EQ(std::memcmp(&back.s, &s, sizeof s), 0);
  }
  params.exact = 0.1;
  EXPECT_EQ(member_text(kExact, &params), "0.1");
  params.exact = 1.0 / 3.0;
  EXPECT_EQ(member_text(kExact, &params), "0.3333333333333333");
  params.exact = static_cast<double>(0.1F);  // a float whose digits are another double
  Params back;
  ASSERT_EQ(read(kExact, member_text(kExact, &params), &back), Errc::ok);
  EXPECT_EQ(back.exact, params.exact);
  params.s = 1.1F;
  EXPECT_EQ(member_text(kS, &params), "1.1");
}

TEST(FieldText, WordsAndFlags) {
  Params params;
  ASSERT_EQ(read(kLaw, "gp", &params), Errc::ok);
  EXPECT_EQ(params.law, 2);
  EXPECT_EQ(member_text(kLaw, &params), "gp");
  const auto wrong = read_member(kLaw, "gama", &params);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().hint.find("did you mean 'gamma'"), std::string::npos);
  ASSERT_EQ(read(kRuns, "off", &params), Errc::ok);
  EXPECT_FALSE(params.runs);
  EXPECT_EQ(member_text(kRuns, &params), "off");
  EXPECT_EQ(read(kRuns, "maybe", &params), Errc::value_out_of_range);
}

TEST(FieldText, Ranges) {
  EXPECT_EQ(range_text(kS), "1 to 2 (exclusive)");
  EXPECT_EQ(range_text(kLaw), "exp, gamma or gp");
  EXPECT_EQ(range_text(kRuns), "off or on");
}

TEST(FieldText, LocaleIsIgnored) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  const char* comma = std::setlocale(LC_ALL, "de_DE.UTF-8");
  Params params;
  EXPECT_EQ(read(kS, "1.5", &params), Errc::ok);
  EXPECT_EQ(member_text(kS, &params), "1.5");
  std::setlocale(LC_ALL, before.c_str());
  if (comma == nullptr) GTEST_SKIP() << "no de_DE locale here: tested in the C locale only";
}

TEST(Nearest, TyposAndAbbreviationsFindNearestName) {
  const std::vector<std::string_view> names{"none", "3lc", "topk", "powersgd"};
  EXPECT_EQ(nearest("top-k", names), "topk");
  EXPECT_EQ(nearest("power", names), "powersgd");
  EXPECT_EQ(nearest("PowerSGD", names), "");
  EXPECT_EQ(nearest("quantum", names), "");
  EXPECT_EQ(nearest("pwsd", names), "") << "all its letters are in powersgd";
  EXPECT_EQ(nearest("", names), "");
}

}  // namespace
}  // namespace laconic
