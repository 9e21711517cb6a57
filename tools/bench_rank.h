// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "bench_point.h"
#include "pipeline/unit_codec.h"

namespace laconic::tools {

/// The squarest matrix that the elements fill, as a fully connected layer would: low-rank codecs
/// need a shape.
inline Unit unit_of(uint64_t elements) {
  auto rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(elements)));
  while (rows > 1 && elements % rows != 0) --rows;
  if (rows * 16 < elements / std::max<uint64_t>(rows, 1))
    rows = elements;  // a prime-like count is a vector
  return {elements, rows, rows == 0 ? 1 : elements / rows, 1, 0};
}

/// One rank with everything its calls need, in memory that is never grown after the start. It
/// encodes several gradients in turn, the given one first, each the one before moved on by a line:
/// with one alone, its residual would repeat it, and branches would be foretold.
class Rank {
 public:
  Rank(const Spec& spec, uint64_t elements, const PointOptions& options)
      : pool_(options.threads),
        codec_(spec, options.isa, options.threads > 1 ? &pool_ : nullptr),
        unit_(unit_of(elements)),
        plan_(codec_.plan(unit_, 1)),
        codec_only_(options.codec_only),
        memory_(spec.memory()),
        remembers_(memory_.kind != MemoryKind::none &&
                   (!options.codec_only || (spec.contract().fused && spec.feedback()))) {}

  [[nodiscard]] bool reserve() {
    bool enough = kept_.reserve(plan_.kept_bytes) && scratch_.reserve(plan_.scratch_bytes) &&
                  state_.reserve(plan_.state_floats * sizeof(float)) &&
                  values_.reserve(float_bytes() + kApart * (kGradients - 1) * 4) &&
                  copy_.reserve(float_bytes()) && target_.reserve(float_bytes());
    if (remembers_) enough = enough && residual_.reserve(float_bytes());
    if (memory_.kind == MemoryKind::momentum) enough = enough && momentum_.reserve(float_bytes());
    for (uint32_t i = 0; i < plan_.rounds; ++i)
      enough = enough && out_[i].reserve(plan_.round[i].bytes);
    return enough;
  }

  void start(std::span<const float> values) {
    const uint64_t room = unit_.count + kApart * (kGradients - 1);
    for (uint64_t i = 0; i < room; i += unit_.count) {
      std::copy_n(values.data(), std::min(unit_.count, room - i), floats(values_) + i);
    }
    gradient_ = 0;
    std::memset(copy_.bytes().data(), 0, copy_.bytes().size());
    std::memset(target_.bytes().data(), 0, target_.bytes().size());
    for (Arena* arena : {&residual_, &momentum_})
      std::memset(arena->bytes().data(), 0, arena->bytes().size());
    codec_.init(slot(), place_);
  }

  /// Every round of the rank's own work, on the next gradient. With feedback that includes
  /// residual += gradient and what was sent being taken out of it.
  void encode() {
    const pipeline::UnitSlot slot = this->slot();
    Work work = this->work();
    float* const values = floats(values_) + kApart * gradient_;
    gradient_ = (gradient_ + 1) % kGradients;
    uint64_t bytes = first_round(slot, values, work);
    for (uint32_t round = 1; round < plan_.rounds; ++round) {
      codec_.accept(slot, place_, round - 1, out_[round - 1].bytes().first(bytes), 1, work);
      bytes = codec_.encode_round(slot, place_, round, values, work, out_[round].bytes()).bytes;
    }
    sent_ = Bytes(out_[plan_.rounds - 1].bytes().data(), bytes);
    codec_.commit(slot, place_, sent_, lanes() ? sent_ : Bytes(), 1, floats(target_), work);
  }

  void decode(std::span<const Term> terms, bool add) {
    Work work = this->work();
    codec_.decode(unit_, place_, terms, work, {floats(target_), add});
  }

  /// The same floats by the C library: what everything is compared with.
  void copy() { std::memcpy(copy_.bytes().data(), values_.bytes().data(), float_bytes()); }

  /// All rounds of one encoding, without feedback from before; also restarts a residual that is not
  /// the codec's own.
  void restart() {
    if (codec_.contract().feedback == Feedback::own) return;
    std::memset(residual_.bytes().data(), 0, residual_.bytes().size());
  }

  [[nodiscard]] uint64_t payload_bytes() const {
    uint64_t bytes = sent_.size();
    for (uint32_t i = 0; i + 1 < plan_.rounds; ++i) bytes += plan_.round[i].bytes;
    return bytes;
  }
  [[nodiscard]] Bytes sent() const { return sent_; }
  /// Does it carry anything from one step to the next?
  [[nodiscard]] bool feedback() const { return remembers_; }
  /// As pipeline::UnitCodec::encode decides it.
  [[nodiscard]] bool scanned() const {
    const Contract& contract = codec_.contract();
    return !codec_only_ && !(contract.checks_finite && (contract.fused || !remembers_));
  }
  [[nodiscard]] bool lanes() const {
    return plan_.round[plan_.rounds - 1].kind == RoundKind::lanes;
  }
  [[nodiscard]] std::span<float> target() { return {floats(target_), unit_.count}; }

  /// Codecs whose payload names few elements add them; the others write every element.
  [[nodiscard]] bool sends_few() const {
    const Contract& contract = codec_.contract();
    if (contract.merge == Merge::set_union) return true;
    return contract.merge == Merge::linear && plan_.rounds == 1 &&
           plan_.round[0].bytes < unit_.count;
  }

 private:
  uint64_t first_round(const pipeline::UnitSlot& slot, const float* values, Work& work) {
    if (codec_only_)
      return codec_.encode_round(slot, place_, 0, values, work, out_[0].bytes()).bytes;
    return codec_.encode(slot, place_, values, work, out_[0].bytes()).bytes;
  }
  [[nodiscard]] uint64_t float_bytes() const { return unit_.count * sizeof(float); }
  static float* floats(Arena& arena) { return reinterpret_cast<float*>(arena.bytes().data()); }
  [[nodiscard]] pipeline::UnitSlot slot() {
    feedback::Memory memory;
    if (remembers_) memory = {memory_, floats(residual_)};
    if (remembers_ && memory_.kind == MemoryKind::momentum) memory.momentum = floats(momentum_);
    return {unit_, plan_, memory, {floats(state_), plan_.state_floats}};
  }
  [[nodiscard]] Work work() {
    return {kept_.bytes(), scratch_.bytes(), codec_.isa(), codec_.pool()};
  }

  static constexpr uint64_t kGradients = 8;
  static constexpr uint64_t kApart = 16;

  ThreadPool pool_;
  pipeline::UnitCodec codec_;
  Unit unit_;
  Plan plan_;
  bool codec_only_;
  MemorySettings memory_;
  bool remembers_;
  Place place_{1, 1, 0, 1, 0, 1.0F};
  Arena kept_, scratch_, state_, values_, copy_, target_, residual_, momentum_;
  uint64_t gradient_ = 0;  ///< the next one
  std::array<Arena, kMaxRounds> out_;
  Bytes sent_;
};

}  // namespace laconic::tools
