// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/json_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace laconic {
namespace {

std::string everything(const JsonStyle& style) {
  JsonText json(style);
  json.open('{').field("a", 1U).key("b").open('[').value("x").open('{').close('}').null();
  json.close(']').key("c").open('{').field("d", true).close('}').key("e").open('[').close(']');
  return json.close('}').take();
}

TEST(JsonText, StylesDifferInSpacesOnly) {
  EXPECT_EQ(everything(kJsonLine), R"({"a": 1, "b": ["x", {}, null], "c": {"d": true}, "e": []})");
  EXPECT_EQ(everything(kJsonCompact), R"({"a":1,"b":["x",{},null],"c":{"d":true},"e":[]})");
  EXPECT_EQ(everything(kJsonIndented), R"({
  "a": 1,
  "b": [
    "x",
    {},
    null
  ],
  "c": {
    "d": true
  },
  "e": []
})");
}

template <class T>
std::string written(const T& x, const JsonStyle& style = kJsonLine) {
  return JsonText(style).value(x).take();
}

TEST(JsonText, RealsAreWrittenAsReals) {
  EXPECT_EQ(written(4.0), "4");
  EXPECT_EQ(written(1e5), "1e+05");
  const auto real = [](double x) { return written(x, kJsonCompact); };
  EXPECT_EQ(real(4.0), "4.0");
  EXPECT_EQ(real(-0.0), "-0.0");
  EXPECT_EQ(real(0.1), "0.1");
  EXPECT_EQ(real(100000), "100000.0");
  EXPECT_EQ(real(0.0001), "0.0001");
  EXPECT_EQ(real(0.00001), "1e-05");
  EXPECT_EQ(real(999999999999999), "999999999999999.0");
  EXPECT_EQ(real(1e15), "1e+15");
  EXPECT_EQ(real(-1.5e300), "-1.5e+300");
  EXPECT_EQ(real(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(real(-std::numeric_limits<double>::max()), "-1.7976931348623157e+308");
}

TEST(JsonText, NonJsonNumbersBecomeNull) {
  for (const JsonStyle& style : {kJsonLine, kJsonCompact}) {
    EXPECT_EQ(written(std::numeric_limits<double>::infinity(), style), "null");
    EXPECT_EQ(written(std::numeric_limits<double>::quiet_NaN(), style), "null");
  }
}

TEST(JsonText, WholeNumbersKeepTheirSign) {
  EXPECT_EQ(written(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(written(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(written(-1), "-1");
}

TEST(JsonText, EmptyOptionalIsNull) {
  EXPECT_EQ(written(std::optional<int32_t>()), "null");
  EXPECT_EQ(written(std::optional<int32_t>(-7)), "-7");
}

TEST(JsonText, ControlCharactersAreEscaped) {
  EXPECT_EQ(written(std::string("\"\\\b\f\n\r\t/\x01\x1f\x7f\0", 12)),
            R"("\"\\\b\f\n\r\t/\u0001\u001f)"
            "\x7f\\u0000\"");
}

TEST(JsonText, InvalidUtf8IsReplaced) {
  const std::string good =
      "\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xef\xbf\xbf \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf";
  EXPECT_EQ(written(good), "\"" + good + "\"");
  const std::string replaced = "\xef\xbf\xbd";
  const auto times = [&](int n) {
    std::string all = "\"";
    for (int i = 0; i < n; ++i) all += replaced;
    return all;
  };
  for (const auto& [bytes, replacements] : std::initializer_list<std::pair<std::string, int>>{
           {"\x80", 1},      // the middle of a character
           {"\xc0\x80", 2},  // a longer form than needed
           {"\xe0\x9f\xbf", 3},
           {"\xf0\x8f\xbf\xbf", 4},
           {"\xed\xa0\x80", 3},      // half of a pair
           {"\xf4\x90\x80\x80", 4},  // above U+10FFFF
           {"\xf5", 1},
           {"\xff", 1},
           {"\xc3", 1},  // cut
           {"\xe2\x82", 1},
           {"\xf0\x9f\x98", 1},
           {"\xe2\x82\xe2", 2}}) {
    EXPECT_EQ(written(bytes + "a"), times(replacements) + "a\"") << written(bytes);
    EXPECT_EQ(written(bytes), times(replacements) + "\"");
  }
}

TEST(JsonText, TextReusesMemoryOfAnother) {
  std::string memory(200, 'x');
  const char* const at = memory.data();
  const std::string text = JsonText(std::move(memory)).open('[').value(1U).close(']').take();
  EXPECT_EQ(text, "[1]");
  EXPECT_EQ(text.data(), at);
}

}  // namespace
}  // namespace laconic
