// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Replays the golden files: what they say, what they decode to, and that today's encoders still
// write the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "golden/cases.h"
#include "golden/codec_frame.h"
#include "wire/bundle.h"

namespace laconic::golden {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Buffer = std::vector<uint8_t>;

const fs::path kDir = fs::path(LACONIC_TEST_DATA) / "golden" / "v1";

Buffer read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return Buffer(std::istreambuf_iterator<char>(in), {});
}

const Json& manifest() {
  static const Json json = Json::parse(std::ifstream(kDir / "manifest.json"));
  return json;
}

void expect_fields(const FrameView& view, const Json& f) {
  const FrameInfo& i = view.info;
  EXPECT_EQ(i.flags.zero, f["zero"].get<bool>());
  EXPECT_EQ(i.flags.non_finite, f["non_finite"].get<bool>());
  EXPECT_EQ(i.codec, f["codec"].get<uint16_t>());
  EXPECT_EQ(i.payload_version, f["payload_version"].get<uint8_t>());
  EXPECT_EQ(dtype_name(i.dtype), f["dtype"].get<std::string>());
  EXPECT_EQ(i.contributors, f["contributors"].get<uint32_t>());
  EXPECT_EQ(i.count, f["count"].get<uint64_t>());
  EXPECT_EQ(i.rows, f["rows"].get<uint64_t>());
  EXPECT_EQ(i.cols, f["cols"].get<uint64_t>());
  EXPECT_EQ(i.step, f["step"].get<uint64_t>());
  EXPECT_EQ(i.seed, f["seed"].get<uint64_t>());
  EXPECT_EQ(i.parameter, f["parameter"].get<uint64_t>());
  EXPECT_EQ(i.offset, f["offset"].get<uint64_t>());
  EXPECT_EQ(i.rank, f["rank"].get<uint32_t>());
  EXPECT_EQ(i.world, f["world"].get<uint32_t>());
  EXPECT_EQ(i.hop, f["hop"].get<uint8_t>());
  EXPECT_EQ(i.spec, f["spec"].get<std::string>());
  EXPECT_EQ(view.payload.size(), f["payload_bytes"].get<std::size_t>());
}

TEST(Golden, frames_say_what_the_manifest_says) {
  ASSERT_GT(manifest()["frames"].size(), 40U);
  for (const Json& entry : manifest()["frames"]) {
    SCOPED_TRACE(entry["file"].get<std::string>());
    const Buffer bytes = read_file(kDir / entry["file"].get<std::string>());
    const auto view = parse_frame(bytes);
    const Errc code = view ? Errc::ok : view.error().code;
    EXPECT_EQ(errc_name(code), entry["errc"].get<std::string>());
    EXPECT_EQ(static_cast<int>(code), entry["number"].get<int>());
    if (view) expect_fields(*view, entry["fields"]);
  }
}

TEST(Golden, frames_decode_to_the_recorded_bits_on_every_instruction_set) {
  for (const Json& entry : manifest()["frames"]) {
    if (!entry.contains("values")) continue;
    const Buffer bytes = read_file(kDir / entry["file"].get<std::string>());
    const Buffer want = read_file(kDir / entry["values"].get<std::string>());
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(entry["file"].get<std::string>() + " " + std::string(isa_name(isa)));
      const auto values = decode_frame(bytes, isa);
      ASSERT_TRUE(values) << errc_name(values.error().code);
      const auto* got = reinterpret_cast<const uint8_t*>(values->data());
      EXPECT_EQ(Buffer(got, got + values->size() * sizeof(float)), want);
    }
  }
}

