// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Rule 19 of docs/format/FRAME.md: a frame whose checksum is right and whose spec is not.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "laconic/registry.h"
#include "laconic/tensor_codec.h"

namespace laconic {
namespace {

constexpr uint64_t kCount = 64;

/// A frame of topk's number that says `spec` in its header.
std::vector<uint8_t> frame_with(const std::string& spec) {
  const CodecTable& topk = *find_codec("topk");
  FrameInfo info;
  info.codec = topk.info.id;
  info.payload_version = topk.info.version;
  info.count = info.rows = kCount;
  info.spec = spec;
  info.flags.zero = true;
  std::vector<uint8_t> bytes(frame_header_bytes(spec.size()));
  EXPECT_TRUE(write_frame(info, {}, bytes));
  return bytes;
}

Errc decode_with_topk(const std::vector<uint8_t>& frame) {
  const auto codec = TensorCodec::create("topk");
  std::vector<float> out(kCount, 1.0F);
  const std::array<Bytes, 1> frames{frame};
  const auto done = (*codec)->decode(frames, 1.0F, false, {DType::f32, kCount, 1, out.data()});
  EXPECT_EQ(out[0], done ? 0.0F : 1.0F);
  return done ? Errc::ok : done.error().code;
}

TEST(TensorDecode, OtherParametersOfSameCodecAreAccepted) {
  EXPECT_EQ(decode_with_topk(frame_with("topk")), Errc::ok);
  EXPECT_EQ(decode_with_topk(frame_with("topk:ratio=0.5")), Errc::ok);
}

TEST(TensorDecode, SpecThatDoesNotFitFrameIsRefused) {
  for (const char* spec : {"topk:ratio=7", "topk:nonsense=1", "nonsense", "3lc", "topk:ratio=5e-1",
                           "topk:ratio=0.01"}) {
    EXPECT_EQ(decode_with_topk(frame_with(spec)), Errc::frame_codec) << spec;
  }
}

// Nothing of such a tensor is there to be read or written: a refusal looks at its shape alone.
TEST(TensorCodec, UnindexableTensorsAreRefused) {
  constexpr uint64_t kTooMany = uint64_t{1} << 32;
  float one = 1;
  std::vector<uint8_t> out(1000);
  for (const char* spec : {"topk", "randomk", "sidco"}) {
    const auto codec = TensorCodec::create(spec);
    EXPECT_TRUE((*codec)->max_frame_bytes(kTooMany - 1, 1));
    for (const uint64_t rows : {kTooMany, kTooMany / 2, kTooMany << 20}) {
      const uint64_t cols = rows < kTooMany ? 2 : 1;
      const auto size = (*codec)->max_frame_bytes(rows, cols);
      ASSERT_FALSE(size);
      EXPECT_EQ(size.error().code, Errc::shape_unsupported);
      const auto done = (*codec)->encode({DType::f32, rows, cols, &one}, {}, 1, nullptr, out);
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, Errc::shape_unsupported);
      const auto back = (*codec)->decode({}, 1.0F, false, {DType::f32, rows, cols, &one});
      ASSERT_FALSE(back);
      EXPECT_EQ(back.error().code, Errc::shape_unsupported);
      EXPECT_EQ(one, 1.0F);
    }
  }
  const auto none = TensorCodec::create("none");
  EXPECT_TRUE((*none)->max_frame_bytes(kTooMany, 256));
  EXPECT_FALSE((*none)->max_frame_bytes(kTooMany, 257));
  EXPECT_FALSE((*none)->max_frame_bytes(kTooMany, kTooMany));  // wraps to 0
}

}  // namespace
}  // namespace laconic
