// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast_device.h"

#include "codecs/cast/cast.h"
#include "device/codec.h"
#include "kernels/core/measure_device.h"

namespace laconic::codecs {
namespace {

device::Layout lay_out(const void*, const Unit&) { return {kernels::kCastTile}; }

kernels::CastFormat format(const Fp16::Params& params) { return {true, params.saturate}; }
kernels::CastFormat format(const Bf16::Params&) { return {false, false}; }

template <class C>
void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  if (batch.residual) queue.launch<kernels::Measure>(batch.tiles, {batch, kernels::kCastTile});
  queue.launch<kernels::CastEncode>(
      batch.tiles,
      {batch, format(*static_cast<const typename C::Params*>(params)), !batch.residual});
}

/// Without a residual NaN and infinity travel as what they are.
device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{residual ? limit : UINT32_MAX});
}

void check_payloads(const void*, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::CastCheck>(batch.tiles, {batch});
}

template <class C>
void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  const bool half = format(*static_cast<const typename C::Params*>(params)).half;
  queue.launch<kernels::CastDecode>(batch.tiles, {batch, half});
}

}  // namespace

constinit const device::Codec Fp16::twin{&lay_out,        &encode_units<Fp16>, &decide,
                                         &check_payloads, &decode_units<Fp16>, nullptr};
constinit const device::Codec Bf16::twin{&lay_out,        &encode_units<Bf16>, &decide,
                                         &check_payloads, &decode_units<Bf16>, nullptr};

}  // namespace laconic::codecs
