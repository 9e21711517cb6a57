// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/cast/cast.h"

#include "codecs/dense/dense_decode.h"
#include "kernels/cast/cast.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kHalf = 2;  // bytes per element of the payload

constexpr float kLargestToF16 = 0x1.FFDFFEp15F;  // 65520 rounds to infinity
constexpr float kLargestBf16 = 0x1.FEp127F;      // leaves room for world · bf16(x / world), too

Contract cast_contract() {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::linear;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual);
  // NaN and infinity travel as what they are, so that a loss scaler sees them after the sum:
  // nothing to refuse.
  c.checks_finite = true;
  return c;
}

bool streams(const Unit& unit) { return unit.count * kHalf > kernels::kStreamBytes; }

template <class Narrow>
Encoded encode_cast(const Unit& unit, Source source, Work& work, MutBytes out, Narrow&& narrow) {
  for_slices(work.pool, unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    narrow(out.data() + begin * kHalf, source.values + begin, end - begin);
  });
  return {unit.count * kHalf, true};
}

}  // namespace

Contract Fp16::contract(const Params&) { return cast_contract(); }

Plan Fp16::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan = plan_lanes(DType::f16, unit.count);
  if (!params.saturate) plan.largest_input = kLargestToF16;
  return plan;
}

Encoded Fp16::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernels = kernels::cast_kernels(call.work.isa);
  const auto narrow = streams(call.unit) ? kernels.stream_f16 : kernels.narrow_f16;
  return encode_cast(call.unit, source, call.work, out,
                     [&](uint8_t* to, const float* from, uint64_t n) {
                       narrow(to, call.place.prescale, from, n, call.params->saturate);
                     });
}

Errc Fp16::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count * kHalf);
}

void Fp16::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               kernels::cast_kernels(call.work.isa).weighted_sum_f16);
}

Contract Bf16::contract(const Params&) { return cast_contract(); }

Plan Bf16::plan(const Params&, const Unit& unit, uint32_t) {
  Plan plan = plan_lanes(DType::bf16, unit.count);
  plan.largest_input = kLargestBf16;
  return plan;
}

Encoded Bf16::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernels = kernels::cast_kernels(call.work.isa);
  const auto narrow = streams(call.unit) ? kernels.stream_bf16 : kernels.narrow_bf16;
  return encode_cast(call.unit, source, call.work, out,
                     [&](uint8_t* to, const float* from, uint64_t n) {
                       narrow(to, call.place.prescale, from, n);
                     });
}

Errc Bf16::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  return check_length(payload, unit.count * kHalf);
}

void Bf16::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               kernels::cast_kernels(call.work.isa).weighted_sum_bf16);
}

}  // namespace laconic::codecs
