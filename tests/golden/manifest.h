// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Reads a manifest. A field that is missing, or of another kind, fails the test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "json.h"

namespace laconic::golden {

using tools::Json;

inline Json read_manifest(const char* name) {
  std::ifstream in(std::filesystem::path(LACONIC_TEST_DATA) / "golden" / "v1" / name);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto read = tools::parse_json(text);
  EXPECT_TRUE(read) << name << ": " << read.error().message;
  return read ? *read : Json();
}

inline const std::string& text_of(const Json& entry, const char* name) {
  EXPECT_TRUE(entry[name].is_text()) << name;
  return entry[name].text();
}
inline uint64_t number_of(const Json& entry, const char* name) {
  EXPECT_TRUE(entry[name].is_whole()) << name;
  return entry[name].whole();
}
inline bool flag_of(const Json& entry, const char* name) {
  EXPECT_TRUE(entry[name].is_flag()) << name;
  return entry[name].flag();
}
inline const std::vector<Json::Member>& items_of(const Json& entry, const char* name) {
  EXPECT_TRUE(entry[name].is_array()) << name;
  return entry[name].members();
}

}  // namespace laconic::golden
