// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/topk/topk.h"

#include <gtest/gtest.h>

#include "codecs/sparse/sparse_payload.h"
#include "codecs/sparse/sparse_select.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<TopK>;

Driver driver(double ratio) {
  Driver d;
  d.params.ratio = ratio;
  return d;
}

// The definition: sort by magnitude, lower index first.
std::vector<float> definition(const std::vector<float>& x, uint64_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return kernels::magnitude_key(x[a]) > kernels::magnitude_key(x[b]);
  });
  std::vector<float> y(x.size());
  for (uint64_t j = 0; j < k; ++j) y[order[j]] = x[order[j]];
  return y;
}

void expect_exact(const std::vector<float>& x, double ratio, const char* what) {
  const std::vector<float> wanted = definition(x, kept_of(ratio, x.size()));
  for (const Isa isa : available_isas()) {
    Driver d = driver(ratio);
    d.isa = isa;
    ASSERT_EQ(d.round_trip(x), wanted) << what << ", n " << x.size() << ", ratio " << ratio;
  }
}

TEST(TopKTest, LargestAreKeptExactly) {
  for (const uint64_t n : {1U, 2U, 3U, 15U, 100U, 1024U, 4096U, 65536U, 65537U, 150000U}) {
    for (const double ratio : {1e-9, 0.001, 0.01, 0.0625, 0.07, 0.5, 1.0}) {
      for (const Shape shape : {Shape::laplace, Shape::layered}) {
        expect_exact(draw(shape, n, n), ratio, "random");
      }
    }
  }
}

// To eight bits of mantissa, ties to even; below the smallest normal number to multiples of 2^-133.
float rounded(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const int lowest = std::max(exponent - 8, -133);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{x}, -lowest)), lowest));
}

std::vector<float> rounded(std::vector<float> x) {
  std::transform(x.begin(), x.end(), x.begin(), [](float v) { return rounded(v); });
  return x;
}

Driver bf16_driver(double ratio) {
  Driver d = driver(ratio);
  d.params.values = TopK::Values::bf16;
  return d;
}

// Selected as float32, sent as bfloat16; with a residual what rounding leaves stays, exactly.
TEST(TopKTest, ValuesAreRoundedToBfloat16) {
  ThreadPool three(3);
  for (const uint64_t n : {1U, 15U, 4096U, 65536U, 65537U, 700001U}) {
    std::vector<float> x = draw(Shape::layered, n, n);
    for (uint64_t i = 0; i < n; i += 3) x[i] = std::ldexp(x[i], -static_cast<int>(i % 90));
    for (const double ratio : {0.001, 0.07, 0.7}) {
      const uint64_t k = kept_of(ratio, n);
      const std::vector<float> chosen = definition(x, k), wanted = rounded(chosen);
      std::vector<float> rest = x;
      for (uint64_t i = 0; i < n; ++i) rest[i] -= wanted[i];
      for (const Isa isa : available_isas()) {
        Driver d = bf16_driver(ratio);
        d.isa = isa;
        d.pool = isa == best_isa() ? &three : nullptr;
        const std::vector<uint8_t> payload = d.encode(x);
        ASSERT_EQ(payload.size(), index_bytes(k, n) + 2 * k);
        ASSERT_EQ(d.decode(payload, vector_unit(n)), wanted) << n << ", " << ratio;
        std::vector<float> e = x;
        ASSERT_EQ(d.encode_sum(std::vector<float>(n), &e), payload) << n << ", " << ratio;
        ASSERT_EQ(e, rest) << n << ", " << ratio;
      }
    }
  }
}

// The largest float that rounds to a number, and the one above it, which leaves all as it was.
TEST(TopKTest, Bfloat16OverflowChangesNothing) {
  const float largest = 0x1.FEFFFEp127F, beyond = 0x1.FFp127F;
  ASSERT_EQ(std::nextafter(largest, INFINITY), beyond);
  for (const uint64_t n : {100U, 65536U, 65537U, 150001U}) {
    for (const double ratio : {0.001, 0.7}) {
      std::vector<float> x = draw(Shape::laplace, n, 3);
      const Driver d = bf16_driver(ratio);
      EXPECT_EQ(TopK::plan(d.params, vector_unit(n), 1).largest_input, largest);
      x[n / 2] = -largest;
      EXPECT_EQ(d.round_trip(x)[n / 2], -0x1.FEp127F);
      std::vector<float> e(n);
      EXPECT_FALSE(d.encode_sum(x, &e).empty());
      EXPECT_EQ(e[n / 2], -largest + 0x1.FEp127F);
      x[n / 2] = beyond;
      e = x;
      EXPECT_TRUE(d.encode_sum(std::vector<float>(n), &e).empty());
      EXPECT_EQ(e, x);
    }
  }
}

