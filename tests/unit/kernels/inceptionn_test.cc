// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/minifloat/inceptionn.h"

#include <gtest/gtest.h>

#include "kernels/minifloat/inceptionn_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class InceptionnKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const InceptionnKernels& simd_ = inceptionn_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, InceptionnKernelsTest, testing::ValuesIn(isas()), isa_param_name);

/// Values of all classes, mostly small.
std::vector<float> mixed(uint64_t n, uint64_t seed, int largest) {
  std::mt19937_64 random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    const auto word = static_cast<uint32_t>(random());
    v = std::ldexp(static_cast<float>(static_cast<int32_t>(word)),
                   -31 - static_cast<int>(random() % 16) + largest);
  }
  return x;
}

struct Packed {
  bool finite = true;
  InceptionnCounts counts;
  std::vector<uint8_t> tags, full, half, byte;
};

Packed pack(const InceptionnKernels& k, const float* x, uint64_t n, const InceptionnForm& form) {
  Packed p;
  p.tags.assign((n + 3) / 4 + 2, 0xEE);
  p.finite = k.classify(x, n, form, p.tags.data() + 1, &p.counts);
  p.full.assign(p.counts.full * 4 + 2, 0xEE);
  p.half.assign(p.counts.half * 2 + 2, 0xEE);
  p.byte.assign(p.counts.byte + 2, 0xEE);
  k.pack(x, n, form, {p.full.data() + 1, p.half.data() + 1, p.byte.data() + 1});
  return p;
}

TEST_P(InceptionnKernelsTest, EncoderEqualsTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint32_t bound : {2U, 10U, 15U}) {
      const InceptionnForm form = inceptionn_form(bound);
      for (const std::vector<float>& x :
           {mixed(n + 1, n, 2), mixed(n + 1, n, -4), normal_values(n + 1, n)}) {
        const Packed a = pack(kInceptionnScalar, x.data() + 1, n, form);
        const Packed b = pack(simd_, x.data() + 1, n, form);
        EXPECT_TRUE(a.finite && b.finite);
        expect_same(a.tags, b.tags, n);
        expect_same(a.full, b.full, n);
        expect_same(a.half, b.half, n);
        expect_same(a.byte, b.byte, n);
      }
    }
  }
}

TEST_P(InceptionnKernelsTest, SpecialValuesAreClassifiedLikeTheReference) {
  for (const uint64_t n : sizes()) {
    const InceptionnForm form = inceptionn_form(10);
    std::vector<float> x = special_values(n, n);
    std::vector<uint8_t> a((n + 3) / 4), b(a);
    InceptionnCounts counts_a, counts_b;
    EXPECT_EQ(kInceptionnScalar.classify(x.data(), n, form, a.data(), &counts_a),
              simd_.classify(x.data(), n, form, b.data(), &counts_b));
    expect_same(a, b, n);
    EXPECT_EQ(counts_a.full, counts_b.full);
    EXPECT_EQ(counts_a.half, counts_b.half);
    EXPECT_EQ(counts_a.byte, counts_b.byte);
  }
}

TEST_P(InceptionnKernelsTest, NonFiniteIsFoundAnywhere) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (uint64_t at = 0; at < 200; ++at) {
      std::vector<float> x = normal_values(200, 1);
      x[at] = bad;
      EXPECT_FALSE(pack(simd_, x.data(), 200, inceptionn_form(10)).finite) << at;
      std::vector<uint8_t> bytes(801);
      std::memcpy(bytes.data() + 1, x.data(), 800);
      EXPECT_FALSE(simd_.all_finite(bytes.data() + 1, 200));
      EXPECT_TRUE(simd_.all_finite(bytes.data() + 1, at));
    }
  }
}

TEST_P(InceptionnKernelsTest, DecoderEqualsTheReference) {
  std::mt19937_64 random(3);
  for (const uint64_t n : sizes()) {
    // Any tags; few of the larger classes, and so few that most vectors have none; only bytes.
    for (const uint32_t all_but : {0U, 8U, 32U, ~0U}) {
      std::vector<uint8_t> tags((n + 3) / 4);
      for (uint8_t& tag : tags) {
        tag = static_cast<uint8_t>(random());
        if (all_but != 0 && random() % all_but != 0) tag &= 0x55U;
      }
      const InceptionnCounts counts = simd_.count(tags.data(), n);
      const InceptionnCounts expected = kInceptionnScalar.count(tags.data(), n);
      ASSERT_EQ(counts.full, expected.full);
      ASSERT_EQ(counts.half, expected.half);
      ASSERT_EQ(counts.byte, expected.byte);
      // Exact allocations, so that a sanitizer sees every byte beyond.
      std::vector<uint8_t> streams(counts.full * 4 + counts.half * 2 + counts.byte);
      for (uint8_t& byte : streams) byte = static_cast<uint8_t>(random());
      const uint8_t* const full = streams.data();
      const uint8_t* const half = full + counts.full * 4;
      const uint8_t* const byte = half + counts.half * 2;
      const InceptionnIn from{full, half, byte, full + streams.size()};
      const InceptionnForm form = inceptionn_form(10);
      for (const float weight : {0.3F, -0.3F}) {  // of an absent element the product is 0 or -0
        for (const Output output : {Output::set, Output::stream, Output::add}) {
          for (const uint64_t shift : {0U, 1U}) {
            std::vector<float> a = normal_values(n + 20, 5), b = a;
            const uint64_t at = (64 - reinterpret_cast<uintptr_t>(b.data()) % 64) % 64 / 4 + shift;
            InceptionnIn end_a = from, end_b = from;
            kInceptionnScalar.unpack(tags.data(), n, form, &end_a, weight, output, a.data() + at);
            simd_.unpack(tags.data(), n, form, &end_b, weight, output, b.data() + at);
            expect_same(a, b, n);
            EXPECT_EQ(end_a.full, end_b.full);
            EXPECT_EQ(end_a.half, end_b.half);
            EXPECT_EQ(end_a.byte, end_b.byte);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
