// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/@NAME@/@NAME@.h"
#include "device/codec.h"
#include "kernels/@NAME@/@NAME@_device.h"
#include "kernels/core/measure_device.h"

namespace laconic::codecs {
namespace {

uint32_t block_of(const void* params) { return static_cast<const @TYPE@::Params*>(params)->block; }

device::Layout lay_out(const void* params, const Unit&) { return {block_of(params)}; }

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::Measure>(batch.tiles, {batch, block_of(params)});
  queue.launch<kernels::@TYPE@Encode>(batch.tiles, {batch, block_of(params)});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{limit});
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::@TYPE@Check>(batch.tiles, {batch, block_of(params)});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::@TYPE@Decode>(batch.tiles, {batch, block_of(params)});
}

}  // namespace

constinit const device::Codec @TYPE@::twin{&lay_out,        &encode_units, &decide,
                                           &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
