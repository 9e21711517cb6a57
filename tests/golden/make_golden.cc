// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Writes the golden files and the seeds of the fuzz corpora: make_golden tests/golden/v1
// tests/fuzz/corpus Files of a released format are never written again: a change that needs this
// program is a new version.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/json_text.h"
#include "golden/cases.h"
#include "golden/codec_frame.h"
#include "golden/datagrams.h"
#include "json.h"
#include "wire/bundle.h"

namespace laconic::golden {
namespace {

namespace fs = std::filesystem;
using tools::Json;
using Buffer = std::vector<uint8_t>;

void write_file(const fs::path& path, Bytes bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

// A number at a place, and the checksum over the first `end` bytes made right again.
template <class T>
Buffer patched(Buffer bytes, std::size_t at, T value, std::size_t end = 0) {
  store(bytes.data() + at, value);
  const std::size_t length = end == 0 ? bytes.size() : end;
  store(bytes.data() + 8,
        hash64(Bytes(bytes).subspan(16, length - 16), load<uint64_t>(bytes.data())));
  return bytes;
}

Buffer flipped(Buffer bytes, std::size_t at) {
  bytes[at] ^= 1U;
  return bytes;
}

Buffer resized(Buffer bytes, std::size_t size) {
  bytes.resize(size);
  return bytes;
}

constexpr JsonStyle kStyle{",", ": ", 1};

// ---- frames ----

Json fields_of(const FrameView& view) {
  const FrameInfo& i = view.info;
  return {{"zero", i.flags.zero},
          {"non_finite", i.flags.non_finite},
          {"codec", i.codec},
          {"payload_version", i.payload_version},
          {"dtype", dtype_name(i.dtype)},
          {"contributors", i.contributors},
          {"count", i.count},
          {"rows", i.rows},
          {"cols", i.cols},
          {"step", i.step},
          {"seed", i.seed},
          {"parameter", i.parameter},
          {"offset", i.offset},
          {"rank", i.rank},
          {"world", i.world},
          {"hop", i.hop},
          {"spec", i.spec},
          {"payload_bytes", view.payload.size()}};
}

class Frames {
 public:
  explicit Frames(fs::path dir) : dir_(std::move(dir)) {}

  /// `refused`: the codec's answer to a payload in a sound frame.
  void add(const std::string& name, const Buffer& frame, const std::vector<float>* values = nullptr,
           Errc refused = Errc::ok) {
    write_file(dir_ / "frames" / (name + ".frame"), frame);
    Json entry{{"file", "frames/" + name + ".frame"}};
    const auto view = parse_frame(frame);
    const Errc code = view ? Errc::ok : view.error().code;
    entry["errc"] = errc_name(code);
    entry["number"] = static_cast<int>(code);
    if (view) entry["fields"] = fields_of(*view);
    if (refused != Errc::ok) entry["payload"] = errc_name(refused);
    if (values != nullptr) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(values->data());
      write_file(dir_ / "frames" / (name + ".f32"), Bytes(bytes, values->size() * sizeof(float)));
      entry["values"] = "frames/" + name + ".f32";
    }
    entries_.push_back(std::move(entry));
  }
  [[nodiscard]] Json entries() const { return entries_; }

 private:
  fs::path dir_;
  Json entries_ = Json::array();
};

bool add_codec_frames(Frames& frames) {
  for (const CodecCase& c : codec_cases()) {
    const auto spec = Spec::parse(c.spec);
    const FrameInfo header = header_of(c);
    const std::vector<float> values = input(header.count);
    const Buffer frame = encode_frame(*spec, header, values, Isa::scalar);
    const auto back = decode_frame(frame, Isa::scalar);
    if (!back) {
      std::fprintf(stderr, "%s does not decode: %s\n", file_of(c).c_str(),
                   std::string(errc_name(back.error().code)).c_str());
      return false;
    }
    frames.add(file_of(c), frame, &*back);
  }
  return true;
}

// Scales of int8 are the only field of a payload that is a float and not a value.
void add_int8_scales(Frames& frames) {
  const auto with_scale = [](float scale) {
    const FrameInfo header = header_of({"int8", 257, 1});
    const Buffer frame = encode_frame(*Spec::parse("int8"), header, input(257), Isa::scalar);
    const FrameView view = *parse_frame(frame);
    Buffer payload(view.payload.begin(), view.payload.end());
    store(payload.data(), scale);
    Buffer changed(frame.size());
    (void)write_frame(view.info, payload, changed);
    return changed;
  };
  const Buffer largest = with_scale(0x1.020406p121F);
  const auto values = decode_frame(largest, Isa::scalar);
  frames.add("int8-largest_scale-257x1", largest, values ? &*values : nullptr);
  frames.add("refused-int8-scale_above_largest-257x1", with_scale(0x1.020408p121F), nullptr,
             Errc::payload_malformed);
}

Buffer raw_frame(FrameInfo info, std::size_t payload_bytes) {
  Buffer payload(payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i) payload[i] = static_cast<uint8_t>(i);
  Buffer frame(frame_header_bytes(info.spec.size()) + payload_bytes);
  (void)write_frame(info, payload, frame);
  return frame;
}

FrameInfo raw_header() {
  FrameInfo info;
  info.codec = 0xFFFF;
  info.payload_version = 9;
  info.dtype = DType::bf16;
  info.contributors = 3;
  info.count = 12;
  info.rows = 3;
  info.cols = 4;
  info.step = UINT64_MAX;
  info.seed = uint64_t{1} << 63;
  info.parameter = 0x0123456789ABCDEFU;
  info.offset = uint64_t{1} << 50;
  info.rank = 6;
  info.world = 7;
  info.hop = 1;
  info.spec = "a-codec-of-nobody:key=1";
  return info;
}

void add_header_frames(Frames& frames) {
  FrameInfo info = raw_header();
  frames.add("header-all_fields", raw_frame(info, 21));
  info.flags.zero = true;
  frames.add("header-zero", raw_frame(info, 0));
  info.flags = {false, true};
  frames.add("header-non_finite", raw_frame(info, 0));
  info = raw_header();
  const std::string longest(kFrameMaxSpec, '~');
  info.spec = longest;
  frames.add("header-longest_spec", raw_frame(info, 1));
  info.spec = "!";
  info.count = info.rows = kFrameMaxCount;
  info.cols = 1;
  frames.add("header-largest_count", raw_frame(info, 0));
}

void add_bad_frames(Frames& frames) {
  const Buffer f = raw_frame(raw_header(), 21);
  const std::size_t n = f.size();
  const std::vector<std::pair<std::string, Buffer>> bad = {
      {"empty", {}},
      {"magic_cut", resized(f, 3)},
      {"magic_wrong", flipped(f, 0)},
      {"magic_text", {'h', 'e', 'l', 'l', 'o'}},
      {"version_missing", resized(f, 4)},
      {"version_0", patched<uint8_t>(f, 4, 0)},
      {"version_2", patched<uint8_t>(f, 4, 2)},
      {"fixed_part_cut", resized(f, 97)},
      {"spec_cut", resized(f, 100)},
      {"payload_cut", resized(f, n - 1)},
      {"payload_longer", resized(f, n + 1)},
      {"payload_bytes_less", patched<uint64_t>(f, 80, 20)},
      {"payload_bytes_more", patched<uint64_t>(f, 80, 22)},
      {"payload_bytes_huge", patched<uint64_t>(f, 80, UINT64_MAX)},
      {"header_bytes", patched<uint16_t>(f, 6, 120)},
      {"spec_length_0", patched<uint8_t>(f, 97, 0)},
      {"checksum_flipped", flipped(f, 8)},
      {"flags_flipped", flipped(f, 5)},
      {"field_flipped", flipped(f, 50)},
      {"payload_flipped", flipped(f, n - 1)},
      {"flags_unknown", patched<uint8_t>(f, 5, 4)},
      {"flags_both", patched<uint8_t>(f, 5, 3)},
      {"flags_zero_with_payload", patched<uint8_t>(f, 5, 1)},
      {"padding", patched<uint8_t>(f, 98 + 23, 1)},
      {"codec_0", patched<uint16_t>(f, 16, 0)},
      {"payload_version_0", patched<uint8_t>(f, 18, 0)},
      {"dtype_u8", patched<uint8_t>(f, 19, 3)},
      {"contributors_0", patched<uint32_t>(f, 20, 0)},
      {"contributors_8", patched<uint32_t>(f, 20, 8)},
      {"count_11", patched<uint64_t>(f, 24, 11)},
      {"count_huge", patched<uint64_t>(f, 24, kFrameMaxCount + 1)},
      {"rows_wrap", patched<uint64_t>(f, 32, (uint64_t{1} << 62) + 3)},
      {"offset_wraps", patched<uint64_t>(f, 72, UINT64_MAX - 11)},
      {"rank_7", patched<uint32_t>(f, 88, 7)},
      {"world_0", patched<uint32_t>(f, 92, 0)},
      {"spec_space", patched<uint8_t>(f, 98, ' ')},
      {"spec_high", patched<uint8_t>(f, 99, 0xC3)},
  };
  for (const auto& [name, bytes] : bad) frames.add("bad-" + name, bytes);
}

// ---- bundles ----

Json expect_json(const BundleExpect& x) {
  return {{"kind", static_cast<int>(x.id.kind)},
          {"round", x.id.round},
          {"rank", x.id.rank},
          {"world", x.id.world},
          {"step", x.id.step},
          {"sequence", x.id.sequence},
          {"agreement", x.id.agreement},
          {"seen", x.shape.seen},
          {"seen_bound", x.seen_bound},
          {"lane_bytes", x.shape.lane_bytes},
          {"slot_bounds", std::vector<uint32_t>(x.slot_bounds.begin(), x.slot_bounds.end())}};
}

Json hex_of(Bytes bytes) {
  std::string text;
  for (const uint8_t b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

Json contents_of(const BundleView& view) {
  if (view.failed) {
    return {{"failed", true},
            {"code", errc_name(view.failure.code)},
            {"rank", view.failure.rank},
            {"bucket", view.failure.bucket},
            {"parameter", view.failure.parameter},
            {"text", view.failure.text}};
  }
  if (view.overflow) {
    return {{"overflow", true},
            {"bytes", view.bytes},
            {"report", hex_of(view.report.bytes)},
            {"report_step", view.report.step}};
  }
  Json slots = Json::array();
  for (SlotCursor cursor = view.slots(); cursor.left() > 0;) {
    const Slot slot = cursor.next();
    slots.push_back(slot.kind == SlotKind::zero         ? Json("zero")
                    : slot.kind == SlotKind::non_finite ? Json("non_finite")
                                                        : hex_of(slot.payload));
  }
  const Json seen = view.shape.seen == 0 ? Json() : Json(view.seen());
  return {{"bytes", view.bytes},
          {"non_finite", view.non_finite},
          {"incomplete", view.incomplete},
          {"flush", view.flush},
          {"report", hex_of(view.report.bytes)},
          {"report_step", view.report.step},
          {"slots", slots},
          {"seen", seen},
          {"lanes", hex_of(view.lanes)}};
}

BundleId example_id() {
  BundleId id;
  id.kind = BundleKind::mean;
  id.round = 1;
  id.rank = 2;
  id.world = 3;
  id.step = 77;
  id.sequence = 9;
  id.agreement = 0xABCDEF0123456789U;
  return id;
}

class Bundles {
 public:
  Bundles(fs::path dir, fs::path corpus) : dir_(std::move(dir)), corpus_(std::move(corpus)) {}

  void add(const std::string& name, const Buffer& bytes, const BundleExpect& expect) {
    write_file(dir_ / "bundles" / (name + ".bundle"), bytes);
    const auto view = parse_bundle(bytes, expect);
    const Errc code = view ? Errc::ok : view.error().code;
    Json entry{{"file", "bundles/" + name + ".bundle"},
               {"errc", errc_name(code)},
               {"number", static_cast<int>(code)},
               {"expect", expect_json(expect)}};
    if (view) entry["contents"] = contents_of(*view);
    entries_.push_back(std::move(entry));
    // The first bytes of an input of bundle_fuzz: where ids come from, slots, bound, lanes, seen
    // bound.
    Buffer seed{static_cast<uint8_t>(expect.shape.seen != 0 ? 2 : 0),
                static_cast<uint8_t>(expect.shape.slots),
                100,
                0,
                static_cast<uint8_t>(expect.shape.lane_bytes / 4),
                static_cast<uint8_t>(expect.seen_bound),
                static_cast<uint8_t>(expect.seen_bound >> 8),
                0};
    seed.insert(seed.end(), bytes.begin(), bytes.end());
    write_file(corpus_ / (name + ".seed"), seed);
  }
  [[nodiscard]] Json entries() const { return entries_; }

 private:
  fs::path dir_;
  fs::path corpus_;
  Json entries_ = Json::array();
};

Buffer example_bundle(const BundleShape& shape, uint64_t capacity) {
  Buffer out(1000);
  BundleWriter writer(out, shape);
  for (uint32_t i = 0; i < shape.lane_bytes; i += 4) store(writer.lanes().data() + i, 1.5F);
  writer.set_seen(300);
  writer.set_flush(10);
  writer.set_report({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 76});
  writer.put(Buffer{1, 2, 3, 4, 5, 6, 7});
  writer.put_zero();
  writer.put_non_finite();
  writer.put(Buffer(8, 9));
  writer.put(Buffer{42});
  return resized(out, writer.finish(example_id(), capacity).bytes);
}

void add_bundles(Bundles& bundles) {
  const BundleShape shape{5, 1, 8};
  const std::vector<uint32_t> bounds{7, 100, 100, 8, 20};
  const BundleExpect expect{example_id(), shape, bounds, 300};
  const Buffer b = example_bundle(shape, 1000);
  const std::size_t n = b.size();
  bundles.add("full", b, expect);
  Buffer slack = resized(b, n + 40);
  for (std::size_t i = n; i < slack.size(); ++i) slack[i] = 0xEE;
  bundles.add("full-with_slack", slack, expect);
  Buffer header(kBundleHeaderBytes);
  BundleWriter nothing(header, {});
  nothing.finish(example_id(), kMinCapacity);
  bundles.add("nothing", header, {example_id(), {}, {}, 0});
  bundles.add("incomplete", patched<uint8_t>(b, 6, 0x19), expect);
  bundles.add("overflow", resized(example_bundle(shape, 80), 80), expect);
  Buffer failure(kMinCapacity);
  const BundleFailure said{Errc::non_finite, 2, 4, 17, "gradient of embed.weight: NaN · größer"};
  failure.resize(write_failure_bundle(example_id(), said, failure));
  bundles.add("failure", failure, expect);

  bundles.add("bad-truncated", resized(b, n - 4), expect);
  bundles.add("bad-header_cut", resized(b, 75), expect);
  bundles.add("bad-magic", flipped(b, 1), expect);
  bundles.add("bad-version", flipped(b, 4), expect);
  bundles.add("bad-version_1", patched<uint8_t>(b, 4, 1), expect);  // of release 0.1
  bundles.add("bad-version_2", patched<uint8_t>(b, 4, 2), expect);  // before reports
  bundles.add("bad-checksum", flipped(b, n - 1), expect);
  bundles.add("bad-flag", patched<uint8_t>(b, 6, 0x29), expect);
  bundles.add("bad-non_finite_slot", patched<uint8_t>(b, 6, 8), expect);
  bundles.add("bad-slot_bound", patched<uint32_t>(b, 76, 8), expect);
  bundles.add("bad-slot_beyond", patched<uint32_t>(b, 80, 100), expect);
  bundles.add("bad-slot_missing", patched<uint32_t>(b, 92, 0), expect);
  bundles.add("bad-padding", patched<uint32_t>(b, 76, 3), expect);
  bundles.add("bad-rank", patched<uint16_t>(b, 44, 1), expect);
  bundles.add("bad-world", patched<uint16_t>(b, 46, 4), expect);
  bundles.add("bad-agreement", patched<uint64_t>(b, 24, 1), expect);
  bundles.add("bad-step", patched<uint64_t>(b, 16, 78), expect);
  bundles.add("bad-sequence", patched<uint32_t>(b, 40, 8), expect);
  bundles.add("bad-kind", patched<uint8_t>(b, 5, 9), expect);
  bundles.add("bad-flush", patched<uint32_t>(b, 56, 65536), expect);
  bundles.add("bad-seen", patched<uint32_t>(b, 96, 76), expect);
  bundles.add("bad-slots", patched<uint32_t>(b, 48, UINT32_MAX), expect);
  bundles.add("bad-lanes", patched<uint32_t>(b, 52, UINT32_MAX), expect);
  const Buffer over = resized(example_bundle(shape, 80), 80);
  bundles.add("bad-overflow_fits", patched<uint64_t>(over, 32, 80, 76), expect);
  bundles.add("bad-overflow_huge", patched<uint64_t>(over, 32, 1 << 30, 76), expect);
  bundles.add("bad-failure_length", patched<uint32_t>(failure, 92, 513), expect);
  bundles.add("bad-failure_text", patched<uint8_t>(failure, 100, 0xFF), expect);
}

// ---- corpora ----

void copy_seeds(const Json& frames, const fs::path& golden, const fs::path& corpus) {
  fs::create_directories(corpus / "frame");
  for (const auto& [_, entry] : frames.members()) {
    const std::string& file = entry["file"].text();
    if (file.find("/bad-") == std::string::npos && file.find("/header-") == std::string::npos)
      continue;
    fs::copy_file(golden / file, corpus / "frame" / fs::path(file).filename(),
                  fs::copy_options::overwrite_existing);
  }
}

// Payloads of the golden frames after the bytes from which decode_fuzz takes its settings. Default
// settings only.
void write_decode_seeds(const fs::path& corpus) {
  const auto codecs = all_codecs();
  for (std::size_t index = 0; index < codecs.size(); ++index) {
    const std::string name(codecs[index]->info.name);
    for (const CodecCase& c : {CodecCase{name, 257, 1}, CodecCase{name, 12, 20}}) {
      const auto spec = Spec::parse(c.spec);
      const FrameInfo header = header_of(c);
      const Buffer frame = encode_frame(*spec, header, input(header.count), Isa::scalar);
      const auto view = parse_frame(frame);
      Buffer seed{static_cast<uint8_t>(index),
                  0,
                  0,
                  0,
                  0,
                  static_cast<uint8_t>(c.rows),
                  static_cast<uint8_t>(c.rows >> 8),
                  static_cast<uint8_t>(c.cols - 1),
                  1,
                  0};
      seed.insert(seed.end(), view->payload.begin(), view->payload.end());
      write_file(corpus / "decode" / (file_of(c) + ".seed"), seed);
    }
  }
}

// Datagrams are short: all of them in one file, and each as a seed.
void write_datagrams(const fs::path& dir, const fs::path& corpus) {
  Json entries = Json::array();
  for (const DatagramCase& c : golden_datagrams()) {
    std::string hex;
    for (const uint8_t byte : c.bytes) {
      hex += "0123456789abcdef"[byte >> 4U];
      hex += "0123456789abcdef"[byte & 15U];
    }
    entries.push_back({{"name", c.name},
                       {"layout", c.layout},
                       {"era", c.era},
                       {"verdict", verdict_of(c)},
                       {"hex", hex}});
    write_file(corpus / "datagram" / (c.name + ".seed"), c.bytes);
  }
  const std::string text = Json{{"version", 1}, {"datagrams", entries}}.dump(kStyle) + "\n";
  write_file(dir / "datagrams.json",
             Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

int run(const fs::path& dir, const fs::path& corpus) {
  write_datagrams(dir, corpus);
  Frames frames(dir);
  add_header_frames(frames);
  add_bad_frames(frames);
  if (!add_codec_frames(frames)) return 1;
  add_int8_scales(frames);
  Bundles bundles(dir, corpus / "bundle");
  add_bundles(bundles);
  const Json manifest{{"version", 1}, {"frames", frames.entries()}, {"bundles", bundles.entries()}};
  const std::string text = manifest.dump(kStyle) + "\n";
  write_file(dir / "manifest.json",
             Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  copy_seeds(frames.entries(), dir, corpus);
  write_decode_seeds(corpus);
  return 0;
}

}  // namespace
}  // namespace laconic::golden

int main(int argc, char** argv) {
  if (argc == 3) return laconic::golden::run(argv[1], argv[2]);
  std::fprintf(stderr, "usage: make_golden tests/golden/v1 tests/fuzz/corpus\n");
  return 2;
}
