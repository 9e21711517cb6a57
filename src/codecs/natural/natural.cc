// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/natural/natural.h"

#include <atomic>

#include "codecs/dense/dense_decode.h"
#include "kernels/natural/natural.h"
#include "laconic/random.h"

namespace laconic::codecs {

Contract Natural::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.checks_finite = true;
  c.stochastic = true;
  // Unbiased from 2^-108 to 2^18 only: what lies beyond saturates or may vanish.
  c.unbiased = false;
  c.granule = 64;  // elements that share random blocks
  return c;
}

Plan Natural::plan(const Params&, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = unit.count;
  return plan;
}

Encoded Natural::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernels = kernels::natural_kernels(call.work.isa);
  const RandomKey key = own_key(call.place.seed, call.place.step, call.unit.parameter,
                                call.place.rank, call.place.hop);
  std::atomic<bool> finite{true};
  for_slices(call.work.pool, call.unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    if (!kernels.encode(source.values + begin, end - begin, out.data() + begin, key,
                        call.unit.offset + begin)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return {call.unit.count, finite.load(std::memory_order_relaxed)};
}

Errc Natural::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count);
}

void Natural::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const auto& kernels = kernels::natural_kernels(call.work.isa);
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin,
                   uint64_t end) { kernels.decode(out, output, operands, count, begin, end); });
}

}  // namespace laconic::codecs
