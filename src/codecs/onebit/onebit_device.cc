// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/onebit/onebit.h"
#include "kernels/bits/means_device.h"

namespace laconic::codecs {
namespace {

kernels::MeansFormat format(const void* params) {
  return OneBit::format(*static_cast<const OneBit::Params*>(params));
}

device::Layout lay_out(const void*, const Unit& unit) {
  return {kernels::kBitsChunk, kernels::means_scratch(unit.count)};
}

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansPack>(batch.tiles, {batch, format(params)});
  queue.launch<kernels::MeansTotal>(batch.units, {batch, format(params)});
  if (batch.residual) queue.launch<kernels::MeansRest>(batch.tiles, {batch, format(params)});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return kernels::means_verdict(measured, residual, limit);
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansCheck>(batch.units, {batch, format(params)});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansDecode>(batch.tiles, {batch, format(params)});
}

}  // namespace

constinit const device::Codec OneBit::twin{&lay_out,        &encode_units, &decide,
                                           &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
