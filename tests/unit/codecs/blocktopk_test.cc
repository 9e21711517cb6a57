// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/blocktopk/blocktopk.h"

#include <gtest/gtest.h>

#include "laconic/spec.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<BlockTopK>;
using Values = BlockTopK::Values;

Driver driver(uint32_t block, uint32_t keep, Values values = Values::f32) {
  Driver d;
  for (d.params.block = 0; 256U << d.params.block < block;) ++d.params.block;
  d.params.keep = keep;
  d.params.values = values;
  return d;
}

uint64_t block_of(const Driver& d) { return 256U << d.params.block; }

uint64_t kept_of_length(const Driver& d, uint64_t length) {
  return ceil_div(d.params.keep * length, block_of(d));
}

// The definition: sort every block by magnitude, lower index first. Values are as they are.
std::vector<float> definition(const Driver& d, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (uint64_t begin = 0; begin < x.size(); begin += block_of(d)) {
    const uint64_t length = std::min(block_of(d), x.size() - begin);
    std::vector<uint64_t> order(length);
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) {
      return kernels::magnitude_key(x[a]) > kernels::magnitude_key(x[b]);
    });
    for (uint64_t j = 0; j < kept_of_length(d, length); ++j) y[order[j]] = x[order[j]];
  }
  return y;
}

void expect_exact(const std::vector<float>& x, uint32_t block, uint32_t keep, const char* what) {
  Driver d = driver(block, keep);
  const std::vector<float> wanted = definition(d, x);
  for (const Isa isa : available_isas()) {
    d.isa = isa;
    ASSERT_EQ(d.round_trip(x), wanted)
        << what << ", n " << x.size() << ", " << keep << " of " << block << ", " << isa_name(isa);
  }
}

TEST(BlockTopKTest, LargestOfEveryBlockAreKept) {
  for (const uint64_t n : {1U, 2U, 100U, 255U, 256U, 257U, 4095U, 4096U, 4097U, 30000U}) {
    for (const uint32_t block : {256U, 1024U, 4096U}) {
      for (const uint32_t keep : {1U, 7U, 64U, 256U}) {
        expect_exact(draw(Shape::laplace, n, n), block, keep, "random");
      }
    }
  }
}

// Where candidates begin is taken from the block before: here it never fits.
TEST(BlockTopKTest, BlocksOfOtherScalesAreExact) {
  const uint64_t n = 20000;
  const std::vector<float> quiet = draw(Shape::gaussian, n, 3);
  for (const uint32_t block : {256U, 4096U}) {
    for (const int octaves : {1, 20, 60}) {
      std::vector<float> x = quiet;
      for (uint64_t i = 0; i < n; ++i) {
        x[i] = std::ldexp(x[i], octaves * (static_cast<int>(i / block * 7 % 3) - 1));
      }
      expect_exact(x, block, 64, "scales");
    }
    std::vector<float> x = quiet;
    for (uint64_t i = 0; i < n; ++i) {
      if (i / block % 2 == 1) x[i] = i % 40 == 0 ? 1.0F + x[i] : 0.0F;
    }
    expect_exact(x, block, 64, "few that are not zero");
    expect_exact(x, block, 200, "few that are not zero");
  }
}

TEST(BlockTopKTest, EqualMagnitudesAreOrderedByIndex) {
  for (const uint64_t n : {100U, 256U, 9000U}) {
    std::vector<float> x(n, -3.0F);
    expect_exact(x, 256, 64, "constant");
    for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 5) - 2.0F;
    expect_exact(x, 4096, 64, "five values");
    expect_exact(x, 256, 200, "five values");
    expect_exact(std::vector<float>(n), 4096, 64, "zeros");
  }
}

TEST(BlockTopKTest, DenormalsAndHugeValuesAreOrdered) {
  std::vector<float> x = draw(Shape::laplace, 9000, 9);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] *= i % 2 == 0 ? 1e-38F : 1e-36F;
  for (uint64_t i = 4096; i < 4400; ++i) x[i] = i % 2 == 0 ? 3e38F : -3.3e38F;
  expect_exact(x, 4096, 64, "both");
  expect_exact(x, 256, 256, "both");
}

TEST(BlockTopKTest, LastBlockKeepsSameShareRoundedUp) {
  const Driver d = driver(4096, 64);
  const auto kept = [&](uint64_t n) { return nonzeros(d.round_trip(draw(Shape::laplace, n, 1))); };
  EXPECT_EQ(kept(4096), 64U);
  EXPECT_EQ(kept(4097), 65U);
  EXPECT_EQ(kept(4096 + 64), 65U);
  EXPECT_EQ(kept(4096 + 65), 66U);
  EXPECT_EQ(kept(2 * 4096 - 1), 128U);
  EXPECT_EQ(nonzeros(driver(256, 256).round_trip(std::vector<float>(300, 1.0F))), 300U);
}

