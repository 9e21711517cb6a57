// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters without a codec under server_sum: 32-bit fixed point, next to quantized values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "laconic/loopback.h"
#include "session/saved_state.h"
#include "session/session.h"
#include "support/fixed_oracle.h"
#include "support/impatient.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using Floats = std::vector<float>;

/// With thc:block=256 in lanes of 8 bits a block has 64 values: "wide" has four.
const std::vector<Parameter> kModel{
    {"small", 9, 1}, {"w", 30, 40}, {"wide", 200, 1}, {"one", 1, 1}, {"even", 128, 1}};
constexpr uint64_t kSmall = 256;
constexpr uint64_t kGranules = 1 + 4 + 1 + 2 + 5 + 1;  // with those of "w", and the flush request
const std::vector<uint32_t> kAll{0, 1, 2, 3, 4};

bool nobody(uint32_t, uint64_t, uint64_t) { return false; }

/// Sessions of all ranks around an engine that aggregates.
class Group {
 public:
  Group(const std::string& spec, uint32_t world, const LeavesOut& leaves_out = nobody)
      : hub_(world, std::chrono::seconds(100), caps()), layout_(back_to_back(kModel, kAll)) {
    for (uint32_t r = 0; r < world; ++r) {
      Options o;
      o.rank = r;
      o.world = world;
      o.seed = 7;
      o.small_elements = kSmall;
      o.caps = caps();
      auto session = session::Session::create(spec, kModel, o);
      EXPECT_TRUE(session) << session.error().message;
      sessions_.push_back(*std::move(session));
      engines_.push_back(std::make_unique<Impatient>(hub_.engine(r), leaves_out));
      EXPECT_TRUE(engines_[r]->join(sessions_[r]->model().aggregation_job(), {}));
    }
  }
  [[nodiscard]] uint32_t world() const { return static_cast<uint32_t>(sessions_.size()); }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  session::Session& session(uint32_t rank) { return *sessions_[rank]; }
  Impatient& engine(uint32_t rank) { return *engines_[rank]; }
  LoopbackHub& hub() { return hub_; }

  std::vector<Result<void>> exchange(std::vector<Floats>& buffers, uint64_t step) {
    return exchange(layout_, buffers, step);
  }
  std::vector<Result<void>> exchange(const Layout& layout, std::vector<Floats>& buffers,
                                     uint64_t step) {
    std::vector<Result<void>> results(world());
    on_all(world(), [&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.step = step;
      results[r] = session::drive(*sessions_[r], bucket, layout, *engines_[r]);
    });
    return results;
  }
  /// An entry of a rank's store.
  std::span<float> entry(uint32_t rank, const std::string& name) {
    for (const auto& e : sessions_[rank]->active().store.entries()) {
      if (e.name == name) return e.values;
    }
    return {};
  }

 private:
  static EngineCaps caps() {
    EngineCaps caps{kAllSums, false};
    caps.aggregates = true;
    return caps;
  }
  LoopbackHub hub_;
  Layout layout_;
  std::vector<std::unique_ptr<session::Session>> sessions_;
  std::vector<std::unique_ptr<Impatient>> engines_;
};

Floats part_of(const Floats& bucket, const Layout& layout, uint32_t p) {
  const auto from = bucket.begin() + static_cast<ptrdiff_t>(layout.offsets[p]);
  return {from, from + static_cast<ptrdiff_t>(kModel[p].count())};
}

void expect_all(const std::vector<Result<void>>& results) {
  for (const auto& done : results) ASSERT_TRUE(done) << done.error().message;
}

bool is_small(uint32_t p) { return kModel[p].count() <= kSmall; }

