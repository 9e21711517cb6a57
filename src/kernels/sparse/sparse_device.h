// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Payloads of sparse codecs on the device, checked and decoded: codecs/sparse/sparse_payload.h.
#pragma once

#include "device/batch.h"
#include "kernels/sparse/sparse_elements.h"

namespace laconic::kernels {

inline constexpr uint64_t kSparseTile = 8192;  ///< elements

/// Payloads of a codec: a header, the set of (index, value) pairs.
struct SparseFormat {
  double ratio = 1;  ///< of the elements, that are sent
  /// Bytes. If there are any, the first four of them hold the number of pairs.
  uint32_t header = 0;
  /// Then up to 1/spare more than the ratio says may be sent; 0: none.
  uint32_t spare = 0;
  DType values = DType::f32;  ///< or bf16
};

/// Most pairs that a payload of n elements has; without a header, all have this number.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t most_pairs(const SparseFormat& format,
                                                             uint64_t n) {
  const uint64_t kept = kept_of(format.ratio, n);
  const uint64_t most = kept + (format.spare == 0 ? 0 : ceil_div(kept, format.spare));
  return most < n ? most : n;
}

/// The set of one payload.
struct SparseSet {
  const uint8_t* payload = nullptr;
  uint64_t count = 0;
  uint64_t indices = 0;  ///< where they begin
  uint64_t values = 0;
  uint32_t width = 0;  ///< bits of an index
  DType type = DType::f32;

  template <class B>
  [[nodiscard]] LACONIC_DEVICE uint64_t index(B& b, uint64_t j) const {
    const uint64_t bit = j * width;
    const uint64_t first = indices + bit / 8;
    const auto skip = static_cast<uint32_t>(bit % 8);
    uint64_t window = 0;
    for (uint32_t at = 0; 8 * at < skip + width; ++at)
      window |= uint64_t{b.read(payload, first + at)} << (8 * at);
    return (window >> skip) & ((uint64_t{1} << width) - 1);
  }
  template <class B>
  [[nodiscard]] LACONIC_DEVICE float value(B& b, uint64_t j) const {
    if (type == DType::f32) return b.template load<float>(payload, values + 4 * j);
    return bf16_to_float(b.template load<uint16_t>(payload, values + 2 * j));
  }
};
/// `payload` holds the header, if there is one.
template <class B>
[[nodiscard]] LACONIC_DEVICE SparseSet sparse_set(B& b, const SparseFormat& format, uint64_t n,
                                                  const uint8_t* payload) {
  SparseSet set;
  set.payload = payload;
  set.count = format.header == 0 ? kept_of(format.ratio, n) : b.template load<uint32_t>(payload, 0);
  set.indices = format.header;
  set.values = format.header + index_bytes(set.count, n);
  set.width = index_width(n);
  set.type = format.values;
  return set;
}

/// The share of a tile in a unit's pairs.
[[nodiscard]] LACONIC_HOST_DEVICE inline device::Range pairs_of_tile(uint64_t count, uint64_t n,
                                                                     uint64_t tile) {
  const uint64_t tiles = n == 0 ? 1 : ceil_div(n, kSparseTile);
  const uint64_t share = ceil_div(count, tiles);
  const uint64_t begin = tile * share < count ? tile * share : count;
  return {begin, begin + share < count ? begin + share : count};
}

/// The length; indices that strictly increase and are below n, zeros after them, finite values.
struct SparseCheck {
  static constexpr const char* name = "laconic_SparseCheck";
  struct Args {
    device::CheckBatch batch;
    SparseFormat format;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t tile = b.index() - row.first_tile;
    SparseSet set;
    bool right = row.count <= kMaxSparseCount && row.bytes >= args.format.header;
    if (right) {
      set = sparse_set(b, args.format, row.count, row.payload);
      right = set.count <= most_pairs(args.format, row.count) &&
              row.bytes == args.format.header + sparse_bytes(set.count, row.count, set.type);
    }
    b.alone([&](uint32_t t) {
      bool bad = !right || (t == 0 && tile == 0 && !ends_in_zeros(b, set));
      const device::Range own = right ? pairs_of_tile(set.count, row.count, tile) : device::Range{};
      for (uint64_t j = own.begin + t; j < own.end; j += device::kThreads) {
        const uint64_t index = set.index(b, j);
        bad = bad || index >= row.count || (j != 0 && index <= set.index(b, j - 1));
        bad = bad || device::absolute_bits(set.value(b, j)) >= 0x7F800000U;
      }
      if (bad) b.raise(row.malformed, 1);
    });
  }

