// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/frame.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/hash.h"

namespace laconic {
namespace {

using Buffer = std::vector<uint8_t>;

FrameInfo example() {
  FrameInfo info;
  info.codec = 3;
  info.payload_version = 2;
  info.dtype = DType::bf16;
  info.contributors = 2;
  info.count = 12;
  info.rows = 3;
  info.cols = 4;
  info.step = 1000;
  info.seed = 42;
  info.parameter = 0x1122334455667788U;
  info.offset = 77;
  info.rank = 5;
  info.world = 8;
  info.hop = 1;
  info.spec = "topk:ratio=0.01";
  return info;
}

Buffer payload_of(std::size_t bytes) {
  Buffer payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<uint8_t>(i * 37 + 11);
  return payload;
}

Buffer frame_of(const FrameInfo& info, const Buffer& payload) {
  Buffer out(frame_header_bytes(info.spec.size()) + payload.size());
  const auto size = write_frame(info, payload, out);
  EXPECT_TRUE(size) << size.error().message;
  EXPECT_EQ(*size, out.size());
  return out;
}

// Puts a number at a place and makes the checksum right again: a writer of another make.
template <class T>
Buffer with(Buffer frame, std::size_t at, T value) {
  store(frame.data() + at, value);
  store(frame.data() + 8, hash64(Bytes(frame).subspan(16), load<uint64_t>(frame.data())));
  return frame;
}

Errc code_of(const Buffer& bytes) {
  const auto view = parse_frame(bytes);
  if (view) return Errc::ok;
  EXPECT_NE(view.error().message.find("expected"), std::string::npos) << view.error().message;
  EXPECT_NE(view.error().message.find("found"), std::string::npos) << view.error().message;
  return view.error().code;
}

TEST(Frame, RoundTripsEveryField) {
  const FrameInfo info = example();
  const Buffer payload = payload_of(19);
  const Buffer frame = frame_of(info, payload);
  const auto view = parse_frame(frame);
  ASSERT_TRUE(view) << view.error().message;
  const FrameInfo& back = view->info;
  EXPECT_EQ(back.flags, info.flags);
  EXPECT_EQ(back.codec, info.codec);
  EXPECT_EQ(back.payload_version, info.payload_version);
  EXPECT_EQ(back.dtype, info.dtype);
  EXPECT_EQ(back.contributors, info.contributors);
  EXPECT_EQ(back.count, info.count);
  EXPECT_EQ(back.rows, info.rows);
  EXPECT_EQ(back.cols, info.cols);
  EXPECT_EQ(back.step, info.step);
  EXPECT_EQ(back.seed, info.seed);
  EXPECT_EQ(back.parameter, info.parameter);
  EXPECT_EQ(back.offset, info.offset);
  EXPECT_EQ(back.rank, info.rank);
  EXPECT_EQ(back.world, info.world);
  EXPECT_EQ(back.hop, info.hop);
  EXPECT_EQ(back.spec, info.spec);
  EXPECT_EQ(Buffer(view->payload.begin(), view->payload.end()), payload);
  EXPECT_EQ(view->payload.data(), frame.data() + frame_header_bytes(info.spec.size()));
}

TEST(Frame, EverySpecLengthRoundTrips) {
  for (std::size_t length = 1; length <= kFrameMaxSpec; ++length) {
    FrameInfo info = example();
    const std::string spec(length, 'x');
    info.spec = spec;
    const Buffer frame = frame_of(info, payload_of(5));
    const auto view = parse_frame(frame);
    ASSERT_TRUE(view);
    EXPECT_EQ(view->info.spec, spec);
    EXPECT_EQ(static_cast<std::size_t>(view->payload.data() - frame.data()) % 8, 0U);
  }
}

TEST(Frame, EmptyTensorAndFlaggedFramesRoundTrip) {
  FrameInfo info = example();
  info.count = info.rows = 0;
  EXPECT_EQ(code_of(frame_of(info, {})), Errc::ok);
  info = example();
  info.flags.zero = true;
  EXPECT_EQ(code_of(frame_of(info, {})), Errc::ok);
  info.flags = {false, true};
  const Buffer frame = frame_of(info, {});
  const auto view = parse_frame(frame);
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->info.flags.non_finite);
}

TEST(Frame, FrameEncodesInPlace) {
  const FrameInfo info = example();
  const Buffer payload = payload_of(30);
  Buffer out(200, 0xEE);
  const auto room = begin_frame(info, out);
  ASSERT_TRUE(room);
  EXPECT_EQ(room->size(), 200 - frame_header_bytes(info.spec.size()));
  std::copy(payload.begin(), payload.end(), room->begin());
  const auto size = finish_frame(info, out, payload.size());
  ASSERT_TRUE(size);
  EXPECT_EQ(out[*size], 0xEE);  // nothing after the frame
  out.resize(*size);
  EXPECT_EQ(out, frame_of(info, payload));
}

TEST(Frame, WriterRefusesWhatAReaderWould) {
  const std::vector<std::function<void(FrameInfo&)>> mistakes = {
      [](FrameInfo& i) { i.codec = 0; },
      [](FrameInfo& i) { i.payload_version = 0; },
      [](FrameInfo& i) { i.dtype = DType::u8; },
      [](FrameInfo& i) { i.count = 13; },
      [](FrameInfo& i) { i.rows = uint64_t{1} << 63, i.cols = 2; },
      [](FrameInfo& i) { i.count = i.rows = kFrameMaxCount + 1, i.cols = 1; },
      [](FrameInfo& i) { i.offset = UINT64_MAX; },
      [](FrameInfo& i) { i.world = 0; },
      [](FrameInfo& i) { i.rank = 8; },
      [](FrameInfo& i) { i.contributors = 0; },
      [](FrameInfo& i) { i.contributors = 9; },
      [](FrameInfo& i) { i.spec = ""; },
      [](FrameInfo& i) { i.spec = "a b"; },
      [](FrameInfo& i) { i.spec = "\xC3\xA9"; },
      [](FrameInfo& i) {
        i.flags = {true, true};
      },
  };
  Buffer out(4096);
  for (std::size_t k = 0; k < mistakes.size(); ++k) {
    FrameInfo info = example();
    mistakes[k](info);
    const auto r = write_frame(info, payload_of(k == 14 ? 0 : 4), out);
    ASSERT_FALSE(r) << k;
    EXPECT_EQ(r.error().code, Errc::invalid_argument) << k;
  }
  FrameInfo info = example();
  const std::string longest(256, 'x');
  info.spec = longest;
  EXPECT_EQ(write_frame(info, {}, out).error().code, Errc::invalid_argument);
  info = example();
  info.flags.zero = true;
  EXPECT_EQ(write_frame(info, payload_of(1), out).error().code, Errc::invalid_argument);
}

TEST(Frame, WriterRefusesSmallBuffer) {
  const FrameInfo info = example();
  const uint64_t total = frame_header_bytes(info.spec.size()) + 10;
  for (uint64_t room = 0; room < total; ++room) {
    Buffer out(room);
    const auto r = write_frame(info, payload_of(10), out);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, Errc::buffer_too_small);
  }
}