// What encoding the sums sends, and the sums without it; on threads, too. Some values undo what is
// in the residual.
TEST(BlockTopKTest, SumsWithResidualAreEncodedLikeValues) {
  ThreadPool three(3);
  for (const uint64_t n : {100U, 4096U, 9000U, 600001U}) {
    const std::vector<float> residual = draw(Shape::layered, n, 2);
    for (const uint64_t some : {1U, 2U, 500U}) {
      std::vector<float> x = draw(Shape::laplace, n, 3);
      for (uint64_t i = 0; i < n; ++i) x[i] = i % some == 0 ? x[i] : -residual[i];
      std::vector<float> sum(n);
      std::transform(x.begin(), x.end(), residual.begin(), sum.begin(), std::plus<>());
      for (const Values values : {Values::f32, Values::bf16, Values::two_bits}) {
        Driver d = driver(4096, 65, values);
        const std::vector<uint8_t> wanted = d.encode(sum);
        std::vector<float> rest = sum;
        const Term own{wanted, -1.0F};
        d.decode({&own, 1}, vector_unit(n), {rest.data(), true});
        for (const Isa isa : available_isas()) {
          d.isa = isa;
          d.pool = isa == best_isa() ? &three : nullptr;
          std::vector<float> e = residual;
          ASSERT_EQ(d.encode_sum(x, &e), wanted) << n << ", " << some;
          ASSERT_EQ(e, rest) << n << ", " << some;
          ASSERT_EQ(d.encode(sum), wanted) << n << ", " << some;
        }
      }
    }
  }
}

// A bad value in the last block, when the first ones would have been encoded.
TEST(BlockTopKTest, NonFiniteValuesChangeNothing) {
  for (const uint64_t n : {100U, 4096U, 70000U}) {
    const std::vector<float> before = draw(Shape::laplace, n, 2);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 0x1.8p126F}) {
      for (const Values values : {Values::f32, Values::bf16, Values::two_bits}) {
        std::vector<float> x = draw(Shape::laplace, n, 3), e = before;
        x[n - 1] = bad;
        EXPECT_TRUE(driver(256, 7, values).encode_sum(x, &e).empty()) << n << ", " << bad;
        EXPECT_EQ(e, before) << n << ", " << bad;
      }
    }
  }
}

// Without a residual all finite values are encoded but for what bfloat16 rounds to infinity.
TEST(BlockTopKTest, LargestValuesAreEncodedOrRefused) {
  for (const Values values : {Values::f32, Values::bf16, Values::two_bits}) {
    for (const float v : {0x1.FEFFFEp127F, 0x1.FFp127F, 0x1.FFFFFEp127F, INFINITY}) {
      std::vector<float> x(600, 1.0F);
      x[500] = -v;
      const Driver d = driver(256, 3, values);
      const Plan plan = BlockTopK::plan(d.params, vector_unit(600), 1);
      std::vector<uint8_t> out(plan.round[0].bytes);
      Work work{{}, {}, d.isa, nullptr};
      const Unit unit = vector_unit(600);
      const bool fits = values == Values::bf16 ? v == 0x1.FEFFFEp127F : std::isfinite(v);
      EXPECT_EQ(BlockTopK::encode({&d.params, {}, unit, d.place, 0, work}, {x.data(), nullptr}, out)
                    .finite,
                fits)
          << v;
    }
  }
}

// Means by hand: of 8, 8, -2, 1, 1 (mean 4) and, in a block of its own, of equal ones.
TEST(BlockTopKTest, TwoMagnitudesAreMeansAboveAndNotAboveMean) {
  std::vector<float> x(512);
  x[3] = 8;
  x[9] = -8;
  x[40] = -2;
  x[41] = 1;
  x[255] = 1;
  for (uint64_t i = 256; i < 512; ++i) x[i] = -0.5F;
  std::vector<float> wanted(512);
  wanted[3] = 8;
  wanted[9] = -8;
  wanted[40] = -4.0F / 3;
  wanted[41] = wanted[255] = 4.0F / 3;
  std::fill_n(wanted.begin() + 256, 5, -0.5F);
  for (const Isa isa : available_isas()) {
    Driver d = driver(256, 5, Values::two_bits);
    d.isa = isa;
    EXPECT_EQ(d.round_trip(x), wanted);
  }
}