TEST(TopKTest, EqualMagnitudesAreOrderedByIndex) {
  for (const uint64_t n : {100U, 5000U, 70000U, 140000U}) {
    std::vector<float> x(n, -3.0F);
    expect_exact(x, 0.01, "constant");
    for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 5) - 2.0F;
    expect_exact(x, 0.01, "five values");
    expect_exact(x, 0.3, "five values");
  }
}

TEST(TopKTest, FewNonZerosAreAllSent) {
  for (const uint64_t n : {1000U, 70000U, 300000U}) {
    std::vector<float> x(n);
    expect_exact(x, 0.01, "zeros");
    for (uint64_t i = n / 3; i < n / 3 + 5; ++i) x[i] = -1.0F - static_cast<float>(i % 3);
    expect_exact(x, 0.01, "a few in one row");
    for (uint64_t i = 0; i < n; i += 40) x[i] = static_cast<float>(i + 1);
    expect_exact(x, 0.01, "2.5 % of non-zeros");
  }
}

TEST(TopKTest, DenormalsAndHugeValuesAreOrdered) {
  std::vector<float> x = draw(Shape::laplace, 70000, 9);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] *= i % 2 == 0 ? 1e-38F : 1e-36F;
  x[3] = 3e38F;
  x[4] = -3e38F;
  expect_exact(x, 0.01, "denormals");
  expect_exact(x, 0.5, "denormals");
}

// The positions that the encoder samples, so that the sample can be made to lie.
uint64_t sample_position(uint64_t i, uint64_t n, uint64_t s) {
  const uint32_t scrambled = static_cast<uint32_t>(i) * 0x9E3779B1U;
  return n / s * i + n % s * i / s + ((n / s * (scrambled >> 8)) >> 24);
}

TEST(TopKTest, CutIsExactForAnySample) {
  const uint64_t n = 200000;
  const std::vector<float> quiet = draw(Shape::laplace, n, 3);
  std::vector<float> high = quiet;
  std::vector<float> low = quiet;
  for (float& v : low) v += 1.0F;
  for (uint64_t i = 0; i < 4096; ++i) {
    high[sample_position(i, n, 4096)] = 5.0F + static_cast<float>(i);
    low[sample_position(i, n, 4096)] = 1e-9F;
  }
  for (const double ratio : {0.001, 0.01, 0.03, 0.06, 0.3}) {
    expect_exact(high, ratio, "large values only where sampled");
    expect_exact(low, ratio, "small values where sampled");
  }
}

// Samples four elements of a line; the last line must not reach past the end.
TEST(TopKTest, LargeUnitsAreEncoded) {
  const std::vector<float> x = draw(Shape::layered, (uint64_t{1} << 22) + 1001, 8);
  const uint64_t k = kept_of(0.001, x.size());
  std::vector<uint32_t> keys(x.size());
  std::transform(x.begin(), x.end(), keys.begin(), kernels::magnitude_key);
  const auto nth = keys.begin() + static_cast<long>(k - 1);
  std::nth_element(keys.begin(), nth, keys.end(), std::greater<>());
  const std::vector<float> y = driver(0.001).round_trip(x);
  EXPECT_EQ(nonzeros(y), k);
  for (size_t i = 0; i < x.size(); ++i) {
    if (kernels::magnitude_key(x[i]) > *nth) {
      ASSERT_EQ(y[i], x[i]);
    }
    if (kernels::magnitude_key(x[i]) < *nth) {
      ASSERT_EQ(y[i], 0);
    }
  }
}

// The result of encoding the sums, and the sums without it. Some values cancel each other, so that
// some units have fewer sums than requested, and some no sample that finds them.
TEST(TopKTest, SumsWithResidualAreEncodedLikeValues) {
  ThreadPool three(3);
  for (const uint64_t n : {100U, 9000U, 65536U, 65537U, 150001U, 700001U}) {
    const std::vector<float> residual = draw(Shape::layered, n, 2);
    for (const uint64_t some : {1U, 2U, 500U, 1000000U}) {
      std::vector<float> x = draw(Shape::laplace, n, 3);
      for (uint64_t i = 0; i < n; ++i) x[i] = i % some == 0 ? x[i] : -residual[i];
      std::vector<float> sum(n);
      std::transform(x.begin(), x.end(), residual.begin(), sum.begin(), std::plus<>());
      for (const double ratio : {0.001, 0.01, 0.07, 0.5, 0.7}) {
        Driver d = driver(ratio);
        const std::vector<uint8_t> wanted = d.encode(sum);
        std::vector<float> rest = sum;
        const Term own{wanted, -1.0F};
        d.decode({&own, 1}, vector_unit(n), {rest.data(), true});
        for (const Isa isa : available_isas()) {
          d.isa = isa;
          d.pool = isa == best_isa() ? &three : nullptr;
          std::vector<float> e = residual;
          ASSERT_EQ(d.encode_sum(x, &e), wanted) << n << ", " << some << ", " << ratio;
          ASSERT_EQ(e, rest) << n << ", " << some << ", " << ratio;
        }
      }
    }
  }
}

