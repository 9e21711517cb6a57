// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// After every step each rank holds what the oracle computes, bit for bit: every element of the
// bucket, every residual, every codec state, every counter.
#include "support/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>

#include "laconic/registry.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

enum Index : uint32_t { kFc1, kFc1Bias, kTiny, kFc2, kFc2Bias, kOdd, kNorm, kHead };
const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{
      {"fc1.weight", 61, 37}, {"fc1.bias", 61, 1}, {"tiny", 1, 1},  {"fc2.weight", 67, 65},
      {"fc2.bias", 7, 1},     {"odd", 1031, 1},    {"norm", 16, 1}, {"head.weight", 17, 33}};
  return list;
}

constexpr uint32_t kFloatSums = 0b001;  // of an engine that adds float32 only

struct Case {
  std::string spec;
  StrategyKind strategy;
  uint32_t world;
  DType dtype = DType::f32;
  uint32_t sums = kAllSums;
  bool short_sends = false;
  std::string down{};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.spec << " by " << strategy_name(c.strategy) << " on " << c.world;
  if (!c.down.empty()) *out << ", down " << c.down;
}
std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.spec + "_" + std::string(strategy_name(c.strategy)) + "_" +
                     std::to_string(c.world) + "_" + std::string(dtype_name(c.dtype)) +
                     (c.sums == kAllSums ? "" : "_f32sums") + (c.short_sends ? "_short" : "") +
                     (c.down.empty() ? "" : "_down_" + c.down);
  for (char& x : name) {
    if (std::isalnum(static_cast<unsigned char>(x)) == 0) x = '_';
  }
  return name;
}

const std::vector<uint32_t> kWorlds =
    kOneWorld ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 3, 8};
const std::vector<DType> kTypes = kOneWorld ? std::vector{DType::f32, DType::f16}
                                            : std::vector{DType::f32, DType::f16, DType::bf16};

bool allowed(const Case& c) {
  Options o;
  o.world = c.world;
  o.strategy = c.strategy;
  o.small_elements = 16;
  o.caps.sums = c.sums;
  const auto spec = Spec::parse(c.spec), down = Spec::parse(c.down.empty() ? c.spec : c.down);
  return spec && down &&
         collective::choose_strategy(*spec, model(), o, c.down.empty() ? nullptr : &*down);
}

/// One codec of each way through an exchange meets every number of ranks with float32, and every
/// type with three ranks; the others, and all settings, meet three ranks and float32, one whose
/// table depends on the number all of them. The weekly tier crosses everything.
bool meets(const std::string& spec, uint32_t world, DType dtype) {
  if (kSanitized || weekly()) return true;
  if (is_way(spec)) return dtype == DType::f32 || world == 3;
  return dtype == DType::f32 && (world == 3 || spec == "thc:scale=exact");
}

std::vector<Case> all_cases() {
  std::vector<std::string> specs{"topk:ratio=0.1",
                                 "topk:ratio=0.1+noef",
                                 "3lc:s=1.75",
                                 "3lc:scale=chunk+noef",
                                 "3lc:zre=off",
                                 "topk:ratio=0.1+decay=0.5",
                                 "topk:ratio=0.1+momentum=0.75",
                                 "topk:ratio=0.1,values=bf16",
                                 "topk:ratio=0.1,values=bf16+decay=0.5",
                                 "topk:ratio=0.1,values=bf16+momentum=0.75",
                                 "blocktopk:block=256,keep=20,values=2bit+decay=0.95",
                                 "blocktopk:block=256,keep=20,values=2bit+momentum=0.75",
                                 "3lc+decay=0.5",
                                 "3lc+ema=0.75",
                                 "int8+ef",
                                 "int8+ema=0.75",
                                 "int8:block=64,round=stochastic",
                                 "int8:round=stochastic+ef",
                                 "fp16+ef",
                                 "fp16:saturate=off+ef",
                                 "bf16+ef",
                                 "randomk:ratio=0.1",
                                 "randomk:ratio=0.1,rescale=on",
                                 "powersgd:rank=2",
                                 "powersgd:rank=2,warm=off+noef",
                                 "sidco:ratio=0.05",
                                 "sidco:ratio=0.05,law=exp,mode=signed",
                                 "sidco:ratio=0.05,stages=2+noef",
                                 "thc:scale=exact",
                                 "thc:bits=3,block=256,lane=16+noef",
                                 "thc:bits=2,table=uniform+decay=0.5"};
  if (kOnlyDefaults) specs.clear();
  for (const CodecTable* codec : all_codecs()) {
    if (in_exchanges(codec->info.name)) specs.emplace_back(codec->info.name);
  }
  std::vector<Case> cases;
  for (const std::string& spec : specs) {
    EXPECT_TRUE(Spec::parse(spec)) << spec;
    for (const StrategyKind strategy :
         {StrategyKind::native_sum, StrategyKind::gather_all, StrategyKind::two_shot}) {
      for (const uint32_t world : kWorlds) {
        for (const DType dtype : kTypes) {
          Case c{spec, strategy, world, dtype};
          if (!allowed(c) || !meets(spec, world, dtype)) continue;
          if (dtype != DType::f32 && !in_exchanges(spec, true)) continue;
          // Half of the 16-bit buckets meet an engine that adds float32 only; those it sums, all.
          const bool narrow = dtype != DType::f32;
          if (narrow && (strategy == StrategyKind::gather_all) == (dtype == DType::f16))
            c.sums = kFloatSums;
          if (!allowed(c)) c.sums = kAllSums;
          cases.push_back(c);
          c.sums ^= kAllSums ^ kFloatSums;
          if (narrow && strategy == StrategyKind::native_sum && allowed(c)) cases.push_back(c);
        }
        Case c{spec, strategy, world, DType::f32, kAllSums, true};
        if (allowed(c) && meets(spec, world, DType::f32) &&
            (spec == "3lc" || spec == "sidco" || spec == "int8+ef"))
          cases.push_back(c);
      }
    }
  }
  return cases;
}

