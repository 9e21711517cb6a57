// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/powersgd/powersgd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "codecs/powersgd/gram_schmidt.h"
#include "codecs/registry/table.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

using Floats = std::vector<float>;
constexpr const CodecTable& kTable = TableOf<PowerSgd>::value;

struct Aligned {
  explicit Aligned(uint64_t bytes) : memory(bytes / 64 + 1) {}
  struct alignas(64) Line {
    std::array<uint8_t, 64> bytes{};
  };
  std::vector<Line> memory;
  MutBytes span(uint64_t bytes) { return {memory[0].bytes.data(), bytes}; }
};

Unit matrix(uint64_t rows, uint64_t cols) { return {rows * cols, rows, cols, 42, 0}; }

Floats random_numbers(uint64_t n, uint32_t seed) {
  Floats x(n);
  for (uint64_t i = 0; i < n; ++i) {
    const RandomBlock w = philox({seed, 1}, i);
    x[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(w[0])), -31) +
           std::ldexp(static_cast<float>(static_cast<int32_t>(w[1])), -31);
  }
  return x;
}

// A random rows x cols matrix of the given rank.
Floats low_rank(uint64_t rows, uint64_t cols, uint64_t rank, uint32_t seed) {
  const Floats a = random_numbers(rows * rank, seed), b = random_numbers(cols * rank, seed + 1);
  Floats m(rows * cols, 0.0F);
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < cols; ++j) {
      for (uint64_t k = 0; k < rank; ++k) m[i * cols + j] += a[i * rank + k] * b[j * rank + k];
    }
  }
  return m;
}

