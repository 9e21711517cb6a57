// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Kinds of memory against references of a few lines, undo included; and own feedback of a codec
// that needs two rounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/arena.h"
#include "pipeline/unit_codec.h"

namespace laconic::pipeline {
namespace {

using Floats = std::vector<float>;

constexpr uint64_t kCount = 3000;

Floats noise(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats g(kCount);
  for (float& x : g) x = normal(random);
  return g;
}

/// A unit with all that its calls need.
struct Rank {
  explicit Rank(const std::string& text) : spec(*Spec::parse(text)), codec(spec, best_isa(), {}) {
    slot.unit = {kCount, kCount, 1, 7, 0};
    slot.plan = codec.plan(slot.unit, 1);
    state.resize(slot.plan.state_floats);
    slot.state = state;
    slot.memory = {spec.memory(), values.data()};
    if (spec.memory().kind == MemoryKind::momentum) slot.memory.momentum = momentum.data();
    codec.init(slot, place);
    EXPECT_TRUE(kept.reserve(slot.plan.kept_bytes + 64));
    EXPECT_TRUE(scratch.reserve(slot.plan.scratch_bytes + 64));
    out.resize(slot.plan.round[0].bytes);
    work = {kept.bytes(), scratch.bytes(), best_isa(), nullptr};
  }
  Outcome encode(const Floats& g) {
    const UnitEncoded encoded = codec.encode(slot, place, g.data(), work, out);
    sent.assign(out.begin(), out.begin() + static_cast<ptrdiff_t>(encoded.bytes));
    return encoded.outcome;
  }
  void commit() { codec.commit(slot, place, sent, {}, 1, nullptr, work); }
  void undo(const Floats& g, Undo why) { codec.undo(slot, place, sent, g.data(), why, work); }
  Floats decoded() {
    Floats d(kCount);
    const Term own{sent, 1.0F};
    codec.decode(slot.unit, place, {&own, 1}, work, {d.data(), false});
    return d;
  }