/// A bucket's bytes on every rank.
using Buffers = std::vector<std::vector<uint8_t>>;

Buffers narrowed(DType dtype, const std::vector<Floats>& values) {
  Buffers buffers;
  for (const Floats& v : values) {
    std::vector<uint8_t> bytes(v.size() * dtype_size(dtype));
    for (size_t i = 0; i < v.size(); ++i) {
      if (dtype == DType::f32) store(bytes.data() + 4 * i, v[i]);
      if (dtype == DType::f16) store(bytes.data() + 2 * i, float_to_f16(v[i]));
      if (dtype == DType::bf16) store(bytes.data() + 2 * i, float_to_bf16(v[i]));
    }
    buffers.push_back(std::move(bytes));
  }
  return buffers;
}
Floats widened(DType dtype, const std::vector<uint8_t>& bytes) {
  Floats values(bytes.size() / dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) values[i] = load<float>(bytes.data() + 4 * i);
    if (dtype == DType::f16) values[i] = f16_to_float(load<uint16_t>(bytes.data() + 2 * i));
    if (dtype == DType::bf16) values[i] = bf16_to_float(load<uint16_t>(bytes.data() + 2 * i));
  }
  return values;
}

/// One NaN is as good as another.
void expect_same(std::span<const float> expected, std::span<const float> found,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  if (expected.empty() || std::memcmp(expected.data(), found.data(), expected.size_bytes()) == 0)
    return;
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool same = std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(found[i]) ||
                      (std::isnan(expected[i]) && std::isnan(found[i]));
    ASSERT_TRUE(same) << what << "[" << i << "] is " << found[i] << ", the oracle says "
                      << expected[i];
  }
}

class OracleTest : public testing::TestWithParam<Case> {
 protected:
  OracleTest()
      : ranks_({GetParam().spec,
                GetParam().world,
                model(),
                GetParam().strategy,
                16,
                1,
                GetParam().sums,
                GetParam().short_sends,
                {},
                {},
                {},
                false,
                {},
                {},
                GetParam().down}),
        oracle_(ranks_.setup()) {}

  /// The whole model of one step, as two buckets.
  void step(uint64_t number, const std::vector<Floats>& values) {
    const Layout whole = back_to_back(model(), {0, 1, 2, 3, 4, 5, 6, 7});
    for (const Layout& bucket :
         {back_to_back(model(), {7, 6, 5, 4}), back_to_back(model(), {3, 2, 1, 0})}) {
      std::vector<Floats> part;
      for (const Floats& v : values) {
        part.emplace_back();
        for (const uint32_t p : bucket.parameters) {
          const auto from = v.begin() + static_cast<ptrdiff_t>(whole.offsets[p]);
          part.back().insert(part.back().end(), from,
                             from + static_cast<ptrdiff_t>(model()[p].count()));
        }
      }
      exchange(bucket, part, number);
      if (HasFatalFailure()) return;
    }
  }

