// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sidco/sidco_device.h"

#include "codecs/sidco/sidco.h"
#include "codecs/sidco/sidco_fit.h"
#include "device/codec.h"

namespace laconic::codecs {
namespace {

const Sidco::Params& as(const void* params) { return *static_cast<const Sidco::Params*>(params); }

kernels::SidcoFormat format(const void* params) {
  const Sidco::Params& p = as(params);
  kernels::SidcoFormat f;
  f.sparse = {p.ratio, Sidco::kHeader, Sidco::kSpare, DType::f32};
  f.law = static_cast<sidco::Law>(p.law);
  f.mode = static_cast<sidco::Mode>(p.mode);
  f.adapts = Sidco::adapts(p);
  f.stages = p.stages != 0 ? p.stages : f.adapts ? 0 : sidco::fixed_stages(p.ratio);
  f.most_stages = f.stages != 0 ? f.stages : sidco::max_stages(p.ratio);
  f.guard = p.guard;
  return f;
}

device::Layout lay_out(const void* params, const Unit& unit) {
  return {kernels::kSparseTile, kernels::sidco_scratch_bytes(format(params), unit.count), 0,
          kernels::sparse_decode_scratch(unit.count)};
}

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  const kernels::SidcoFormat f = format(params);
  const uint64_t shares = ceil_div(batch.tiles, kernels::kTilesAtOnce);
  queue.launch<kernels::SidcoBegin>(batch.units, {batch, f});
  if (f.keeps_threshold())
    queue.launch<kernels::SelectCollect>(batch.tiles, {batch, f.sparse, false, false});
  for (uint32_t stage = 0; stage < f.most_stages; ++stage) {
    queue.launch<kernels::SidcoMoments>(shares, {batch, f, stage});
    queue.launch<kernels::SidcoFit>(batch.units, {batch, f, stage});
  }
  queue.launch<kernels::SelectCollect>(batch.tiles, {batch, f.sparse, false, true});
  queue.launch<kernels::SidcoChoose>(batch.units, {batch, f});
  queue.launch<kernels::SelectPut>(batch.tiles, {batch, f.sparse});
  queue.launch<kernels::SelectFinish>(batch.tiles, {batch, f.sparse});
}

device::Verdict decide(const void*, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, device::UpTo{limit});
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  queue.launch<kernels::SparseCheck>(batch.tiles, {batch, format(params).sparse});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  const kernels::SparseFormat f = format(params).sparse;
  queue.launch<kernels::SparseStarts>(batch.tiles, {batch, f});
  queue.launch<kernels::SparseDecode>(batch.tiles, {batch, f});
}

void commit_units(const void* params, const device::CommitBatch& batch, device::Queue& queue) {
  const kernels::SidcoFormat f = format(params);
  if (f.state_floats() != 0) queue.launch<kernels::SidcoCommit>(batch.units, {batch, f});
}

}  // namespace

constinit const device::Codec Sidco::twin{
    &lay_out, &encode_units, &decide, &check_payloads, &decode_units, nullptr, &commit_units};

}  // namespace laconic::codecs
