// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/levels/levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/levels/levels_elements.h"
#include "kernels/levels/tree.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr RandomKey kKey{0x12345678U, 0x9ABCDEF0U};

class LevelsKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const LevelsKernels& simd_ = levels_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, LevelsKernelsTest, testing::ValuesIn(isas()), isa_param_name);

uint32_t bits_of(uint32_t levels) {
  uint32_t bits = 1;
  while ((1U << bits) < 2 * levels + 1) ++bits;
  return bits;
}

BucketLayout layout_of(uint64_t n, uint32_t levels, uint32_t bucket,
                       LevelNorm norm = LevelNorm::l2) {
  return {levels, bits_of(levels), bucket, norm, 4 * ((n + bucket - 1) / bucket)};
}

// ---- buckets ----

struct Coded {
  std::vector<uint8_t> bytes;
  bool finite = true;
};

Coded encode(const LevelsKernels& k, const float* x, uint64_t n, BucketLayout layout,
             uint64_t first) {
  Coded c;
  c.bytes.assign(3 + layout.codes_at + packed_bytes(n, layout.bits) + 5, 0xEE);
  uint8_t* const at = c.bytes.data() + 3;
  c.finite = k.encode_buckets(x, n, layout, at, at + layout.codes_at, kKey, first);
  return c;
}

TEST_P(LevelsKernelsTest, BucketEncodersEqualTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint32_t bucket : {16U, 17U, 100U, 512U}) {
      for (const uint32_t levels : {1U, 7U, 100U, 127U, 128U, 5000U, 32767U}) {
        if (n > 40 && n % 7 != levels % 7) continue;
        const auto norm = n % 2 == 0 ? LevelNorm::max : LevelNorm::l2;
        const BucketLayout layout = layout_of(n, levels, bucket, norm);
        for (const uint64_t first : {0U, 64U, 16U, 4099U}) {
          for (const auto& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
            const Coded a = encode(kLevelsScalar, x.data() + 1, n, layout, first);
            const Coded b = encode(simd_, x.data() + 1, n, layout, first);
            expect_same(a.bytes, b.bytes, n);
            EXPECT_EQ(a.finite, b.finite);
          }
        }
      }
    }
  }
}

TEST_P(LevelsKernelsTest, NonFiniteBucketsAreReportedAndZero) {
  for (const float bad : {INFINITY, -INFINITY, NAN, std::numeric_limits<float>::max()}) {
    for (const uint64_t where : {0U, 100U, 255U, 256U, 298U}) {
      for (const uint32_t levels : {7U, 127U, 300U}) {
        std::vector<float> x = normal_values(300, 1);
        x[where] = x[where + 1] = bad;
        if (where == 255) x[254] = bad;  // in one bucket, so that two of FLT_MAX have no norm
        const BucketLayout layout = layout_of(300, levels, 256);
        const Coded a = encode(kLevelsScalar, x.data(), 300, layout, 0);
        const Coded b = encode(simd_, x.data(), 300, layout, 0);
        EXPECT_FALSE(a.finite);
        EXPECT_FALSE(b.finite);
        expect_same(a.bytes, b.bytes, where);
      }
    }
  }
}

TEST_P(LevelsKernelsTest, BucketDecodersEqualTheReference) {
  std::mt19937_64 random(3);
  for (const uint64_t n : sizes()) {
    if (n > 70 && n % 3 != 0) continue;
    for (const uint32_t bucket : {16U, 17U, 256U}) {
      const uint32_t levels = std::vector<uint32_t>{1, 3, 20, 200, 32767}[random() % 5];
      const BucketLayout layout = layout_of(n, levels, bucket);
      std::vector<std::vector<uint8_t>> payloads;
      std::vector<Weighted> terms;
      for (uint32_t t = 0; t < kLevelTerms; ++t) {
        payloads.emplace_back(t % 3 + layout.codes_at + packed_bytes(n, layout.bits));
        for (uint8_t& byte : payloads.back()) byte = static_cast<uint8_t>(random());
        for (uint64_t b = 0; b < layout.codes_at; b += 4) payloads[t][t % 3 + b + 3] &= 0x3FU;
      }
      for (uint32_t t = 0; t < kLevelTerms; ++t) {
        terms.push_back({payloads[t].data() + t % 3, 0.37F - 0.1F * static_cast<float>(t)});
      }
      for (const uint32_t count : {0U, 1U, 3U, kLevelTerms}) {
        for (const Output output : {Output::set, Output::stream, Output::add}) {
          const uint64_t chunk = 8 * uint64_t{bucket}, begin = n / 2 / chunk * chunk;
          std::vector<float> a = normal_values(n + 20, 5), b = a;
          kLevelsScalar.decode_buckets(a.data(), output, terms.data(), count, layout, begin, n);
          simd_.decode_buckets(b.data(), output, terms.data(), count, layout, begin, n);
          expect_same(a, b, n);
        }
      }
    }
  }
}