/// How a step's gradients are delivered.
void disturb(std::vector<Floats>& g, const Layout& layout, uint64_t step) {
  const auto at = [&](uint32_t p) { return static_cast<ptrdiff_t>(layout.offsets[p]); };
  const auto n = [&](uint32_t p) { return static_cast<ptrdiff_t>(kModel[p].count()); };
  for (Floats& x : g) {
    if (step < 2) std::fill_n(x.begin() + at(3), n(3), 0.0F);  // "one" begins late
    if (step == 4) std::fill_n(x.begin() + at(4), n(4), 0.0F);
    for (float& v : x) v *= step >= 7 ? 0x1p-9F : 1.0F;  // ranges fall bit by bit
  }
  Floats& last = g.back();
  if (step == 1) std::fill_n(last.begin() + at(2), n(2), 0.0F);
  if (step == 3) last[layout.offsets[2] + 70] = 5000.0F;
  if (step == 5) last[layout.offsets[0] + 2] = std::numeric_limits<float>::quiet_NaN();
  if (step == 6) last[layout.offsets[4]] = -std::numeric_limits<float>::infinity();
}

struct Case {
  const char* spec;
  bool feedback = true;
  float decay = 1.0F;
};

class Fixed : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, Fixed,
                         testing::Values(Case{"thc:block=256"},
                                         Case{"thc:block=256,scale=exact+decay=0.5", true, 0.5F},
                                         Case{"thc:block=256+noef", false}),
                         [](const auto& which) { return "spec" + std::to_string(which.index); });

TEST_P(Fixed, EveryRankMatchesOracle) {
  const auto [spec, feedback, decay] = GetParam();
  const auto sometimes = [](uint32_t rank, uint64_t exchange, uint64_t granule) {
    return rank != 0 && (rank * 5 + exchange * 3 + granule * 7) % 6 == 0;
  };
  for (const uint32_t world : {2U, 3U, 5U, 8U}) {
    for (const LeavesOut& leaves_out : {LeavesOut(nobody), LeavesOut(sometimes)}) {
      SCOPED_TRACE(world);
      Group group(spec, world, leaves_out);
      std::vector<FixedOracle> oracles;
      uint64_t granules = 0;
      for (uint32_t p = 0; p < kModel.size(); ++p) {
        oracles.emplace_back(FixedOracle::Settings{world, 64, feedback, decay},
                             is_small(p) ? kModel[p].count() : 0, granules);
        granules += oracles.back().granules();
      }
      uint64_t refusals = 0;
      for (uint64_t step = 0; step < 12; ++step) {
        SCOPED_TRACE(step);
        auto g = gradients(world, group.layout().elements, step + 1);
        disturb(g, group.layout(), step);
        const auto in = [&](uint32_t r, uint64_t k) { return !leaves_out(r, step, k); };
        const auto heard = [&](uint32_t r) {  // in any sum of the bucket
          bool any = false;
          for (uint64_t k = 0; k < kGranules; ++k) any = any || in(r, k);
          return any;
        };
        std::vector<std::vector<Floats>> parts(kModel.size());
        bool of_use = true;
        for (uint32_t p = 0; p < kModel.size(); ++p) {
          for (uint32_t r = 0; r < world; ++r) {
            parts[p].push_back(part_of(g[r], group.layout(), p));
          }
          for (uint32_t r = 0; r < world && is_small(p); ++r)
            of_use = of_use && !(oracles[p].refuses(parts[p], r) && heard(r));
        }
        refusals += of_use ? 0 : 1;
        expect_all(group.exchange(g, step));
        for (uint32_t p = 0; p < kModel.size(); ++p) {
          if (!is_small(p)) continue;
          const Floats mean = oracles[p].exchange(parts[p], in, of_use);
          for (uint32_t r = 0; r < world; ++r) {
            const Floats found = part_of(g[r], group.layout(), p);
            for (size_t i = 0; i < mean.size(); ++i) {
              if (std::isnan(mean[i]) && std::isnan(found[i])) continue;
              ASSERT_EQ(float_bits(found[i]), float_bits(mean[i]))
                  << kModel[p].name << i << " rank " << r << ": " << found[i] << ", " << mean[i];
            }
            ASSERT_EQ(group.entry(r, "range/" + kModel[p].name)[0], oracles[p].range())
                << kModel[p].name;
            const auto residual = group.entry(r, "residual/" + kModel[p].name);
            ASSERT_EQ(residual.size(), feedback ? mean.size() : 0);
            for (size_t i = 0; i < residual.size(); ++i)
              ASSERT_EQ(residual[i], oracles[p].residual(r)[i]) << kModel[p].name << i;
          }
        }
      }
      EXPECT_GE(refusals, 4U) << "a late start, a burst, NaN, infinity";
    }
  }
}