// Golden bytes of the format page.
TEST(BlockTopKTest, BytesOfTheFormatPage) {
  const std::vector<float> x{0.0F, -2.0F, 0.5F, 1.0F, 0.25F, 2.0F};
  const std::vector<uint8_t> halves{1, 3, 5, 0x00, 0xC0, 0x80, 0x3F, 0x00, 0x40};
  EXPECT_EQ(driver(256, 128, Values::bf16).encode(x), halves);
  const std::vector<uint8_t> floats{1,    3,    5,    0x00, 0x00, 0x00, 0xC0, 0x00,
                                    0x00, 0x80, 0x3F, 0x00, 0x00, 0x00, 0x40};
  EXPECT_EQ(driver(256, 128, Values::f32).encode(x), floats);
  const std::vector<uint8_t> two_bits{1,    3,    5,    0x00, 0x00, 0x80,
                                      0x3F, 0x00, 0x00, 0x00, 0x40, 0x23};
  EXPECT_EQ(driver(256, 128, Values::two_bits).encode(x), two_bits);
}

// 1000 elements in blocks of 512, 10 and 10 kept: 12 bytes of indices (9 bits each), then values.
TEST(BlockTopKTest, NonCanonicalPayloadsAreRefused) {
  const std::vector<float> x = draw(Shape::laplace, 1000, 1);
  for (const Values values : {Values::f32, Values::bf16, Values::two_bits}) {
    const Driver d = driver(512, 10, values);
    const std::vector<uint8_t> good = d.encode(x);
    const size_t record = good.size() / 2;
    const size_t size = values == Values::f32 ? 40 : values == Values::bf16 ? 20 : 11;
    ASSERT_EQ(good.size(), 2 * (12 + size));
    const auto check = [&](const std::vector<uint8_t>& p) {
      return BlockTopK::check(d.params, vector_unit(1000), 0, p);
    };
    ASSERT_EQ(check(good), Errc::ok);
    std::vector<uint8_t> bad = good;
    bad.pop_back();
    EXPECT_EQ(check(bad), Errc::payload_malformed);
    bad = good;
    bad.push_back(0);
    EXPECT_EQ(check(bad), Errc::payload_malformed);
    for (const size_t at : {size_t{0}, record}) {
      bad = good;
      bad[at + 11] |= 0x04;  // padding
      EXPECT_EQ(check(bad), Errc::payload_malformed);
      bad = good;
      std::fill_n(bad.begin() + static_cast<long>(at), 12, uint8_t{0});  // equal indices
      EXPECT_EQ(check(bad), Errc::payload_malformed);
    }
    bad = good;
    bad[record + 10] |= 0xFE;  // the last index becomes 511, which the last block does not have
    bad[record + 11] |= 0x03;
    EXPECT_EQ(check(bad), Errc::payload_malformed);
    for (const uint32_t value : {0x7F800000U, 0xFF800000U, 0x7FC00000U}) {
      bad = good;
      store(bad.data() + record + 12, values == Values::bf16 ? value >> 16 : value);
      EXPECT_EQ(check(bad), Errc::payload_malformed);
    }
  }
  const Driver d = driver(512, 10, Values::two_bits);
  std::vector<uint8_t> bad = d.encode(x);
  bad[12 + 3] |= 0x80;  // a negative magnitude
  EXPECT_EQ(BlockTopK::check(d.params, vector_unit(1000), 0, bad), Errc::payload_malformed);
  bad = d.encode(x);
  bad.back() |= 0x80;  // the padding of the codes
  EXPECT_EQ(BlockTopK::check(d.params, vector_unit(1000), 0, bad), Errc::payload_malformed);
}

// Any keep is at most the shortest block: no setting names more than there is.
TEST(BlockTopKTest, SettingsOutsideTheirRangesAreRefused) {
  for (const char* text : {"blocktopk:block=4096,keep=256,values=2bit+decay=0.95",
                           "blocktopk:block=256,keep=256", "blocktopk:keep=1,values=f32"}) {
    EXPECT_TRUE(Spec::parse(text)) << text;
  }
  for (const char* text :
       {"blocktopk:keep=0", "blocktopk:keep=257", "blocktopk:block=128", "blocktopk:block=1000",
        "blocktopk:block=8192", "blocktopk:values=1bit", "blocktopk+ema"}) {
    EXPECT_FALSE(Spec::parse(text)) << text;
  }
}

}  // namespace
}  // namespace laconic::codecs