TEST_P(LevelsKernelsTest, ValueAboveLevelsIsFoundAnywhere) {
  for (const uint32_t levels : {1U, 2U, 6U, 100U, 127U, 200U, 5000U, 32767U}) {
    const uint32_t bits = bits_of(levels);
    for (const uint64_t n : {1U, 7U, 8U, 31U, 65U, 1023U, 1025U, 3000U}) {
      const auto most = static_cast<int32_t>(levels);
      std::vector<int16_t> codes(n);
      for (uint64_t i = 0; i < n; ++i) {
        codes[i] = static_cast<int16_t>(i % 2 == 0 ? most : -most);
      }
      const auto valid = [&] {
        std::vector<uint8_t> packed(packed_bytes(n, bits));
        for (uint64_t i = 0; i < n * bits; ++i) {  // bit by bit, as the page says
          const auto code = static_cast<uint32_t>(codes[i / bits]);
          packed[i / 8] |= static_cast<uint8_t>((code >> (i % bits) & 1U) << (i % 8));
        }
        EXPECT_EQ(kLevelsScalar.codes_valid(packed.data(), n, bits, levels),
                  simd_.codes_valid(packed.data(), n, bits, levels));
        return simd_.codes_valid(packed.data(), n, bits, levels);
      };
      EXPECT_TRUE(valid()) << n << " " << levels;
      for (const uint64_t at : {uint64_t{0}, n / 2, n - 1}) {
        const int16_t before = codes[at];
        codes[at] = static_cast<int16_t>(-most - 1);
        EXPECT_FALSE(valid()) << n << " " << levels << " " << at;
        codes[at] = before;
      }
    }
  }
}

TEST(LevelsReference, PackingKeepsBitOrder) {
  std::mt19937_64 random(9);
  for (uint32_t bits = 2; bits < 16; ++bits) {
    if (bits == 8) continue;
    for (uint64_t n = 1; n < 40; ++n) {
      std::vector<int16_t> codes(n + 8), back(n + 8);
      std::vector<int8_t> narrow(n + 8), narrow_back(n + 8);
      for (uint64_t i = 0; i < n; ++i) {
        codes[i] =
            static_cast<int16_t>(static_cast<int32_t>(random() % (1U << bits)) - (1 << (bits - 1)));
        narrow[i] = static_cast<int8_t>(codes[i]);
      }
      std::vector<uint8_t> want(packed_bytes(n, bits) + 1), got(want.size());
      want.back() = got.back() = 0xA5;
      for (uint64_t i = 0; i < n * bits; ++i) {
        const auto code = static_cast<uint32_t>(codes[i / bits]);
        want[i / 8] |= static_cast<uint8_t>((code >> (i % bits) & 1U) << (i % 8));
      }
      if (bits < 8) {
        pack_codes(narrow.data(), n, bits, got.data());
        unpack_codes(got.data(), n, bits, narrow_back.data());
      } else {
        pack_codes(codes.data(), n, bits, got.data());
        unpack_codes(got.data(), n, bits, back.data());
      }
      expect_same(want, got, bits);
      for (uint64_t i = 0; i < n; ++i) {
        ASSERT_EQ(bits < 8 ? narrow_back[i] : back[i], codes[i]) << bits << " " << i;
      }
    }
  }
}

TEST(LevelsReference, MagnitudesUpToNormStayWithinLevels) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 400000; ++i) {
    const float norm = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFFU);
    const uint32_t levels = 1 + static_cast<uint32_t>(random() % (i % 2 == 0 ? 127 : 32767));
    const LevelStep s = level_step(norm, levels);
    ASSERT_EQ(s.finite, std::isfinite(norm));
    if (s.step == 0) continue;
    const auto most = static_cast<int32_t>(levels);
    ASSERT_LE(level_code(norm, s.factor, 0x7FFF), most) << std::hexfloat << norm << " " << levels;
    ASSERT_GE(level_code(-norm, s.factor, 0), -most) << std::hexfloat << norm << " " << levels;
    ASSERT_GE(level_code(norm, s.factor, 0), most - 1);
    ASSERT_TRUE(std::isfinite(level_value(most, s.step)));
    ASSERT_NEAR(level_value(most, s.step) / norm, 1.0F, 3e-7F);
  }
}

