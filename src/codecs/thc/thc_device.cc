// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/rotate/thc_device.h"

#include "codecs/thc/thc.h"

namespace laconic::codecs {
namespace {

kernels::ThcFormat format(const void* params) {
  const Thc::Params& p = *static_cast<const Thc::Params*>(params);
  const uint32_t levels = 8U + p.block;
  return {kernels::make_grid(p.bits, p.values.data()), levels,
          kernels::rotation_scale(1U << levels), p.scale == Thc::Scale::last};
}

device::Layout lay_out(const void*, const Unit&) { return {kernels::kThcTile}; }

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  const kernels::ThcFormat f = format(params);
  if (batch.round == 0 || (batch.begins && batch.residual))
    queue.launch<kernels::ThcMeasure>(batch.tiles, {batch, f, false});
  if (batch.round == 0) {
    if (batch.residual) queue.launch<kernels::ThcMeasure>(batch.tiles, {batch, f, true});
    return;
  }
  queue.launch<kernels::ThcEncode>(batch.tiles, {batch, f});
  if (batch.lane_bytes != 0) queue.launch<kernels::ThcLanes>(batch.tiles, {batch, f});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return kernels::thc_verdict(measured, residual, limit);
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  const kernels::ThcFormat f = format(params);
  queue.launch<kernels::ThcCheck>(batch.tiles, {batch, f.levels, f.grid.bits});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::ThcDecode>(batch.tiles, {batch, format(params)});
}

}  // namespace

constinit const device::Codec Thc::twin{&lay_out,        &encode_units, &decide,
                                        &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
