// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Replays the golden files: what they say, what they decode to, and that today's encoders still
// write the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "golden/cases.h"
#include "golden/codec_frame.h"
#include "golden/manifest.h"
#include "wire/bundle.h"

namespace laconic::golden {
namespace {

namespace fs = std::filesystem;
using Buffer = std::vector<uint8_t>;

const fs::path kDir = fs::path(LACONIC_TEST_DATA) / "golden" / "v1";

Buffer read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return Buffer(std::istreambuf_iterator<char>(in), {});
}

const Json& manifest() {
  static const Json json = read_manifest("manifest.json");
  return json;
}

void expect_fields(const FrameView& view, const Json& f) {
  const FrameInfo& i = view.info;
  EXPECT_EQ(i.flags.zero, flag_of(f, "zero"));
  EXPECT_EQ(i.flags.non_finite, flag_of(f, "non_finite"));
  EXPECT_EQ(i.codec, number_of(f, "codec"));
  EXPECT_EQ(i.payload_version, number_of(f, "payload_version"));
  EXPECT_EQ(dtype_name(i.dtype), text_of(f, "dtype"));
  EXPECT_EQ(i.contributors, number_of(f, "contributors"));
  EXPECT_EQ(i.count, number_of(f, "count"));
  EXPECT_EQ(i.rows, number_of(f, "rows"));
  EXPECT_EQ(i.cols, number_of(f, "cols"));
  EXPECT_EQ(i.step, number_of(f, "step"));
  EXPECT_EQ(i.seed, number_of(f, "seed"));
  EXPECT_EQ(i.parameter, number_of(f, "parameter"));
  EXPECT_EQ(i.offset, number_of(f, "offset"));
  EXPECT_EQ(i.rank, number_of(f, "rank"));
  EXPECT_EQ(i.world, number_of(f, "world"));
  EXPECT_EQ(i.hop, number_of(f, "hop"));
  EXPECT_EQ(i.spec, text_of(f, "spec"));
  EXPECT_EQ(view.payload.size(), number_of(f, "payload_bytes"));
}

TEST(Golden, FramesMatchManifest) {
  ASSERT_GT(items_of(manifest(), "frames").size(), 40U);
  for (const auto& [_, entry] : items_of(manifest(), "frames")) {
    SCOPED_TRACE(text_of(entry, "file"));
    const Buffer bytes = read_file(kDir / text_of(entry, "file"));
    const auto view = parse_frame(bytes);
    const Errc code = view ? Errc::ok : view.error().code;
    EXPECT_EQ(errc_name(code), text_of(entry, "errc"));
    EXPECT_EQ(static_cast<uint64_t>(code), number_of(entry, "number"));
    if (view) expect_fields(*view, entry["fields"]);
  }
}

TEST(Golden, FramesDecodeToRecordedBitsOnEveryIsa) {
  for (const auto& [_, entry] : items_of(manifest(), "frames")) {
    if (entry["values"].is_null()) continue;
    const Buffer bytes = read_file(kDir / text_of(entry, "file"));
    const Buffer want = read_file(kDir / text_of(entry, "values"));
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(text_of(entry, "file") + " " + std::string(isa_name(isa)));
      const auto values = decode_frame(bytes, isa);
      ASSERT_TRUE(values) << errc_name(values.error().code);
      const auto* got = reinterpret_cast<const uint8_t*>(values->data());
      EXPECT_EQ(Buffer(got, got + values->size() * sizeof(float)), want);
    }
  }
}

