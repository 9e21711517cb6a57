// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about error feedback: nothing is lost, and nothing but a saved state is needed to go on.
#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/codec_law.h"
#include "pipeline/unit_codec.h"
#include "support/subset.h"

namespace laconic::conformance {
namespace {

using pipeline::Outcome;
using pipeline::UnitCodec;
using pipeline::UnitSlot;

/// One rank with its residual, stepping alone through the pipeline's own encode and commit.
class Worker {
 public:
  Worker(const Spec& spec, const Conditions& conditions, uint8_t fill)
      : codec_(spec, conditions.isa, conditions.pool),
        feedback_(spec.contract().feedback != Feedback::never),
        plan_(codec_.plan(conditions.unit, 1)),
        kept_(plan_.kept_bytes, fill),
        scratch_(plan_.scratch_bytes, fill),
        residual_(conditions.unit.count * sizeof(float), 0),
        state_(plan_.state_floats * sizeof(float), fill) {
    for (uint32_t i = 0; i < plan_.rounds; ++i) out_[i] = Guarded(plan_.round[i].bytes, fill);
    slot_ = {conditions.unit, plan_, {}, state_.floats()};
    if (feedback_) slot_.memory = {{MemoryKind::residual}, residual_.floats().data()};
    codec_.init(slot_, place(0));
  }

  Outcome step(uint64_t step, const std::vector<float>& gradient) {
    Work work{kept_.bytes(), scratch_.bytes(), codec_.isa(), codec_.pool()};
    const Place at = place(step);
    const auto encoded = codec_.encode(slot_, at, gradient.data(), work, out_[0].bytes());
    residual_reset_ = encoded.residual_reset;
    if (encoded.outcome != Outcome::payload) return encoded.outcome;
    uint64_t bytes = encoded.bytes;
    for (uint32_t round = 1; round < plan_.rounds; ++round) {
      codec_.accept(slot_, at, round - 1, MutBytes(out_[round - 1].data(), bytes), 1, work);
      const auto later =
          codec_.encode_round(slot_, at, round, gradient.data(), work, out_[round].bytes());
      if (later.outcome != Outcome::payload) return later.outcome;
      bytes = later.bytes;
    }
    const Bytes sent(out_[plan_.rounds - 1].data(), bytes);
    sent_.assign(sent.begin(), sent.end());
    decoded_.assign(slot_.unit.count, 0.0F);
    const Term own{sent, 1.0F};
    codec_.decode(slot_.unit, at, {&own, 1}, work, {decoded_.data(), false});
    const bool lanes = plan_.round[plan_.rounds - 1].kind == RoundKind::lanes;
    codec_.commit(slot_, at, sent, lanes ? sent : Bytes(), 1, decoded_.data(), work);
    return encoded.outcome;
  }

  /// Loads the state of a checkpoint, and nothing else.
  void load(const Worker& other) {
    std::copy(other.residual_.floats().begin(), other.residual_.floats().end(),
              residual_.floats().begin());
    std::copy(other.state_.floats().begin(), other.state_.floats().end(), state_.floats().begin());
  }

