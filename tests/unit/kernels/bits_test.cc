// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/bits/bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using ByteVector = std::vector<uint8_t>;

class BitsKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const BitsKernels& simd_ = bits_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, BitsKernelsTest, testing::ValuesIn(isas()), isa_param_name);

std::vector<float> finite_specials(uint64_t n, uint64_t seed) {
  std::vector<float> x = special_values(n, seed);
  for (uint64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) x[i] = i % 2 == 0 ? -0.0F : 0.0F;
    if (std::fabs(x[i]) > 0x1p100F) x[i] *= 0x1p-30F;
  }
  return x;
}

/// ceil(n / 8) bytes after an odd address, with canaries around them.
struct Bits {
  explicit Bits(uint64_t n) : bytes(n / 8 + 12, 0xEE), size((n + 7) / 8) {}
  uint8_t* data() { return bytes.data() + 1; }
  void expect_intact() const {
    EXPECT_EQ(bytes.front(), 0xEE);
    for (size_t i = 1 + size; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xEE) << i;
  }
  ByteVector bytes;
  size_t size;
};

void expect_same_sums(const BitsSums& a, const BitsSums& b, uint64_t n) {
  EXPECT_EQ(bits(a.negative), bits(b.negative)) << n;
  EXPECT_EQ(bits(a.positive), bits(b.positive)) << n;
  EXPECT_EQ(a.positives, b.positives) << n;
}

TEST_P(BitsKernelsTest, PackEqualsTheReference) {
  for (const uint64_t n : sizes()) {
    for (const std::vector<float>& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
      Bits a(n), b(n);
      EXPECT_TRUE(kBitsScalar.pack(x.data() + 1, n, a.data()));
      EXPECT_TRUE(simd_.pack(x.data() + 1, n, b.data()));
      expect_same(a.bytes, b.bytes, n);
      b.expect_intact();
    }
  }
}

TEST_P(BitsKernelsTest, PackFindsNonFinite) {
  for (const uint64_t n : {1U, 7U, 31U, 32U, 63U, 64U, 65U, 300U}) {
    for (const float bad : {kInf, -kInf, NAN, -NAN}) {
      for (uint64_t at = 0; at < n; at += n < 70 ? 1 : 37) {
        std::vector<float> x = normal_values(n, at);
        x[at] = bad;
        Bits out(n);
        EXPECT_FALSE(kBitsScalar.pack(x.data(), n, out.data()));
        EXPECT_FALSE(simd_.pack(x.data(), n, out.data())) << n << ", " << at;
        for (const float* e :
             {static_cast<const float*>(nullptr), static_cast<const float*>(x.data())}) {
          const BitsSums sums = simd_.pack_sums(x.data(), e, n, out.data());
          EXPECT_FALSE(std::isfinite(sums.negative) && std::isfinite(sums.positive)) << at;
        }
      }
    }
  }
}

TEST_P(BitsKernelsTest, SumsEqualTheReference) {
  for (const uint64_t n : sizes()) {
    if (n > kBitsChunk) continue;
    for (const std::vector<float>& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
      const std::vector<float> e = normal_values(n + 3, n + 1);
      for (const float* rest : {static_cast<const float*>(nullptr), e.data() + 3}) {
        Bits a(n), b(n);
        const BitsSums reference = kBitsScalar.pack_sums(x.data() + 1, rest, n, a.data());
        expect_same_sums(reference, simd_.pack_sums(x.data() + 1, rest, n, b.data()), n);
        expect_same(a.bytes, b.bytes, n);
        b.expect_intact();
      }
    }
  }
}

TEST_P(BitsKernelsTest, RemaindersEqualTheReference) {
  for (const uint64_t n : sizes()) {
    const std::vector<float> x = finite_specials(n + 1, n);
    std::vector<float> a = normal_values(n + 3, n + 1), b = a;
    const BitsValues values{-0.0078125F, 0.00919F};
    kBitsScalar.keep_rest(x.data() + 1, a.data() + 2, n, values);
    simd_.keep_rest(x.data() + 1, b.data() + 2, n, values);
    expect_same(a, b, n);
  }
}

/// Payloads of n bits each, every one in its own memory and at another address.
std::vector<ByteVector> random_bits(uint64_t n, uint32_t count) {
  std::mt19937_64 random(n);
  std::vector<ByteVector> payloads;
  for (uint32_t t = 0; t < count; ++t) {
    payloads.emplace_back(t % 3 + (n + 7) / 8);
    for (uint8_t& byte : payloads.back()) byte = static_cast<uint8_t>(random());
  }
  return payloads;
}