TEST(LevelsReference, StepAlwaysEncodesToOne) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 400000; ++i) {
    const float step = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFFU);
    if (!std::isfinite(step) || step < kTinyTernaryStep) continue;
    const float factor = ternary_factor(step);
    ASSERT_EQ(ternary_code(step, factor, 0), 1) << std::hexfloat << step;
    ASSERT_EQ(ternary_code(-step, factor, 0x1FFFFFF), -1) << std::hexfloat << step;
    ASSERT_EQ(ternary_code(std::numeric_limits<float>::max(), factor, 0x1FFFFFF), 1);
  }
}

TEST(LevelsReference, EveryRandomBitIsUsed) {
  // 64 elements use the 32 words of 8 blocks, each word twice, with another half on top.
  std::vector<int> used(32, 0);
  for (uint64_t e = 640; e < 704; ++e) {
    const uint64_t block = random_group_counter(e) - 80;
    ASSERT_LT(block, 8U);
    used[block * 4 + random_group_word(e)] += e / 16 % 2 == 0 ? 1 : 16;
  }
  EXPECT_EQ(std::count(used.begin(), used.end(), 17), 32);
  const uint32_t word = random_word(kKey, 640);
  ASSERT_EQ(word, random_word(kKey, 656));
  EXPECT_EQ(level_random(kKey, 640), word & 0x7FFFU);
  EXPECT_EQ(level_random(kKey, 656), word >> 17);
  EXPECT_EQ(ternary_random(kKey, 640), std::rotl(word, 16) >> 7);
  EXPECT_EQ(ternary_random(kKey, 656), word >> 7);
}

// ---- moments ----

TEST_P(LevelsKernelsTest, MomentsEqualTheReferenceAndTheirDefinition) {
  for (const uint64_t n : sizes()) {
    for (const auto& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
      const LevelMoments a = kLevelsScalar.moments(x.data() + 1, n);
      const LevelMoments b = simd_.moments(x.data() + 1, n);
      EXPECT_EQ(std::bit_cast<uint64_t>(a.sum), std::bit_cast<uint64_t>(b.sum)) << n;
      EXPECT_EQ(std::bit_cast<uint64_t>(a.squares), std::bit_cast<uint64_t>(b.squares)) << n;
      EXPECT_EQ(a.max_bits, b.max_bits) << n;
      long double sum = 0, magnitude = 0, squares = 0;
      float most = 0;
      for (uint64_t i = 1; i <= n; ++i) {
        sum += static_cast<long double>(x[i]);
        magnitude += std::fabs(static_cast<long double>(x[i]));
        squares += static_cast<long double>(x[i]) * static_cast<long double>(x[i]);
        most = std::max(most, std::fabs(x[i]));
      }
      EXPECT_LE(std::fabs(static_cast<long double>(a.sum) - sum), 1e-12L * magnitude);
      EXPECT_LE(std::fabs(static_cast<long double>(a.squares) - squares), 1e-12L * squares);
      EXPECT_EQ(a.max_bits, bits(most));
    }
  }
}

// ---- ternary codes ----

TEST_P(LevelsKernelsTest, TernaryEncoderEqualsTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t first : {0U, 64U, 16U, 4099U}) {
      for (const auto& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
        float largest = 0;
        for (const float v : x) largest = std::max(largest, std::fabs(v));
        for (const float step : {0.0F, 2e-2F, 1e-3F, largest / 59, largest / 70}) {
          const TernaryRounding rounding{step < kTinyTernaryStep ? 0 : step, kKey, first};
          std::vector<uint8_t> a(n + 5, 0xEE), b = a;
          kLevelsScalar.ternary(x.data() + 1, n, rounding, a.data() + 1);
          simd_.ternary(x.data() + 1, n, rounding, b.data() + 1);
          expect_same(a, b, n);
          std::vector<uint8_t> pairs(n / 4 + 6, 0xEE), simd_pairs = pairs;
          kLevelsScalar.ternary_pairs(x.data() + 1, n, rounding, pairs.data() + 1);
          simd_.ternary_pairs(x.data() + 1, n, rounding, simd_pairs.data() + 1);
          expect_same(pairs, simd_pairs, n);
          for (uint64_t i = 0; i < n; ++i) {
            ASSERT_EQ(pair_at(pairs.data() + 1, i), a[1 + i] & 3U) << i;
          }
        }
      }
    }
  }
}

