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

Encoded Natural::encode(const Params&, std::span<const float>, const Unit& unit, const Place& place,
                        uint32_t, Source source, Work& work, MutBytes out) {
  const auto& kernels = kernels::natural_kernels(work.isa);
  const RandomKey key = own_key(place.seed, place.step, unit.parameter, place.rank, place.hop);
  std::atomic<bool> finite{true};
  for_slices(work.pool, unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    if (!kernels.encode(source.values + begin, end - begin, out.data() + begin, key,
                        unit.offset + begin)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return {unit.count, finite.load(std::memory_order_relaxed)};
}

Errc Natural::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count);
}

void Natural::decode(const Params&, const Unit& unit, const Place&, std::span<const Term> terms,
                     Work& work, Target target) {
  const auto& kernels = kernels::natural_kernels(work.isa);
  decode_dense(terms, target, unit.count, kDenseChunk, work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin,
                   uint64_t end) { kernels.decode(out, output, operands, count, begin, end); });
}

}  // namespace laconic::codecs