TEST(Golden, payloads_are_refused_as_the_manifest_says) {
  int refused = 0;
  for (const Json& entry : manifest()["frames"]) {
    if (!entry.contains("payload")) continue;
    SCOPED_TRACE(entry["file"].get<std::string>());
    const auto values =
        decode_frame(read_file(kDir / entry["file"].get<std::string>()), Isa::scalar);
    ASSERT_FALSE(values);
    EXPECT_EQ(errc_name(values.error().code), entry["payload"].get<std::string>());
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

// Not a promise of the format (a later encoder may choose better), but nothing may change
// unnoticed.
TEST(Golden, encoders_still_write_these_bytes) {
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

TEST(Golden, every_codec_has_frames) {
  std::set<std::string> files;
  for (const Json& entry : manifest()["frames"]) files.insert(entry["file"].get<std::string>());
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
  EXPECT_EQ(view.failed, c.value("failed", false));
  EXPECT_EQ(view.overflow, c.value("overflow", false));
  if (view.failed) {
    EXPECT_EQ(errc_name(view.failure.code), c["code"].get<std::string>());
    EXPECT_EQ(view.failure.rank, c["rank"].get<uint32_t>());
    EXPECT_EQ(view.failure.bucket, c["bucket"].get<uint32_t>());
    EXPECT_EQ(view.failure.parameter, c["parameter"].get<uint32_t>());
    EXPECT_EQ(view.failure.text, c["text"].get<std::string>());
    return;
  }
  EXPECT_EQ(view.bytes, c["bytes"].get<uint64_t>());
  EXPECT_EQ(hex_of(view.report.bytes), c["report"].get<std::string>());
  EXPECT_EQ(view.report.step, c["report_step"].get<uint32_t>());
  if (view.overflow) return;
  EXPECT_EQ(view.non_finite, c["non_finite"].get<bool>());
  EXPECT_EQ(view.incomplete, c["incomplete"].get<bool>());
  EXPECT_EQ(view.flush, c["flush"].get<uint32_t>());
  EXPECT_EQ(hex_of(view.lanes), c["lanes"].get<std::string>());
  if (view.shape.seen != 0) {
    EXPECT_EQ(view.seen(), c["seen"].get<uint64_t>());
  }
  SlotCursor slots = view.slots();
  ASSERT_EQ(slots.left(), c["slots"].size());
  for (const Json& want : c["slots"]) {
    const Slot slot = slots.next();
    const std::string got = slot.kind == SlotKind::zero         ? "zero"
                            : slot.kind == SlotKind::non_finite ? "non_finite"
                                                                : hex_of(slot.payload);
    EXPECT_EQ(got, want.get<std::string>());
  }
}

TEST(Golden, bundles_say_what_the_manifest_says) {
  ASSERT_GT(manifest()["bundles"].size(), 20U);
  for (const Json& entry : manifest()["bundles"]) {
    SCOPED_TRACE(entry["file"].get<std::string>());
    const Json& e = entry["expect"];
    const auto bounds = e["slot_bounds"].get<std::vector<uint32_t>>();
    BundleExpect expect;
    expect.id.kind = static_cast<BundleKind>(e["kind"].get<uint8_t>());
    expect.id.round = e["round"].get<uint8_t>();
    expect.id.rank = e["rank"].get<uint16_t>();
    expect.id.world = e["world"].get<uint16_t>();
    expect.id.step = e["step"].get<uint64_t>();
    expect.id.sequence = e["sequence"].get<uint32_t>();
    expect.id.agreement = e["agreement"].get<uint64_t>();
    expect.shape = {static_cast<uint32_t>(bounds.size()), e["seen"].get<uint32_t>(),
                    e["lane_bytes"].get<uint32_t>()};
    expect.slot_bounds = bounds;
    expect.seen_bound = e["seen_bound"].get<uint64_t>();
    const Buffer bytes = read_file(kDir / entry["file"].get<std::string>());
    const auto view = parse_bundle(bytes, expect);
    const Errc code = view ? Errc::ok : view.error().code;
    EXPECT_EQ(errc_name(code), entry["errc"].get<std::string>());
    EXPECT_EQ(static_cast<int>(code), entry["number"].get<int>());
    if (view) expect_contents(*view, entry["contents"]);
  }
}

}  // namespace
}  // namespace laconic::golden
