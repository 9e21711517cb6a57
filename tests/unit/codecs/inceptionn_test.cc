// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// inceptionn: known bytes, the bound on every element, hostile payloads. The reference is plain
// arithmetic in double.
#include "codecs/inceptionn/inceptionn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

using Runner = CodecRunner<Inceptionn>;
using ByteVector = std::vector<uint8_t>;

Inceptionn::Params with_bound(uint32_t bound) { return {bound}; }

/// Magnitudes of every class for every bound, both signs, and the classes' very edges.
std::vector<float> mixed(uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> exponent(-20, 3);
  std::vector<float> x(n);
  for (float& v : x) {
    v = std::exp2(exponent(random));
    if (random() % 16 == 0) v = std::exp2(std::round(std::log2(v)));
    if (random() % 16 == 0) v = std::nextafter(std::exp2(std::round(std::log2(v))), 0.0F);
    if (random() % 2 == 0) v = -v;
  }
  return x;
}

struct Reference {
  ByteVector payload;
  std::vector<float> values;
};

template <class T>
void append(ByteVector& bytes, T value) {
  bytes.resize(bytes.size() + sizeof value);
  std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
}

Reference reference(const std::vector<float>& x, uint32_t bound) {
  Reference r;
  if (x.empty()) return r;
  ByteVector tags((x.size() + 3) / 4), full, half, byte;
  const double h = std::floor(bound / 2.0), scale = std::exp2(7 + h);
  for (uint64_t i = 0; i < x.size(); ++i) {
    const double a = std::fabs(static_cast<double>(x[i]));
    const double sign = x[i] < 0 ? -1 : 1;
    const uint32_t tag = a >= 1 ? 3 : a >= std::exp2(-h) ? 2 : a >= std::exp2(-1.0 * bound) ? 1 : 0;
    tags[i / 4] = static_cast<uint8_t>(tags[i / 4] | tag << 2 * (i % 4));
    double value = 0;
    if (tag == 3) {
      append(full, x[i]);
      value = static_cast<double>(x[i]);
    } else if (tag == 2) {
      const double c = std::nearbyint(a * 16384);
      append(half, static_cast<uint16_t>(c + (sign < 0 ? 32768 : 0)));
      value = sign * c / 16384;
    } else if (tag == 1) {
      const double c = std::floor(a * scale);
      append(byte, static_cast<uint8_t>(c + (sign < 0 ? 128 : 0)));
      value = sign * (c + 0.5) / scale;
    }
    r.values.push_back(static_cast<float>(value));
  }
  append(r.payload, static_cast<uint32_t>(full.size() / 4));
  append(r.payload, static_cast<uint32_t>(half.size() / 2));
  for (const ByteVector* part : {&tags, &full, &half, &byte}) {
    r.payload.insert(r.payload.end(), part->begin(), part->end());
  }
  return r;
}

TEST(Inceptionn, KnownBytes) {
  const std::vector<float> x{1.5F, -0.5F, 0.01F, 0.0F, -0.02F};
  const ByteVector golden{1,    0,    0,    0,     // elements of class 32
                          1,    0,    0,    0,     // of class 16
                          0x1B, 0x01,              // tags 3, 2, 1, 0; 1
                          0x00, 0x00, 0xC0, 0x3F,  // 1.5
                          0x00, 0xA0,              // -8192 / 2^14
                          0x28, 0xD1};             // 40, -81
  Runner run(x.size());
  EXPECT_EQ(run.encode(x), golden);
  EXPECT_EQ(run.decode(golden),
            (std::vector<float>{1.5F, -0.5F, 40.5F / 4096, 0.0F, -81.5F / 4096}));
}