TEST(TopKTest, NonFiniteSumsChangeNothing) {
  for (const uint64_t n : {100U, 65536U, 65537U, 150001U}) {
    const std::vector<float> before = draw(Shape::laplace, n, 2);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 3e38F}) {
      for (const double ratio : {0.001, 0.7}) {
        std::vector<float> x = draw(Shape::laplace, n, 3), e = before;
        x[n / 3] = bad;
        if (bad == 3e38F) e[n / 3] = bad;  // overflows
        const std::vector<float> kept = e;
        EXPECT_TRUE(driver(ratio).encode_sum(x, &e).empty()) << n << ", " << bad;
        EXPECT_EQ(e, kept) << n << ", " << bad;
      }
    }
  }
}

// One magnitude in fifty is the largest, so half of those are kept, from both threads' shares.
TEST(TopKTest, ThreadsShareTies) {
  std::vector<float> x(700001, 0.25F);
  for (size_t i = 0; i < x.size(); i += 50) x[i] = i % 100 == 0 ? 1.0F : -1.0F;
  Driver d = driver(0.01);
  const std::vector<float> alone = d.decode(d.encode(x), vector_unit(x.size()));
  for (const uint32_t threads : {2U, 3U}) {
    ThreadPool pool(threads);
    d.pool = &pool;
    const std::vector<float> y = d.decode(d.encode(x), vector_unit(x.size()));
    EXPECT_EQ(y, alone);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], i % 50 == 0 && i / 50 < 7000 ? x[i] : 0.0F) << i;
    }
  }
}

// Defects 2 and 10 of GRACE's code: more bytes than dense, eight-byte indices.
TEST(TopKTest, DefaultIsFarSmallerThanDense) {
  for (const uint64_t n : {64U, 4097U, 1000000U}) {
    const uint64_t bytes = TopK::plan({}, vector_unit(n), 8).round[0].bytes;
    EXPECT_LT(bytes * 8, n * 4) << n;
  }
  EXPECT_EQ(index_width(1), 0U);
  EXPECT_EQ(index_width(2), 1U);
  EXPECT_EQ(index_width(1024), 10U);
  EXPECT_EQ(index_width(1025), 11U);
  EXPECT_EQ(index_width(kMaxSparseCount), 32U);
}

// Golden bytes of the format page.
TEST(TopKTest, BytesOfTheFormatPage) {
  const std::vector<float> x{0.0F, -2.0F, 0.5F, 1.0F, 0.25F, 2.0F};
  const std::vector<uint8_t> payload = driver(0.5).encode(x);
  const std::vector<uint8_t> expected{0x59, 0x01,              // 1, 3, 5 in three bits each
                                      0x00, 0x00, 0x00, 0xC0,  // -2
                                      0x00, 0x00, 0x80, 0x3F,  // 1
                                      0x00, 0x00, 0x00, 0x40};
  EXPECT_EQ(payload, expected);
  const std::vector<uint8_t> halves{0x59, 0x01, 0x00, 0xC0, 0x80, 0x3F, 0x00, 0x40};
  EXPECT_EQ(bf16_driver(0.5).encode(x), halves);
}