TEST(FixedPoint, SteadyStateSendsNothingThroughGroup) {
  Group group("thc:block=256", 3);
  std::vector<uint64_t> others;
  for (uint64_t step = 0; step < 6; ++step) {
    auto g = gradients(3, group.layout().elements, step + 1);
    expect_all(group.exchange(g, step));
    others.push_back(group.engine(1).others());
  }
  EXPECT_EQ(others[0], 2U) << "enrolment, and what is agreed on first";
  for (const uint64_t so_far : others) EXPECT_EQ(so_far, others[0]);
  EXPECT_EQ(group.session(0).stats().fallbacks, 0U);
}

/// Also of parameters alone that no codec takes, and of a bucket without any.
TEST(FixedPoint, BucketsOfSmallParametersUseFixedPoint) {
  Group group("thc:block=256", 3);
  const Layout small = back_to_back(kModel, {3, 0, 2});
  for (uint64_t step = 0; step < 4; ++step) {
    auto g = gradients(3, small.elements, step + 1);
    const auto exact = exact_mean(g);
    expect_all(group.exchange(small, g, step));
    for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(g[0][i], exact[i], 1e-7) << i;
    std::vector<Floats> none(3);
    expect_all(group.exchange(Layout{}, none, step));
  }
  EXPECT_EQ(group.engine(0).others(), 3U) << "two enrolments; ranges";
}

/// Half of a unit, which is at most 2^-18 of the largest magnitude.
TEST(FixedPoint, ElementErrorIsAtMostHalfAUnit) {
  for (const char* spec : {"thc:block=256", "thc:block=256+noef"}) {
    Group group(spec, 4);
    for (uint64_t step = 0; step < 5; ++step) {
      auto g = gradients(4, group.layout().elements, step + 1);
      const std::vector<Floats> before = g;
      expect_all(group.exchange(g, step));
      for (uint32_t p = 0; p < kModel.size(); ++p) {
        if (!is_small(p)) continue;
        double largest = 0;
        for (uint64_t i = 0; i < kModel[p].count(); ++i) {
          for (const Floats& x : before)
            largest = std::max(largest, std::abs(double{x[group.layout().offsets[p] + i]}));
        }
        const double unit = double{group.entry(0, "range/" + kModel[p].name)[0]} * 0x1p-25;
        EXPECT_LE(unit, largest * 0x1p-17);
        for (uint64_t i = 0; i < kModel[p].count(); ++i) {
          const uint64_t at = group.layout().offsets[p] + i;
          double mean = 0;
          for (const Floats& x : before) mean += double{x[at]} / 4;
          // Twice: of this exchange, and of the last one's residual. A range may have fallen since.
          ASSERT_NEAR(g[0][at], mean, 2.5 * unit) << kModel[p].name << i;
        }
        if (step != 0) continue;
        const double first = double{group.entry(0, "range/" + kModel[p].name)[0]} * 0x1p-25;
        for (uint64_t i = 0; i < kModel[p].count(); ++i) {
          const uint64_t at = group.layout().offsets[p] + i;
          double mean = 0;
          for (const Floats& x : before) mean += double{x[at]} / 4;
          ASSERT_NEAR(g[0][at], mean, 0.5 * first + 1e-9 * largest) << kModel[p].name << i;
        }
      }
    }
  }
}