  [[nodiscard]] bool residual_reset() const { return residual_reset_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const UnitCodec& codec() const { return codec_; }
  /// The bytes of a round as they leave.
  [[nodiscard]] Bytes lanes(uint32_t round) const {
    return Bytes(out_[round].data(), plan_.round[round].bytes);
  }
  [[nodiscard]] std::span<float> residual() const { return residual_.floats(); }
  [[nodiscard]] std::span<float> state() const { return state_.floats(); }
  [[nodiscard]] const std::vector<uint8_t>& sent() const { return sent_; }
  [[nodiscard]] const std::vector<float>& decoded() const { return decoded_; }
  void expect_intact() const {
    EXPECT_TRUE(kept_.intact() && scratch_.intact() && residual_.intact() && state_.intact());
    for (const Guarded& out : out_) EXPECT_TRUE(out.intact());
  }

 private:
  static Place place(uint64_t step) { return {11, step, 0, 1, 0, 1.0F}; }

  UnitCodec codec_;
  bool feedback_;
  Plan plan_;
  Guarded kept_, scratch_, residual_, state_;
  std::array<Guarded, kMaxRounds> out_;
  UnitSlot slot_;
  bool residual_reset_ = false;
  std::vector<uint8_t> sent_;
  std::vector<float> decoded_;
};

std::vector<Unit> units() {
  return {vector_unit(1), vector_unit(257), vector_unit(40007), matrix_unit(65, 33)};
}

double ulp(float x) {
  const float a = std::fabs(x);
  return static_cast<double>(std::nextafter(a, INFINITY)) - a;
}

/// The payload's values plus what is kept equal the input, to one rounding per element and step.
TEST_P(CodecLaw, SentPlusResidualIsTheInput) {
  if (contract_.feedback == Feedback::never) return;  // no feedback
  for (const Unit& unit : units()) {
    for (const Data data : {Data::laplace, Data::spike, Data::ties}) {
      if (test::kSanitized && data == Data::spike) continue;
      SCOPED_TRACE(describe(unit, data));
      Worker worker(spec_, conditions(unit), 0xA5);
      std::vector<float> corrected(unit.count);
      for (uint64_t step = 0; step < 4; ++step) {
        const std::vector<float> gradient = make(data, unit.count, step + 1);
        for (std::size_t i = 0; i < gradient.size(); ++i)
          corrected[i] = worker.residual()[i] + gradient[i];
        if (worker.step(step, gradient) == Outcome::zero)
          continue;  // nothing sent, nothing changed
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          const float a = corrected[i], d = worker.decoded()[i], e = worker.residual()[i];
          const double off = std::fabs(static_cast<double>(d) + e - a);
          if (off == 0) continue;  // nearly always
          ASSERT_LE(off, 0.5 * ulp(std::max({std::fabs(a), std::fabs(d), std::fabs(e)})))
              << "element " << i << ", step " << step << ": " << a << " came, " << d << " went, "
              << e << " stays";
        }
      }
      worker.expect_intact();
    }
  }
}

TEST_P(CodecLaw, FusedFeedbackEqualsUnfused) {
  if (!contract_.fused) return;  // not fused
  for (const Unit& unit : units()) {
    for (const Data data : kFiniteData) {
      SCOPED_TRACE(describe(unit, data));
      const std::vector<float> values = make(data, unit.count, 1);
      const std::vector<float> residual = make(Data::laplace, unit.count, 2);
      std::vector<float> sum(unit.count);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = values[i] + residual[i];

      Exchange fused = exchange(unit), plain = exchange(unit);
      Guarded kept = guarded_copy(residual);
      const Source source{values.data(), kept.floats().data()};
      ASSERT_TRUE(fused.encode({&source, 1}));
      ASSERT_TRUE(plain.encode(sum.data()));
      expect_same_bytes(plain.payload(), fused.payload(), "payload");
      const std::vector<float> d = plain.own();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] -= d[i];
      expect_same_values(sum, kept.floats(), "residual");
      EXPECT_TRUE(kept.intact());
    }
  }
}

TEST_P(CodecLaw, SavedStateContinuesIdentically) {
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Worker first(spec_, conditions(unit), 0x00), second(spec_, conditions(unit), 0xFF);
    for (uint64_t step = 0; step < 3; ++step)
      first.step(step, make(Data::laplace, unit.count, step));
    second.load(first);
    for (uint64_t step = 3; step < 6; ++step) {
      const std::vector<float> gradient = make(Data::laplace, unit.count, step);
      first.step(step, gradient);
      second.step(step, gradient);
      expect_same_bytes(first.sent(), second.sent(), "payload");
      expect_same_bits(first.residual(), second.residual(), "residual");
      expect_same_bits(first.state(), second.state(), "state");
    }
  }
}

/// Whether codec or pipeline looks for them: NaN and infinity are not encoded, and the residual
/// stays bit for bit.
TEST_P(CodecLaw, NonFiniteInputChangesNothing) {
  if (contract_.lossless) return;  // they travel like any other value
  for (const Unit& unit : units()) {
    Worker worker(spec_, conditions(unit), 0xA5);
    worker.step(0, make(Data::laplace, unit.count, 1));
    const std::vector<float> before(worker.residual().begin(), worker.residual().end());
    const std::vector<float> state(worker.state().begin(), worker.state().end());
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (const uint64_t at : {uint64_t{0}, unit.count / 2, unit.count - 1}) {
        SCOPED_TRACE(describe(unit, Data::laplace) + ", " + std::to_string(bad) + " at " +
                     std::to_string(at));
        std::vector<float> gradient = make(Data::laplace, unit.count, 2);
        gradient[at] = bad;
        ASSERT_EQ(worker.step(1, gradient), Outcome::non_finite);
        expect_same_bits(before, worker.residual(), "residual");
        expect_same_bits(state, worker.state(), "state");
      }
    }
    worker.expect_intact();
  }
}

