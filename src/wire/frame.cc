// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/frame.h"

#include <algorithm>
#include <string>

#include "base/hash.h"
#include "base/hex.h"
#include "wire/message.h"

namespace laconic {
namespace {

using wire::at_least;
using wire::at_most;
using wire::hex;

// Byte map of FRAME.md, section 2. All numbers are little-endian.
enum At : uint64_t {
  kMagicAt = 0,            // u32
  kVersionAt = 4,          // u8
  kFlagsAt = 5,            // u8
  kHeaderBytesAt = 6,      // u16
  kChecksumAt = 8,         // u64
  kHashedAt = 16,          // the checksum covers everything from here on; bytes 0 to 7 are its seed
  kCodecAt = 16,           // u16
  kPayloadVersionAt = 18,  // u8
  kDTypeAt = 19,           // u8
  kContributorsAt = 20,    // u32
  kCountAt = 24,           // u64
  kRowsAt = 32,            // u64
  kColsAt = 40,            // u64
  kStepAt = 48,            // u64
  kSeedAt = 56,            // u64
  kParameterAt = 64,       // u64
  kOffsetAt = 72,          // u64
  kPayloadBytesAt = 80,    // u64
  kRankAt = 88,            // u32
  kWorldAt = 92,           // u32
  kHopAt = 96,             // u8
  kSpecLengthAt = 97,      // u8
  kSpecAt = 98,
};
static_assert(kSpecAt == kFrameFixedBytes);

constexpr uint32_t kMagic = 0x4643'414CU;  // "LACF"
constexpr uint8_t kZeroFlag = 1;
constexpr uint8_t kNonFiniteFlag = 2;

Error frame_error(Errc code, std::string_view field, const wire::Said& expected,
                  const wire::Said& found, std::string hint = {}) {
  return wire::mismatch(code, "frame", field, expected, found, std::move(hint));
}

bool is_spec_text(std::string_view spec) noexcept {
  return std::all_of(spec.begin(), spec.end(), [](char c) { return c >= '!' && c <= '~'; });
}

uint8_t flag_bits(FrameFlags flags) noexcept {
  return static_cast<uint8_t>((flags.zero ? kZeroFlag : 0) |
                              (flags.non_finite ? kNonFiniteFlag : 0));
}

// The rules that bind both writers and readers. `code` is what a broken field is called: a mistake
// of the caller, or of the bytes. The order is that of FRAME.md.
Result<void> check_fields(const FrameInfo& info, uint64_t payload_bytes, Errc field, Errc count) {
  const auto bad = [](Errc code, std::string_view name, const wire::Said& expected,
                      const wire::Said& found) { return frame_error(code, name, expected, found); };
  const bool empty = info.flags.zero || info.flags.non_finite;
  if (info.flags.zero && info.flags.non_finite) {
    return bad(field, "flags", "zero or non_finite", "both");
  }
  if (empty && payload_bytes != 0) return bad(field, "payload_bytes", 0, payload_bytes);
  if (info.codec == 0) return bad(field, "codec", at_least(1), 0);
  if (info.payload_version == 0) return bad(field, "payload_version", at_least(1), 0);
  if (info.dtype > DType::bf16) {
    return bad(field, "dtype", "0 (f32), 1 (f16) or 2 (bf16)", static_cast<uint64_t>(info.dtype));
  }
  if (info.count > kFrameMaxCount) {
    return bad(count, "count", at_most(kFrameMaxCount), info.count);
  }
  uint64_t area = 0;
  if (!checked_mul(info.rows, info.cols, &area) || area != info.count) {
    return bad(count, "rows x cols", info.count,
               std::to_string(info.rows) + " x " + std::to_string(info.cols));
  }
  uint64_t end = 0;
  if (!checked_add(info.offset, info.count, &end)) {
    return bad(field, "offset", "offset + count below 2^64", info.offset);
  }
  if (info.world == 0) return bad(field, "world", at_least(1), 0);
  if (info.rank >= info.world) return bad(field, "rank", at_most(info.world - 1), info.rank);
  if (info.contributors == 0 || info.contributors > info.world) {
    return bad(field, "contributors", "1 to " + std::to_string(info.world), info.contributors);
  }
  if (!is_spec_text(info.spec)) {
    return bad(field, "spec", "printable ASCII without spaces", "other bytes");
  }
  return {};
}

Result<void> check_spec_length(std::string_view spec) {
  if (!spec.empty() && spec.size() <= kFrameMaxSpec) return {};
  return frame_error(Errc::invalid_argument, "spec length", "1 to 255", spec.size());
}

void put_header(const FrameInfo& info, uint64_t payload_bytes, uint8_t* p) noexcept {
  const uint64_t header = frame_header_bytes(info.spec.size());
  store(p + kMagicAt, kMagic);
  store(p + kVersionAt, kFrameVersion);
  store(p + kFlagsAt, flag_bits(info.flags));
  store(p + kHeaderBytesAt, static_cast<uint16_t>(header));
  store(p + kCodecAt, info.codec);
  store(p + kPayloadVersionAt, info.payload_version);
  store(p + kDTypeAt, info.dtype);
  store(p + kContributorsAt, info.contributors);
  store(p + kCountAt, info.count);
  store(p + kRowsAt, info.rows);
  store(p + kColsAt, info.cols);
  store(p + kStepAt, info.step);
  store(p + kSeedAt, info.seed);
  store(p + kParameterAt, info.parameter);
  store(p + kOffsetAt, info.offset);
  store(p + kPayloadBytesAt, payload_bytes);
  store(p + kRankAt, info.rank);
  store(p + kWorldAt, info.world);
  store(p + kHopAt, info.hop);
  store(p + kSpecLengthAt, static_cast<uint8_t>(info.spec.size()));
  std::memcpy(p + kSpecAt, info.spec.data(), info.spec.size());
  std::memset(p + kSpecAt + info.spec.size(), 0, header - kSpecAt - info.spec.size());
}

// `bytes` holds a whole header of `spec_length`.
FrameInfo get_header(Bytes bytes, uint64_t spec_length) noexcept {
  const uint8_t* p = bytes.data();
  const auto flags = load<uint8_t>(p + kFlagsAt);
  FrameInfo info;
  info.flags = {(flags & kZeroFlag) != 0, (flags & kNonFiniteFlag) != 0};
  info.codec = load<uint16_t>(p + kCodecAt);
  info.payload_version = load<uint8_t>(p + kPayloadVersionAt);
  info.dtype = static_cast<DType>(load<uint8_t>(p + kDTypeAt));
  info.contributors = load<uint32_t>(p + kContributorsAt);
  info.count = load<uint64_t>(p + kCountAt);
  info.rows = load<uint64_t>(p + kRowsAt);
  info.cols = load<uint64_t>(p + kColsAt);
  info.step = load<uint64_t>(p + kStepAt);
  info.seed = load<uint64_t>(p + kSeedAt);
  info.parameter = load<uint64_t>(p + kParameterAt);
  info.offset = load<uint64_t>(p + kOffsetAt);
  info.rank = load<uint32_t>(p + kRankAt);
  info.world = load<uint32_t>(p + kWorldAt);
  info.hop = load<uint8_t>(p + kHopAt);
  info.spec = {reinterpret_cast<const char*>(p + kSpecAt), static_cast<std::size_t>(spec_length)};
  return info;
}

uint64_t checksum_of(Bytes frame) noexcept {
  return hash64(frame.subspan(kHashedAt), load<uint64_t>(frame.data()));
}

Error truncated(const wire::Said& expected, uint64_t found) {
  return frame_error(Errc::frame_truncated, "length", expected, found,
                     "the frame was cut off: read or receive all of its bytes");
}

// Whether these are the first bytes of a frame of this version. Looks at what is there, so that a
// short text file is "not a frame" and not "a truncated frame".
Result<void> check_start(Bytes bytes) {
  uint8_t magic[4];
  store(magic, kMagic);
  if (!std::equal(bytes.begin(), bytes.begin() + std::min<std::ptrdiff_t>(4, std::ssize(bytes)),
                  magic)) {
    std::string found;
    for (uint8_t byte : bytes.first(std::min<std::size_t>(4, bytes.size()))) {
      found.append(found.empty() ? "" : " ").append(hex_digits(byte, 2));
    }
    return frame_error(Errc::frame_magic, "magic", "4c 41 43 46 (LACF)", found,
                       "these bytes are not a Laconic frame");
  }
  if (bytes.size() <= kVersionAt) return truncated(at_least(kFrameFixedBytes), bytes.size());
  if (bytes[kVersionAt] != kFrameVersion) {
    return frame_error(Errc::frame_version, "version", uint64_t{kFrameVersion}, bytes[kVersionAt],
                       "the frame was written by another release of Laconic");
  }
  if (bytes.size() < kFrameFixedBytes) return truncated(at_least(kFrameFixedBytes), bytes.size());
  return {};
}

// Checks lengths from the inside out: spec, header, payload. Nothing after the fixed part is read
// before they agree.
Result<void> check_lengths(Bytes bytes) {
  const uint64_t spec_length = bytes[kSpecLengthAt];
  if (spec_length == 0) {
    return frame_error(Errc::frame_field, "spec length", "1 to 255", 0);
  }
  const uint64_t header = frame_header_bytes(spec_length);
  const uint64_t said = load<uint16_t>(bytes.data() + kHeaderBytesAt);
  if (said != header) return frame_error(Errc::frame_field, "header_bytes", header, said);
  const auto payload = load<uint64_t>(bytes.data() + kPayloadBytesAt);
  uint64_t total = 0;
  if (!checked_add(header, payload, &total)) {
    return frame_error(Errc::frame_field, "payload_bytes", at_most(UINT64_MAX - header), payload);
  }
  if (bytes.size() < total) return truncated(total, bytes.size());
  if (bytes.size() > total) {
    return frame_error(Errc::frame_extended, "length", total, bytes.size(),
                       "bytes follow the frame: pass one frame at a time");
  }
  return {};
}

Result<void> check_checksum(Bytes bytes) {
  const auto said = load<uint64_t>(bytes.data() + kChecksumAt);
  const uint64_t actual = checksum_of(bytes);
  if (said == actual) return {};
  return frame_error(Errc::frame_checksum, "checksum", hex(actual, 16), hex(said, 16),
                     "the bytes changed in transit or on disk");
}

// Checks bytes that a checksum does not protect against another writer.
Result<void> check_unused(Bytes bytes, uint64_t spec_length) {
  if ((bytes[kFlagsAt] & ~(kZeroFlag | kNonFiniteFlag)) != 0) {
    return frame_error(Errc::frame_field, "flags", at_most(kZeroFlag | kNonFiniteFlag),
                       bytes[kFlagsAt]);
  }
  const uint64_t end = frame_header_bytes(spec_length);
  for (uint64_t i = kSpecAt + spec_length; i < end; ++i) {
    if (bytes[i] != 0) return frame_error(Errc::frame_field, "padding", 0, bytes[i]);
  }
  return {};
}

}  // namespace

Result<MutBytes> begin_frame(const FrameInfo& info, MutBytes out) {
  if (auto r = check_spec_length(info.spec); !r) return std::move(r).error();
  if (auto r = check_fields(info, 0, Errc::invalid_argument, Errc::invalid_argument); !r) {
    return std::move(r).error();
  }
  const uint64_t header = frame_header_bytes(info.spec.size());
  if (out.size() < header) {
    return frame_error(Errc::buffer_too_small, "room", at_least(header), out.size());
  }
  return out.subspan(header);
}

Result<uint64_t> finish_frame(const FrameInfo& info, MutBytes out, uint64_t payload_bytes) {
  auto room = begin_frame(info, out);
  if (!room) return std::move(room).error();
  if (payload_bytes > room->size()) {
    return frame_error(Errc::buffer_too_small, "space for the payload", at_least(payload_bytes),
                       room->size());
  }
  if (auto r = check_fields(info, payload_bytes, Errc::invalid_argument, Errc::invalid_argument);
      !r) {
    return std::move(r).error();
  }
  put_header(info, payload_bytes, out.data());
  const uint64_t total = frame_header_bytes(info.spec.size()) + payload_bytes;
  store(out.data() + kChecksumAt, checksum_of(out.first(total)));
  return total;
}

Result<uint64_t> write_frame(const FrameInfo& info, Bytes payload, MutBytes out) {
  auto room = begin_frame(info, out);
  if (!room) return std::move(room).error();
  if (payload.size() <= room->size() && !payload.empty()) {
    std::memcpy(room->data(), payload.data(), payload.size());
  }
  return finish_frame(info, out, payload.size());
}

Result<FrameView> parse_frame(Bytes bytes) {
  if (auto r = check_start(bytes); !r) return std::move(r).error();
  if (auto r = check_lengths(bytes); !r) return std::move(r).error();
  if (auto r = check_checksum(bytes); !r) return std::move(r).error();
  const uint64_t spec_length = bytes[kSpecLengthAt];
  if (auto r = check_unused(bytes, spec_length); !r) return std::move(r).error();
  const FrameView view{get_header(bytes, spec_length),
                       bytes.subspan(frame_header_bytes(spec_length))};
  if (auto r = check_fields(view.info, view.payload.size(), Errc::frame_field, Errc::frame_count);
      !r) {
    return std::move(r).error();
  }
  return view;
}

}  // namespace laconic