  void exchange(const Layout& layout, const std::vector<Floats>& values, uint64_t number) {
    const DType dtype = GetParam().dtype;
    Buffers buffers = narrowed(dtype, values);
    std::vector<Floats> expected;
    for (const auto& bytes : buffers) expected.push_back(widened(dtype, bytes));
    std::vector<Result<void>> results(ranks_.world());
    ranks_.on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.dtype = dtype;
      bucket.step = number;
      results[r] = session::drive(ranks_.session(r), bucket, layout, ranks_.hub().engine(r));
    });
    oracle_.exchange(layout, dtype, expected, number);
    for (uint32_t r = 0; r < ranks_.world(); ++r) {
      SCOPED_TRACE("step " + std::to_string(number) + ", rank " + std::to_string(r));
      ASSERT_TRUE(results[r]) << results[r].error().message;
      expect_same(expected[r], widened(dtype, buffers[r]), "mean");
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        const uint32_t p = layout.parameters[i];
        std::copy_n(expected[r].begin() + static_cast<ptrdiff_t>(layout.offsets[i]),
                    model()[p].count(), parameter(mean_, p));
      }
      expect_memory(r);
      expect_counters(r);
      if (HasFatalFailure()) return;
    }
  }

  void expect_memory(uint32_t rank) {
    const auto& entries = ranks_.session(rank).active().store.entries();
    ASSERT_EQ(entries.size(), oracle_.memory(rank).size());
    for (const auto& entry : entries) {
      const auto found = oracle_.memory(rank).find(entry.name);
      ASSERT_NE(found, oracle_.memory(rank).end()) << entry.name;
      expect_same(found->second, entry.values, entry.name);
    }
  }

  void expect_counters(uint32_t rank) {
    const session::Stats stats = ranks_.session(rank).stats();
    const Oracle::Counters& expected = oracle_.counters(rank);
    ASSERT_EQ(stats.elements, expected.elements);
    ASSERT_EQ(stats.dense_bytes, expected.dense_bytes);
    ASSERT_EQ(stats.fallbacks, expected.fallbacks);
    ASSERT_EQ(stats.flushes, expected.flushes);
    ASSERT_EQ(stats.counters.residual_resets, expected.residual_resets);
    ASSERT_EQ(stats.counters.zero_units, expected.zero_units);
    ASSERT_EQ(stats.counters.non_finite_units, expected.non_finite_units);
    ASSERT_EQ(stats.counters.wire_bytes, ranks_.hub().sent_bytes(rank))
        << "counted is what is sent";
    ASSERT_EQ(stats.counters.rounds, ranks_.hub().rounds(rank));
    if (!oracle_.counts_bytes()) return;
    ASSERT_EQ(stats.counters.wire_bytes, expected.wire_bytes);
    ASSERT_EQ(stats.counters.rounds, expected.rounds);
  }

  void flush(uint32_t rank, uint32_t steps) {
    ASSERT_TRUE(ranks_.session(rank).flush(steps));
    oracle_.flush(rank, steps);
  }

  void damage(uint32_t rank, const std::string& name) {
    for (const auto& entry : ranks_.session(rank).active().store.entries()) {
      if (entry.name != name) continue;
      entry.values[3] = std::numeric_limits<float>::infinity();
      oracle_.memory(rank).at(name)[3] = std::numeric_limits<float>::infinity();
    }
  }

  /// Seeded gradients of the whole model, by rank.
  std::vector<Floats> fresh(uint64_t seed) const {
    return gradients(GetParam().world, whole_.elements, seed);
  }
  float* parameter(Floats& values, uint32_t index) const {
    return values.data() + whole_.offsets[index];
  }
  void clear(Floats& values, uint32_t index) const {
    std::fill_n(parameter(values, index), model()[index].count(), 0.0F);
  }

  Layout whole_ = back_to_back(model(), {0, 1, 2, 3, 4, 5, 6, 7});
  Floats mean_ = Floats(whole_.elements);  // of the last step
  Ranks ranks_;
  Oracle oracle_;
};

