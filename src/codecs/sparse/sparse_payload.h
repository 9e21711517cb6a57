// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The set of (index, value) pairs that the sparse codecs send: `count` strictly increasing indices
// below n, each in the fewest bits that hold n - 1, packed without gaps from the least significant
// bit, zero bits up to the next byte; then `count` floats, or bfloat16s where a codec rounds them.
// A fixed width keeps the size a function of the count and lets a decoder enter anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/slices.h"
#include "codecs/sparse/index_packer.h"
#include "kernels/sparse/scatter.h"
#include "kernels/sparse/sparse_elements.h"
#include "laconic/codec.h"

namespace laconic::codecs {

using kernels::index_bytes;
using kernels::index_width;
using kernels::kept_of;
using kernels::kMaxSparseCount;
using kernels::sparse_bytes;

/// A set inside a payload, checked to have its exact size.
struct SparseView {
  kernels::PackedIndices index;
  const uint8_t* values = nullptr;
  uint64_t count = 0;
  DType type = DType::f32;
};
/// `set` holds at least sparse_bytes(count, n, values) bytes. `values`: f32 or bf16, below as well.
[[nodiscard]] SparseView sparse_view(Bytes set, uint64_t count, uint64_t n,
                                     DType values = DType::f32) noexcept;

/// Writes a set of known count piece by piece, in ascending order of indices. Values are rounded as
/// they are written; beyond the largest bfloat16 they become infinite.
class SparseWriter {
 public:
  /// `out` holds sparse_bytes(count, n, values).
  SparseWriter(uint8_t* out, uint64_t count, uint64_t n, DType values = DType::f32) noexcept
      : indices_(out, index_width(n)), values_(out + index_bytes(count, n)), type_(values) {}
  void append(const uint32_t* index, const float* value, uint64_t m) noexcept;
  /// A writer of its own for the entries from `first` on, a multiple of 8, where bytes begin:
  /// threads write parts of a set, each to a multiple of 8 or to the end.
  [[nodiscard]] SparseWriter part(uint64_t first) const noexcept {
    SparseWriter from = *this;
    from.indices_.skip(first);
    from.values_ += first * dtype_size(type_);
    return from;
  }
  /// Writes the last bits: once, when all are appended.
  void finish() noexcept { indices_.finish(); }

 private:
  IndexPacker indices_;
  uint8_t* values_;
  DType type_;
};

/// `count` packed indices strictly increase and are below n; the bits after them are zero.
[[nodiscard]] bool indices_valid(const kernels::PackedIndices& packed, uint64_t count,
                                 uint64_t n) noexcept;

/// Indices strictly increasing and below n, padding zero, values finite (a NaN from one peer would
/// poison every rank's sum).
[[nodiscard]] Errc check_sparse(const SparseView& set, uint64_t n) noexcept;

/// No value of the set is NaN or infinite.
[[nodiscard]] bool values_finite(const SparseView& set) noexcept;

/// Adds weight · values of the set at its indices within [begin, end).
void add_range(const SparseView& set, float weight, uint64_t begin, uint64_t end, Isa isa,
               float* target) noexcept;

/// Elements of a target that one task clears and adds to, so that they stay in the second-level
/// cache from the first peer to the last.
inline constexpr uint64_t kScatterRange = uint64_t{1} << 18;
/// Targets from this size on are cleared past the caches.
inline constexpr uint64_t kStreamingBytes = uint64_t{32} << 20;

void clear_range(float* x, uint64_t begin, uint64_t end, bool streaming, Isa isa) noexcept;

/// Target (codec.h) of many sets. `view_of(payload)` gives a term's set. A term adds nothing where
/// it has no value, which can change no bit except the sign of a zero.
template <class ViewOf>
void decode_sparse(std::span<const Term> terms, uint64_t n, const Work& work, Target target,
                   ViewOf&& view_of) {
  const bool whole =
      target.add && (work.pool == nullptr || n <= kScatterRange) && terms.size() == 1;
  const uint64_t range = whole ? std::max<uint64_t>(n, 1) : kScatterRange;
  for_slices(work.pool, n, range, [&](uint64_t begin, uint64_t end) {
    if (!target.add) {
      clear_range(target.values, begin, end, n * sizeof(float) >= kStreamingBytes, work.isa);
    }
    for (const Term& term : terms) {
      add_range(view_of(term.payload), term.weight, begin, end, work.isa, target.values);
    }
  });
}

}  // namespace laconic::codecs
