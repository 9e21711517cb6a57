// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The stand-alone frame: one encoded tensor that describes itself, to be stored or sent by any
// means. What ranks exchange step by step is the bundle (src/wire/bundle.h). Both are specified in
// docs/format/FRAME.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "laconic/bytes.h"
#include "laconic/dtype.h"
#include "laconic/error.h"

namespace laconic {

inline constexpr uint8_t kFrameVersion = 1;
/// The header up to the spec's text. The text follows, zeros up to a multiple of 8, the payload.
inline constexpr uint64_t kFrameFixedBytes = 98;
inline constexpr uint64_t kFrameMaxSpec = 255;
/// Elements of a frame: 4 TiB of f32. More is taken for a broken count.
inline constexpr uint64_t kFrameMaxCount = uint64_t{1} << 40;

/// Frames without a payload. At most one is set.
struct FrameFlags {
  bool zero = false;        ///< every element is zero: nothing was encoded, decodes to zeros
  bool non_finite = false;  ///< the input held NaN or infinity: nothing was encoded or decodes
  friend bool operator==(const FrameFlags&, const FrameFlags&) = default;
};

/// Everything that a header says. But for `spec` and `codec` the defaults make a frame of nothing.
struct FrameInfo {
  FrameFlags flags;
  uint16_t codec = 0;           ///< CodecInfo::id
  uint8_t payload_version = 1;  ///< CodecInfo::version
  DType dtype = DType::f32;     ///< of the encoder's input: f32, f16 or bf16
  uint32_t contributors = 1;    ///< payloads merged into this one, in [1, world]
  uint64_t count = 0;           ///< elements, at most kFrameMaxCount
  uint64_t rows = 0;            ///< matrix view: rows · cols == count
  uint64_t cols = 1;
  uint64_t step = 0;  ///< with seed, parameter, offset, rank and hop: what random streams depend on
  uint64_t seed = 0;
  uint64_t parameter = 0;
  uint64_t offset = 0;
  uint32_t rank = 0;  ///< in [0, world)
  uint32_t world = 1;
  uint8_t hop = 0;
  std::string_view spec;  ///< canonical text, 1 to 255 bytes of '!' to '~'
};

/// A frame that was verified in full. Points into the bytes that were parsed.
struct FrameView {
  FrameInfo info;
  Bytes payload;
};

/// Offset of the payload for a spec of that length: a multiple of 8.
[[nodiscard]] constexpr uint64_t frame_header_bytes(uint64_t spec_length) noexcept {
  return round_up(kFrameFixedBytes + spec_length, 8);
}

/// Encoding without a copy: begin_frame returns the space after the header, the codec writes its
/// payload there, and finish_frame writes the header and returns the size of the frame. Same `info`
/// and `out` for both. Errors: invalid_argument (a field out of range), buffer_too_small (the
/// message has the required size).
Result<MutBytes> begin_frame(const FrameInfo& info, MutBytes out);
Result<uint64_t> finish_frame(const FrameInfo& info, MutBytes out, uint64_t payload_bytes);

/// The same for a payload that exists already: copies it. `payload` may not overlap `out`.
Result<uint64_t> write_frame(const FrameInfo& info, Bytes payload, MutBytes out);

/// Total: every input gives a view or a numbered error whose message names the field, what was
/// expected and what was found. The checks come in the order of FRAME.md: magic, version, lengths,
/// checksum, fields. `bytes` is exactly one frame: shorter is frame_truncated, longer
/// frame_extended. Whether codec and spec exist, and whether the payload is well formed, is asked
/// of the codec afterwards. Allocates only on failure. Cost: one XXH3 pass over `bytes`.
Result<FrameView> parse_frame(Bytes bytes);

}  // namespace laconic