double norm(const Floats& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double distance(const Floats& x, const Floats& y) {
  Floats d(x.size());
  for (uint64_t i = 0; i < x.size(); ++i) d[i] = x[i] - y[i];
  return norm(d);
}

bool same_bits(const Floats& x, const Floats& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

// Several ranks that train one matrix: the exchange of the lanes is a plain sum in rank order.
class Ranks {
 public:
  Ranks(PowerSgd::Params params, Unit unit, uint32_t world, Isa isa = best_isa(),
        ThreadPool* pool = nullptr)
      : params_(params), unit_(unit), world_(world), plan_(kTable.plan(&params, unit, world)) {
    for (uint32_t r = 0; r < world; ++r) {
      kept_.push_back(std::make_unique<Aligned>(plan_.kept_bytes));
      scratch_.push_back(std::make_unique<Aligned>(plan_.scratch_bytes));
      work_.push_back(
          {kept_[r]->span(plan_.kept_bytes), scratch_[r]->span(plan_.scratch_bytes), isa, pool});
      state.emplace_back(plan_.state_floats);
      kTable.init(&params_, unit_, place(r), state[r]);
    }
  }

  // One step; returns the decoded mean of every rank.
  std::vector<Floats> step(const std::vector<Floats>& gradients) {
    std::vector<uint8_t> merged;
    for (uint32_t round = 0; round < plan_.rounds; ++round) {
      merged = sum_of_round(round, gradients);
      if (round + 1 < plan_.rounds) accept(round, merged);
    }
    std::vector<Floats> means;
    for (uint32_t r = 0; r < world_; ++r) means.push_back(decode(r, merged));
    for (uint32_t r = 0; r < world_; ++r) commit(r, merged);
    ++step_;
    return means;
  }

  Floats step(const Floats& gradient) { return step(std::vector<Floats>(world_, gradient))[0]; }

  std::vector<uint8_t> encode(uint32_t r, uint32_t round, const Floats& gradient) {
    // One byte off any alignment, with canaries around.
    std::vector<uint8_t> out(plan_.round[round].bytes + 2, 0xA5);
    const Encoded encoded = kTable.encode({&params_, state[r], unit_, place(r), round, work_[r]},
                                          {gradient.data(), nullptr},
                                          MutBytes(out).subspan(1, plan_.round[round].bytes));
    EXPECT_EQ(encoded.bytes, plan_.round[round].bytes);
    EXPECT_EQ(out.front(), 0xA5);
    EXPECT_EQ(out.back(), 0xA5);
    return {out.begin() + 1, out.end() - 1};
  }

  std::vector<uint8_t> sum_of_round(uint32_t round, const std::vector<Floats>& gradients) {
    std::vector<uint8_t> sum = encode(0, round, gradients[0]);
    for (uint32_t r = 1; r < world_; ++r) {
      const std::vector<uint8_t> own = encode(r, round, gradients[r]);
      for (uint64_t at = 0; at < own.size(); at += 4) {
        store(&sum[at], load<float>(&sum[at]) + load<float>(&own[at]));
      }
    }
    return sum;
  }

  void accept(uint32_t round, const std::vector<uint8_t>& merged) {
    for (uint32_t r = 0; r < world_; ++r) {
      std::vector<uint8_t> copy = merged;
      kTable.accept({&params_, {}, unit_, place(r), round, work_[r]}, copy, world_);
    }
  }

  Floats decode(uint32_t r, const std::vector<uint8_t>& merged) {
    const Term term{merged, 1.0F / static_cast<float>(world_)};
    Floats mean(unit_.count, 77.0F);
    kTable.decode({&params_, {}, unit_, place(r), 0, work_[r]}, {&term, 1}, {mean.data(), false});
    return mean;
  }

  void commit(uint32_t r, const std::vector<uint8_t>& merged) {
    kTable.commit({&params_, state[r], unit_, place(r), 0, work_[r]}, state[r], {}, merged, world_);
  }

  [[nodiscard]] const Plan& plan() const { return plan_; }
  Work& work(uint32_t r) { return work_[r]; }
  [[nodiscard]] Place place(uint32_t r) const { return {9, step_, r, world_, 0, 1.0F}; }

  std::vector<Floats> state;

 private:
  PowerSgd::Params params_;
  Unit unit_;
  uint32_t world_;
  uint64_t step_ = 0;
  Plan plan_;
  std::vector<std::unique_ptr<Aligned>> kept_;
  std::vector<std::unique_ptr<Aligned>> scratch_;
  std::vector<Work> work_;
};

// ---- plan ----

// The factors are never larger than the matrix (a 1x1 convolution stored with few rows was).
TEST(PowerSgdPlan, PayloadIsSmallerThanMatrixOrMatrixItself) {
  for (uint64_t rows : {1U, 2U, 3U, 8U, 9U, 64U, 1000U}) {
    for (uint64_t cols : {1U, 2U, 3U, 8U, 9U, 64U, 1000U}) {
      for (uint32_t rank : {1U, 2U, 4U, 64U}) {
        const PowerSgd::Params params{rank, true};
        const Plan plan = kTable.plan(&params, matrix(rows, cols), 4);
        const uint64_t r = std::min<uint64_t>({rank, rows, cols});
        if (rows == 1 || cols == 1 || r * (rows + cols) >= rows * cols) {
          ASSERT_EQ(plan.rounds, 1U);
          EXPECT_EQ(plan.round[0].bytes, rows * cols * 4);
          EXPECT_EQ(plan.state_floats, 0U);
        } else {
          ASSERT_EQ(plan.rounds, 2U);
          EXPECT_EQ(plan.round[0].bytes, rows * r * 4);
          EXPECT_EQ(plan.round[1].bytes, cols * r * 4);
          EXPECT_EQ(plan.state_floats, cols * r);
        }
        EXPECT_EQ(plan.round[0].kind, RoundKind::lanes);
        EXPECT_EQ(plan.round[0].lane, DType::f32);
      }
    }
  }
}

TEST(PowerSgdPlan, NonsenseShapesAreVectors) {
  const PowerSgd::Params params;
  EXPECT_EQ(kTable.plan(&params, {100, 0, 0, 0, 0}, 1).rounds, 1U);
  EXPECT_EQ(kTable.plan(&params, {100, 10, 11, 0, 0}, 1).rounds, 1U);
  EXPECT_EQ(kTable.plan(&params, {0, uint64_t{1} << 32, uint64_t{1} << 32, 0, 0}, 1).rounds, 1U);
  EXPECT_EQ(kTable.plan(&params, {0, 0, 0, 0, 0}, 1).round[0].bytes, 0U);
}

TEST(PowerSgdPlan, ColdStartHasNoState) {
  const PowerSgd::Params params{4, false};
  EXPECT_EQ(kTable.plan(&params, matrix(64, 64), 1).state_floats, 0U);
}

TEST(PowerSgdPlan, ContractMatchesPlan) {
  const PowerSgd::Params params;
  const Contract contract = kTable.contract(&params);
  EXPECT_EQ(contract.merge, Merge::linear);
  EXPECT_EQ(contract.feedback, Feedback::aggregate);
  EXPECT_EQ(contract.memory_default, MemoryKind::residual);
  EXPECT_TRUE(contract.exact_size && contract.whole_parameter);
}

TEST(PowerSgdPlan, CheckRequiresExactLength) {
  const PowerSgd::Params params{2, true};
  const Unit unit = matrix(16, 12);
  const std::vector<uint8_t> bytes(1024);
  const auto check = [&](uint32_t round, uint64_t n) {
    return kTable.check(&params, unit, round, Bytes(bytes).first(n));
  };
  EXPECT_EQ(check(0, 16 * 2 * 4), Errc::ok);
  EXPECT_EQ(check(1, 12 * 2 * 4), Errc::ok);
  EXPECT_EQ(check(2, 0), Errc::payload_malformed);
  for (const uint64_t n : {0U, 1U, 95U, 97U, 127U, 129U, 1024U}) {
    EXPECT_EQ(check(0, n), Errc::payload_malformed) << n;
    EXPECT_EQ(check(1, n), Errc::payload_malformed) << n;
  }
}

// ---- the method ----

// A fixed matrix of rank r is recovered from its own range in the first step, and the warm start
// remains.
TEST(PowerSgd, FixedLowRankMatrixIsRecovered) {
  for (const auto& [rows, cols] : {std::pair<uint64_t, uint64_t>{40, 60}, {60, 40}, {200, 33}}) {
    for (const uint64_t rank : {1U, 2U, 4U}) {
      const Floats m = low_rank(rows, cols, rank, 5);
      Ranks ranks({4, true}, matrix(rows, cols), 2);
      for (int step = 0; step < 4; ++step) {
        EXPECT_LT(distance(ranks.step(m), m), 2e-5 * norm(m)) << rows << " " << rank << " " << step;
      }
    }
  }
}

// The warm start is power iteration: the error falls to that of the best rank-r approximation. The
// cold start forgets (GRACE's PyTorch version drew Q again in every step).
TEST(PowerSgd, WarmStartConvergesToTheDominantDirections) {
  const uint64_t rows = 48, cols = 64;
  Floats m = low_rank(rows, cols, 2, 21);
  const double signal = norm(m);
  const Floats noise = random_numbers(rows * cols, 22);
  const double scale = 0.5 * signal / norm(noise);
  for (uint64_t i = 0; i < m.size(); ++i) m[i] += static_cast<float>(scale) * noise[i];
  const auto error_after = [&](bool warm, int steps) {
    Ranks ranks({2, warm}, matrix(rows, cols), 1);
    Floats decoded;
    for (int i = 0; i < steps; ++i) decoded = ranks.step(m);
    return distance(decoded, m) / norm(m);
  };
  const double first = error_after(true, 1), later = error_after(true, 8);
  EXPECT_LT(later, 0.47);  // 0.5 / sqrt(1.25) = 0.447 is the noise's share
  EXPECT_LT(later, first - 0.01);
  EXPECT_GT(error_after(false, 8), later + 0.01);
}

TEST(PowerSgd, StateIsEqualOnAllRanksForAnyInput) {
  Ranks ranks({4, true}, matrix(30, 50), 3);
  EXPECT_TRUE(same_bits(ranks.state[0], ranks.state[1]));
  EXPECT_NE(norm(ranks.state[0]), 0.0);
  for (uint32_t step = 0; step < 3; ++step) {
    const std::vector<Floats> means =
        ranks.step({random_numbers(1500, step), random_numbers(1500, 100 + step), Floats(1500)});
    EXPECT_TRUE(same_bits(means[0], means[1]) && same_bits(means[0], means[2]));
    EXPECT_TRUE(same_bits(ranks.state[0], ranks.state[1]));
    EXPECT_TRUE(same_bits(ranks.state[0], ranks.state[2]));
  }
}

// n equal ranks give the result of one rank: the mean, not the sum (dist GRACE left the division
// out).
TEST(PowerSgd, EqualRanksGiveResultOfOne) {
  const Floats m = random_numbers(40 * 40, 3);
  Ranks one({4, true}, matrix(40, 40), 1), four({4, true}, matrix(40, 40), 4);
  for (int step = 0; step < 3; ++step) {
    EXPECT_LT(distance(one.step(m), four.step(m)), 1e-5 * norm(m));
    EXPECT_LT(distance(one.state[0], four.state[0]), 1e-4 * norm(one.state[0]));
  }
}

TEST(PowerSgd, BothProductsAreLinear) {
  const Floats a = random_numbers(32 * 48, 1), b = random_numbers(32 * 48, 2);
  Floats sum(a);
  for (uint64_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  Ranks two({4, true}, matrix(32, 48), 2), one({4, true}, matrix(32, 48), 1);
  for (const uint32_t round : {0U, 1U}) {
    const std::vector<uint8_t> of_two = two.sum_of_round(round, {a, b});
    const std::vector<uint8_t> of_sum = one.encode(0, round, sum);
    for (uint64_t at = 0; at < of_sum.size(); at += 4) {
      EXPECT_NEAR(load<float>(&of_two[at]), load<float>(&of_sum[at]), 2e-5);
    }
    if (round == 0) two.accept(0, of_two), one.accept(0, of_two);
  }
}

TEST(PowerSgd, PrescaleScalesElements) {
  const PowerSgd::Params params{3, true};
  const Unit unit = matrix(20, 20);
  Ranks ranks(params, unit, 1);
  const Floats m = random_numbers(400, 8);
  const std::vector<uint8_t> plain = ranks.encode(0, 0, m);
  std::vector<uint8_t> scaled(plain.size());
  Place place = ranks.place(0);
  place.prescale = 0.25F;
  kTable.encode({&params, ranks.state[0], unit, place, 0, ranks.work(0)}, {m.data(), nullptr},
                scaled);
  for (uint64_t at = 0; at < plain.size(); at += 4) {
    EXPECT_EQ(load<float>(&scaled[at]), 0.25F * load<float>(&plain[at]));
  }
}

// With feedback, what was delivered plus the mean of the residuals is what came in.
TEST(PowerSgd, AggregateFeedbackConservesTheSum) {
  const uint64_t n = 24 * 36;
  Ranks ranks({2, true}, matrix(24, 36), 2);
  std::vector<Floats> residual(2, Floats(n)), corrected(2, Floats(n));
  std::vector<double> delivered(n), given(n);
  for (uint32_t step = 0; step < 20; ++step) {
    for (uint32_t r = 0; r < 2; ++r) {
      const Floats g = random_numbers(n, 10 * step + r);
      for (uint64_t i = 0; i < n; ++i) {
        corrected[r][i] = residual[r][i] + g[i];
        given[i] += 0.5 * static_cast<double>(g[i]);
      }
    }
    const std::vector<Floats> means = ranks.step(corrected);
    for (uint64_t i = 0; i < n; ++i) {
      delivered[i] += static_cast<double>(means[0][i]);
      for (uint32_t r = 0; r < 2; ++r) residual[r][i] = corrected[r][i] - means[r][i];
    }
  }
  for (uint64_t i = 0; i < n; ++i) {
    const double left =
        0.5 * (static_cast<double>(residual[0][i]) + static_cast<double>(residual[1][i]));
    EXPECT_NEAR(delivered[i] + left, given[i], 1e-4);
  }
}

// ---- edges ----

TEST(PowerSgd, ZeroMatrixGivesZerosAndTheNextStepRecovers) {
  const Floats m = low_rank(30, 40, 2, 9);
  Ranks ranks({4, true}, matrix(30, 40), 2);
  for (int step = 0; step < 3; ++step) {
    for (const float x : ranks.step(Floats(1200))) ASSERT_EQ(x, 0.0F);
  }
  EXPECT_EQ(norm(ranks.state[0]), 0.0);
  EXPECT_LT(distance(ranks.step(m), m), 1e-5 * norm(m));
}

TEST(PowerSgd, TinyGradientsAreNotLost) {
  Floats m = low_rank(30, 40, 2, 9);
  for (float& x : m) x *= 1e-30F;
  Ranks ranks({4, true}, matrix(30, 40), 1);
  for (int step = 0; step < 3; ++step) EXPECT_LT(distance(ranks.step(m), m), 1e-4 * norm(m));
}

TEST(PowerSgd, NanReachesPayloadButNeverState) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Ranks ranks({4, true}, matrix(30, 40), 2);
    Floats m = random_numbers(1200, 4);
    ranks.step(m);
    const Floats before = ranks.state[0];
    m[77] = bad;
    const std::vector<uint8_t> p = ranks.sum_of_round(0, {m, m});
    ranks.accept(0, p);
    const std::vector<uint8_t> q = ranks.sum_of_round(1, {m, m});
    bool seen = false;
    for (uint64_t at = 0; at < q.size(); at += 4) seen |= !std::isfinite(load<float>(&q[at]));
    EXPECT_TRUE(seen);
    ranks.decode(0, q);
    ranks.commit(0, q);
    EXPECT_TRUE(same_bits(ranks.state[0], before));
  }
}

TEST(PowerSgd, CommitIgnoresWrongSizes) {
  Ranks ranks({4, true}, matrix(30, 40), 2);
  const Floats before = ranks.state[0];
  ranks.commit(0, {});
  ranks.commit(0, std::vector<uint8_t>(16, 1));
  EXPECT_TRUE(same_bits(ranks.state[0], before));
}

TEST(PowerSgd, VectorsAreSentUnchanged) {
  for (const Unit& unit : {matrix(1, 300), matrix(300, 1), matrix(3, 3), matrix(0, 0)}) {
    Ranks ranks({4, true}, unit, 2);
    const Floats a = random_numbers(unit.count, 1), b = random_numbers(unit.count, 2);
    const std::vector<Floats> means = ranks.step({a, b});
    for (uint64_t i = 0; i < unit.count; ++i) EXPECT_EQ(means[0][i], 0.5F * (a[i] + b[i]));
  }
}

TEST(PowerSgd, OddShapesAreEncoded) {
  for (const auto& [rows, cols] : {std::pair<uint64_t, uint64_t>{2, 1000},
                                   {1000, 2},
                                   {3, 40000},
                                   {40000, 3},
                                   {17, 19},
                                   {1030, 65}}) {
    const Floats m = low_rank(rows, cols, 1, 31);
    Ranks ranks({1, true}, matrix(rows, cols), 2);
    EXPECT_LT(distance(ranks.step(m), m), 1e-5 * norm(m)) << rows << "x" << cols;
  }
}

TEST(PowerSgd, HighRankIsEncoded) {
  const Floats m = low_rank(300, 200, 17, 41);
  Ranks ranks({64, true}, matrix(300, 200), 1);
  for (int step = 0; step < 2; ++step) EXPECT_LT(distance(ranks.step(m), m), 1e-4 * norm(m));
}

// Any lanes decode without a fault, at any address.
TEST(PowerSgd, HostileElementsLeaveFiniteState) {
  const PowerSgd::Params params{3, true};
  const Unit unit = matrix(21, 34);
  Ranks ranks(params, unit, 1);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<uint8_t> p(21 * 3 * 4), q(34 * 3 * 4 + 1);
    for (uint64_t i = 0; i < p.size(); ++i) p[i] = static_cast<uint8_t>(philox({seed, 2}, i)[0]);
    for (uint64_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(philox({seed, 3}, i)[0]);
    kTable.accept({&params, {}, unit, ranks.place(0), 0, ranks.work(0)}, p, 1);
    const Term term{Bytes(q).subspan(1), 1.0F};
    Floats out(unit.count + 1, 5.0F);
    kTable.decode({&params, {}, unit, ranks.place(0), 0, ranks.work(0)}, {&term, 1},
                  {out.data(), false});
    EXPECT_EQ(out.back(), 5.0F);
  }
}

// ---- the same bits everywhere ----

std::vector<Floats> history(const Unit& unit, uint32_t rank, Isa isa, ThreadPool* pool) {
  Ranks ranks({rank, true}, unit, 2, isa, pool);
  std::vector<Floats> all;
  for (uint32_t step = 0; step < 2; ++step) {
    all.push_back(
        ranks.step({random_numbers(unit.count, step), random_numbers(unit.count, 50 + step)})[0]);
    all.push_back(ranks.state[0]);
  }
  return all;
}

TEST(PowerSgd, SameBitsOnEveryIsaAndThreadCount) {
  ThreadPool two(2), three(3);
  for (const auto& [unit, rank] : {std::pair<Unit, uint32_t>{matrix(70, 130), 4},
                                   {matrix(33, 1029), 6},
                                   {matrix(2100, 31), 3},
                                   {matrix(5, 40000), 2},
                                   {matrix(40000, 5), 1},
                                   {matrix(1, 70000), 1}}) {
    const std::vector<Floats> expected = history(unit, rank, Isa::scalar, nullptr);
    for (const Isa isa : available_isas()) {
      for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
        const std::vector<Floats> got = history(unit, rank, isa, pool);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(same_bits(got[i], expected[i]))
              << isa_name(isa) << " " << unit.rows << " " << i;
        }
      }
    }
  }
}

