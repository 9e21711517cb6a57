// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "bench_point.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>

#include "base/arena.h"
#include "machine.h"
#include "pipeline/unit_codec.h"
#include "samples.h"

namespace laconic::tools {
namespace {

constexpr double kSampleSeconds = 4e-3;  // at least; one call when that takes longer
constexpr uint32_t kMinSamples = 7;

/// The squarest matrix that the elements fill, as a fully connected layer would: low-rank codecs
/// need a shape.
Unit unit_of(uint64_t elements) {
  auto rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(elements)));
  while (rows > 1 && elements % rows != 0) --rows;
  if (rows * 16 < elements / std::max<uint64_t>(rows, 1))
    rows = elements;  // a prime-like count is a vector
  return {elements, rows, rows == 0 ? 1 : elements / rows, 1, 0};
}

/// One rank with everything its calls need, in memory that is never grown after the start.
class Rank {
 public:
  Rank(const Spec& spec, uint64_t elements, const PointOptions& options)
      : pool_(options.threads),
        codec_(spec, options.isa, options.threads > 1 ? &pool_ : nullptr),
        unit_(unit_of(elements)),
        plan_(codec_.plan(unit_, 1)),
        codec_only_(options.codec_only),
        feedback_(spec.feedback() && (!options.codec_only || spec.contract().fused)) {}

  [[nodiscard]] bool reserve() {
    bool enough = kept_.reserve(plan_.kept_bytes) && scratch_.reserve(plan_.scratch_bytes) &&
                  state_.reserve(plan_.state_floats * sizeof(float)) &&
                  values_.reserve(float_bytes()) && copy_.reserve(float_bytes()) &&
                  target_.reserve(float_bytes());
    if (feedback_) enough = enough && residual_.reserve(float_bytes());
    for (uint32_t i = 0; i < plan_.rounds; ++i)
      enough = enough && out_[i].reserve(plan_.round[i].bytes);
    return enough;
  }

  void start(std::span<const float> values) {
    std::memcpy(floats(values_), values.data(), values.size_bytes());
    std::memset(copy_.bytes().data(), 0, copy_.bytes().size());
    std::memset(target_.bytes().data(), 0, target_.bytes().size());
    std::memset(residual_.bytes().data(), 0, residual_.bytes().size());
    codec_.init(slot(), place_);
  }