TEST(Golden, PayloadsAreRefusedAsListed) {
  int refused = 0;
  for (const auto& [_, entry] : items_of(manifest(), "frames")) {
    if (entry["payload"].is_null()) continue;
    SCOPED_TRACE(text_of(entry, "file"));
    const auto values = decode_frame(read_file(kDir / text_of(entry, "file")), Isa::scalar);
    ASSERT_FALSE(values);
    EXPECT_EQ(errc_name(values.error().code), text_of(entry, "payload"));
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

// No promise of the format (a later encoder may choose better), but no size may change unnoticed.
TEST(Golden, EncodersStillWriteTheseBytes) {
  for (const CodecCase& c : codec_cases()) {
    const fs::path file = kDir / "frames" / (file_of(c) + ".frame");
    const FrameInfo header = header_of(c);
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(file_of(c) + " " + std::string(isa_name(isa)));
      EXPECT_EQ(encode_frame(*Spec::parse(c.spec), header, input(header.count), isa),
                read_file(file));
    }
  }
}

TEST(Golden, EveryCodecHasFrames) {
  std::set<std::string> files;
  for (const auto& [_, entry] : items_of(manifest(), "frames"))
    files.insert(text_of(entry, "file"));
  for (const CodecCase& c : codec_cases()) {
    EXPECT_THAT(files, testing::Contains("frames/" + file_of(c) + ".frame"))
        << "run make_golden (see tests/golden/README.md)";
  }
}

std::string hex_of(Bytes bytes) {
  std::string text;
  for (const uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

void expect_contents(const BundleView& view, const Json& c) {
  EXPECT_EQ(view.failed, c["failed"].flag());
  EXPECT_EQ(view.overflow, c["overflow"].flag());
  if (view.failed) {
    EXPECT_EQ(errc_name(view.failure.code), text_of(c, "code"));
    EXPECT_EQ(view.failure.rank, number_of(c, "rank"));
    EXPECT_EQ(view.failure.bucket, number_of(c, "bucket"));
    EXPECT_EQ(view.failure.parameter, number_of(c, "parameter"));
    EXPECT_EQ(view.failure.text, text_of(c, "text"));
    return;
  }
  EXPECT_EQ(view.bytes, number_of(c, "bytes"));
  EXPECT_EQ(hex_of(view.report.bytes), text_of(c, "report"));
  EXPECT_EQ(view.report.step, number_of(c, "report_step"));
  if (view.overflow) return;
  EXPECT_EQ(view.non_finite, flag_of(c, "non_finite"));
  EXPECT_EQ(view.incomplete, flag_of(c, "incomplete"));
  EXPECT_EQ(view.flush, number_of(c, "flush"));
  EXPECT_EQ(hex_of(view.lanes), text_of(c, "lanes"));
  if (view.shape.seen != 0) {
    EXPECT_EQ(view.seen(), number_of(c, "seen"));
  }
  SlotCursor slots = view.slots();
  ASSERT_EQ(slots.left(), items_of(c, "slots").size());
  for (const auto& [_, want] : items_of(c, "slots")) {
    const Slot slot = slots.next();
    const std::string got = slot.kind == SlotKind::zero         ? "zero"
                            : slot.kind == SlotKind::non_finite ? "non_finite"
                                                                : hex_of(slot.payload);
    EXPECT_EQ(got, want.text());
  }
}

TEST(Golden, BundlesMatchManifest) {
  ASSERT_GT(items_of(manifest(), "bundles").size(), 20U);
  for (const auto& [_, entry] : items_of(manifest(), "bundles")) {
    SCOPED_TRACE(text_of(entry, "file"));
    const Json& e = entry["expect"];
    std::vector<uint32_t> bounds;
    for (const auto& [__, bound] : items_of(e, "slot_bounds"))
      bounds.push_back(static_cast<uint32_t>(bound.whole()));
    BundleExpect expect;
    expect.id.kind = static_cast<BundleKind>(number_of(e, "kind"));
    expect.id.round = static_cast<uint8_t>(number_of(e, "round"));
    expect.id.rank = static_cast<uint16_t>(number_of(e, "rank"));
    expect.id.world = static_cast<uint16_t>(number_of(e, "world"));
    expect.id.step = number_of(e, "step");
    expect.id.sequence = static_cast<uint32_t>(number_of(e, "sequence"));
    expect.id.agreement = number_of(e, "agreement");
    expect.shape = {static_cast<uint32_t>(bounds.size()),
                    static_cast<uint32_t>(number_of(e, "seen")),
                    static_cast<uint32_t>(number_of(e, "lane_bytes"))};
    expect.slot_bounds = bounds;
    expect.seen_bound = number_of(e, "seen_bound");
    const Buffer bytes = read_file(kDir / text_of(entry, "file"));
    const auto view = parse_bundle(bytes, expect);
    const Errc code = view ? Errc::ok : view.error().code;
    EXPECT_EQ(errc_name(code), text_of(entry, "errc"));
    EXPECT_EQ(static_cast<uint64_t>(code), number_of(entry, "number"));
    if (view) expect_contents(*view, entry["contents"]);
  }
}

}  // namespace
}  // namespace laconic::golden
