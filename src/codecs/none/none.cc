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

Encoded None::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t bytes = call.unit.count * sizeof(float);
  if (call.place.prescale == 1.0F) {
    copy(call.work.pool, out.data(), source.values, bytes);
    return {bytes, true};
  }
  const auto& kernels = kernels::basic_kernels(call.work.isa);
  for_slices(call.work.pool, call.unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels.mul(out.data() + begin * sizeof(float), call.place.prescale, source.values + begin,
                end - begin);
  });
  return {bytes, true};
}

Errc None::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count * sizeof(float));
}

void None::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (terms.size() == 1 && terms[0].weight == 1.0F && !target.add) {
    copy(call.work.pool, target.values, terms[0].payload.data(), call.unit.count * sizeof(float));
    return;
  }
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               kernels::basic_kernels(call.work.isa).weighted_sum);
}

}  // namespace laconic::codecs