/// Gradients are multiples of 2^-24 here, and so are sums of codes: all of them are exact.
TEST(FixedPoint, DeliveredPlusResidualEqualsInput) {
  constexpr uint32_t kWorld = 4;
  const LeavesOut some = [](uint32_t rank, uint64_t exchange, uint64_t granule) {
    return rank != 0 && (rank + exchange * 3 + granule) % 3 == 0;
  };
  Group group("thc:block=256", kWorld, some);
  const uint64_t at = group.layout().offsets[2], n = kModel[2].count();
  std::vector<double> in(n), out(n);
  for (uint64_t step = 0; step < 9; ++step) {
    auto g = gradients(kWorld, group.layout().elements, step + 1);
    for (Floats& x : g) {
      for (float& v : x) v = static_cast<float>(std::nearbyint(double{v} * 0x1p24) * 0x1p-24);
      for (uint64_t i = 0; i < n; ++i) in[i] += double{x[at + i]};
    }
    expect_all(group.exchange(g, step));
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t granule = 1 + i / 64;  // after that of "small"
      int there = 0;
      for (uint32_t r = 0; r < kWorld; ++r) there += some(r, step, granule) ? 0 : 1;
      out[i] += std::nearbyint(double{g[0][at + i]} * there * 0x1p24) * 0x1p-24;
    }
  }
  ASSERT_GE(group.entry(0, "range/wide")[0] * 0x1p-25F, 0x1p-24F);
  for (uint64_t i = 0; i < n; ++i) {
    double left = 0;
    for (uint32_t r = 0; r < kWorld; ++r)
      left += double{group.entry(r, "residual/wide")[static_cast<size_t>(i)]};
    ASSERT_EQ(out[i] + left, in[i]) << i;
  }
  EXPECT_GT(group.session(1).stats().counters.excluded_granules, 0U);
}

TEST(FixedPoint, SavedStateContinuesBitForBit) {
  const LeavesOut some = [](uint32_t rank, uint64_t exchange, uint64_t granule) {
    return rank == 1 && exchange < 3 && granule % 2 == 0;
  };
  Group whole("thc:block=256", 3, some), second("thc:block=256", 3);
  for (uint64_t step = 0; step < 6; ++step) {
    auto g = gradients(3, whole.layout().elements, step + 1);
    auto again = g;
    if (step == 3) {
      for (uint32_t r = 0; r < 3; ++r) {
        const auto saved = session::save_state(whole.session(r));
        ASSERT_TRUE(saved);
        ASSERT_TRUE(session::load_state(second.session(r), *saved));
      }
    }
    expect_all(whole.exchange(g, step));
    if (step < 3) continue;
    expect_all(second.exchange(again, step));
    for (uint32_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(same_bits(again[r], g[r]));
      const auto a = session::save_state(whole.session(r)),
                 b = session::save_state(second.session(r));
      EXPECT_EQ(*a, *b);
    }
  }
  EXPECT_EQ(second.engine(0).others(), 1U) << "enrolment: ranges came with the state";
}

/// A loss scale multiplies ranges with the residuals: the same bits, times the scale.
TEST(FixedPoint, RangesFollowLossScale) {
  for (const float scale : {0x1p16F, 0x1p-12F, 1000.0F}) {
    Group plain("thc:block=256", 2), scaled("thc:block=256", 2);
    const bool exact = scale != 1000.0F;
    for (uint64_t step = 0; step < 6; ++step) {
      auto g = gradients(2, plain.layout().elements, step + 1);
      auto h = g;
      if (step == 3) {
        for (uint32_t r = 0; r < 2; ++r) ASSERT_TRUE(scaled.session(r).scale_residuals(scale));
      }
      for (Floats& x : h) {
        for (float& v : x) v *= step >= 3 ? scale : 1.0F;
      }
      expect_all(plain.exchange(g, step));
      expect_all(scaled.exchange(h, step));
      for (uint64_t i = 0; i < kModel[0].count() && exact; ++i)
        ASSERT_EQ(h[1][i], g[1][i] * (step >= 3 ? scale : 1.0F)) << step;
    }
    EXPECT_EQ(scaled.session(0).stats().fallbacks, 0U);
    EXPECT_EQ(scaled.session(0).stats().counters.out_of_range, 0U);
  }
}

