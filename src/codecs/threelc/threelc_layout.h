// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The layout of a 3lc payload, shared by its encoder, checker and decoder.
// docs/format/codecs/3lc.md.
#pragma once

#include <algorithm>

#include "kernels/threelc/threelc.h"
#include "laconic/bytes.h"

namespace laconic::codecs::threelc {

using kernels::kDigits;

/// Columns of one task, and of one chunk: 8 KiB of digit bytes stay in the first-level cache
/// between packing and run coding.
inline constexpr uint64_t kTaskColumns = 8192;
inline constexpr uint64_t kChunkElements = kDigits * kTaskColumns;

inline constexpr uint64_t kScaleBytes = 4;   ///< M, float32
inline constexpr uint64_t kLengthBytes = 2;  ///< coded bytes of a chunk, uint16

/// A tensor of `count` elements as five rows of `columns`.
struct Rows {
  uint64_t count = 0;
  uint64_t columns = 0;
  uint64_t complete = 0;  ///< columns that hold five elements: all but the last four at most
};

[[nodiscard]] constexpr Rows rows_of(uint64_t count) noexcept {
  const uint64_t columns = ceil_div(count, kDigits);
  const uint64_t before_last_row = (kDigits - 1) * columns;
  return {count, columns, count > before_last_row ? count - before_last_row : 0};
}

[[nodiscard]] constexpr uint64_t task_count(uint64_t columns) noexcept {
  return ceil_div(columns, kTaskColumns);
}

/// A unit cut into chunks. The payload begins with every chunk's M, then comes every coded length.
struct Chunks {
  uint64_t elements = 0;
  uint64_t count = 0;

  [[nodiscard]] uint64_t first(uint64_t chunk) const noexcept { return chunk * kChunkElements; }
  [[nodiscard]] Rows rows(uint64_t chunk) const noexcept {
    return rows_of(std::min(kChunkElements, elements - first(chunk)));
  }
  [[nodiscard]] uint64_t scale_at(uint64_t chunk) const noexcept { return chunk * kScaleBytes; }
  [[nodiscard]] uint64_t length_at(uint64_t chunk) const noexcept {
    return count * kScaleBytes + chunk * kLengthBytes;
  }
  [[nodiscard]] uint64_t header_bytes() const noexcept { return length_at(count); }
};

[[nodiscard]] inline Chunks chunks_of(uint64_t elements) noexcept {
  return {elements, ceil_div(elements, kChunkElements)};
}

}  // namespace laconic::codecs::threelc