TEST_P(LevelsKernelsTest, DigitsMatchTheirDefinition) {
  std::mt19937_64 random(4);
  for (const uint64_t n : sizes()) {
    const uint64_t stride = n + 3;
    std::vector<int8_t> rows(5 * stride);
    for (int8_t& digit : rows) digit = static_cast<int8_t>(static_cast<int>(random() % 3) - 1);
    std::vector<uint8_t> want(n + 1, 0xA5), got(n + 1, 0xA5);
    for (uint64_t j = 0; j < n; ++j) {
      want[j] = static_cast<uint8_t>(121 + 81 * rows[j] + 27 * rows[stride + j] +
                                     9 * rows[2 * stride + j] + 3 * rows[3 * stride + j] +
                                     rows[4 * stride + j]);
    }
    simd_.pack_digits(rows.data(), stride, n, got.data());
    expect_same(want, got, n);
    kLevelsScalar.pack_digits(rows.data(), stride, n, got.data());
    expect_same(want, got, n);
  }
}

/// out = base + Σ values, in order, whatever the codes are.
template <class Term, class Value>
std::vector<float> naive_sum(std::vector<float> out, bool add, const std::vector<Term>& terms,
                             uint32_t count, uint64_t begin, uint64_t end, Value value) {
  for (uint64_t i = begin; i < end; ++i) {
    float sum = add ? out[i] : 0.0F;
    for (uint32_t t = 0; t < count; ++t) {
      sum = t == 0 && !add ? value(terms[t], i) : sum + value(terms[t], i);
    }
    out[i] = sum;
  }
  return out;
}

TEST_P(LevelsKernelsTest, PairDecodersEqualTheirDefinition) {
  std::mt19937_64 random(5);
  for (const uint64_t n : sizes()) {
    std::vector<std::vector<uint8_t>> codes;
    std::vector<PairTerm> terms;
    for (uint32_t t = 0; t < kLevelTerms; ++t) {
      codes.emplace_back((n + 3) / 4 + 1);
      for (uint8_t& byte : codes.back()) byte = static_cast<uint8_t>(random());
      const float s = 0.1F * static_cast<float>(t + 1);
      terms.push_back({codes.back().data() + 1, {-0.0F, s, 3.0F, -s}});
      codes.back().resize((n + 3) / 4 + 1);
    }
    for (const uint32_t count : {0U, 1U, 2U, kLevelTerms}) {
      for (const Output output : {Output::set, Output::stream, Output::add}) {
        const uint64_t begin = n / 2 / 64 * 64;
        const std::vector<float> base = normal_values(n + 9, 5);
        const auto want = naive_sum(
            base, output == Output::add, terms, count, begin, n,
            [](const PairTerm& term, uint64_t i) {
              const auto* bytes = static_cast<const uint8_t*>(term.codes);
              return term.value[static_cast<uint32_t>(bytes[i / 4]) >> (2 * (i % 4)) & 3U];
            });
        for (const LevelsKernels* k : {&kLevelsScalar, &simd_}) {
          std::vector<float> got = base;
          k->decode_pairs(got.data(), output, terms.data(), count, begin, n);
          expect_same(want, got, n);
        }
      }
    }
  }
}

// ---- the tree ----

TEST(Tree, TreeHasDocumentedValues) {
  EXPECT_EQ(kTreeValue[0], 0.0F);
  const double first[] = {2.75e-6, 7.25e-6, 1.875e-5, 3.625e-5, 5.875e-5, 8.625e-5};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(kTreeValue[i + 1], static_cast<float>(first[i])) << i;
  }
  EXPECT_EQ(kTreeValue[126], static_cast<float>(1269.0 / 1280));
  EXPECT_EQ(kTreeValue[127], static_cast<float>(2549.0 / 2560));
  // every decade by its cells' midpoints, in another way of counting
  size_t at = 1;
  for (int e = -6; e < 0; ++e) {
    const int m = 1 << (e + 6);
    for (const auto& [low, high] : {std::pair{1.0, 4.5}, std::pair{4.5, 10.0}}) {
      const double width = (high - low) / m;
      for (int j = 0; j < m; ++j, ++at) {
        const double v = (low + width * (j + 0.5)) * std::pow(10.0, e);
        EXPECT_NEAR(static_cast<double>(kTreeValue[at]), v, v * 6.1e-8) << at;
      }
    }
  }
  EXPECT_EQ(at, 127U);
  EXPECT_TRUE(std::is_sorted(kTreeValue.begin(), kTreeValue.end()));
}

