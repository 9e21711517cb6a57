// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/sparse_payload.h"

#include <algorithm>

#include "codecs/sparse/packed_range.h"
#include "kernels/cast/cast.h"

namespace laconic::codecs {
namespace {

constexpr uint32_t kBlock = 512;  // indices unpacked per block, on the stack

bool strictly_increasing(const uint32_t* index, uint32_t m) {
  uint32_t bad = 0;
  for (uint32_t j = 1; j < m; ++j) bad |= index[j] <= index[j - 1] ? 1U : 0U;
  return bad == 0;
}

// `Word` holds a float's exponent in the bits of kExponent.
template <class Word, Word kExponent>
bool exponents_finite(const uint8_t* values, uint64_t count) {
  uint32_t bad = 0;
  for (uint64_t j = 0; j < count; ++j) {
    bad |= (load<Word>(values + sizeof(Word) * j) & kExponent) == kExponent ? 1U : 0U;
  }
  return bad == 0;
}

bool padding_is_zero(const kernels::PackedIndices& packed, uint64_t count) {
  const uint64_t bits = count * packed.width;
  return bits % 8 == 0 || (packed.bits[bits / 8] >> (bits % 8)) == 0;
}

}  // namespace

SparseView sparse_view(Bytes set, uint64_t count, uint64_t n, DType values) noexcept {
  return {
      {set.data(), set.size(), index_width(n)}, set.data() + index_bytes(count, n), count, values};
}

void SparseWriter::append(const uint32_t* index, const float* value, uint64_t m) noexcept {
  if (m == 0) return;
  if (type_ == DType::f32) {
    std::memcpy(values_, value, m * sizeof(float));
  } else {
    kernels::cast_kernels(best_isa()).narrow_bf16(values_, 1.0F, value, m);
  }
  values_ += m * dtype_size(type_);
  indices_.append(index, m);
}

bool indices_valid(const kernels::PackedIndices& packed, uint64_t count, uint64_t n) noexcept {
  if (count > n || !padding_is_zero(packed, count)) return false;
  const kernels::ScatterKernels& k = kernels::scatter_kernels(best_isa());
  std::array<uint32_t, kBlock + 1> index;
  for (uint64_t first = 0; first < count; first += kBlock) {
    const auto m = static_cast<uint32_t>(std::min<uint64_t>(kBlock, count - first));
    k.unpack(packed, first, m, index.data() + 1);
    const bool joined = first == 0 || index[0] < index[1];
    if (!joined || !strictly_increasing(index.data() + 1, m)) return false;
    index[0] = index[m];
  }
  return count == 0 || index[0] < n;
}

Errc check_sparse(const SparseView& set, uint64_t n) noexcept {
  const bool valid = indices_valid(set.index, set.count, n) && values_finite(set);
  return valid ? Errc::ok : Errc::payload_malformed;
}

bool values_finite(const SparseView& set) noexcept {
  return set.type == DType::f32
             ? exponents_finite<uint32_t, 0x7F800000U>(set.values, set.count)
             : exponents_finite<uint16_t, uint16_t{0x7F80U}>(set.values, set.count);
}

void add_range(const SparseView& set, float weight, uint64_t begin, uint64_t end, Isa isa,
               float* target) noexcept {
  const uint64_t first = begin == 0 ? 0 : first_not_below(set.index, 0, set.count, begin);
  const uint64_t last = first_not_below(set.index, first, set.count, end);
  const kernels::ScatterKernels& k = kernels::scatter_kernels(isa);
  alignas(64) std::array<uint32_t, kBlock> index;
  alignas(64) std::array<float, kBlock> wide;
  for (uint64_t at = first / 8 * 8; at < last; at += kBlock) {
    const auto m = static_cast<uint32_t>(std::min<uint64_t>(kBlock, last - at));
    const auto skip = static_cast<uint32_t>(first > at ? first - at : 0);
    k.unpack(set.index, at, m, index.data());
    const uint8_t* values = set.values + dtype_size(set.type) * at;
    if (set.type != DType::f32) {
      kernels::widen(kernels::cast_kernels(isa), set.type, wide.data(), values, m);
      values = reinterpret_cast<const uint8_t*>(wide.data());
    }
    kernels::scatter_add(target, index.data() + skip, values + sizeof(float) * skip, m - skip,
                         weight);
  }
}

void clear_range(float* x, uint64_t begin, uint64_t end, bool streaming, Isa isa) noexcept {
  if (streaming) {
    kernels::scatter_kernels(isa).clear_streaming(x + begin, end - begin);
  } else {
    std::fill(x + begin, x + end, 0.0F);
  }
}

}  // namespace laconic::codecs
