// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The smallest driver of a codec: `world` ranks in one process, all rounds, lanes added in rank
// order, memory of exactly the planned size between canaries.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "conformance/guarded.h"
#include "laconic/codec.h"
#include "laconic/spec.h"
#include "support/codes.h"

namespace laconic::conformance {

/// Everything that an exchange may vary, and (but for unit, world, seed, step, hop) that may not
/// change a byte.
struct Conditions {
  Unit unit;
  uint32_t world = 1;
  uint64_t seed = 7;
  uint64_t step = 3;
  uint32_t hop = 0;
  Isa isa = Isa::scalar;
  ThreadPool* pool = nullptr;
  uint8_t fill = 0xA5;  ///< what lent memory holds beforehand
  uint64_t shift = 0;   ///< bytes by which payloads miss their alignment
};

inline Unit vector_unit(uint64_t n) { return {n, n, 1, 0x1234567890ABCDEF, 0}; }
inline Unit matrix_unit(uint64_t rows, uint64_t cols) {
  return {rows * cols, rows, cols, 0x1234567890ABCDEF, 0};
}

/// a + b in a lane's own arithmetic.
template <class T, class Add>
void add_lanes(MutBytes sum, Bytes lanes, Add add) {
  for (uint64_t i = 0; i + sizeof(T) <= sum.size(); i += sizeof(T)) {
    store<T>(sum.data() + i, add(load<T>(sum.data() + i), load<T>(lanes.data() + i)));
  }
}

inline void merge_lanes(const RoundPlan& round, MutBytes sum, Bytes lanes) {
  if (round.kind == RoundKind::agree_max) {
    return add_lanes<float>(sum, lanes, [](float a, float b) { return std::max(a, b); });
  }
  if (round.lane == DType::f32) {
    return add_lanes<float>(sum, lanes, [](float a, float b) { return a + b; });
  }
  if (round.lane == DType::f16) {
    return add_lanes<uint16_t>(sum, lanes, [](uint16_t a, uint16_t b) {
      return float_to_f16(f16_to_float(a) + f16_to_float(b));
    });
  }
  if (round.lane == DType::bf16) {
    return add_lanes<uint16_t>(sum, lanes, [](uint16_t a, uint16_t b) {
      return float_to_bf16(bf16_to_float(a) + bf16_to_float(b));
    });
  }
  add_lanes<uint8_t>(sum, lanes, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); });
}

class Exchange {
 public:
  Exchange(const Spec& spec, const Conditions& conditions)
      : spec_(prepared(spec, conditions.world)),
        codec_(spec.codec()),
        params_(spec_.params()),
        conditions_(conditions),
        plan_(codec_.plan(params_, conditions.unit, conditions.world)) {
    EXPECT_GE(plan_.rounds, 1U);
    EXPECT_LE(plan_.rounds, kMaxRounds);
    for (uint32_t r = 0; r < conditions.world; ++r) {
      ranks_.emplace_back(plan_, conditions);
      codec_.init(params_, conditions.unit, place(r), ranks_[r].state.floats());
    }
  }

  Exchange(const Exchange&) = delete;  // params_ points into it
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const RoundPlan& last() const { return plan_.round[plan_.rounds - 1]; }
  [[nodiscard]] const Conditions& conditions() const { return conditions_; }
  [[nodiscard]] std::span<float> state(uint32_t rank = 0) { return ranks_[rank].state.floats(); }
  void set_step(uint64_t step) { conditions_.step = step; }

  [[nodiscard]] Place place(uint32_t rank) const {
    return {conditions_.seed, conditions_.step, rank, conditions_.world, conditions_.hop, 1.0F};
  }
  [[nodiscard]] Work work(uint32_t rank) {
    return {ranks_[rank].kept.bytes(), ranks_[rank].scratch.bytes(), conditions_.isa,
            conditions_.pool};
  }

