// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/none/none.h"

#include <cstring>

#include "codecs/dense/dense_decode.h"
#include "kernels/core/basic.h"

namespace laconic::codecs {
namespace {

/// memcpy over the pool, in shares of 4 MiB: libc knows best when to write past the caches.
void copy(ThreadPool* pool, void* out, const void* in, uint64_t bytes) {
  if (pool == nullptr || pool->threads() == 1) {
    if (bytes > 0) std::memcpy(out, in, bytes);
    return;
  }
  for_slices(pool, bytes, uint64_t{4} << 20, [&](uint64_t begin, uint64_t end) {
    std::memcpy(static_cast<char*>(out) + begin, static_cast<const char*>(in) + begin, end - begin);
  });
}

}  // namespace

Contract None::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::linear;
  c.checks_finite = true;  // NaN and infinity travel like any other value: nothing to refuse
  c.unbiased = true;
  c.lossless = true;
  c.contraction = 1.0F;
  return c;
}

Plan None::plan(const Params&, const Unit& unit, uint32_t) {
  return plan_lanes(DType::f32, unit.count);
}

Encoded None::encode(const Params&, std::span<const float>, const Unit& unit, const Place& place,
                     uint32_t, Source source, Work& work, MutBytes out) {
  const uint64_t bytes = unit.count * sizeof(float);
  if (place.prescale == 1.0F) {
    copy(work.pool, out.data(), source.values, bytes);
    return {bytes, true};
  }
  const auto& kernels = kernels::basic_kernels(work.isa);
  for_slices(work.pool, unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels.mul(out.data() + begin * sizeof(float), place.prescale, source.values + begin,
                end - begin);
  });
  return {bytes, true};
}

Errc None::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count * sizeof(float));
}

void None::decode(const Params&, const Unit& unit, const Place&, std::span<const Term> terms,
                  Work& work, Target target) {
  if (terms.size() == 1 && terms[0].weight == 1.0F && !target.add) {
    copy(work.pool, target.values, terms[0].payload.data(), unit.count * sizeof(float));
    return;
  }
  decode_dense(terms, target, unit.count, kDenseChunk, work.pool,
               kernels::basic_kernels(work.isa).weighted_sum);
}

}  // namespace laconic::codecs
