// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters without a codec under server_sum: 32-bit fixed point, beside the codes.
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

/// With thc:block=256 in lanes of 8 bits a granule has 64 values: "wide" has four.
const std::vector<Parameter> kModel{
    {"small", 9, 1}, {"w", 30, 40}, {"wide", 200, 1}, {"one", 1, 1}, {"even", 128, 1}};
constexpr uint64_t kSmall = 256;
constexpr uint64_t kGranules = 1 + 4 + 1 + 2 + 5 + 1;  // with those of "w", and the wish
const std::vector<uint32_t> kAll{0, 1, 2, 3, 4};

bool nobody(uint32_t, uint64_t, uint64_t) { return false; }

/// Sessions of all ranks around an engine that aggregates.
class Group {
 public:
  Group(const std::string& spec, uint32_t world, const LeavesOut& leaves_out = nobody)
      : hub_(world, std::chrono::seconds(30), caps()), layout_(back_to_back(kModel, kAll)) {
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
    for (const auto& e : sessions_[rank]->store().entries()) {
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

/// What happens to the gradients of a step.
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

TEST_P(Fixed, EveryRankHoldsWhatTheOracleComputes) {
  const auto [spec, feedback, decay] = GetParam();
  const auto sometimes = [](uint32_t rank, uint64_t exchange, uint64_t granule) {
    return rank != 0 && (rank * 5 + exchange * 3 + granule * 7) % 6 == 0;
  };
  for (const uint32_t world : {1U, 2U, 3U, 5U, 8U}) {
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

}  // namespace
}  // namespace laconic::test
