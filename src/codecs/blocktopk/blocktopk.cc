// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/blocktopk/blocktopk.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "codecs/blocktopk/block_record.h"
#include "codecs/sparse/sparse_payload.h"
#include "kernels/core/basic.h"
#include "kernels/sparse/scatter.h"

namespace laconic::codecs {
namespace {

// Up to this magnitude of gradient and residual their sum is finite, as a bfloat16, too.
constexpr float kLargestForSums = 0x1p126F;
// Half a step above the largest bfloat16 it is infinity.
constexpr float kLargestToBf16 = 0x1.FEFFFEp127F;

constexpr uint64_t kSlice = uint64_t{1} << 16;  // elements looked at in a task
constexpr uint64_t kShare = uint64_t{1} << 18;  // elements encoded in a task

// One thread's encoder of one block after another.
class BlockEncoder {
 public:
  BlockEncoder(const BlockLayout& layout, const Call<BlockTopK::Params>& call, Source source,
               MutBytes out) noexcept
      : layout_(layout),
        source_(source),
        count_(call.unit.count),
        isa_(call.work.isa),
        out_(out),
        largest_key_(kernels::magnitude_key(call.params->values == BlockTopK::Values::bf16
                                                ? kLargestToBf16
                                                : std::numeric_limits<float>::max())),
        selector_(call.work.isa) {}

  // False, with no payload, where something is not finite.
  bool encode(uint64_t block) noexcept {
    const BlockRecord r = layout_.record(block);
    const uint64_t behind = count_ - r.begin - r.length;
    const uint32_t largest = selector_.select(source_, r.begin, r.length, behind, r.kept, kept_);
    if (largest > largest_key_) return false;  // NaN and infinity are the largest keys
    layout_.write(kept_, r.kept, out_.data() + r.at);
    if (source_.residual != nullptr) leave_rest(r);
    return true;
  }

 private:
  // The residual has the sums: less what was sent.
  void leave_rest(const BlockRecord& r) noexcept {
    std::array<float, kMostKept> sent;
    layout_.read_values(out_, r, isa_, sent.data());
    float* const rest = source_.residual + r.begin;
    for (uint32_t j = 0; j < r.kept; ++j) rest[kept_.index[j]] = kept_.value[j] - sent[j];
  }

  const BlockLayout& layout_;
  Source source_;
  uint64_t count_;
  Isa isa_;
  MutBytes out_;
  uint32_t largest_key_;
  BlockSelector selector_;
  KeptOfBlock kept_;
};

// A block changes the residual before the next one is looked at, so what could make a sum infinite
// has to be known before the first. From the last to the first, where encoding begins.
bool values_are_small(const float* x, uint64_t count, Work& work) {
  const auto& kernel = kernels::basic_kernels(work.isa);
  std::atomic<bool> small{true};
  const auto look = [&](uint64_t begin, uint64_t end) {
    if (!(kernel.scan(x + begin, end - begin).max_abs <= kLargestForSums)) {
      small.store(false, std::memory_order_relaxed);
    }
  };
  for_slices(work.pool, count, kSlice, look, Pass::backward);
  return small.load(std::memory_order_relaxed);
}

// body(record, index) for the blocks [begin, end).
template <class Body>
void for_records(const BlockLayout& layout, Bytes payload, uint64_t begin, uint64_t end, Isa isa,
                 Body&& body) {
  alignas(64) std::array<uint32_t, kMostKept> index;
  for (uint64_t block = begin; block < end; ++block) {
    const BlockRecord r = layout.record(block);
    layout.read_indices(payload, r, isa, index.data());
    body(r, index.data());
  }
}

}  // namespace

Contract BlockTopK::contract(const Params& p) {
  Contract c;
  c.zero_stays_zero = p.values != Values::two_bits;  // zeros fill up, as the smaller magnitude
  c.merge = Merge::set_union;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::momentum);
  c.fused = true;
  c.checks_finite = true;
  c.exact_values = p.values == Values::f32;
  // The k kept elements of b have k/b of the energy at least; rounding takes 2^-16 of each square.
  const double k = p.keep;
  const double b = 256U << p.block;
  double kept = k / b;
  if (p.values == Values::bf16) kept *= 1 - 0x1p-16;
  // Means of magnitudes have S²/k of the energy, S being the sum of the kept magnitudes, and S² is
  // both the kept energy and k² times the square of any element left out, at least.
  if (p.values == Values::two_bits) kept = 1 / (k + (b - k) / k);
  c.contraction = static_cast<float>(kept);
  return c;
}

Plan BlockTopK::plan(const Params& p, const Unit& unit, uint32_t) {
  Plan plan;
  plan.largest_input = kLargestForSums;
  plan.round[0].bytes = BlockLayout(p, unit.count).payload_bytes();
  return plan;
}

Encoded BlockTopK::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  if (source.residual != nullptr && !values_are_small(source.values, n, call.work)) {
    return {0, false};
  }
  const BlockLayout layout(*call.params, n);
  std::atomic<bool> finite{true};
  const auto encode = [&](uint64_t begin, uint64_t end) {
    BlockEncoder encoder(layout, call, source, out);
    for (uint64_t block = begin; block < end; ++block) {
      if (!encoder.encode(block)) return finite.store(false, std::memory_order_relaxed);
    }
  };
  for_slices(call.work.pool, layout.blocks(), layout.blocks_of(kShare), encode);
  if (!finite.load(std::memory_order_relaxed)) return {0, false};
  return {layout.payload_bytes(), true};
}

Errc BlockTopK::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  const BlockLayout layout(p, unit.count);
  if (payload.size() != layout.payload_bytes()) return Errc::payload_malformed;
  for (uint64_t block = 0; block < layout.blocks(); ++block) {
    if (const Errc errc = layout.check(payload, layout.record(block)); errc != Errc::ok)
      return errc;
  }
  return Errc::ok;
}

void BlockTopK::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const uint64_t n = call.unit.count;
  const Isa isa = call.work.isa;
  const BlockLayout layout(*call.params, n);
  const auto decode = [&](uint64_t begin, uint64_t end) {
    if (!target.add) {
      const uint64_t first = layout.record(begin).begin;
      const BlockRecord last = layout.record(end - 1);
      clear_range(target.values, first, last.begin + last.length,
                  n * sizeof(float) >= kStreamingBytes, isa);
    }
    alignas(64) std::array<float, kMostKept> value;
    for (const Term& term : terms) {
      const auto add = [&](const BlockRecord& r, const uint32_t* index) {
        layout.read_values(term.payload, r, isa, value.data());
        kernels::scatter_add(target.values + r.begin, index,
                             reinterpret_cast<const uint8_t*>(value.data()), r.kept, term.weight);
      };
      for_records(layout, term.payload, begin, end, isa, add);
    }
  };
  for_slices(call.work.pool, layout.blocks(), layout.blocks_of(kScatterRange), decode);
}

void BlockTopK::erase(const Call<Params>& call, Bytes payload, float* values) {
  const BlockLayout layout(*call.params, call.unit.count);
  const auto erase = [&](uint64_t begin, uint64_t end) {
    const auto clear = [&](const BlockRecord& r, const uint32_t* index) {
      for (uint32_t j = 0; j < r.kept; ++j) values[r.begin + index[j]] = 0.0F;
    };
    for_records(layout, payload, begin, end, call.work.isa, clear);
  };
  for_slices(call.work.pool, layout.blocks(), layout.blocks_of(kScatterRange), erase);
}

}  // namespace laconic::codecs