TEST_P(OracleTest, EveryRankMatchesOracle) {
  const uint32_t world = GetParam().world;
  auto values = fresh(1);  // step 0: pairs of ranks cancel out, so that a mean is zero
  for (uint32_t r = 0; r < world && world > 1; ++r) {
    const uint64_t count = model()[kFc1].count();
    if (r % 2 == 1) {
      const float* x = parameter(values[r - 1], kFc1);
      std::transform(x, x + count, parameter(values[r], kFc1), std::negate<>());
    } else if (r + 1 == world) {
      clear(values[r], kFc1);
    }
  }
  ASSERT_NO_FATAL_FAILURE(step(0, values));

  values = fresh(2);  // step 1: a unit and a part of one are zero on one rank
  clear(values[world / 2], kOdd);
  std::fill_n(parameter(values[0], kFc2), 600, 0.0F);
  ASSERT_NO_FATAL_FAILURE(step(1, values));

  values = fresh(3);  // step 2: one is zero everywhere; what is not compressed carries infinity
  for (Floats& v : values) clear(v, kHead);
  parameter(values[0], kNorm)[5] = std::numeric_limits<float>::infinity();
  ASSERT_NO_FATAL_FAILURE(step(2, values));

  values = fresh(4);  // step 3: one is not finite on one rank
  parameter(values[world - 1], kFc2)[1000] = std::numeric_limits<float>::infinity();
  clear(values[0], kFc1Bias);
  ASSERT_NO_FATAL_FAILURE(step(3, values));

  values = fresh(5);  // step 4: a magnitude that fp16 does not have
  parameter(values[0], kFc1)[7] = 3e5F;
  clear(values[0], kFc2);  // and a matrix without a gradient on one rank
  ASSERT_NO_FATAL_FAILURE(step(4, values));

  // One rank asks for a flush; step 5 is the last compressed one, 6 and 7 take a half and the rest.
  flush(world / 2, 2);
  ASSERT_NO_FATAL_FAILURE(step(5, fresh(6)));
  flush(0, 5);        // too late
  values = fresh(7);  // a parameter without a gradient keeps its residual
  clear(values[0], kOdd);
  ASSERT_NO_FATAL_FAILURE(step(6, values));
  values = fresh(8);
  for (Floats& v : values) clear(v, kHead);
  ASSERT_NO_FATAL_FAILURE(step(7, values));
  damage(0, "residual/odd");  // step 8 starts that one again from zero
  ASSERT_NO_FATAL_FAILURE(step(8, fresh(9)));
}

INSTANTIATE_TEST_SUITE_P(All, OracleTest, testing::ValuesIn(all_cases()), case_name);

