// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/share.h"

#include <algorithm>
#include <cmath>

namespace laconic::collective {
namespace {

float part_of(uint32_t parts) { return 1.0F / static_cast<float>(parts); }

float rounded_to(DType dtype, float x) {
  if (dtype == DType::f16) return f16_to_float(float_to_f16(x));
  if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(x));
  return x;
}

/// An owner's residual belongs to the mean: it counts `world` times among the ranks' own. One that
/// would overflow stays where it is.
void take_owned_residual(const RankPiece& piece, float world) {
  if (piece.mean.memory.values == nullptr) return;
  const uint64_t count = piece.mean.unit.count;
  const auto sum = [&](uint64_t k) {
    return piece.send.memory.values[k] + world * piece.mean.memory.values[k];
  };
  for (uint64_t k = 0; k < count; ++k) {
    if (!std::isfinite(sum(k))) return;
  }
  for (uint64_t k = 0; k < count; ++k) piece.send.memory.values[k] = sum(k);
  std::fill_n(piece.mean.memory.values, count, 0.0F);
}

}  // namespace

bool add_share(const RankState& state, const RankParameter& parameter, uint32_t parts,
               const float* gradient, float* out) {
  const pipeline::UnitCodec& codec = *parameter.codec;
  const kernels::Scan scan = pipeline::scan(codec, out, parameter.count);
  if (!(scan.any_nonzero || codec.joint(parameter.memory)) || !scan.all_finite) return false;
  for (const RankPiece& piece : parameter.pieces)
    take_owned_residual(piece, static_cast<float>(state.world()));
  codec.kernels().axpy(out, part_of(parts), parameter.memory.values, parameter.count);
  if (pipeline::scan(codec, out, parameter.count).all_finite) return true;
  std::copy_n(gradient, parameter.count, out);
  return false;
}

void drop_share(const RankParameter& parameter, uint32_t parts, DType travelled,
                const float* gradient) {
  const float part = part_of(parts);
  float* const residual = parameter.memory.values;
  for (uint64_t k = 0; k < parameter.count; ++k) {
    const float share = part * residual[k];
    const float out = gradient[k] + share;
    const float rest = residual[k] - share;
    residual[k] = travelled == DType::f32 ? rest : rest + (out - rounded_to(travelled, out));
  }
  // Everything goes out, and momentum is 0 where something was sent.
  if (parameter.memory.momentum != nullptr)
    std::fill_n(parameter.memory.momentum, parameter.count, 0.0F);
}

}  // namespace laconic::collective
