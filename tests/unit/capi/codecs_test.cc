// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One codec through the C ABI: every misuse is a code and a message, never a crash.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "device/driver.h"
#include "laconic/error.h"
#include "laconic/laconic.h"
#include "unit/capi/world.h"

namespace laconic {
namespace {

laconic_tensor tensor(std::vector<float>& v, uint64_t cols = 1) {
  return {
      sizeof(laconic_tensor), LACONIC_F32, v.size() / cols, cols, v.data(), LACONIC_MEMORY_HOST, 0};
}
laconic_place place(uint64_t step = 0) { return {sizeof(laconic_place), 0, 1, 0, 7, step, 0}; }

struct Codec {
  explicit Codec(const std::string& spec) {
    code = laconic_codec_create(spec.data(), spec.size(), 1, &handle);
  }
  ~Codec() { laconic_codec_destroy(handle); }
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  laconic_codec* handle = nullptr;
  int32_t code = 0;
};

std::vector<uint8_t> encode(const Codec& codec, std::vector<float>& x,
                            laconic_residual* residual = nullptr) {
  uint64_t bound = 0, written = 0;
  EXPECT_EQ(laconic_codec_max_frame_bytes(codec.handle, x.size(), 1, &bound), 0);
  std::vector<uint8_t> out(bound);
  const auto t = tensor(x);
  const auto p = place();
  EXPECT_EQ(
      laconic_encode(codec.handle, &t, &p, residual, out.data(), out.size(), &written, nullptr), 0)
      << laconic_last_message();
  out.resize(written);
  return out;
}

using test::wave;

TEST(Capi, VersionsAndTextsExist) {
  EXPECT_EQ(laconic_abi_version(), LACONIC_ABI_VERSION);
  EXPECT_NE(std::string(laconic_build_info()).find("\"isas\""), std::string::npos);
  EXPECT_NE(std::string(laconic_codecs_json()).find("\"3lc\""), std::string::npos);
  EXPECT_STREQ(laconic_error_name(25), "frame_checksum");
  EXPECT_STREQ(laconic_error_name(-5), "unknown");
}

TEST(Capi, TensorOnGpuWithoutDriverIsUnsupported) {
  const Codec codec("int8");
  std::vector<float> x(10, 1.0F);
  laconic_tensor t = tensor(x);
  t.memory = LACONIC_MEMORY_CUDA;
  const auto p = place();
  uint8_t out[200];
  uint64_t written = 0;
  // With a driver it is refused that this address is none of a GPU.
  const Errc expected =
      device::open_cuda(device::kCudaLibrary) ? Errc::invalid_argument : Errc::unsupported;
  EXPECT_EQ(laconic_encode(codec.handle, &t, &p, nullptr, out, sizeof out, &written, nullptr),
            static_cast<int32_t>(expected));
  EXPECT_EQ(laconic_decode_many(codec.handle, nullptr, nullptr, 0, 1.0F, 0, &t, nullptr),
            static_cast<int32_t>(expected));
  EXPECT_EQ(x, std::vector<float>(10, 1.0F));
}

TEST(Capi, EncodeDecodeAndAdd) {
  const Codec codec("int8:block=64");
  auto x = wave(1000);
  const auto frame = encode(codec, x);
  std::vector<float> out(1000, 1.0F);
  const auto t = tensor(out);
  ASSERT_EQ(laconic_decode(codec.handle, frame.data(), frame.size(), 2.0F, 1, &t, nullptr), 0);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(out[i], 1.0F + 2.0F * x[i], 0.01F);
}

TEST(Capi, DecodeManyEqualsOneByOne) {
  const Codec codec("3lc");
  std::vector<std::vector<uint8_t>> frames;
  std::vector<const void*> pointers;
  std::vector<uint64_t> sizes;
  for (int k = 0; k < 20; ++k) {
    auto x = wave(777);
    for (float& v : x) v *= 0.1F + static_cast<float>(k);
    frames.push_back(encode(codec, x));
  }
  for (const auto& f : frames) {
    pointers.push_back(f.data());
    sizes.push_back(f.size());
  }
  std::vector<float> fused(777), single(777);
  const auto f = tensor(fused);
  const auto s = tensor(single);
  ASSERT_EQ(
      laconic_decode_many(codec.handle, pointers.data(), sizes.data(), 20, 0.25F, 0, &f, nullptr),
      0);
  for (size_t k = 0; k < frames.size(); ++k) {
    ASSERT_EQ(laconic_decode(codec.handle, frames[k].data(), frames[k].size(), 0.25F, k != 0, &s,
                             nullptr),
              0);
  }
  for (size_t i = 0; i < fused.size(); ++i) EXPECT_EQ(fused[i], single[i]);
}

TEST(Capi, MisuseReturnsCodeAndMessage) {
  const Codec bad("3lx");
  EXPECT_EQ(bad.code, static_cast<int32_t>(Errc::unknown_codec));
  EXPECT_EQ(bad.handle, nullptr);
  const std::string said = std::string(laconic_last_message()) + laconic_last_hint();
  EXPECT_NE(said.find("3lc"), std::string::npos) << "names the nearest: " << said;

  const Codec codec("topk");
  auto x = wave(100);
  auto t = tensor(x);
  auto p = place();
  uint64_t written = 0;
  std::vector<uint8_t> small(20);
  EXPECT_EQ(
      laconic_encode(codec.handle, &t, &p, nullptr, small.data(), small.size(), &written, nullptr),
      static_cast<int32_t>(Errc::buffer_too_small));
  EXPECT_NE(laconic_encode(nullptr, &t, &p, nullptr, small.data(), 20, &written, nullptr), 0);
  EXPECT_NE(laconic_encode(codec.handle, nullptr, &p, nullptr, small.data(), 20, &written, nullptr),
            0);
  t.struct_size = 4;
  EXPECT_NE(laconic_encode(codec.handle, &t, &p, nullptr, small.data(), 20, &written, nullptr), 0);
  t.struct_size = sizeof t;
  t.dtype = 99;
  EXPECT_NE(laconic_encode(codec.handle, &t, &p, nullptr, small.data(), 20, &written, nullptr), 0);
  t.dtype = LACONIC_F32;
  p.rank = 5;
  EXPECT_NE(laconic_encode(codec.handle, &t, &p, nullptr, small.data(), 20, &written, nullptr), 0);
  uint64_t bytes = 0;
  EXPECT_NE(laconic_codec_max_frame_bytes(codec.handle, ~uint64_t{0}, 3, &bytes), 0);
}

TEST(Capi, NonFiniteInputChangesNothing) {
  const Codec codec("3lc");
  laconic_residual* residual = nullptr;
  ASSERT_EQ(laconic_residual_create(100, &residual), 0);
  auto x = wave(100);
  encode(codec, x, residual);
  const std::vector<float> before(laconic_residual_data(residual),
                                  laconic_residual_data(residual) + 100);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  const auto t = tensor(x);
  const auto p = place(1);
  std::vector<uint8_t> out(4096);
  uint64_t written = 0;
  EXPECT_EQ(
      laconic_encode(codec.handle, &t, &p, residual, out.data(), out.size(), &written, nullptr),
      static_cast<int32_t>(Errc::non_finite));
  EXPECT_EQ(std::memcmp(before.data(), laconic_residual_data(residual), 400), 0);
  laconic_residual_destroy(residual);
}

TEST(Capi, MessageIsNeverFromEarlierFailure) {
  const Codec bad("nonsense");
  EXPECT_NE(std::string(laconic_last_message()).find("nonsense"), std::string::npos);
  laconic_residual* residual = nullptr;
  ASSERT_EQ(laconic_residual_create(4, &residual), 0);
  const float value = 0;
  EXPECT_EQ(laconic_residual_set_state(residual, &value, uint64_t{1} << 61),
            static_cast<int32_t>(Errc::out_of_memory));
  EXPECT_STREQ(laconic_last_message(), "not enough memory for a codec state of that size");
  EXPECT_STREQ(laconic_last_hint(), "");
  laconic_residual_destroy(residual);
}

TEST(Capi, FramesAreVerified) {
  const Codec codec("3lc");
  const Codec other("topk");
  auto x = wave(100);
  auto frame = encode(codec, x);
  std::vector<float> out(100), few(99);
  const auto t = tensor(out);
  const auto wrong = tensor(few);
  EXPECT_EQ(laconic_decode(other.handle, frame.data(), frame.size(), 1.0F, 0, &t, nullptr),
            static_cast<int32_t>(Errc::frame_codec));
  EXPECT_EQ(laconic_decode(codec.handle, frame.data(), frame.size(), 1.0F, 0, &wrong, nullptr),
            static_cast<int32_t>(Errc::frame_count));
  EXPECT_EQ(laconic_decode(codec.handle, frame.data(), frame.size() - 1, 1.0F, 0, &t, nullptr),
            static_cast<int32_t>(Errc::frame_truncated));
  frame.back() ^= 1U;
  EXPECT_EQ(laconic_decode(codec.handle, frame.data(), frame.size(), 1.0F, 0, &t, nullptr),
            static_cast<int32_t>(Errc::frame_checksum));
  laconic_frame_info info{};
  info.struct_size = sizeof info;
  EXPECT_NE(laconic_frame_parse(frame.data(), frame.size(), &info), 0);
  EXPECT_NE(laconic_frame_parse(nullptr, 0, &info), 0);
}

TEST(Capi, OffsetWithoutParameterMeansParameterZero) {
  const Codec codec("int8:round=stochastic");
  auto x = wave(100);
  const auto t = tensor(x);
  const auto frame_of = [&](const laconic_place* place) {
    std::vector<uint8_t> out(4096);
    uint64_t written = 0;
    EXPECT_EQ(
        laconic_encode(codec.handle, &t, place, nullptr, out.data(), out.size(), &written, nullptr),
        0);
    out.resize(written);
    return out;
  };
  laconic_place p = place();
  const auto zero = frame_of(&p);
  p.parameter = 5;
  const auto five = frame_of(&p);
  p.struct_size = offsetof(laconic_place, parameter);
  EXPECT_EQ(frame_of(&p), zero);
  EXPECT_NE(five, zero);
  p.struct_size -= 1;
  std::vector<uint8_t> out(4096);
  uint64_t written = 0;
  EXPECT_EQ(
      laconic_encode(codec.handle, &t, &p, nullptr, out.data(), out.size(), &written, nullptr),
      static_cast<int32_t>(Errc::invalid_argument));
}

TEST(Capi, FrameInfoIsTruncatedToFit) {
  const Codec codec("3lc");
  auto x = wave(100);
  const auto frame = encode(codec, x);
  laconic_frame_info whole{};
  whole.struct_size = sizeof whole;
  ASSERT_EQ(laconic_frame_parse(frame.data(), frame.size(), &whole), 0);
  EXPECT_EQ(whole.rows, 100U);
  EXPECT_EQ(std::string(whole.spec, whole.spec_bytes), "3lc");
  EXPECT_EQ(whole.payload_offset + whole.payload_bytes, whole.frame_bytes);
  laconic_frame_info few;
  std::memset(&few, 0xFF, sizeof few);
  few.struct_size = offsetof(laconic_frame_info, step);
  ASSERT_EQ(laconic_frame_parse(frame.data(), frame.size(), &few), 0);
  EXPECT_EQ(few.cols, 1U);
  EXPECT_EQ(few.step, ~uint64_t{0}) << "not written";
  few.struct_size -= 8;
  EXPECT_EQ(laconic_frame_parse(frame.data(), frame.size(), &few),
            static_cast<int32_t>(Errc::invalid_argument));
}

TEST(Capi, OutOfRangeNumbersAreRefused) {
  const auto invalid = static_cast<int32_t>(Errc::invalid_argument);
  laconic_codec* codec = nullptr;
  ASSERT_EQ(laconic_codec_create("3lc", 3, LACONIC_MAX_THREADS + 1, &codec), invalid);
  ASSERT_EQ(laconic_codec_create("3lc", 3, static_cast<uint32_t>(-1), &codec), invalid);
  EXPECT_EQ(codec, nullptr);
  const Codec good("3lc");
  auto x = wave(100);
  const auto t = tensor(x);
  std::vector<uint8_t> out(4096);
  uint64_t written = 0;
  const auto refused = [&](auto change) {
    laconic_place p = place();
    change(p);
    return laconic_encode(good.handle, &t, &p, nullptr, out.data(), out.size(), &written,
                          nullptr) == invalid;
  };
  EXPECT_TRUE(refused([](auto& p) { p.world = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.rank = 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.reserved = 1; }));
}

}  // namespace
}  // namespace laconic