TEST(PowerSgd, StartDependsOnlyOnSeedAndParameter) {
  const PowerSgd::Params params;
  Floats a(400), b(400);
  Unit unit = matrix(100, 100);
  kTable.init(&params, unit, {1, 5, 0, 2, 0, 1.0F}, a);
  kTable.init(&params, unit, {1, 9, 1, 2, 1, 1.0F}, b);
  EXPECT_TRUE(same_bits(a, b));
  kTable.init(&params, unit, {2, 5, 0, 2, 0, 1.0F}, b);
  EXPECT_FALSE(same_bits(a, b));
  unit.parameter = 43;
  kTable.init(&params, unit, {1, 5, 0, 2, 0, 1.0F}, b);
  EXPECT_FALSE(same_bits(a, b));
}

// The stream is part of the format: block ⌊e/2⌋, two words an element
// (docs/format/codecs/powersgd.md).
TEST(PowerSgd, StartIsDocumentedStream) {
  const PowerSgd::Params params;
  Floats x(400);
  kTable.init(&params, matrix(100, 100), {7, 3, 0, 1, 0, 1.0F}, x);
  const RandomKey key = shared_key(7, 0, 42);
  for (uint64_t e = 0; e < x.size(); ++e) {
    const RandomBlock words = philox(key, e / 2);
    int64_t sum = 0;
    for (const uint32_t w : {words[e % 2 * 2], words[e % 2 * 2 + 1]})
      sum += (w >> 16) + (w & 0xFFFF);
    EXPECT_EQ(x[e], static_cast<float>(sum - 131070) * 0x1.BB67AEp-16F);
  }
}

