// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Replays v1/datagrams.json: what a reader says of each, and that writers still write the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "golden/datagrams.h"

namespace laconic::golden {
namespace {

using Json = nlohmann::json;

const Json& manifest() {
  static const Json json = Json::parse(
      std::ifstream(std::filesystem::path(LACONIC_TEST_DATA) / "golden" / "v1" / "datagrams.json"));
  return json;
}

std::vector<uint8_t> unhex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(GoldenDatagrams, ReadersSayWhatTheManifestSays) {
  ASSERT_GT(manifest()["datagrams"].size(), 40U);
  for (const Json& entry : manifest()["datagrams"]) {
    DatagramCase c;
    c.name = entry["name"];
    c.layout = entry["layout"];
    c.bytes = unhex(entry["hex"]);
    c.epoch = kGoldenEpoch;
    c.era = entry["era"];
    EXPECT_EQ(verdict_of(c), entry["verdict"].get<std::string>()) << c.name;
  }
}

TEST(GoldenDatagrams, WritersStillWriteTheseBytes) {
  std::map<std::string, std::vector<uint8_t>> files;
  for (const Json& entry : manifest()["datagrams"]) files[entry["name"]] = unhex(entry["hex"]);
  const auto cases = golden_datagrams();
  EXPECT_EQ(files.size(), cases.size());
  for (const DatagramCase& c : cases) EXPECT_EQ(c.bytes, files[c.name]) << c.name;
}

}  // namespace
}  // namespace laconic::golden