bool all_finite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

bool lanes_finite(const RoundPlan& round, Bytes lanes) {
  if (round.kind == RoundKind::frame || round.code_bits != 0) return true;  // decoded values are
  for (uint64_t i = 0; i < lanes.size(); i += dtype_size(round.lane)) {
    const uint8_t* const p = lanes.data() + i;
    const float x = round.lane == DType::f32   ? load<float>(p)
                    : round.lane == DType::f16 ? f16_to_float(load<uint16_t>(p))
                                               : bf16_to_float(load<uint16_t>(p));
    if (!std::isfinite(x)) return false;
  }
  return true;
}

/// After a step that gave a payload.
void expect_all_finite(const Worker& worker) {
  EXPECT_TRUE(all_finite(worker.decoded())) << "decoded";
  EXPECT_TRUE(all_finite(worker.residual())) << "residual";
  EXPECT_TRUE(all_finite(worker.state())) << "state";
  for (uint32_t round = 0; round < worker.plan().rounds; ++round) {
    EXPECT_TRUE(lanes_finite(worker.plan().round[round], worker.lanes(round))) << "lanes " << round;
  }
}

constexpr float kLargest = std::numeric_limits<float>::max();

/// The last one has several chunks of every codec: what one of them changes, another may refuse.
std::vector<Unit> units_of_chunks() {
  return {vector_unit(1), vector_unit(257), matrix_unit(65, 33), vector_unit(90001)};
}
std::vector<uint64_t> places_in(const Unit& unit) {
  if (unit.count > 10000) return {unit.count - 1};
  return {0, unit.count / 2, unit.count - 1};
}
std::vector<float> sizes_for(const Unit& unit, float limit) {
  if (unit.count > 10000 || test::kSanitized) return {limit, kLargest};
  return {3e5F, 1e30F, limit / 2, limit, 2 * limit, kLargest};
}

/// One element, every element, and every element with signs in turn.
std::vector<std::vector<float>> huge_gradients(uint64_t n, float size) {
  std::vector<float> spike = make(Data::laplace, n, 3);
  spike[n - 1] = size;
  std::vector<float> signs(n, size);
  for (std::size_t i = 0; i < n; i += 2) signs[i] = -size;
  return {spike, std::vector<float>(n, size), signs};
}

/// A step either gives a payload of which everything is finite, or changes nothing.
void expect_finite_or_unchanged(Worker& worker, const std::vector<float>& gradient) {
  const std::vector<float> residual(worker.residual().begin(), worker.residual().end());
  const std::vector<float> state(worker.state().begin(), worker.state().end());
  if (worker.step(1, gradient) == Outcome::payload) {
    EXPECT_FALSE(worker.residual_reset());
    return expect_all_finite(worker);
  }
  expect_same_bits(residual, worker.residual(), "residual");
  expect_same_bits(state, worker.state(), "state");
}

/// Finite gradients of any size, up to what the plan promises and beyond it.
TEST_P(CodecLaw, HugeInputIsEncodedOrChangesNothing) {
  if (contract_.feedback == Feedback::never) return;  // no residual to harm
  for (const Unit& unit : units_of_chunks()) {
    const float limit = spec_.codec().plan(spec_.params(), unit, 1).largest_input;
    for (const float size : sizes_for(unit, limit)) {
      if (!std::isfinite(size)) continue;
      for (const std::vector<float>& gradient : huge_gradients(unit.count, size)) {
        SCOPED_TRACE(describe(unit, Data::laplace) + ", " + std::to_string(size));
        Worker fresh(spec_, conditions(unit), 0xA5);
        const bool encoded = fresh.step(0, gradient) == Outcome::payload;
        EXPECT_TRUE(encoded || size > limit) << "the plan promises it";
        EXPECT_TRUE(!encoded || size <= limit || contract_.fused) << "more than is promised";
        Worker worker(spec_, conditions(unit), 0xA5);
        worker.step(0, make(Data::laplace, unit.count, 1));
        expect_finite_or_unchanged(worker, gradient);
        if (HasFailure()) return;
      }
    }
  }
}

