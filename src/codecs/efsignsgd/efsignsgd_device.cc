// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/efsignsgd/efsignsgd.h"
#include "kernels/bits/means_device.h"

namespace laconic::codecs {
namespace {

device::Layout lay_out(const void*, const Unit& unit) {
  return {kernels::kBitsChunk, kernels::means_scratch(unit.count)};
}

void encode_units(const void*, const device::EncodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansPack>(batch.tiles, {batch, EfSignSgd::kFormat});
  queue.launch<kernels::MeansTotal>(batch.units, {batch, EfSignSgd::kFormat});
  if (batch.residual) queue.launch<kernels::MeansRest>(batch.tiles, {batch, EfSignSgd::kFormat});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return kernels::means_verdict(measured, residual, limit);
}

void check_payloads(const void*, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansCheck>(batch.units, {batch, EfSignSgd::kFormat});
}

void decode_units(const void*, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::MeansDecode>(batch.tiles, {batch, EfSignSgd::kFormat});
}

}  // namespace

constinit const device::Codec EfSignSgd::twin{&lay_out,        &encode_units, &decide,
                                              &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
