// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/json_reader.h"

#include <gtest/gtest.h>

#include "base/json_text.h"

namespace laconic {
namespace {

/// Whether it is exactly one JSON value.
bool is_json(std::string_view text) {
  JsonReader json(text);
  json.skip();
  json.end();
  return json.ok();
}

TEST(JsonReader, OnlyJsonIsAccepted) {
  for (const char* good :
       {"0", "-0", "1.5e-3", "1E+2", "\"\"", "\"a\\u00e4\\ud83d\\ude00\\n\\/\"", "true", "false",
        "null", "[]", "{}", " [1 , 2,\t\"x\"\r\n] ", "{\"a\": {\"b\": [null, true]}, \"c\": -1}"}) {
    EXPECT_TRUE(is_json(good)) << good;
  }
  for (const char* bad :
       {"",         " ",          "01",      "+1",        "1.",          ".5",
        "1e",       "-",          "1e400",   "nan",       "NaN",         "inf",
        "'a'",      "\"a",        "\"\\x\"", "\"\\u12\"", "\"\\ud83d\"", "\"\\ude00\"",
        "\"a\nb\"", "tru",        "nul",     "[",         "[1",          "[1,",
        "[1,]",     "[,1]",       "[1 2]",   "{",         "{\"a\"",      "{\"a\":",
        "{\"a\":1", "{\"a\":1,}", "{a:1}",   "{\"a\" 1}", "{1:1}",       "[1]]",
        "1 2",      "{}{}",       "]",       "}",         ",",           "\"\\ud83d\\u0041\""}) {
    EXPECT_FALSE(is_json(bad)) << bad;
  }
}

TEST(JsonReader, DepthIsBounded) {
  EXPECT_TRUE(is_json(std::string(16, '[') + std::string(16, ']')));
  EXPECT_FALSE(is_json(std::string(17, '[') + std::string(17, ']')));
  EXPECT_FALSE(is_json(std::string(1000000, '[')));
}

TEST(JsonReader, ReaderReadsWhatJsonTextWrites) {
  std::string all;
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  JsonText text;
  text.open('{').field("a", std::string_view(all)).field("b", uint64_t{0xFFFFFFFFFFFFFFFF});
  text.field("c", 0.1).field("d", true).key("e").null().key("f").open('[').value(1e300);
  text.close(']').close('}');
  const std::string written = text.take();
  JsonReader json(written);
  std::string keys;
  json.object([&](std::string_view key) {
    keys += key;
    switch (key[0]) {
      case 'a':
        EXPECT_EQ(json.text(), all);
        break;
      case 'b':
        EXPECT_EQ(json.whole(), 0xFFFFFFFFFFFFFFFF);
        break;
      case 'c':
        EXPECT_EQ(json.number(), 0.1);
        break;
      case 'd':
        EXPECT_TRUE(json.flag());
        break;
      case 'e':
        EXPECT_TRUE(json.null());
        break;
      default:
        json.array([&] { EXPECT_EQ(json.number(), 1e300); });
    }
  });
  json.end();
  EXPECT_TRUE(json.ok()) << json.trouble();
  EXPECT_EQ(keys, "abcdef");
}

TEST(JsonReader, TextsAreDecoded) {
  JsonReader json(R"("\u0041\u00e4\u20ac\ud83d\ude00\"\\\b")");
  EXPECT_EQ(json.text(), "A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"\\\b");
}

TEST(JsonReader, FirstErrorIsKept) {
  JsonReader json("[1, \"x\", true]");
  int elements = 0;
  json.array([&] {
    ++elements;
    EXPECT_EQ(json.number(), elements == 1 ? 1 : 0);
  });
  EXPECT_EQ(elements, 2);
  EXPECT_EQ(json.trouble(), "expected a number");
  json.fail("another");
  EXPECT_EQ(json.trouble(), "expected a number");
  for (const char* text : {"-1", "1.5", "1e3", "18446744073709551616", "\"1\""}) {
    JsonReader whole(text);
    EXPECT_EQ(whole.whole(), 0U);
    EXPECT_FALSE(whole.ok()) << text;
  }
}

}  // namespace
}  // namespace laconic