TEST(PowerSgd, StartIsNearlyNormal) {
  const PowerSgd::Params params{64, true};
  Floats x(64 * 1000);
  kTable.init(&params, matrix(1000, 1000), {}, x);
  double mean = 0, square = 0, tail = 0;
  for (const float v : x) {
    mean += static_cast<double>(v) / static_cast<double>(x.size());
    square += static_cast<double>(v) * static_cast<double>(v) / static_cast<double>(x.size());
    tail += std::abs(v) > 2.0F ? 1.0 / static_cast<double>(x.size()) : 0.0;
  }
  EXPECT_NEAR(mean, 0, 0.016);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(tail, 0.0455, 0.008);
}

// ---- Gram–Schmidt ----

TEST(GramSchmidt, BasisIsOrthonormalForNearlyDependentVectors) {
  const uint64_t n = 20000;
  Floats v = random_numbers(4 * n, 1);
  for (uint64_t i = 0; i < n; ++i) {
    v[n + i] = v[i] + 1e-4F * v[n + i];            // nearly the first
    v[2 * n + i] = 3.0F * v[i] - 2.0F * v[n + i];  // dependent on both
  }
  ThreadPool pool(2);
  Aligned scratch(gram_schmidt_scratch(n));
  Work work;
  work.isa = best_isa();
  work.pool = &pool;
  orthonormalize({v.data(), n, 4}, work, scratch.span(gram_schmidt_scratch(n)));
  for (uint64_t k = 0; k < 4; ++k) {
    for (uint64_t l = 0; l <= k; ++l) {
      double dot = 0;
      for (uint64_t i = 0; i < n; ++i) {
        dot += static_cast<double>(v[k * n + i]) * static_cast<double>(v[l * n + i]);
      }
      EXPECT_NEAR(dot, k == l && k != 2 ? 1.0 : 0.0, 1e-6) << k << " " << l;
    }
  }
}

}  // namespace
}  // namespace laconic::codecs
