// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/signsgd/signsgd.h"
#include "kernels/bits/bits_device.h"

namespace laconic::codecs {
namespace {

device::Layout lay_out(const void*, const Unit&) { return {kernels::kSignTile}; }

void encode_units(const void*, const device::EncodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SignEncode>(batch.tiles, {batch});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{limit});
}

void check_payloads(const void*, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SignCheck>(batch.tiles, {batch});
}

void decode_units(const void*, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SignDecode>(batch.tiles, {batch});
}

void vote(const void*, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SignVotes>(batch.tiles, {batch});
}

}  // namespace

constinit const device::Codec SignSgd::twin{&lay_out,        &encode_units, &decide,
                                            &check_payloads, &decode_units, &vote};

}  // namespace laconic::codecs
