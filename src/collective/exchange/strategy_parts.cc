// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/strategy_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cast/cast.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kChunk = 4096;

/// body(first, floats, count) for chunks of an array of any type, wherever it is. False: it could
/// not be read.
template <class Body>
bool over_floats(Isa isa, DType dtype, const uint8_t* values, uint64_t n, const Reading& read,
                 Body&& body) {
  std::array<float, kChunk> floats;
  std::array<uint8_t, kChunk * sizeof(float)> bytes;
  const uint64_t size = dtype_size(dtype);
  for (uint64_t first = 0; first < n; first += kChunk) {
    const uint64_t count = std::min(kChunk, n - first);
    const uint8_t* at = values + first * size;
    if (read) {
      if (!read(bytes.data(), at, count * size)) return false;
      at = bytes.data();
    }
    if (dtype == DType::f32)
      std::memcpy(floats.data(), at, count * size);
    else
      kernels::widen(kernels::cast_kernels(isa), dtype, floats.data(), at, count);
    body(first, floats.data(), count);
  }
  return true;
}

/// UnitCodec::keep for a gradient that has to be converted or fetched.
bool keep_read(const pipeline::UnitCodec& codec, const pipeline::UnitSlot& slot, DType dtype,
               const uint8_t* gradient, const Reading& read) {
  if (slot.memory.values == nullptr) return true;
  bool finite = true;
  const uint64_t n = slot.unit.count;
  const auto look = [&](uint64_t first, const float* g, uint64_t count) {
    const auto at = slot.memory.from(first);
    finite = finite && std::isfinite(feedback::largest_kept(codec.kernels(), at, g, count));
  };
  if (!over_floats(codec.isa(), dtype, gradient, n, read, look)) return false;
  if (!finite) return true;
  const auto keep = [&](uint64_t first, const float* g, uint64_t count) {
    feedback::keep(codec.kernels(), slot.memory.from(first), g, count);
  };
  return over_floats(codec.isa(), dtype, gradient, n, read, keep);
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

bool keep_gradient(const RankState& state, uint32_t parameter, const uint8_t* gradient, DType dtype,
                   const Reading& read) {
  const RankParameter& p = state.parameter(parameter);
  bool kept = true;
  for (const RankPiece& piece : p.pieces) {
    const uint64_t inside = piece.send.unit.offset - p.first;
    const uint8_t* const at = gradient + inside * dtype_size(dtype);
    kept = keep_read(*p.codec, piece.send, dtype, at, read) && kept;
  }
  return keep_read(*p.codec, p.fixed, dtype, gradient, read) && kept;
}

void keep_gradients(const RankState& state, const LayoutView& layout, const void* buffer,
                    DType dtype) {
  const auto* bytes = static_cast<const uint8_t*>(buffer);
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const uint8_t* at = bytes + layout.offsets[i] * dtype_size(dtype);
    if (dtype == DType::f32)
      keep_gradient(state, layout.parameters[i], reinterpret_cast<const float*>(at));
    else
      (void)keep_gradient(state, layout.parameters[i], at, dtype);
  }
}

}  // namespace laconic::collective
