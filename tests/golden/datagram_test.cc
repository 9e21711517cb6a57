// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Replays v1/datagrams.json: what a reader says of each, and that writers still write the same.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "golden/datagrams.h"
#include "golden/manifest.h"

namespace laconic::golden {
namespace {

const Json& manifest() {
  static const Json json = read_manifest("datagrams.json");
  return json;
}

std::vector<uint8_t> unhex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(GoldenDatagrams, ReadersMatchManifest) {
  ASSERT_GT(items_of(manifest(), "datagrams").size(), 40U);
  for (const auto& [_, entry] : items_of(manifest(), "datagrams")) {
    DatagramCase c;
    c.name = text_of(entry, "name");
    c.layout = text_of(entry, "layout");
    c.bytes = unhex(text_of(entry, "hex"));
    c.epoch = kGoldenEpoch;
    c.era = number_of(entry, "era");
    EXPECT_EQ(verdict_of(c), text_of(entry, "verdict")) << c.name;
  }
}

TEST(GoldenDatagrams, WritersStillWriteTheseBytes) {
  std::map<std::string, std::vector<uint8_t>> files;
  for (const auto& [_, entry] : items_of(manifest(), "datagrams"))
    files[text_of(entry, "name")] = unhex(text_of(entry, "hex"));
  const auto cases = golden_datagrams();
  EXPECT_EQ(files.size(), cases.size());
  for (const DatagramCase& c : cases) EXPECT_EQ(c.bytes, files[c.name]) << c.name;
}

}  // namespace
}  // namespace laconic::golden