TEST(Inceptionn, CodecEqualsPlainArithmetic) {
  for (uint32_t bound = 2; bound <= 15; ++bound) {
    for (const uint64_t n : {0U, 1U, 2U, 3U, 5U, 63U, 64U, 1000U, 70'001U}) {
      const std::vector<float> x = mixed(n, n + bound);
      const Reference r = reference(x, bound);
      Runner run(n, with_bound(bound));
      const ByteVector payload = run.encode(x);
      ASSERT_EQ(payload, r.payload) << bound << ", " << n;
      ASSERT_EQ(run.check(payload), Errc::ok);
      ASSERT_EQ(run.decode(payload), r.values) << bound << ", " << n;
    }
  }
}

TEST(Inceptionn, Grace15EveryBoundIsAPowerOfTwoAndHolds) {
  for (uint32_t bound = 2; bound <= 15; ++bound) {
    const std::vector<float> x = mixed(100'000, bound);
    Runner run(x.size(), with_bound(bound));
    const std::vector<float> d = run.decode(run.encode(x));
    double most = 0, bias = 0;
    for (uint64_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(d[i]) - static_cast<double>(x[i]);
      most = std::max(most, std::fabs(error));
      if (d[i] != 0) bias += x[i] < 0 ? -error : error;
    }
    EXPECT_LE(most, std::exp2(-1.0 * bound)) << bound;
    // nothing is rounded towards 0 as a rule: what is sent is off by as much on both sides
    EXPECT_LT(std::fabs(bias) / static_cast<double>(x.size()), 0.1 * std::exp2(-1.0 * bound));
  }
}

TEST(Inceptionn, Grace15TinyValuesDecodeToZero) {
  const std::vector<float> x{0x1.fffffep-11F, -0x1.fffffep-11F, 1e-40F, -1e-20F, -0.0F};
  Runner run(x.size());
  const ByteVector payload = run.encode(x);
  EXPECT_EQ(payload.size(), 8 + 2U);
  EXPECT_EQ(run.decode(payload), std::vector<float>(x.size(), 0.0F));
}

/// Every 97th float of the class.
TEST(Inceptionn, Grace17EightBitClassIsWithinBound) {
  for (uint32_t bound = 2; bound <= 15; ++bound) {
    const auto form = kernels::inceptionn_form(bound);
    std::vector<float> x;
    for (uint32_t u = form.byte_bits; u < form.half_bits; u += 97) x.push_back(bits_float(u));
    Runner run(x.size(), with_bound(bound));
    const ByteVector payload = run.encode(x);
    EXPECT_EQ(payload.size(), 8 + (x.size() + 3) / 4 + x.size());
    const std::vector<float> d = run.decode(payload);
    const double half_bin = std::exp2(-8.0 - std::floor(bound / 2.0));
    for (uint64_t i = 0; i < x.size(); ++i) {
      const double error = std::fabs(static_cast<double>(d[i]) - static_cast<double>(x[i]));
      ASSERT_LE(error, std::exp2(-1.0 * bound)) << x[i];
      ASSERT_LE(error, half_bin) << x[i];
    }
  }
}

TEST(Inceptionn, Grace01NoLongerThanPromised) {
  for (const uint64_t n : {1U, 4U, 7U, 1000U}) {
    Runner run(n);
    EXPECT_EQ(run.plan().round[0].bytes, 8 + (n + 3) / 4 + 4 * n);
    EXPECT_EQ(run.encode(std::vector<float>(n, -1.0F)).size(), run.plan().round[0].bytes);
    EXPECT_EQ(run.encode(std::vector<float>(n, 0.0F)).size(), 8 + (n + 3) / 4);
  }
  EXPECT_EQ(Runner(0).encode({}).size(), 0U);
  constexpr uint64_t kMost = (uint64_t{1} << 32) - 1;
  EXPECT_EQ(Runner(kMost).plan().round[0].bytes, 8 + kMost / 4 + 1 + 4 * kMost);
  EXPECT_EQ(Inceptionn::contract({}).max_count, kMost);  // counts are uint32
}

TEST(Inceptionn, MisfittingPayloadsAreRefused) {
  const std::vector<float> x{1.5F, -0.5F, 0.01F, 0.0F, -0.02F, 3.0F};
  Runner run(x.size());
  const ByteVector good = run.encode(x);
  ASSERT_EQ(run.check(good), Errc::ok);
  const auto refused = [&](uint64_t at, uint8_t value) {
    ByteVector bad = good;
    bad[at] = value;
    return run.check(bad) == Errc::payload_malformed;
  };
  EXPECT_TRUE(refused(0, 1));                           // one of class 32 less than there are tags
  EXPECT_TRUE(refused(4, 2));                           // one of class 16 more
  EXPECT_TRUE(refused(7, 1));                           // very many
  EXPECT_TRUE(refused(9, good[9] | 0x10U));             // a tag after the last
  EXPECT_TRUE(refused(8, 0x1A));                        // another class, another length
  EXPECT_TRUE(refused(13, 0x7F) && refused(13, 0xFF));  // 1.5 becomes NaN: 0x7FC00000
  EXPECT_FALSE(refused(18, 0xFF));                      // any field of 16 bits is a number
}

}  // namespace
}  // namespace laconic::codecs
