// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/threelc/threelc_device.h"

#include "codecs/threelc/threelc.h"
#include "codecs/threelc/threelc_layout.h"
#include "kernels/core/measure_device.h"

namespace laconic::codecs {
namespace {

static_assert(threelc::kChunkElements == kernels::kChunkTiles * kernels::kTileElements);

const ThreeLc::Params& as(const void* params) {
  return *static_cast<const ThreeLc::Params*>(params);
}

kernels::ThreeLcFormat format(const void* params) {
  const ThreeLc::Params& p = as(params);
  return {p.s, p.scale == ThreeLc::Scale::chunk, p.zre, p.pad_one};
}

device::Layout lay_out(const void*, const Unit& unit) {
  const uint64_t tiles = kernels::threelc_tiles(unit.count);
  return {kernels::kTileElements, kernels::ThreeLcScratch::bytes(tiles),
          (1 + tiles) * sizeof(uint64_t), device::kTerms * tiles * sizeof(uint64_t)};
}

void encode_units(const void* params, const device::EncodeBatch& batch, device::Queue& queue) {
  const kernels::ThreeLcFormat f = format(params);
  queue.launch<kernels::Measure>(batch.tiles, {batch, kernels::kTileElements, f.chunks});
  queue.launch<kernels::ThreeLcPack>(batch.tiles, {batch, f});
  if (!f.zre) return;
  queue.launch<kernels::ThreeLcJoin>(batch.units, {batch, f});
  queue.launch<kernels::ThreeLcPut>(batch.tiles, {batch, f});
}

device::Verdict decide(const void* params, const device::Measured& measured, bool residual,
                       uint32_t limit) {
  return device::verdict_of(measured, residual, limit, kernels::ThreeLcFits{as(params).s});
}

void check_payloads(const void* params, const device::CheckBatch& batch, device::Queue& queue) {
  const kernels::ThreeLcFormat f = format(params);
  queue.launch<kernels::ThreeLcOutline>(batch.units, {batch, f});
  queue.launch<kernels::ThreeLcCheck>(batch.tiles, {batch, f});
  if (!f.chunks) queue.launch<kernels::ThreeLcTotal>(batch.units, {batch, f});
}

void decode_units(const void* params, const device::DecodeBatch& batch, device::Queue& queue) {
  const kernels::ThreeLcFormat f = format(params);
  if (f.zre && !f.chunks) queue.launch<kernels::ThreeLcSizes>(batch.tiles, {batch, f});
  if (f.zre) queue.launch<kernels::ThreeLcStarts>(batch.units, {batch, f});
  queue.launch<kernels::ThreeLcDecode>(batch.tiles, {batch, f});
}

}  // namespace

constinit const device::Codec ThreeLc::twin{&lay_out,        &encode_units, &decide,
                                            &check_payloads, &decode_units, nullptr};

}  // namespace laconic::codecs