/// Means that come down by another codec: other granules, with and without memory and state,
/// varying length, a vote. Each is used up and down in two pairs; the weekly tier crosses all. Some
/// are run with two and four ranks, 16 bits, and short sends.
std::vector<Case> ways_down() {
  std::vector<std::string> specs{
      "none",   "fp16",    "int8:block=64",    "3lc:s=1.75",        "topk:ratio=0.1",
      "onebit", "signsgd", "sidco:ratio=0.05", "randomk:ratio=0.1", "int8+ef"};
  if (kSanitized) specs = {"none", "3lc", "topk:ratio=0.1", "int8:block=64"};
  std::vector<Case> cases;
  std::vector<std::string> names;
  const auto add = [&](Case c) {
    EXPECT_TRUE(allowed(c)) << c.spec << ", " << c.down;
    const std::string name = case_name({c, 0});
    if (std::ranges::find(names, name) != names.end()) return;
    names.push_back(name);
    cases.push_back(std::move(c));
  };
  for (size_t up = 0; up < specs.size(); ++up) {
    for (size_t k = 1; k < specs.size(); ++k) {
      if (!weekly() && k != 1 && k + 3 != specs.size()) continue;
      add({specs[up], StrategyKind::two_shot, 3, DType::f32, kAllSums, false,
           specs[(up + k) % specs.size()]});
    }
  }
  const std::vector<std::pair<std::string, std::string>> pairs{
      {"topk:ratio=0.1", "3lc"},
      {"3lc", "int8+ef"},
      {"none", "3lc+decay=0.5"},
      {"3lc+ema=0.75", "topk:ratio=0.1"},
      {"topk:ratio=0.1+momentum=0.75", "onebit"},
      {"int8:round=stochastic", "3lc"}};
  for (const auto& [up, down] : pairs) {
    add({up, StrategyKind::two_shot, 3, DType::bf16, 0b001, false, down});
    if (kOneWorld) continue;
    add({up, StrategyKind::two_shot, 2, DType::f16, kAllSums, false, down});
    add({up, StrategyKind::two_shot, 4, DType::f32, kAllSums, true, down});
  }
  add({"3lc", StrategyKind::two_shot, 3, DType::f32, kAllSums, false, "3lc"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Down, OracleTest, testing::ValuesIn(ways_down()), case_name);

/// Every codec with every memory that it may have, by every strategy.
std::vector<Case> memories() {
  std::vector<Case> cases;
  for (const CodecTable* codec : all_codecs()) {
    const std::string name(codec->info.name);
    for (const std::string memory :
         {"+noef", "+ef", "+decay=0.75", "+ema=0.75", "+momentum=0.75"}) {
      for (const StrategyKind strategy :
           {StrategyKind::native_sum, StrategyKind::gather_all, StrategyKind::two_shot}) {
        const Case c{name + memory, strategy, 3};
        if (in_exchanges(name) && allowed(c)) cases.push_back(c);
      }
    }
  }
  return cases;
}

/// Parameters have no gradient on any ranks, in turn on all of them, and in some steps on every
/// rank but one: heads of other tasks, experts without tokens, ranks that have run out of data.
class Absent : public OracleTest {
 protected:
  /// The ranks' copies of each element of the model, where an owner's residual stands for all.
  std::vector<double> held() {
    std::vector<double> sum(whole_.elements);
    for (uint32_t r = 0; r < ranks_.world(); ++r) {
      for (const auto& entry : ranks_.session(r).active().store.entries()) {
        const bool own = entry.name.starts_with("residual/");
        if (!own && !entry.name.starts_with("owner_residual/")) continue;
        const auto name = entry.name.substr(entry.name.find('/') + 1);
        const auto at = std::min(name.find('@'), name.size());
        uint64_t first = own ? 0 : std::stoull(name.substr(at + 1));
        for (uint32_t p = 0; p < model().size(); ++p) {
          if (model()[p].name == name.substr(0, at)) first += whole_.offsets[p];
        }
        for (const float x : entry.values)
          sum[first++] += own ? double{x} : ranks_.world() * double{x};
      }
    }
    return sum;
  }

  void run(uint64_t number) {
    auto values = fresh(100 + number);
    for (uint32_t r = 0; r < ranks_.world(); ++r) {
      for (uint32_t p = 0; p < model().size(); ++p) {
        const uint64_t draw = (number * 7 + p * 5 + r * 3) % 8;
        const bool alone = number % 3 == 2 && r != p % ranks_.world();
        if (draw < 3 || alone) clear(values[r], p);
      }
    }
    for (const Floats& v : values) {
      for (uint64_t k = 0; k < v.size(); ++k) {
        came_[k] += double{v[k]};
        size_ = std::max(size_, std::abs(came_[k]));
      }
    }
    ASSERT_NO_FATAL_FAILURE(step(number, values));
    for (uint64_t k = 0; k < went_.size(); ++k) went_[k] += ranks_.world() * double{mean_[k]};
  }

  std::vector<double> came_ = std::vector<double>(whole_.elements), went_ = came_;
  double size_ = 0;
};

TEST_P(Absent, RanksWithoutGradientLoseAndOweNothing) {
  for (uint64_t number = 0; number < 12; ++number) ASSERT_NO_FATAL_FAILURE(run(number));
  const auto conserves = [](const std::string& text) {
    const auto spec = *Spec::parse(text);
    return spec.contract().lossless ||
           (spec.memory().kind == MemoryKind::residual && spec.memory().decay == 1);
  };
  const std::string& down = GetParam().down;
  if (!conserves(GetParam().spec) || !(down.empty() || conserves(down)))
    return;  // these are the oracle's alone
  const auto left = held();
  // Sums of 16-bit lanes are rounded by the engine.
  const bool half = GetParam().strategy == StrategyKind::native_sum &&
                    (GetParam().spec.starts_with("fp16") || GetParam().spec.starts_with("bf16"));
  const double most = size_ * (half ? 0x1p-8 : 0x1p-18);
  for (uint64_t k = 0; k < left.size(); ++k) ASSERT_NEAR(came_[k], went_[k] + left[k], most) << k;
}

INSTANTIATE_TEST_SUITE_P(All, Absent, testing::ValuesIn(memories()), case_name);
INSTANTIATE_TEST_SUITE_P(Down, Absent,
                         testing::Values(Case{"topk+ef", StrategyKind::two_shot, 3, DType::f32,
                                              kAllSums, false, "3lc+ef"},
                                         Case{"none", StrategyKind::two_shot, 3, DType::f32,
                                              kAllSums, false, "3lc+ef"}),
                         case_name);

}  // namespace
}  // namespace laconic::test