/// Both finite, their sum not.
TEST_P(CodecLaw, OverflowingSumChangesNothing) {
  if (contract_.feedback == Feedback::never) return;  // no residual to harm
  for (const Unit& unit : units_of_chunks()) {
    const float limit = spec_.codec().plan(spec_.params(), unit, 1).largest_input;
    for (const uint64_t at : places_in(unit)) {
      SCOPED_TRACE(describe(unit, Data::laplace) + ", at " + std::to_string(at));
      Worker worker(spec_, conditions(unit), 0xA5);
      std::vector<float> gradient = make(Data::laplace, unit.count, 2);
      worker.residual()[at] = gradient[at] = 0.7F * (contract_.fused ? kLargest : limit);
      const std::vector<float> before(worker.residual().begin(), worker.residual().end());
      ASSERT_EQ(worker.step(1, gradient), Outcome::non_finite);
      expect_same_bits(before, worker.residual(), "residual");
    }
  }
}

/// A residual that is not finite is dropped, once, and the step is that of an empty residual.
TEST_P(CodecLaw, UnusableResidualIsReset) {
  if (contract_.feedback == Feedback::never) return;  // no residual
  for (const Unit& unit : units_of_chunks()) {
    const std::vector<float> gradient = make(Data::laplace, unit.count, 2);
    Worker fresh(spec_, conditions(unit), 0xA5);
    ASSERT_EQ(fresh.step(1, gradient), Outcome::payload);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      if (test::kSanitized && std::isinf(bad)) continue;
      for (const uint64_t at : places_in(unit)) {
        SCOPED_TRACE(describe(unit, Data::laplace) + ", " + std::to_string(bad) + " at " +
                     std::to_string(at));
        Worker worker(spec_, conditions(unit), 0xA5);
        for (float& x : worker.residual()) x = 0.125F;
        worker.residual()[at] = bad;
        std::vector<float> worse = gradient;
        worse[unit.count - 1] = NAN;
        const std::vector<float> before(worker.residual().begin(), worker.residual().end());
        ASSERT_EQ(worker.step(0, worse), Outcome::non_finite) << "both";
        expect_same_bits(before, worker.residual(), "residual");
        ASSERT_EQ(worker.step(1, gradient), Outcome::payload);
        EXPECT_TRUE(worker.residual_reset());
        expect_same_bytes(fresh.sent(), worker.sent(), "payload");
        expect_same_bits(fresh.residual(), worker.residual(), "residual");
        ASSERT_EQ(worker.step(2, gradient), Outcome::payload);
        EXPECT_FALSE(worker.residual_reset());
        worker.expect_intact();
        if (HasFailure()) return;
      }
    }
  }
}

/// The residual of an input is no larger than the input, whatever it is: a larger one, which is
/// part of the next input, would grow without end.
TEST_P(CodecLaw, EncodingErrorNeverExceedsInput) {
  if (!in_memory_set(contract_.memories, MemoryKind::residual)) return;
  for (const Unit& unit : all_units()) {
    for (const Data data : kFiniteData) {
      SCOPED_TRACE(describe(unit, data));
      Exchange exchange = this->exchange(unit);
      const std::vector<float> values = make(data, unit.count);
      ASSERT_TRUE(exchange.encode(values.data()));
      EXPECT_LE(squared_distance(values, exchange.own()), (1 + 1e-6) * squared_norm(values));
    }
  }
}

TEST_P(CodecLaw, ResidualStaysBounded) {
  if (contract_.feedback == Feedback::never || contract_.contraction <= 0) return;  // not promised
  // Karimireddy et al. 2019, lemma 3: E|e|² ≤ 4(1 − delta)/delta² · max|g|².
  const double delta = contract_.contraction;
  if (delta < 0.05) return;  // the bound is reached only after thousands of steps
  const Unit unit = vector_unit(1000);
  Worker worker(spec_, conditions(unit), 0xA5);
  double largest = 0;
  for (uint64_t step = 0; step < 40; ++step) {
    const std::vector<float> gradient = make(Data::laplace, unit.count, step + 1);
    largest = std::max(largest, squared_norm(gradient));
    worker.step(step, gradient);
    ASSERT_LE(squared_norm(worker.residual()),
              (4 * (1 - delta) / (delta * delta) + 1e-6) * largest);
  }
}

}  // namespace
}  // namespace laconic::conformance