TEST(FixedPoint, RanksWithDifferentRangesAreReported) {
  Group group("thc:block=256", 3);
  auto g = gradients(3, group.layout().elements, 1);
  expect_all(group.exchange(g, 0));
  group.entry(2, "range/wide")[0] *= 2;  // as if this rank alone had loaded a saved one
  const Layout other = back_to_back(kModel, {2, 0});
  auto h = gradients(3, other.elements, 2);
  for (const auto& done : group.exchange(other, h, 1)) {
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, Errc::ranks_disagree);
  }
}

TEST(FixedPoint, FlushSendsResidual) {
  const LeavesOut late = [](uint32_t rank, uint64_t exchange, uint64_t) {
    return rank == 1 && exchange == 1;
  };
  Group group("thc:block=256", 2, late);
  const auto norm = [&](const char* name) {
    double most = 0;
    for (const float x : group.entry(1, name)) most = std::max(most, std::abs(double{x}));
    return most;
  };
  for (uint64_t step = 0; step < 4; ++step) {
    auto g = gradients(2, group.layout().elements, step + 1);
    ASSERT_TRUE(step != 1 || group.session(0).flush(1));
    const auto before = g;
    const Floats late_residual(group.entry(1, "residual/wide").begin(),
                               group.entry(1, "residual/wide").end());
    expect_all(group.exchange(g, step));
    if (step == 1) {
      EXPECT_GT(norm("residual/wide"), 1e-3);
    }
    if (step != 2) continue;
    EXPECT_EQ(norm("residual/wide"), 0.0);
    EXPECT_EQ(norm("residual/one"), 0.0);
    const uint64_t at = group.layout().offsets[2];
    for (uint64_t i = 0; i < late_residual.size(); ++i) {
      const double mean = (double{before[0][at + i]} + before[1][at + i] + late_residual[i]) / 2;
      ASSERT_NEAR(g[0][at + i], mean, 1e-7);
    }
  }
  EXPECT_EQ(group.session(1).stats().flushes, 1U);
}

TEST(FixedPoint, FailureOfOneRankIsReportedOnAllAndLosesNothing) {
  for (const uint64_t when : {0U, 2U}) {
    Group group("thc:block=256", 3);
    for (uint64_t step = 0; step <= when; ++step) {
      auto g = gradients(3, group.layout().elements, step + 1);
      if (step < when) {
        expect_all(group.exchange(g, step));
        continue;
      }
      const auto own = g;
      std::vector<Floats> before;
      for (uint32_t r = 0; r < 3; ++r) {
        const auto e = group.entry(r, "residual/wide");
        before.emplace_back(e.begin(), e.end());
      }
      const float range = group.entry(0, "range/wide")[0];
      on_all(3, [&](uint32_t r) {
        Bucket bucket;
        bucket.buffer = g[r].data();
        bucket.step = step;
        const auto fails = [&](collective::Exchange& exchange) {
          if (r == 1) group.session(r).fail(exchange, {Errc::out_of_memory, "no room", {}});
        };
        const auto failed =
            drive(group.session(r), bucket, group.layout(), group.engine(r), {.begun = fails});
        ASSERT_FALSE(failed) << "rank " << r << " has not heard of it";
        EXPECT_NE(failed.error().message.find("no room"), std::string::npos);
      });
      for (uint32_t r = 0; r < 3; ++r) {
        const auto after = group.entry(r, "residual/wide");
        for (size_t i = 0; i < after.size(); ++i)
          ASSERT_EQ(after[i], before[r][i] + own[r][group.layout().offsets[2] + i]);
        EXPECT_EQ(group.entry(r, "range/wide")[0], range);
      }
    }
  }
}