/// call(kernels, out, output) at aligned and other addresses.
template <class Call>
void expect_same_output(const BitsKernels& simd, uint64_t n, Call call) {
  for (const Output output : {Output::set, Output::stream, Output::add}) {
    for (const uint64_t shift : {0U, 1U}) {
      std::vector<float> a = normal_values(n + 40, 5), b = a;
      const auto at = [&](std::vector<float>& v) {
        const uint64_t align = (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64 / 4;
        // the same element of both, whatever their addresses are
        std::rotate(v.begin(), v.end() - static_cast<std::ptrdiff_t>(align), v.end());
        return v.data() + align + shift;
      };
      float* const to_a = at(a);
      float* const to_b = at(b);
      call(kBitsScalar, to_a, output);
      call(simd, to_b, output);
      for (uint64_t i = 0; i < n + 8; ++i)
        ASSERT_EQ(bits(to_a[i]), bits(to_b[i])) << n << ", " << i;
    }
  }
}

TEST_P(BitsKernelsTest, DecodeEqualsTheReference) {
  for (const uint64_t n : sizes()) {
    if (n > 70 && n % 16 != 1) continue;
    const auto payloads = random_bits(n, kBitsTerms);
    std::vector<BitsTerm> terms;
    for (uint32_t t = 0; t < kBitsTerms; ++t) {
      const auto i = static_cast<float>(t);
      terms.push_back({payloads[t].data() + t % 3, {-0.37F + 0.1F * i, 0.11F + 0.7F * i}});
    }
    for (const uint32_t count : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 8U, 9U, 13U, kBitsTerms}) {
      expect_same_output(simd_, n, [&](const BitsKernels& k, float* out, Output output) {
        k.decode(out, output, terms.data(), count, n);
      });
    }
  }
}

TEST_P(BitsKernelsTest, VotesEqualTheReferenceAndTheSumOneByOne) {
  for (const uint64_t n : sizes()) {
    if (n > 70 && n % 16 != 1) continue;
    const auto payloads = random_bits(n, kVoteTerms);
    std::vector<const uint8_t*> terms;
    for (uint32_t t = 0; t < kVoteTerms; ++t) terms.push_back(payloads[t].data() + t % 3);
    for (const uint32_t count : {1U, 8U, 17U, kVoteTerms}) {
      for (const float weight : {1.0F, 0x1p-3F}) {
        expect_same_output(simd_, n, [&](const BitsKernels& k, float* out, Output output) {
          k.vote(out, output, terms.data(), count, weight, n);
        });
        std::vector<float> out(n);
        simd_.vote(out.data(), Output::set, terms.data(), count, weight, n);
        for (uint64_t i = 0; i < n; ++i) {
          float sum = 0;
          for (uint32_t t = 0; t < count; ++t) sum += bit_at(terms[t], i) ? weight : -weight;
          ASSERT_EQ(bits(sum), bits(out[i])) << n << ", " << i << ", " << count;
        }
      }
    }
  }
}

TEST_P(BitsKernelsTest, SignsEqualTheReference) {
  for (const uint64_t n : sizes()) {
    std::vector<float> a = special_values(n + 1, n);
    for (uint64_t i = 0; i < n; i += 3) a[i] = i % 2 == 0 ? 0.0F : -0.0F;
    std::vector<float> b = a;
    kBitsScalar.sign(a.data() + 1, n);
    simd_.sign(b.data() + 1, n);
    expect_same(a, b, n);
  }
}

// The reference, held to its promises.

TEST(BitsReference, BitsStartAtElementZero) {
  const std::vector<float> x{1, -1, 0.0F, -0.0F, -1e-45F, 1e-45F, -3, -4, 5, -6};
  Bits out(10);
  ASSERT_TRUE(kBitsScalar.pack(x.data(), 10, out.data()));
  EXPECT_EQ(out.data()[0], 0b00101101);
  EXPECT_EQ(out.data()[1], 0b01);
}

TEST(BitsReference, SumsCoverBothSigns) {
  for (const uint64_t n : {1U, 33U, 5000U}) {
    const std::vector<float> x = normal_values(n, 1), e = normal_values(n, 2);
    Bits out(n);
    const BitsSums sums = kBitsScalar.pack_sums(x.data(), e.data(), n, out.data());
    double negative = 0, positive = 0;
    uint64_t positives = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const float a = x[i] + e[i];
      (a >= 0 ? positive : negative) += static_cast<double>(a);
      positives += a >= 0 ? 1 : 0;
      EXPECT_EQ(bit_at(out.data(), i), a >= 0);
    }
    EXPECT_NEAR(sums.negative, negative, 1e-5 * (1 - negative));
    EXPECT_NEAR(sums.positive, positive, 1e-5 * (1 + positive));
    EXPECT_EQ(sums.positives, positives);
  }
}

TEST(BitsReference, SimdLanesAreAddedInFixedOrder) {
  // 2^24 in lane 0 swallows a 1 that joins the same lane alone, and not two that were folded.
  std::vector<float> x(97, 0.0F);
  x[0] = 0x1p24F;
  x[32] = x[64] = 1;
  Bits out(97);
  EXPECT_EQ(kBitsScalar.pack_sums(x.data(), nullptr, 97, out.data()).positive, 0x1p24F);
  x[32] = x[64] = 0;
  x[16] = x[48] = 1;
  EXPECT_EQ(kBitsScalar.pack_sums(x.data(), nullptr, 97, out.data()).positive, 0x1p24F + 2);
}

}  // namespace
}  // namespace laconic::kernels
