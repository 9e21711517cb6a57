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

/// body(piece) of those whose mean this rank owns, and has a residual of.
template <class Body>
void over_owned(const RankParameter& parameter, Body&& body) {
  for (const RankPiece& piece : parameter.pieces) {
    if (piece.mean.memory.values != nullptr) body(piece);
  }
}

/// One that would overflow stays where it is.
void take_owned_residual(const RankPiece& piece, float world) {
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

/// A residual of `count` elements that counts `weight` times.
void drop(float* residual, uint64_t count, float weight, uint32_t parts, DType travelled,
          const float* gradient) {
  const float part = part_of(parts);
  for (uint64_t k = 0; k < count; ++k) {
    const float out = gradient[k] + weight * part * residual[k];
    const float rest = residual[k] - part * residual[k];
    residual[k] =
        travelled == DType::f32 ? rest : rest + (out - rounded_to(travelled, out)) / weight;
  }
}

}  // namespace

bool has_residual(const RankParameter& parameter) noexcept {
  return parameter.memory.residual() != nullptr ||
         std::ranges::any_of(parameter.pieces, [](const RankPiece& piece) {
           return piece.mean.memory.values != nullptr;
         });
}

bool add_share(const RankState& state, const RankParameter& parameter, uint32_t parts,
               const float* gradient, float* out) {
  const pipeline::UnitCodec& codec = *parameter.codec;
  const kernels::Scan scan = pipeline::scan(codec, out, parameter.count);
  if (!(scan.any_nonzero || codec.joint(parameter.memory)) || !scan.all_finite) return false;
  const auto world = static_cast<float>(state.world());
  if (const float* residual = parameter.memory.residual(); residual != nullptr) {
    over_owned(parameter, [&](const RankPiece& piece) { take_owned_residual(piece, world); });
    codec.kernels().axpy(out, part_of(parts), residual, parameter.count);
  } else {
    over_owned(parameter, [&](const RankPiece& piece) {
      codec.kernels().axpy(out + (piece.mean.unit.offset - parameter.first), world * part_of(parts),
                           piece.mean.memory.values, piece.mean.unit.count);
    });
  }
  if (pipeline::scan(codec, out, parameter.count).all_finite) return true;
  std::copy_n(gradient, parameter.count, out);
  return false;
}

void drop_share(const RankState& state, const RankParameter& parameter, uint32_t parts,
                DType travelled, const float* gradient) {
  if (float* residual = parameter.memory.residual(); residual != nullptr) {
    drop(residual, parameter.count, 1.0F, parts, travelled, gradient);
  } else {
    const auto world = static_cast<float>(state.world());
    over_owned(parameter, [&](const RankPiece& piece) {
      drop(piece.mean.memory.values, piece.mean.unit.count, world, parts, travelled,
           gradient + (piece.mean.unit.offset - parameter.first));
    });
  }
  // Everything goes out, and momentum is 0 where something was sent.
  if (parameter.memory.momentum != nullptr)
    std::fill_n(parameter.memory.momentum, parameter.count, 0.0F);
}

}  // namespace laconic::collective
