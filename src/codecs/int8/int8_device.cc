// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/int8/int8_device.h"

#include "codecs/int8/int8.h"
#include "device/codec.h"
#include "kernels/core/measure_device.h"

namespace laconic::codecs {
namespace {

const Int8::Params& as(const void* params) { return *static_cast<const Int8::Params*>(params); }

device::Layout lay_out(const void* params, const Unit&) {
  return {kernels::int8_tile(as(params).block)};
}

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  const Int8::Params& p = as(params);
  if (batch.residual)
    queue.launch<kernels::Measure>(batch.tiles, {batch, kernels::int8_tile(p.block)});
  queue.launch<kernels::Int8Encode>(
      batch.tiles, {batch, p.block, p.round == Int8::Round::stochastic, !batch.residual});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{limit});
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::Int8Check>(
      batch.tiles, {batch, as(params).block, float_bits(kernels::kInt8LargestScale)});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::Int8Decode>(batch.tiles, {batch, as(params).block});
}

}  // namespace

constinit const device::Codec Int8::twin{&lay_out,        &encode_units, &decide,
                                         &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
