// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Runs of random settings, flushes, states, scales, ranks without a gradient and gradients that
// are not finite: of every element, what went out and what residuals hold is what came in. A seed
// is a run; RANDOM_RUN_SEED=n repeats one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include "base/field_text.h"
#include "laconic/registry.h"
#include "session/saved_state.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 40, 30}, {"b", 7, 1}, {"c", 513, 1}, {"d", 16, 24}};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  float normal() { return normal_(random_); }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

/// Settings of a codec: default, both ends, words, something in the middle.
std::string random_spec(Draw& draw, const CodecTable& codec) {
  std::string text(codec.info.name);
  char separator = ':';
  for (const Field& f : codec.fields) {
    double value = f.fallback;
    if (f.type == FieldType::word) value = static_cast<double>(draw.below(f.words.size()));
    if (f.type == FieldType::flag) value = static_cast<double>(draw.below(2));
    const bool number = f.type == FieldType::real || f.type == FieldType::integer;
    const uint64_t which = draw.below(6);
    if (number && which == 0) value = f.min;
    if (number && which == 1 && !f.max_open) value = f.max;
    if (number && which == 2 && f.min > 0) value = std::sqrt(f.min * f.max);
    if (f.type == FieldType::integer) value = std::floor(value);
    if (value == f.fallback) continue;
    text += separator + std::string(f.name) + "=" + value_text(f, value);
    separator = ',';
  }
  return text + "+ef";
}

struct Plan {
  test::Setup setup;
  DType dtype = DType::f32;
};

/// Until something is allowed. `casts`: fp16 and bf16 alone, by sums of 16 bits.
Plan random_plan(Draw& draw, bool casts) {
  for (;;) {
    Plan plan;
    const auto all = all_codecs();
    const CodecTable& codec =
        casts ? *find_codec(draw.one_in(2) ? "fp16" : "bf16") : *all[draw.below(all.size())];
    plan.setup = {random_spec(draw, codec), static_cast<uint32_t>(2 + draw.below(3)), kModel};
    plan.setup.strategy = draw.of<StrategyKind>({StrategyKind::native_sum, StrategyKind::gather_all,
                                                 StrategyKind::two_shot, StrategyKind::server_sum});
    plan.dtype = draw.of<DType>({DType::f32, DType::f16, DType::bf16});
    if (casts) plan.dtype = DType::bf16, plan.setup.strategy = StrategyKind::native_sum;
    plan.setup.sums = casts || draw.one_in(2) ? kAllSums : 0b001;
    plan.setup.short_sends = draw.one_in(3);
    const auto spec = Spec::parse(plan.setup.spec);
    Options options;
    options.world = plan.setup.world;
    options.strategy = plan.setup.strategy;
    options.small_elements = plan.setup.small_elements;
    options.caps.sums = plan.setup.sums;
    options.caps.aggregates = plan.setup.strategy == StrategyKind::server_sum;
    if (spec && collective::choose_strategy(*spec, kModel, options)) return plan;
  }
}

float round_to(DType dtype, float x) {
  if (dtype == DType::f16) return f16_to_float(float_to_f16(x));
  return dtype == DType::bf16 ? bf16_to_float(float_to_bf16(x)) : x;
}

/// Half of a last bit, relative.
double unit_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-9 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

class Run {
 public:
  Run(uint64_t seed, bool casts) : draw_(seed), plan_(random_plan(draw_, casts)) {
    ranks_.emplace(plan_.setup);
    text_ = "seed " + std::to_string(seed) + ": " + plan_.setup.spec + " by " +
            std::string(strategy_name(plan_.setup.strategy)) + " on " +
            std::to_string(plan_.setup.world) + ", " + std::string(dtype_name(plan_.dtype)) +
            (plan_.setup.sums == kAllSums ? "" : ", float32 sums");
  }