TEST(Frame, EveryTruncationIsAnError) {
  const Buffer frame = frame_of(example(), payload_of(40));
  for (std::size_t length = 0; length < frame.size(); ++length) {
    EXPECT_EQ(code_of(Buffer(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(length))),
              Errc::frame_truncated)
        << length;
  }
}

TEST(Frame, EveryExtensionIsAnError) {
  Buffer frame = frame_of(example(), payload_of(40));
  for (int extra = 0; extra < 20; ++extra) {
    frame.push_back(0);
    EXPECT_EQ(code_of(frame), Errc::frame_extended);
  }
}

TEST(Frame, EveryBitFlipIsAnError) {
  for (std::size_t payload : {std::size_t{0}, std::size_t{1}, std::size_t{300}}) {
    const Buffer frame = frame_of(example(), payload_of(payload));
    for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
      Buffer bad = frame;
      bad[bit / 8] = static_cast<uint8_t>(bad[bit / 8] ^ (1U << (bit % 8)));
      const Errc code = code_of(bad);
      ASSERT_NE(code, Errc::ok) << bit;
      if (bit / 8 < 4) {
        EXPECT_EQ(code, Errc::frame_magic);
      } else if (bit / 8 == 4) {
        EXPECT_EQ(code, Errc::frame_version);
      } else if (bit / 8 >= 98) {
        EXPECT_EQ(code, Errc::frame_checksum);
      }
    }
  }
}

// A right checksum over wrong fields: every rule of FRAME.md on its own.
TEST(Frame, FieldsAreCheckedUnderValidChecksum) {
  const Buffer f = frame_of(example(), payload_of(40));
  EXPECT_EQ(code_of(with<uint8_t>(f, 5, 1)), Errc::frame_field);  // zero, with a payload
  EXPECT_EQ(code_of(with<uint8_t>(f, 5, 3)), Errc::frame_field);  // both flags
  EXPECT_EQ(code_of(with<uint8_t>(f, 5, 4)), Errc::frame_field);  // unknown flag
  EXPECT_EQ(code_of(with<uint16_t>(f, 6, 128)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint16_t>(f, 16, 0)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 18, 0)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 19, 3)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 19, 255)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint32_t>(f, 20, 0)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint32_t>(f, 20, 9)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint64_t>(f, 24, kFrameMaxCount + 1)), Errc::frame_count);
  EXPECT_EQ(code_of(with<uint64_t>(f, 24, 11)), Errc::frame_count);
  EXPECT_EQ(code_of(with<uint64_t>(f, 32, UINT64_MAX)), Errc::frame_count);
  EXPECT_EQ(code_of(with<uint64_t>(f, 40, 0)), Errc::frame_count);
  EXPECT_EQ(code_of(with<uint64_t>(f, 72, UINT64_MAX - 11)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint64_t>(f, 80, 39)), Errc::frame_extended);
  EXPECT_EQ(code_of(with<uint64_t>(f, 80, 41)), Errc::frame_truncated);
  EXPECT_EQ(code_of(with<uint64_t>(f, 80, UINT64_MAX)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint32_t>(f, 88, 8)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint32_t>(f, 92, 0)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 97, 0)), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 98, ' ')), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint8_t>(f, 113, 1)), Errc::frame_field);  // padding
  EXPECT_EQ(code_of(with<uint8_t>(f, 96, 255)), Errc::ok);          // any hop
  EXPECT_EQ(code_of(with<uint64_t>(f, 72, UINT64_MAX - 12)), Errc::ok);
}

TEST(Frame, ErrorsNameTheField) {
  const Buffer f = frame_of(example(), payload_of(4));
  EXPECT_EQ(parse_frame(with<uint32_t>(f, 88, 9)).error().message,
            "frame: rank: expected at most 7, found 9");
  Buffer other = f;
  other[4] = 2;
  EXPECT_EQ(parse_frame(other).error().message, "frame: version: expected 1, found 2");
  EXPECT_EQ(parse_frame(Bytes(f).first(100)).error().message,
            "frame: length: expected 124, found 100");
  const std::string text = "hello world";
  EXPECT_EQ(parse_frame(Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()))
                .error()
                .message,
            "frame: magic: expected 4c 41 43 46 (LACF), found 68 65 6c 6c");
}

}  // namespace
}  // namespace laconic