/// Found by search. Among two equally near values the smaller one.
int naive_index(float y) {
  int best = 0;
  for (int i = 1; i < 128; ++i) {
    const auto distance = [&](int k) {
      return std::fabs(static_cast<double>(y) -
                       static_cast<double>(kTreeValue[static_cast<size_t>(k)]));
    };
    if (distance(i) < distance(best)) best = i;
  }
  return best;
}

/// Around every bound between two values, every value, every power of two and random floats.
std::vector<float> tree_inputs() {
  std::vector<float> y{0.0F, 1.0F, 0x1p-149F, 0x1p-126F};
  const auto around = [&](double x) {
    auto near = bits(static_cast<float>(x));
    for (uint32_t d = 0; d < 9; ++d) {
      const float v = std::bit_cast<float>(near - 4 + d);
      if (v <= 1.0F) y.push_back(v);
    }
  };
  for (size_t i = 1; i < 128; ++i) {
    const auto low = static_cast<double>(kTreeValue[i - 1]);
    const auto high = static_cast<double>(kTreeValue[i]);
    around((low + high) / 2);
    around(high);
  }
  for (int e = -24; e <= 0; ++e) around(std::ldexp(1.0, e));
  std::mt19937_64 random(21);
  for (int i = 0; i < 20000; ++i) {
    const double exponent = std::uniform_real_distribution<double>(-24, 0)(random);
    y.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return y;
}

TEST_P(LevelsKernelsTest, TreeEncodesToNearestValues) {
  const std::vector<float> y = tree_inputs();
  std::vector<int8_t> want(y.size()), got(y.size()), scalar(y.size());
  for (size_t i = 0; i < y.size(); ++i) want[i] = static_cast<int8_t>(naive_index(y[i]));
  for (const float inverse : {1.0F, -1.0F}) {  // the sign comes from the input
    std::vector<float> x = y;
    for (float& v : x) v *= inverse;
    simd_.tree_encode(x.data(), x.size(), 1.0F, got.data());
    kLevelsScalar.tree_encode(x.data(), x.size(), 1.0F, scalar.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const int code = inverse < 0 ? -want[i] : want[i];
      ASSERT_EQ(got[i], code) << std::hexfloat << x[i];
      ASSERT_EQ(scalar[i], code) << std::hexfloat << x[i];
    }
  }
}

TEST_P(LevelsKernelsTest, TreeEncodersEqualTheReference) {
  for (const uint64_t n : sizes()) {
    for (const auto& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
      float most = 0;
      for (const float v : x) most = std::max(most, std::fabs(v));
      const float inverse = most > 0x1p-100F ? 0.999999F / most : 0.0F;
      std::vector<uint8_t> a(n + 3, 0xEE), b = a;
      kLevelsScalar.tree_encode(x.data() + 1, n, inverse, a.data() + 1);
      simd_.tree_encode(x.data() + 1, n, inverse, b.data() + 1);
      expect_same(a, b, n);
    }
  }
}

TEST_P(LevelsKernelsTest, TreeDecodersEqualTheirDefinition) {
  std::mt19937_64 random(6);
  for (const uint64_t n : sizes()) {
    std::vector<std::vector<int8_t>> codes;
    std::vector<TreeTerm> terms(kLevelTerms);
    for (TreeTerm& term : terms) {
      codes.emplace_back(n + 1);
      for (int8_t& code : codes.back()) code = static_cast<int8_t>(random() % 255 - 127);
      term.codes = codes.back().data() + 1;
      for (float& value : term.value) value = static_cast<float>(random() % 1000) * 0.7F;
    }
    for (const uint32_t count : {0U, 1U, 2U, kLevelTerms}) {
      for (const Output output : {Output::set, Output::stream, Output::add}) {
        const uint64_t begin = n / 2;
        const std::vector<float> base = normal_values(n + 9, 5);
        const auto want = naive_sum(base, output == Output::add, terms, count, begin, n,
                                    [](const TreeTerm& term, uint64_t i) {
                                      const int code = static_cast<const int8_t*>(term.codes)[i];
                                      const float v =
                                          term.value[static_cast<size_t>(std::abs(code))];
                                      return code < 0 ? -v : v;
                                    });
        for (const LevelsKernels* k : {&kLevelsScalar, &simd_}) {
          std::vector<float> got = base;
          k->tree_decode(got.data(), output, terms.data(), count, begin, n);
          expect_same(want, got, n);
        }
      }
    }
  }
}

}  // namespace
}  // namespace laconic::kernels