/// Its own call fails nevertheless, and it has the mean of the others.
TEST(FixedPoint, FailureOfExcludedRankStaysWithIt) {
  const LeavesOut late = [](uint32_t rank, uint64_t exchange, uint64_t) {
    return rank == 1 && exchange == 2;
  };
  Group group("thc:block=256", 3, late);
  for (uint64_t step = 0; step < 4; ++step) {
    auto g = gradients(3, group.layout().elements, step + 1);
    const auto own = g;
    const auto entry = group.entry(1, "residual/wide");
    const Floats before(entry.begin(), entry.end());
    on_all(3, [&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = g[r].data();
      bucket.step = step;
      const bool fails = r == 1 && step == 2;
      const auto begun = [&](collective::Exchange& exchange) {
        if (fails) group.session(r).fail(exchange, {Errc::out_of_memory, "no room", {}});
      };
      const auto done =
          drive(group.session(r), bucket, group.layout(), group.engine(r), {.begun = begun});
      ASSERT_EQ(done.ok(), !fails) << (done ? "its failure was swallowed" : done.error().message);
      if (fails) {
        EXPECT_EQ(done.error().code, Errc::out_of_memory);
      }
    });
    for (uint32_t r = 1; r < 3; ++r) EXPECT_TRUE(same_bits(g[r], g[0])) << step;
    if (step != 2) continue;
    const auto after = group.entry(1, "residual/wide");
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_EQ(after[i], before[i] + own[1][group.layout().offsets[2] + i]);
  }
}

/// A sum is no longer than one of codes, so that blocks that fit the path's MTU still do.
TEST(FixedPoint, BlocksAreAsLongAsThoseOfQuantizedCodecs) {
  for (const auto& [spec, values] : {std::pair("thc", 256U),
                                     {"thc:lane=16", 512U},
                                     {"thc:block=8192,lane=16", 4096U},
                                     {"thc:block=256", 64U}}) {
    Group group(spec, 1);
    const collective::Model& model = group.session(0).model();
    EXPECT_EQ(model.values_per_granule(), values) << spec;
    EXPECT_EQ(model.aggregation_job().values, values) << spec;
    EXPECT_FALSE(model.layout_matters()) << "integers have no order";
  }
}

/// The rank's error is in no sum: no other rank receives it, and nothing is lost.
TEST(FixedPoint, BurstOfExcludedRankStaysInResidual) {
  const LeavesOut late = [](uint32_t rank, uint64_t exchange, uint64_t) {
    return rank == 1 && exchange == 2;
  };
  Group group("thc:block=256", 2, late);
  Floats burst;
  for (uint64_t step = 0; step < 4; ++step) {
    auto g = gradients(2, group.layout().elements, step + 1);
    if (step == 2) g[1][group.layout().offsets[2] + 5] = 1000.0F;
    const Floats own = part_of(g[1], group.layout(), 2), other = part_of(g[0], group.layout(), 2);
    expect_all(group.exchange(g, step));
    ASSERT_TRUE(same_bits(g[0], g[1]));
    if (step == 2) {
      const auto residual = group.entry(1, "residual/wide");
      for (size_t i = 0; i < own.size(); ++i) {
        ASSERT_NEAR(residual[i], own[i], 1e-6);
        ASSERT_NEAR(g[0][group.layout().offsets[2] + i], other[i], 1e-6) << "rank 0 alone";
      }
      EXPECT_EQ(group.session(0).stats().fallbacks, 0U);
      EXPECT_EQ(group.session(1).stats().counters.out_of_range, 1U);
    }
  }
  EXPECT_EQ(group.session(0).stats().fallbacks, 1U) << "next time it is in the sum";
}

/// Fails for good at call `at` of rank 1.
class Breaking final : public Engine {
 public:
  Breaking(LoopbackHub& hub, Engine& inner, int64_t at) : hub_(hub), inner_(inner), at_(at) {}
  ~Breaking() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return inner_.caps(); }
  Result<void> run(std::span<const Step> batch) override {
    if (calls_++ == at_ && rank() == 1) {
      hub_.break_off(1);
      return Error{Errc::engine_failed, "the cable is cut", {}};
    }
    return inner_.run(batch);
  }
  [[nodiscard]] int64_t calls() const { return calls_; }

 private:
  LoopbackHub& hub_;
  Engine& inner_;
  int64_t at_, calls_ = 0;
};