  /// Runs all rounds that are needed. False when some rank's input was not finite (then nothing
  /// else is defined).
  bool encode(std::span<const Source> sources) {
    for (uint32_t round = start(); round < plan_.rounds; ++round) {
      if (!encode_round(round, sources)) return false;
      if (plan_.round[round].kind != RoundKind::frame) merge(round);
      if (round + 1 < plan_.rounds) accept(round);
    }
    return true;
  }
  bool encode(const float* values) {
    const Source source{values, nullptr};
    return encode({&source, 1});
  }

  /// A rank's own bytes of the last round, or of an earlier one.
  [[nodiscard]] Bytes payload(uint32_t rank = 0) const { return payload(rank, plan_.rounds - 1); }
  [[nodiscard]] Bytes payload(uint32_t rank, uint32_t round) const {
    return Bytes(ranks_[rank].out[round].data(), ranks_[rank].bytes[round]);
  }
  /// The input of decode: all payloads for frames, their sum for lanes.
  [[nodiscard]] std::vector<Term> terms(float weight) const {
    if (last().code_bits != 0) return {{merged_.bytes(), weight, {&together_, 1}}};
    if (last().kind == RoundKind::lanes) return {{merged_.bytes(), weight}};
    std::vector<Term> terms;
    for (uint32_t r = 0; r < conditions_.world; ++r) terms.push_back({payload(r), weight});
    return terms;
  }

  [[nodiscard]] Errc check(Bytes payload) const {
    return codec_.check(params_, conditions_.unit, plan_.rounds - 1, payload);
  }
  void decode(uint32_t rank, std::span<const Term> terms, Target target) {
    Work lent = work(rank);
    codec_.decode({params_, {}, conditions_.unit, place(rank), 0, lent}, terms, target);
  }
  [[nodiscard]] std::vector<float> decoded(std::span<const Term> terms, uint32_t rank = 0) {
    Guarded out(conditions_.unit.count * sizeof(float), 0x7F);
    decode(rank, terms, {out.floats().data(), false});
    EXPECT_TRUE(out.intact()) << "decode wrote outside its target";
    return {out.floats().begin(), out.floats().end()};
  }
  /// The values of one rank's payload alone.
  [[nodiscard]] std::vector<float> own(uint32_t rank = 0) {
    const Term term{payload(rank), 1.0F};
    return decoded({&term, 1}, rank);
  }
  [[nodiscard]] std::vector<float> mean(uint32_t rank = 0) {
    return decoded(terms(1.0F / static_cast<float>(conditions_.world)), rank);
  }

  void commit() {
    for (uint32_t r = 0; r < conditions_.world; ++r) {
      Work lent = work(r);
      codec_.commit({params_, ranks_[r].state.floats(), conditions_.unit, place(r), 0, lent},
                    ranks_[r].state.floats(), payload(r),
                    last().kind == RoundKind::lanes ? Bytes(merged_.bytes()) : Bytes(),
                    conditions_.world);
    }
  }

  void expect_intact() const {
    for (const Rank& rank : ranks_) {
      EXPECT_TRUE(rank.kept.intact()) << "kept memory overrun";
      EXPECT_TRUE(rank.scratch.intact()) << "scratch memory overrun";
      EXPECT_TRUE(rank.state.intact()) << "state overrun";
      for (const Guarded& out : rank.out) EXPECT_TRUE(out.intact()) << "payload overrun";
    }
  }

 private:
  struct Rank {
    Rank(const Plan& plan, const Conditions& conditions)
        : kept(plan.kept_bytes, conditions.fill),
          scratch(plan.scratch_bytes, conditions.fill),
          state(plan.state_floats * sizeof(float), conditions.fill) {
      for (uint32_t i = 0; i < plan.rounds; ++i)
        out[i] = Guarded(plan.round[i].bytes, conditions.fill, conditions.shift);
    }
    Guarded kept, scratch, state;
    std::array<Guarded, kMaxRounds> out;
    std::array<uint64_t, kMaxRounds> bytes{};
  };

