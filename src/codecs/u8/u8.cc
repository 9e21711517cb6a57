// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/u8/u8.h"

#include <atomic>

#include "codecs/dense/dense_decode.h"
#include "kernels/core/basic.h"
#include "kernels/int8/int8.h"
#include "kernels/levels/levels.h"
#include "kernels/levels/tree.h"

namespace laconic::codecs {
namespace {

static_assert(kDenseTerms <= kernels::kLevelTerms);

constexpr uint64_t kScaleBytes = sizeof(float);  // s, then a code per element

uint64_t payload_bytes(uint64_t count) { return count == 0 ? 0 : kScaleBytes + count; }

uint32_t max_bits(const float* x, uint64_t count, Work& work) {
  const auto& kernels = kernels::basic_kernels(work.isa);
  std::atomic<uint32_t> most{0};
  // Backward, so that coding, which starts at the beginning, finds it in the cache.
  for_slices(
      work.pool, count, kDenseChunk,
      [&](uint64_t begin, uint64_t end) {
        const uint32_t bits = float_bits(kernels.scan(x + begin, end - begin).max_abs);
        uint32_t seen = most.load(std::memory_order_relaxed);
        while (seen < bits && !most.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
        }
      },
      Pass::backward);
  return most.load(std::memory_order_relaxed);
}

// The value that each magnitude of a payload adds.
void fill_term(const kernels::Weighted& operand, kernels::TreeTerm& term) {
  const auto s = load<float>(static_cast<const uint8_t*>(operand.data));
  term.codes = static_cast<const uint8_t*>(operand.data) + kScaleBytes;
  for (uint32_t i = 0; i < kernels::kTreeValues; ++i) {
    const float value = s * kernels::kTreeValue[i];
    term.value[i] = operand.weight * value;
  }
}

}  // namespace

Contract U8::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.checks_finite = true;
  c.granule = 64;
  return c;
}

Plan U8::plan(const Params&, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(unit.count);
  return plan;
}

Encoded U8::encode(const Call<Params>& call, Source source, MutBytes out) {
  if (call.unit.count == 0) return {};
  const uint32_t bits = max_bits(source.values, call.unit.count, call.work);
  if (bits >= 0x7F800000U) return {0, false};
  const float most = bits_float(bits);
  const bool tiny = most < kernels::kTinyStep;
  store(out.data(), tiny ? 0.0F : most);
  uint8_t* const codes = out.data() + kScaleBytes;
  const float inverse = tiny ? 0.0F : 1.0F / most;
  const auto& kernels = kernels::levels_kernels(call.work.isa);
  for_slices(call.work.pool, call.unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels.tree_encode(source.values + begin, end - begin, inverse, codes + begin);
  });
  return {payload_bytes(call.unit.count), true};
}

Errc U8::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != payload_bytes(unit.count)) return Errc::payload_malformed;
  if (unit.count == 0) return Errc::ok;
  const bool bad =
      load<uint32_t>(payload.data()) >= 0x7F800000U ||  // not finite, or a sign
      kernels::int8_kernels(best_isa()).any_minus_128(payload.data() + kScaleBytes, unit.count);
  return bad ? Errc::payload_malformed : Errc::ok;
}

void U8::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (call.unit.count == 0) return;
  const auto& kernels = kernels::levels_kernels(call.work.isa);
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin, uint64_t end) {
                 std::array<kernels::TreeTerm, kDenseTerms> trees;
                 for (uint32_t t = 0; t < count; ++t) fill_term(operands[t], trees[t]);
                 kernels.tree_decode(out, output, trees.data(), count, begin, end);
               });
}

}  // namespace laconic::codecs