  /// Every round of the rank's own work. With feedback that includes residual += gradient and what
  /// was sent being taken out of it.
  void encode() {
    const pipeline::UnitSlot slot = this->slot();
    Work work = this->work();
    uint64_t bytes = first_round(slot, work);
    for (uint32_t round = 1; round < plan_.rounds; ++round) {
      codec_.accept(slot, place_, round - 1, out_[round - 1].bytes().first(bytes), 1, work);
      bytes = codec_.encode_round(slot, place_, round, floats(values_), work, out_[round].bytes());
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
  [[nodiscard]] bool feedback() const { return feedback_; }
  [[nodiscard]] bool lanes() const {
    return plan_.round[plan_.rounds - 1].kind == RoundKind::lanes;
  }
  [[nodiscard]] std::span<float> values() { return {floats(values_), unit_.count}; }
  [[nodiscard]] std::span<float> target() { return {floats(target_), unit_.count}; }

  /// Codecs whose payload names few elements add them; the others write every element.
  [[nodiscard]] bool sends_few() const {
    const Contract& contract = codec_.contract();
    if (contract.merge == Merge::set_union) return true;
    return contract.merge == Merge::linear && plan_.rounds == 1 &&
           plan_.round[0].bytes < unit_.count;
  }

 private:
  uint64_t first_round(const pipeline::UnitSlot& slot, Work& work) {
    if (codec_only_)
      return codec_.encode_round(slot, place_, 0, floats(values_), work, out_[0].bytes());
    return codec_.encode(slot, place_, floats(values_), work, out_[0].bytes()).bytes;
  }
  [[nodiscard]] uint64_t float_bytes() const { return unit_.count * sizeof(float); }
  static float* floats(Arena& arena) { return reinterpret_cast<float*>(arena.bytes().data()); }
  [[nodiscard]] pipeline::UnitSlot slot() {
    return {unit_,
            plan_,
            feedback_ ? floats(residual_) : nullptr,
            {floats(state_), plan_.state_floats}};
  }
  [[nodiscard]] Work work() {
    return {kept_.bytes(), scratch_.bytes(), codec_.isa(), codec_.pool()};
  }

  ThreadPool pool_;
  pipeline::UnitCodec codec_;
  Unit unit_;
  Plan plan_;
  bool codec_only_;
  bool feedback_;
  Place place_{1, 1, 0, 1, 0, 1.0F};
  Arena kept_, scratch_, state_, values_, copy_, target_, residual_;
  std::array<Arena, kMaxRounds> out_;
  Bytes sent_;
};

/// memcpy, call, memcpy, call, …: every call lies between two memcpys of its own.
template <class Call, class Prepare>
std::vector<Sample> sample(Rank& rank, const PointOptions& options, Prepare&& prepare,
                           Call&& call) {
  const Clock clock = options.threads == 1 ? Clock::thread : Clock::wall;
  const double seconds = options.seconds / 2;  // the other half is decode's
  const auto copy = [&] { rank.copy(); };
  const uint64_t copies = repeats_for(clock, kSampleSeconds, copy);
  const uint64_t calls = repeats_for(clock, kSampleSeconds, call);
  std::vector<Sample> samples;
  double total = 0;
  double before = seconds_of(clock, copies, copy);
  while (total < seconds || samples.size() < kMinSamples) {
    prepare();
    const double taken = seconds_of(clock, calls, call);
    const double after = seconds_of(clock, copies, copy);
    samples.push_back(
        {(before + after) / 2 / static_cast<double>(copies), taken / static_cast<double>(calls)});
    total += before + taken;
    before = after;
  }
  return samples;
}

/// Payloads of `peers` ranks: the gradient, and rotations of it by a third of its length, a ninth,
/// ….
std::vector<std::vector<uint8_t>> peer_payloads(Rank& rank, std::span<const float> values,
                                                uint32_t peers) {
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<float> rotated(values.begin(), values.end());
  for (uint32_t r = 0; r < peers; ++r) {
    rank.start(rotated);
    rank.encode();
    payloads.emplace_back(rank.sent().begin(), rank.sent().end());
    const auto shift = static_cast<std::ptrdiff_t>(rotated.size() / (3 + 2 * r));
    std::rotate(rotated.begin(), rotated.begin() + shift, rotated.end());
  }
  return payloads;
}

std::vector<Term> terms_of(const std::vector<std::vector<uint8_t>>& payloads) {
  std::vector<Term> terms;
  for (const auto& payload : payloads)
    terms.push_back({payload, 1.0F / static_cast<float>(payloads.size())});
  return terms;
}

ErrorMetrics error_of_one_encoding(Rank& rank, std::span<const float> values) {
  rank.start(values);
  rank.encode();
  const Term own{rank.sent(), 1.0F};
  rank.decode({&own, 1}, false);
  return compare(values, rank.target());
}

}  // namespace

Result<Point> measure(const Spec& spec, std::span<const float> values,
                      const PointOptions& options) {
  auto rank = std::make_unique<Rank>(spec, values.size(), options);
  if (!rank->reserve())
    return Error{Errc::out_of_memory, "no memory for " + spec.canonical(), "try a smaller --size"};
  if (options.peers > 1 && rank->lanes()) {
    return Error{Errc::unsupported,
                 spec.canonical() + " is summed by the engine: peers are never decoded one by one",
                 "leave --peers out"};
  }
  const std::unique_ptr<PinnedToCore> pinned =
      options.threads == 1 ? std::make_unique<PinnedToCore>() : nullptr;
  Point point{spec.canonical(), values.size(), options, rank->feedback(), false, 0, 0, {}, {}, {}};
  point.error = error_of_one_encoding(*rank, values);
  point.payload_bytes = rank->payload_bytes();
  point.ratio = static_cast<double>(values.size_bytes()) / static_cast<double>(point.payload_bytes);

  point.adds = options.decode == DecodeMode::add ||
               (options.decode == DecodeMode::automatic && rank->sends_few());
  point.encode = timing_of(sample(
                               *rank, options, [&] { rank->restart(); }, [&] { rank->encode(); }),
                           1);
  const auto payloads = peer_payloads(*rank, values, options.peers);
  const auto terms = terms_of(payloads);
  point.decode = timing_of(sample(
                               *rank, options, [] {}, [&] { rank->decode(terms, point.adds); }),
                           options.peers);
  return point;
}

}  // namespace laconic::tools