  void go() {
    SCOPED_TRACE(text_);
    for (uint64_t number = 0; number < 14; ++number) {
      SCOPED_TRACE("step " + std::to_string(number));
      if (draw_.one_in(8)) resume();
      if (draw_.one_in(8)) scale(std::ldexp(1.0F, static_cast<int>(draw_.below(9)) - 4));
      if (draw_.one_in(8)) {
        const auto rank = static_cast<uint32_t>(draw_.below(world()));
        EXPECT_TRUE(ranks_->session(rank).flush(static_cast<uint32_t>(1 + draw_.below(3))));
      }
      step(number);
      if (testing::Test::HasFailure()) return;
    }
  }

 private:
  [[nodiscard]] uint32_t world() const { return plan_.setup.world; }

  /// Elsewhere, from what was saved.
  void resume() {
    std::vector<std::vector<uint8_t>> states;
    for (uint32_t r = 0; r < world(); ++r)
      states.push_back(*session::save_state(ranks_->session(r)));
    ranks_.emplace(plan_.setup);
    for (uint32_t r = 0; r < world(); ++r)
      ASSERT_TRUE(session::load_state(ranks_->session(r), states[r]));
  }

  /// As a loss scaler does.
  void scale(float factor) {
    for (uint32_t r = 0; r < world(); ++r) ASSERT_TRUE(ranks_->session(r).scale_residuals(factor));
    for (auto* values : {&held_, &bound_}) {
      for (double& x : *values) x *= double{factor};
    }
  }

  std::vector<std::vector<float>> gradients_of_a_step() {
    std::vector<std::vector<float>> all;
    const float size = std::ldexp(1.0F, static_cast<int>(draw_.below(12)) - 8);
    for (uint32_t r = 0; r < world(); ++r) {
      all.emplace_back(layout_.elements);
      for (float& x : all.back()) x = round_to(plan_.dtype, size * draw_.normal());
      for (size_t i = 0; i < kModel.size(); ++i) {
        if (draw_.one_in(4)) std::fill_n(&all.back()[layout_.offsets[i]], kModel[i].count(), 0.0F);
      }
    }
    broken_ = draw_.one_in(10);
    if (broken_) {
      const float bad = draw_.one_in(2) ? std::numeric_limits<float>::infinity() : NAN;
      all[draw_.below(world())][draw_.below(layout_.elements)] = bad;
    }
    return all;
  }