  Spec spec;
  UnitCodec codec;
  UnitSlot slot;
  Place place{1, 2, 0, 1, 0, 1.0F};
  Floats state, values = Floats(kCount), momentum = Floats(kCount);
  std::vector<uint8_t> out, sent;
  Arena kept, scratch;
  Work work;
};

void expect_equal(const Floats& expected, const Floats& found, const char* what) {
  ASSERT_EQ(std::memcmp(expected.data(), found.data(), kCount * sizeof(float)), 0) << what;
}
void expect_near(const Floats& expected, const Floats& found, const char* what) {
  for (uint64_t i = 0; i < kCount; ++i)
    ASSERT_NEAR(expected[i], found[i], 4e-6F * (1 + std::abs(expected[i]))) << what << i;
}

TEST(Memory, DecayingResidualMatchesReference) {
  for (const char* text : {"topk:ratio=0.1+decay=0.5", "3lc+decay=0.5", "int8+ef+decay=0.5"}) {
    SCOPED_TRACE(text);
    Rank rank(text);
    Floats e(kCount);
    for (uint64_t step = 0; step < 4; ++step) {
      const Floats g = noise(step);
      ASSERT_EQ(rank.encode(g), Outcome::payload);
      const Floats d = rank.decoded();
      for (uint64_t i = 0; i < kCount; ++i) e[i] = (0.5F * e[i] + g[i]) - d[i];
      rank.commit();
      expect_equal(e, rank.values, "residual");
    }
  }
}

TEST(Memory, RunningMeanIsEncoded) {
  for (const char* text : {"int8+ema=0.75", "3lc+ema=0.75"}) {
    SCOPED_TRACE(text);
    Rank rank(text), plain(text);
    plain.slot.memory = {};
    Floats m(kCount);
    for (uint64_t step = 0; step < 4; ++step) {
      const Floats g = noise(step);
      for (uint64_t i = 0; i < kCount; ++i) m[i] = 0.75F * m[i] + 0.25F * g[i];
      ASSERT_EQ(rank.encode(g), Outcome::payload);
      ASSERT_EQ(plain.encode(m), Outcome::payload);
      EXPECT_EQ(rank.sent, plain.sent);
      rank.commit();
      expect_equal(m, rank.values, "mean");
    }
  }
}

/// Lin et al., ICLR 2018, algorithm 1.
TEST(Memory, MomentumIsCorrectedAndMasked) {
  Rank rank("topk:ratio=0.1+momentum=0.75"), plain("topk:ratio=0.1+noef");
  plain.slot.memory = {};
  Floats u(kCount), v(kCount);
  for (uint64_t step = 0; step < 4; ++step) {
    const Floats g = noise(step);
    for (uint64_t i = 0; i < kCount; ++i) {
      u[i] = 0.75F * u[i] + g[i];
      v[i] = v[i] + u[i];
    }
    ASSERT_EQ(rank.encode(g), Outcome::payload);
    ASSERT_EQ(plain.encode(v), Outcome::payload);
    EXPECT_EQ(rank.sent, plain.sent);
    expect_equal(v, rank.values, "until delivery nothing is masked: velocity");
    const Floats d = rank.decoded();
    for (uint64_t i = 0; i < kCount; ++i) {
      if (d[i] != 0) u[i] = v[i] = 0;
    }
    rank.commit();
    expect_equal(v, rank.values, "velocity");
    expect_equal(u, rank.momentum, "momentum");
  }
}

TEST(Memory, EveryKindIsUndone) {
  for (const char* text : {"topk:ratio=0.1+ef", "topk:ratio=0.1+decay=0.5", "3lc", "3lc+decay=0.5",
                           "int8+ema=0.75", "topk:ratio=0.1+momentum=0.75"}) {
    SCOPED_TRACE(text);
    Rank rank(text);
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_EQ(rank.encode(noise(step)), Outcome::payload);
      rank.commit();
    }
    const Floats values = rank.values, momentum = rank.momentum, g = noise(9);
    ASSERT_EQ(rank.encode(g), Outcome::payload);
    rank.undo(g, Undo::gradient_travels);
    expect_near(values, rank.values, "as before, ");
    expect_near(momentum, rank.momentum, "as before, momentum, ");

    rank.values = values, rank.momentum = momentum;
    const MemorySettings memory = rank.spec.memory();
    Floats expected = values, inertia = momentum;
    for (uint64_t i = 0; i < kCount; ++i) {
      inertia[i] = memory.factor * momentum[i] + g[i];
      if (memory.kind == MemoryKind::residual) expected[i] = memory.decay * values[i] + g[i];
      if (memory.kind == MemoryKind::momentum) expected[i] = values[i] + inertia[i];
      if (memory.kind == MemoryKind::ema)
        expected[i] = memory.factor * values[i] + (1 - memory.factor) * g[i];
    }
    ASSERT_EQ(rank.encode(g), Outcome::payload);
    rank.undo(g, Undo::gradient_lost);
    expect_near(expected, rank.values, "nothing is lost, ");
    if (memory.kind == MemoryKind::momentum) expect_near(inertia, rank.momentum, "momentum, ");
  }
}

TEST(Memory, GradientWithoutExchangeIsKept) {
  for (const char* text : {"topk:ratio=0.1+decay=0.5", "int8+ema=0.75", "topk+momentum=0.75"}) {
    SCOPED_TRACE(text);
    Rank rank(text);
    const Floats values = noise(1), momentum = noise(2);
    std::copy(values.begin(), values.end(), rank.values.begin());
    std::copy(momentum.begin(), momentum.end(), rank.momentum.begin());
    Floats g = noise(3);
    ASSERT_TRUE(rank.codec.keep(rank.slot, g.data()));
    const MemorySettings memory = rank.spec.memory();
    for (uint64_t i = 0; i < kCount; ++i) {
      const float u = memory.factor * momentum[i] + g[i];
      const float expected = memory.kind == MemoryKind::residual ? values[i] + g[i]
                             : memory.kind == MemoryKind::momentum
                                 ? values[i] + u
                                 : memory.factor * values[i] + (1 - memory.factor) * g[i];
      ASSERT_EQ(rank.values[i], expected) << i;
      if (memory.kind == MemoryKind::momentum) {
        ASSERT_EQ(rank.momentum[i], u) << i;
      }
    }
    const Floats after = rank.values;
    g[kCount - 1] = INFINITY;
    EXPECT_FALSE(rank.codec.keep(rank.slot, g.data()));
    expect_equal(after, rank.values, "all of it or nothing");
  }
}

TEST(Memory, NonFiniteChangesNothingAndUnusableMemoryIsReset) {
  for (const char* text : {"topk:ratio=0.1+decay=0.5", "int8+ema=0.75", "topk+momentum=0.75"}) {
    SCOPED_TRACE(text);
    Rank rank(text);
    ASSERT_EQ(rank.encode(noise(1)), Outcome::payload);
    rank.commit();
    const Floats values = rank.values, momentum = rank.momentum;
    Floats bad = noise(2);
    bad[17] = NAN;
    EXPECT_EQ(rank.encode(bad), Outcome::non_finite);
    expect_equal(values, rank.values, "values");
    expect_equal(momentum, rank.momentum, "momentum");

    const bool inertia = rank.spec.memory().kind == MemoryKind::momentum;
    (inertia ? rank.momentum : rank.values)[5] = INFINITY;
    Rank fresh(text);
    const Floats g = noise(3);
    const UnitEncoded encoded =
        rank.codec.encode(rank.slot, rank.place, g.data(), rank.work, rank.out);
    EXPECT_EQ(encoded.outcome, Outcome::payload);
    EXPECT_TRUE(encoded.residual_reset);
    ASSERT_EQ(fresh.encode(g), Outcome::payload);
    expect_equal(fresh.values, rank.values, "as without memory");
  }
}

/// Two rounds of lanes: the largest magnitude, which the engine adds, and then elements in units of
/// it, rounded down. Only the second one says what was sent.
struct TwoRounds {
  struct Params {
    float unused = 0;
  };
  static Contract contract() {
    Contract c;
    c.merge = Merge::linear;
    c.feedback = Feedback::own;
    c.memory_default = MemoryKind::residual;
    c.memories = memory_set(MemoryKind::residual);
    return c;
  }
};

TEST(Memory, OwnFeedbackUsesPayloadOfLastRound) {
  static constexpr auto kDefaults = [](void* p) { new (p) TwoRounds::Params; };
  CodecTable table{};
  table.info = {"tworounds", 999, 1, "", "", Method::quantization};
  table.defaults = kDefaults;
  table.contract = [](const void*) { return TwoRounds::contract(); };
  table.plan = [](const void*, const Unit& unit, uint32_t) {
    Plan plan;
    plan.rounds = 2;
    plan.kept_bytes = sizeof(float);
    plan.round[0] = {RoundKind::lanes, DType::f32, sizeof(float), sizeof(float)};
    plan.round[1] = {RoundKind::lanes, DType::f32, unit.count * 4, unit.count * 4};
    return plan;
  };
  table.init = [](const void*, const Unit&, const Place&, std::span<float>) {};
  table.encode = [](const Call<>& call, Source source, MutBytes out) {
    const Unit& unit = call.unit;
    if (call.round == 0) {
      float most = 0;
      for (uint64_t i = 0; i < unit.count; ++i) most = std::max(most, std::abs(source.values[i]));
      store(out.data(), most);
      return Encoded{sizeof(float)};
    }
    const auto most = load<float>(call.work.kept.data());
    for (uint64_t i = 0; i < unit.count; ++i)
      store(out.data() + 4 * i, std::trunc(source.values[i] / most * 4) / 4 * most);
    return Encoded{unit.count * sizeof(float)};
  };
  table.accept = [](const Call<>& call, MutBytes merged, uint32_t) {
    std::memcpy(call.work.kept.data(), merged.data(), sizeof(float));
  };
  table.check = [](const void*, const Unit&, uint32_t, Bytes) { return Errc::ok; };
  table.decode = [](const Call<>& call, std::span<const Term> terms, Target target) {
    for (uint64_t i = 0; i < call.unit.count; ++i) {
      float sum = target.add ? target.values[i] : 0;
      for (const Term& t : terms) sum += t.weight * load<float>(t.payload.data() + 4 * i);
      target.values[i] = sum;
    }
  };
  table.commit = [](const Call<>&, std::span<float>, Bytes, Bytes, uint32_t) {};
  const Spec spec = Spec::defaults(table);
  const UnitCodec codec(spec, Isa::scalar, nullptr);
  const Unit unit{kCount, kCount, 1, 7, 0};
  Floats residual = noise(1);
  const Floats before = residual, g = noise(2);
  UnitSlot slot{unit, codec.plan(unit, 1), {spec.memory(), residual.data()}, {}};
  std::vector<uint8_t> kept(4), first(4), second(kCount * 4);
  Work work{kept, {}, Isa::scalar, nullptr};
  const Place place{1, 2, 0, 1, 0, 1.0F};
  Floats corrected(kCount);
  for (uint64_t i = 0; i < kCount; ++i) corrected[i] = before[i] + g[i];

  const auto round_0 = [&] {
    residual = before;
    ASSERT_EQ(codec.encode(slot, place, g.data(), work, first).outcome, Outcome::payload);
    expect_equal(corrected, residual, "nothing is taken out yet");
  };
  const auto round_1 = [&] {
    codec.accept(slot, place, 0, first, 1, work);
    ASSERT_EQ(codec.encode_round(slot, place, 1, g.data(), work, second).outcome, Outcome::payload);
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(residual[i], corrected[i] - load<float>(second.data() + 4 * i)) << i;
  };
  round_0();
  codec.undo(slot, place, {}, g.data(), Undo::gradient_lost, work);
  expect_equal(corrected, residual, "undone between the rounds");
  round_0();
  codec.undo(slot, place, {}, g.data(), Undo::gradient_travels, work);
  expect_near(before, residual, "undone between the rounds");
  round_0();
  round_1();
  codec.undo(slot, place, second, g.data(), Undo::gradient_lost, work);
  expect_near(corrected, residual, "undone after the last");
}

}  // namespace
}  // namespace laconic::pipeline