TEST(TopKTest, NonCanonicalPayloadsAreRefused) {
  const std::vector<float> x = draw(Shape::laplace, 1000, 1);
  const Driver d = driver(0.01);
  const Unit unit = vector_unit(1000);
  const std::vector<uint8_t> good = d.encode(x);
  const auto check = [&](const std::vector<uint8_t>& p) {
    return TopK::check(d.params, unit, 0, p);
  };
  ASSERT_EQ(good.size(), 13U + 40U);  // ten indices of ten bits, ten floats
  std::vector<uint8_t> bad = good;
  bad.pop_back();
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  bad.push_back(0);
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  bad[12] |= 0x80;  // padding
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  std::fill_n(bad.begin(), 13, uint8_t{0});  // equal indices
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  bad[11] |= 0xC0;
  bad[12] |= 0x0F;  // the last index becomes 1008 or more
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad[11] = static_cast<uint8_t>((bad[11] & 0x03) | (1000 & 0x3F) << 2);  // 1000: one too large
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  const Driver quarter = driver(0.25);
  std::vector<uint8_t> many = quarter.encode(draw(Shape::laplace, 4096, 1));
  ASSERT_EQ(many.size(), 1536U + 4096U);
  many[768] = 0;  // index 512, where the checker begins a block, becomes 0
  many[769] &= 0xF0;
  EXPECT_EQ(TopK::check(quarter.params, vector_unit(4096), 0, many), Errc::payload_malformed);
  for (const uint32_t value : {0x7F800000U, 0xFF800000U, 0x7FC00000U}) {
    bad = good;
    store(bad.data() + 13 + 8, value);
    EXPECT_EQ(check(bad), Errc::payload_malformed);
  }
  const Driver narrow = bf16_driver(0.01);
  std::vector<uint8_t> halves = narrow.encode(x);
  ASSERT_EQ(halves.size(), 13U + 20U);
  EXPECT_EQ(check(halves), Errc::payload_malformed);
  EXPECT_EQ(TopK::check(narrow.params, unit, 0, good), Errc::payload_malformed);
  for (const uint16_t value : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}}) {
    store(halves.data() + 13 + 18, value);
    EXPECT_EQ(TopK::check(narrow.params, unit, 0, halves), Errc::payload_malformed);
  }
}

TEST(ExactCut, TiesAreCounted) {
  std::vector<float> x(5000);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 50);
  const Cut cut = exact_cut(x.data(), x.size(), 250);  // 100 of 49, 100 of 48, 50 of 47
  EXPECT_EQ(cut.key, kernels::magnitude_key(47.0F));
  EXPECT_EQ(cut.ties, 50U);
}

// Every rank, among values over many powers of two: also the ones at the seams of digits, which are
// wider for few keys.
TEST(CandidateList, ListIsCutAtEveryRank) {
  for (const uint64_t n : {1500U, 6000U}) {
    std::vector<float> x = draw(Shape::gamma_half, n, 4);
    const LentMemory scratch(CandidateList::scratch_bytes(n, n));
    const Work work{{}, {scratch.data.get(), scratch.size}, best_isa(), nullptr};
    CandidateList list({scratch.data.get(), scratch.size}, n, n);
    const uint64_t m = list.collect(x.data(), kernels::magnitude_key(1e-5F), work, Pass::forward);
    ASSERT_GT(5 * m, 4 * n);
    std::vector<uint32_t> keys(n);
    std::transform(x.begin(), x.end(), keys.begin(), kernels::magnitude_key);
    std::sort(keys.begin(), keys.end(), std::greater<>());
    for (uint64_t k = 1; k <= m; ++k) {
      ASSERT_EQ(list.exact_cut(k).key, keys[k - 1]) << k;
      const auto larger =
          std::lower_bound(keys.begin(), keys.end(), keys[k - 1], std::greater<>()) - keys.begin();
      ASSERT_EQ(list.exact_cut(k).ties, k - static_cast<uint64_t>(larger)) << k;
    }
  }
}

TEST(BoundOfKth, BoundIsReachedByFewMore) {
  std::vector<std::vector<uint32_t>> lists{std::vector<uint32_t>(300, 0),
                                           std::vector<uint32_t>(300, 0x3F800000)};
  for (const uint64_t n : {64U, 2000U, 6000U}) {
    std::vector<uint32_t> keys(n);
    const std::vector<float> x = draw(Shape::gamma_half, n, 5);
    std::transform(x.begin(), x.end(), keys.begin(), kernels::magnitude_key);
    lists.push_back(keys);
    keys[0] = 0;
    keys[1] = 0x7F800000;
    lists.push_back(keys);
  }
  for (const std::vector<uint32_t>& keys : lists) {
    const uint64_t m = keys.size();
    for (uint64_t k = 1; k <= m; k += 1 + k / 7) {
      const uint32_t bound = bound_of_kth(keys.data(), m, k);
      const auto count = [&](uint32_t key) {
        return std::count_if(keys.begin(), keys.end(), [&](uint32_t x) { return x >= key; });
      };
      const auto wanted = static_cast<int64_t>(k);
      ASSERT_GE(count(bound), wanted);
      // more only where the k-th is one of many equals
      const uint32_t exact = kth_largest(keys.data(), m, k);
      ASSERT_LE(count(bound), std::max<int64_t>(count(exact), wanted + wanted / 8 + 8));
    }
  }
}

}  // namespace
}  // namespace laconic::codecs
