// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A unit's payload: a record for every block, one after another, each of whole bytes. A record has
// the packed indices of what is kept, in ascending order, then the values.
#pragma once

#include <array>
#include <cstdint>

#include "codecs/blocktopk/blocktopk.h"
#include "kernels/sparse/scatter.h"

namespace laconic::codecs {

/// A block of a unit, and its record in the payload.
struct BlockRecord {
  uint64_t begin = 0;   ///< first element
  uint32_t length = 0;  ///< elements
  uint32_t kept = 0;
  uint64_t at = 0;  ///< first byte
};

/// Where things are: a function of settings and count.
class BlockLayout {
 public:
  BlockLayout(const BlockTopK::Params& p, uint64_t count) noexcept;

  [[nodiscard]] uint64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] uint64_t payload_bytes() const noexcept;
  [[nodiscard]] BlockRecord record(uint64_t block) const noexcept;
  /// Blocks of `elements` elements, at least one.
  [[nodiscard]] uint64_t blocks_of(uint64_t elements) const noexcept { return elements >> width_; }

  /// Writes what is kept to the record at `out`.
  void write(const KeptOfBlock& kept, uint32_t count, uint8_t* out) const noexcept;
  /// Indices, or what the values of the record decode to.
  void read_indices(Bytes payload, const BlockRecord& r, Isa isa, uint32_t* index) const noexcept;
  void read_values(Bytes payload, const BlockRecord& r, Isa isa, float* value) const noexcept;
  /// Indices strictly increasing and below the block's length, values finite, padding zero.
  [[nodiscard]] Errc check(Bytes payload, const BlockRecord& r) const noexcept;

 private:
  [[nodiscard]] uint64_t block_size() const noexcept { return uint64_t{1} << width_; }
  [[nodiscard]] uint64_t record_bytes(uint32_t kept) const noexcept;

  uint64_t count_;
  uint64_t blocks_ = 0;
  uint64_t full_bytes_ = 0;  // of a whole block's record
  uint32_t width_;           // bits of an index
  uint32_t keep_;
  BlockTopK::Values values_;
};

}  // namespace laconic::codecs