  uint32_t start() {
    uint32_t first = 0;
    for (uint32_t r = 0; r < conditions_.world && codec_.start != nullptr; ++r) {
      Work lent = work(r);
      const uint32_t own =
          codec_.start({params_, ranks_[r].state.floats(), conditions_.unit, {}, 0, lent});
      EXPECT_LT(own, plan_.rounds);
      if (r == 0) first = own;
      EXPECT_EQ(own, first) << "ranks begin with different rounds";
    }
    return first;
  }

  bool encode_round(uint32_t round, std::span<const Source> sources) {
    bool finite = true;
    for (uint32_t r = 0; r < conditions_.world; ++r) {
      Work lent = work(r);
      const Guarded& out = ranks_[r].out[round];
      const Encoded encoded = codec_.encode(
          {params_, ranks_[r].state.floats(), conditions_.unit, place(r), round, lent}, sources[r],
          out.bytes());
      finite = finite && encoded.finite;
      EXPECT_LE(encoded.bytes, plan_.round[round].bytes) << "payload above the plan's bound";
      ranks_[r].bytes[round] = std::min(encoded.bytes, plan_.round[round].bytes);
    }
    return finite;
  }

  void merge(uint32_t round) {
    if (plan_.round[round].code_bits != 0) return merge_codes(plan_.round[round]);
    merged_ = guarded_copy(payload(0, round), conditions_.shift);
    for (uint32_t r = 1; r < conditions_.world; ++r) {
      merge_lanes(plan_.round[round], merged_.bytes(), payload(r, round));
    }
  }

  /// Sums of what codes stand for, which overflow nowhere, and everybody's maxima.
  void merge_codes(const RoundPlan& round) {
    const uint64_t size = dtype_size(round.lane);
    std::vector<uint32_t> sums(round.lanes);
    std::vector<uint16_t> maxima(round.maxima);
    const auto table = codec_.table(params_);
    for (uint32_t r = 0; r < conditions_.world; ++r) {
      Work lent = work(r);
      for (uint64_t i = 0; i < sums.size(); ++i)
        sums[i] += table[test::code_at(payload(r), i, round.code_bits)];
      for (uint64_t k = 0; k < maxima.size(); ++k)
        maxima[k] = std::max(maxima[k], load<uint16_t>(lent.kept.data() + 2 * k));
    }
    merged_ = Guarded(round.lanes * size, conditions_.fill, conditions_.shift);
    for (uint64_t i = 0; i < sums.size(); ++i) {
      ASSERT_LT(sums[i], 1U << (8 * size)) << "lane " << i << " overflows";
      for (uint64_t k = 0; k < size; ++k)
        merged_.bytes()[size * i + k] = static_cast<uint8_t>(sums[i] >> (8 * k));
    }
    together_ = {conditions_.world, 1};
    for (uint32_t r = 0; r < conditions_.world; ++r) {
      for (uint64_t k = 0; k < maxima.size(); ++k)
        store<uint16_t>(work(r).kept.data() + 2 * k, maxima[k]);
    }
  }

  void accept(uint32_t round) {
    for (uint32_t r = 0; r < conditions_.world; ++r) {
      Guarded merged =
          guarded_copy(Bytes(merged_.bytes()), conditions_.shift);  // accept may change it
      Work lent = work(r);
      codec_.accept({params_, {}, conditions_.unit, place(r), round, lent}, merged.bytes(),
                    conditions_.world);
      EXPECT_TRUE(merged.intact()) << "merged lanes overrun";
    }
  }

  static Spec prepared(Spec spec, uint32_t world) {
    spec.prepare(world);
    return spec;
  }

  Spec spec_;
  const CodecTable& codec_;
  const void* params_;
  Conditions conditions_;
  Plan plan_;
  std::vector<Rank> ranks_;
  Guarded merged_;
  Contributors together_;  // decoded as a sum
};

}  // namespace laconic::conformance