  std::vector<float> exchange(std::vector<std::vector<float>> given, uint64_t number) {
    std::vector<std::vector<uint16_t>> halves(world());
    ranks_->on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = given[r].data();
      bucket.dtype = plan_.dtype;
      bucket.step = number;
      for (const float x : given[r])
        halves[r].push_back(plan_.dtype == DType::f16 ? float_to_f16(x) : float_to_bf16(x));
      if (plan_.dtype != DType::f32) bucket.buffer = halves[r].data();
      const auto done =
          session::drive(ranks_->session(r), bucket, layout_, ranks_->hub().engine(r));
      ASSERT_TRUE(done) << done.error().message;
    });
    if (plan_.dtype == DType::f32) return given[0];
    std::vector<float> mean;
    for (const uint16_t h : halves[0])
      mean.push_back(plan_.dtype == DType::f16 ? f16_to_float(h) : bf16_to_float(h));
    return mean;
  }

  /// For each element, the sum of what ranks hold, and of its magnitudes.
  std::vector<double> residuals(std::vector<double>& magnitude) {
    std::vector<double> sum(layout_.elements);
    magnitude.assign(layout_.elements, 0);
    for (uint32_t r = 0; r < world(); ++r) {
      for (const auto& entry : ranks_->session(r).active().store.entries()) {
        const bool owned = entry.name.starts_with("owner_residual/");
        if (!owned && !entry.name.starts_with("residual/")) continue;
        const std::string name = entry.name.substr(entry.name.find('/') + 1);
        const size_t at = name.find('@');
        uint64_t k = at == std::string::npos ? 0 : std::stoull(name.substr(at + 1));
        for (size_t i = 0; i < kModel.size(); ++i) {
          if (kModel[i].name == name.substr(0, at)) k += layout_.offsets[i];
        }
        for (const float x : entry.values) {
          const double part = double{x} * (owned ? world() : 1);
          magnitude[k] += std::abs(part);
          sum[k++] += part;
        }
      }
    }
    return sum;
  }

  void step(uint64_t number) {
    const auto given = gradients_of_a_step();
    std::vector<double> size, left;
    residuals(size);
    const std::vector<float> mean = exchange(given, number);
    if (testing::Test::HasFailure()) return;
    std::vector<double> after;
    left = residuals(after);
    for (size_t i = 0; i < kModel.size(); ++i) {
      const uint64_t begin = layout_.offsets[i], end = begin + kModel[i].count();
      bool lost = false;  // a loss scaler leaves the step out
      double most = 0;
      for (uint64_t k = begin; k < end; ++k) {
        double sum = 0, in = 0;
        for (const auto& g : given) sum += double{g[k]}, in += std::abs(double{g[k]});
        lost = lost || !std::isfinite(sum);
        size[k] += in + (lost ? 0 : world() * std::abs(double{mean[k]}));
        most = std::max({most, size[k], after[k]});
      }
      for (uint64_t k = begin; k < end; ++k) {
        bound_[k] += most * 0x1p-18;
        if (lost) continue;
        for (const auto& g : given) held_[k] += double{g[k]};
        held_[k] -= world() * double{mean[k]};
        bound_[k] += narrow() * size[k] + (narrow() > 0 ? world() * 0x1p-23 : 0);
      }
      for (uint64_t k = begin; k < end; ++k)
        ASSERT_NEAR(left[k], held_[k], bound_[k]) << kModel[i].name << ", element " << k - begin;
    }
    for (uint32_t r = 0; r < world(); ++r)
      EXPECT_EQ(ranks_->session(r).stats().counters.residual_resets, 0);
  }

  /// Rounding of 16 bits in a step, relative to the magnitudes: of a mean that a bucket has as
  /// such, and of each of the engine's additions of such lanes or of an uncompressed bucket.
  [[nodiscard]] double narrow() const {
    double unit = 0;
    if (plan_.dtype != DType::f32) unit = unit_of(plan_.dtype);
    const bool sums = plan_.setup.strategy == StrategyKind::native_sum;
    if (sums && plan_.setup.spec.starts_with("fp16")) unit = std::max(unit, unit_of(DType::f16));
    if (sums && plan_.setup.spec.starts_with("bf16")) unit = std::max(unit, unit_of(DType::bf16));
    return 2 * (world() + 1) * unit;
  }

  Draw draw_;
  Plan plan_;
  std::string text_;
  Layout layout_ = back_to_back(kModel, {0, 1, 2, 3});
  std::optional<Ranks> ranks_;
  std::vector<double> held_ = std::vector<double>(layout_.elements), bound_ = held_;
  bool broken_ = false;
};

void go(uint64_t first, uint64_t runs, bool casts) {
  if (const char* seed = std::getenv("RANDOM_RUN_SEED"); seed != nullptr)
    return Run(std::strtoull(seed, nullptr, 10), casts).go();
  for (uint64_t seed = first; seed < first + runs && !testing::Test::HasFailure(); ++seed)
    Run(seed, casts).go();
}

TEST(RandomRun, NoElementIsLost) { go(1, kSanitized ? 20 : weekly() ? 3000 : 300, false); }

/// Residuals hold what a rank's own lanes round off. What the engine's additions round off, at most
/// half of a last bit each, no rank can know.
TEST(RandomRun, CastsWithSumsOf16BitsStayWithinBound) {
  go(100000, kSanitized ? 5 : weekly() ? 500 : 60, true);
}

}  // namespace
}  // namespace laconic::test