 private:
  template <class B>
  LACONIC_DEVICE static bool ends_in_zeros(B& b, const SparseSet& set) {
    const uint64_t bits = set.count * set.width;
    return bits % 8 == 0 || b.read(set.payload, set.indices + bits / 8) >> (bits % 8) == 0;
  }
};

/// DecodeRow::scratch: of every term each tile's first pair, and at last the number of pairs.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t sparse_decode_scratch(uint64_t n) {
  return device::kTerms * (ceil_div(n, kSparseTile) + 1) * sizeof(uint32_t);
}
[[nodiscard]] LACONIC_HOST_DEVICE inline uint32_t* sparse_starts(uint8_t* scratch, uint64_t n,
                                                                 uint32_t term) {
  return reinterpret_cast<uint32_t*>(scratch) + term * (ceil_div(n, kSparseTile) + 1);
}

struct SparseStarts {
  static constexpr const char* name = "laconic_SparseStarts";
  struct Args {
    device::DecodeBatch batch;
    SparseFormat format;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const auto* const row = device::row_at(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t tile = b.index() - b.read(&row->first_tile, 0);
    const uint64_t n = b.read(&row->count, 0);
    const uint64_t tiles = ceil_div(n, kSparseTile);
    uint8_t* const scratch = b.read(&row->scratch, 0);
    LACONIC_ROLLED
    for (uint32_t k = 0; k < b.read(&row->terms, 0); ++k) {
      const SparseSet set = sparse_set(b, args.format, n, b.read(&row->payload[k], 0));
      uint32_t* const starts = sparse_starts(scratch, n, k);
      const device::Range own = pairs_of_tile(set.count, n, tile);
      b.alone([&](uint32_t t) {
        if (set.count == 0 && t == 0) put(b, starts, tile, tile + 1 == tiles ? tiles : tile, 0);
        for (uint64_t j = own.begin + t; j < own.end; j += device::kThreads) {
          const uint64_t of_pair = set.index(b, j) / kSparseTile;
          if (j == 0) put(b, starts, 0, of_pair, 0);
          put(b, starts, of_pair + 1, j + 1 < set.count ? set.index(b, j + 1) / kSparseTile : tiles,
              j + 1);
        }
      });
    }
  }

 private:
  /// Tiles from `first` to `last` begin with pair j.
  template <class B>
  LACONIC_DEVICE static void put(B& b, uint32_t* starts, uint64_t first, uint64_t last,
                                 uint64_t j) {
    for (uint64_t tile = first; tile <= last; ++tile)
      b.write(starts, tile, static_cast<uint32_t>(j));
  }
};

/// The terms' values, added to a tile one after the other.
struct SparseDecode {
  static constexpr const char* name = "laconic_SparseDecode";
  using Args = SparseStarts::Args;
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const auto* const row = device::row_at(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t tile = b.index() - b.read(&row->first_tile, 0);
    const uint64_t n = b.read(&row->count, 0);
    float* const values = b.read(&row->values, 0);
    uint8_t* const scratch = b.read(&row->scratch, 0);
    if (!b.read(&row->add, 0)) {
      const uint64_t end = (tile + 1) * kSparseTile < n ? (tile + 1) * kSparseTile : n;
      b.each([&](uint32_t t) {
        for (uint64_t i = tile * kSparseTile + t; i < end; i += device::kThreads)
          b.write(values, i, 0.0F);
      });
    }
    LACONIC_ROLLED
    for (uint32_t k = 0; k < b.read(&row->terms, 0); ++k) {
      const SparseSet set = sparse_set(b, args.format, n, b.read(&row->payload[k], 0));
      const uint32_t* const starts = sparse_starts(scratch, n, k);
      const uint64_t first = b.read(starts, tile), end = b.read(starts, tile + 1);
      const float weight = b.read(&row->weight[k], 0);
      b.each([&](uint32_t t) {
        for (uint64_t j = first + t; j < end; j += device::kThreads) {
          const uint64_t i = set.index(b, j);
          b.write(values, i, b.read(values, i) + weight * set.value(b, j));
        }
      });
    }
  }
};

}  // namespace laconic::kernels
