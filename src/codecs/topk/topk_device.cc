// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/topk/topk.h"
#include "device/codec.h"
#include "kernels/sparse/radix_device.h"

namespace laconic::codecs {
namespace {

kernels::SparseFormat format(const void* params) {
  const TopK::Params& p = *static_cast<const TopK::Params*>(params);
  return {p.ratio, 0, 0, p.values == TopK::Values::f32 ? DType::f32 : DType::bf16};
}

device::Layout lay_out(const void* params, const Unit& unit) {
  const uint64_t n = unit.count;
  const uint64_t k = kernels::most_pairs(format(params), n);
  return {kernels::kSparseTile, kernels::SelectScratch::bytes(n, k, kernels::radix_words(n, k)), 0,
          kernels::sparse_decode_scratch(n)};
}

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  kernels::encode_largest(queue, batch, format(params));
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{limit});
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SparseCheck>(batch.tiles, {batch, format(params)});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SparseStarts>(batch.tiles, {batch, format(params)});
  queue.launch<kernels::SparseDecode>(batch.tiles, {batch, format(params)});
}

}  // namespace

constinit const device::Codec TopK::twin{&lay_out,        &encode_units, &decide,
                                         &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
