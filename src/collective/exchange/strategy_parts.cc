// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/strategy_parts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cast/cast.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kChunk = 1024;

/// body(first, floats, count) for chunks of a 16-bit array.
template <class Body>
void over_floats(Isa isa, DType dtype, const uint8_t* halves, uint64_t n, Body&& body) {
  std::array<float, kChunk> floats;
  for (uint64_t first = 0; first < n; first += kChunk) {
    const uint64_t count = std::min(kChunk, n - first);
    kernels::widen(kernels::cast_kernels(isa), dtype, floats.data(), halves + 2 * first, count);
    body(first, floats.data(), count);
  }
}

/// UnitCodec::keep for a 16-bit gradient.
void keep_half(const pipeline::UnitCodec& codec, const pipeline::UnitSlot& slot, DType dtype,
               const uint8_t* gradient) {
  if (slot.memory.values == nullptr) return;
  bool finite = true;
  const uint64_t n = slot.unit.count;
  over_floats(codec.isa(), dtype, gradient, n, [&](uint64_t first, const float* g, uint64_t count) {
    const auto at = slot.memory.from(first);
    finite = finite && std::isfinite(feedback::largest_kept(codec.kernels(), at, g, count));
  });
  if (!finite) return;
  over_floats(codec.isa(), dtype, gradient, n, [&](uint64_t first, const float* g, uint64_t count) {
    feedback::keep(codec.kernels(), slot.memory.from(first), g, count);
  });
}

}  // namespace

void widen(const RankState& state, const Input& input, uint64_t elements) noexcept {
  if (input.dtype == DType::f32 || elements == 0) return;
  const auto& casts = kernels::cast_kernels(state.isa());
  kernels::widen(casts, input.dtype, input.gradient, input.buffer, elements);
}

void narrow(const RankState& state, const Input& input, uint64_t elements) noexcept {
  if (input.dtype == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state.isa());
  kernels::narrow(casts, input.dtype, input.buffer, input.gradient, elements);
}

void keep_gradients(const RankState& state, const LayoutView& layout, const void* buffer,
                    DType dtype) {
  const auto* bytes = static_cast<const uint8_t*>(buffer);
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const uint8_t* at = bytes + layout.offsets[i] * dtype_size(dtype);
    if (dtype == DType::f32) {
      keep_gradient(state, layout.parameters[i], reinterpret_cast<const float*>(at));
      continue;
    }
    const RankParameter& p = state.parameter(layout.parameters[i]);
    for (const RankPiece& piece : p.pieces)
      keep_half(*p.codec, piece.send, dtype, at + 2 * (piece.send.unit.offset - p.first));
    keep_half(*p.codec, p.fixed, dtype, at);
  }
}

}  // namespace laconic::collective