/// With a late start, a burst and a flush during the run. Returns the calls of rank 1's engine.
int64_t break_at(DType dtype, int64_t at) {
  Group group("thc:block=256", 3);
  std::vector<std::unique_ptr<Breaking>> engines;
  for (uint32_t r = 0; r < 3; ++r)
    engines.push_back(std::make_unique<Breaking>(group.hub(), group.engine(r), at));
  for (uint64_t step = 0; step < 6; ++step) {
    auto g = gradients(3, group.layout().elements, step + 1);
    for (Floats& x : g) {
      if (step < 2) x[group.layout().offsets[3]] = 0.0F;
      for (float& v : x) v = bf16_to_float(float_to_bf16(v));
    }
    if (step == 3) g[2][group.layout().offsets[2]] = 64.0F;
    EXPECT_TRUE(step != 3 || group.session(0).flush(1));
    std::vector<std::vector<Floats>> before(3);
    for (uint32_t r = 0; r < 3; ++r) {
      for (const Parameter& p : kModel) {
        const auto e = group.entry(r, "residual/" + p.name);
        before[r].emplace_back(e.begin(), e.end());
      }
    }
    std::vector<Result<void>> results(3);
    on_all(3, [&](uint32_t r) {
      std::vector<uint16_t> half(g[r].size());
      std::transform(g[r].begin(), g[r].end(), half.begin(), float_to_bf16);
      Floats full = g[r];
      Bucket bucket;
      bucket.dtype = dtype;
      bucket.buffer = dtype == DType::f32 ? static_cast<void*>(full.data()) : half.data();
      bucket.step = step;
      results[r] = session::drive(group.session(r), bucket, group.layout(), *engines[r]);
    });
    for (uint32_t r = 0; r < 3; ++r) {
      if (results[r]) continue;
      for (uint32_t p = 0; p < kModel.size(); ++p) {
        const auto after = group.entry(r, "residual/" + kModel[p].name);
        for (size_t i = 0; i < after.size(); ++i) {
          const float gradient = g[r][group.layout().offsets[p] + i];
          EXPECT_NEAR(after[i], before[r][p][i] + gradient, 1e-5)
              << kModel[p].name << i << " of rank " << r << ", call " << at << ", step " << step;
          if (testing::Test::HasFailure()) return 0;
        }
      }
    }
    if (!results[1]) break;
  }
  return engines[1]->calls();
}

TEST(FixedPoint, EngineFailureAtAnyCallLosesNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t calls = break_at(dtype, -1);
    EXPECT_GE(calls, 6 + 2 + 2 * 2);
    for (int64_t at = 0; at < calls && !HasFailure(); ++at) break_at(dtype, at);
  }
}

/// Says that sums are shorter than what was sent.
class Shortening final : public Engine {
 public:
  explicit Shortening(Engine& inner) : inner_(inner) {}
  ~Shortening() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return inner_.caps(); }
  Result<void> run(std::span<const Step> batch) override {
    auto done = inner_.run(batch);
    for (const Step& step : batch) {
      if (!step.aggregates.empty()) step.aggregates[2].length -= 4;
    }
    return done;
  }

 private:
  Engine& inner_;
};

TEST(FixedPoint, SumsOfOtherLengthAreRefused) {
  Group group("thc:block=256", 2);
  auto g = gradients(2, group.layout().elements, 1);
  const auto exact = exact_mean(g);
  on_all(2, [&](uint32_t r) {
    Shortening engine(group.engine(r));
    Bucket bucket;
    bucket.buffer = g[r].data();
    const auto done = session::drive(group.session(r), bucket, group.layout(), engine);
    EXPECT_TRUE(done);
  });
  EXPECT_EQ(group.session(0).stats().fallbacks, 1U);
  for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(g[0][i], exact[i], 1e-7);
}

}  // namespace
}  // namespace laconic::test
