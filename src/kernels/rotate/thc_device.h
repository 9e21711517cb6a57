// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// thc on the device: norms, rotations and quantized values of kernels/rotate. A block is elements
// that are rotated together, as on the CPU. A tile is a thread block's share of a unit: whole
// blocks, which are rotated in shared memory.
#pragma once

#include "device/batch.h"
#include "kernels/rotate/grid_elements.h"
#include "kernels/rotate/rotate_elements.h"
#include "kernels/rotate/thc_elements.h"

namespace laconic::kernels {

inline constexpr uint32_t kThcTile = kLargestRotation;  ///< elements
/// Values that a thread holds: some levels of butterflies.
inline constexpr uint32_t kHeldLevels = 4;
inline constexpr uint32_t kHeld = 1U << kHeldLevels;
/// Cells of a tile: one of 17 stays empty, so that threads of a warp touch different banks.
inline constexpr uint32_t kThcCells = kThcTile + kThcTile / kHeld;
[[nodiscard]] constexpr uint32_t thc_cell(uint32_t i) noexcept { return i + i / kHeld; }

struct ThcFormat {
  Grid grid;
  uint32_t levels = 0;  ///< of a rotation: log2 of a block's elements
  float scale = 0;      ///< rotation_scale
  bool last = false;    ///< Work::kept takes this rank's norms
};

/// `measured.sum`: the largest norm's bits.
[[nodiscard]] LACONIC_HOST_DEVICE inline device::Verdict thc_verdict(
    const device::Measured& measured, bool residual, uint32_t limit) {
  const bool fits = measured.sum <= float_bits(kMostNorm);
  return device::verdict_of(measured, residual, limit, [=](uint32_t) { return fits; });
}

/// A tile, its last block filled up with zeros.
struct ThcTile {
  uint64_t begin = 0;    ///< element of the unit
  uint64_t first = 0;    ///< block
  uint64_t of_unit = 0;  ///< blocks
  uint32_t count = 0;    ///< elements of the unit
  uint32_t blocks = 0;
  uint32_t elements = 0;  ///< of the blocks, with those zeros

  template <class Row>
  LACONIC_DEVICE ThcTile(const Row& row, uint64_t index, uint32_t levels) {
    const uint64_t block = uint64_t{1} << levels;
    const device::Range own = device::range_of(row, index, kThcTile);
    begin = own.begin;
    first = own.begin >> levels;
    of_unit = (row.count + block - 1) >> levels;
    count = static_cast<uint32_t>(own.end - own.begin);
    blocks = static_cast<uint32_t>((count + block - 1) >> levels);
    elements = blocks << levels;
  }
};

/// Tables that a tile's elements share.
template <class B>
struct ThcTables {
  device::Cells<B, uint32_t, kThcTile / 32> signs;
  device::Cells<B, uint32_t, kGridPositions> cells;
  device::Cells<B, int32_t, kMaxTable> values;  ///< doubled_value
  device::Cells<B, float, kThcTile / kSmallestRotation> ranges;

  LACONIC_DEVICE void fill(B& b, const ThcFormat& format, const ThcTile& tile, SignStream of_unit,
                           const uint8_t* kept) {
    const auto* const known = reinterpret_cast<const float*>(kept + thc_ranges_at(tile.of_unit));
    b.each([&](uint32_t t) {
      for (uint32_t k = t; k < tile.elements / kSignBlock; k += device::kThreads) {
        const RandomBlock words = sign_words(of_unit, tile.begin / kSignBlock + k);
        for (uint32_t w = 0; w < 4; ++w) b.write(signs, 4 * k + w, words[w]);
      }
      if (t < kGridPositions) b.write(cells, t, uint32_t{format.grid.cell[t]});
      if (t < kMaxTable) b.write(values, t, doubled_value(format.grid.value[t], format.grid.last));
      if (t < tile.blocks) b.write(ranges, t, b.read(known, tile.first + t));
    });
  }
  [[nodiscard]] LACONIC_DEVICE uint32_t sign(B& b, uint32_t i) const {
    return b.read(signs, i / 32);
  }
};

/// The levels of a tile's rotations, as the CPU takes them. `fill(first, held)` gives elements
/// first … first + 15, and `put(i, y)` takes element i.
template <class B, class Fill, class Put>
LACONIC_DEVICE void transform(B& b, device::Cells<B, float, kThcCells>& y, const ThcTile& tile,
                              uint32_t levels, Fill fill, Put put) {
  LACONIC_ROLLED
  for (uint32_t level = 0; level < levels; level += kHeldLevels) {
    const uint32_t distance = 1U << level, together = kHeld << level;
    const bool last = level + kHeldLevels >= levels;
    b.each([&](uint32_t t) {
      const uint32_t groups = (tile.elements + together - 1) >> (level + kHeldLevels) << level;
      LACONIC_ROLLED
      for (uint32_t group = t; group < groups; group += device::kThreads) {
        const uint32_t first = (group >> level << (level + kHeldLevels)) + (group & (distance - 1));
        float held[kHeld] = {};
        if (level == 0) {
          fill(first, held);
        } else {
          for (uint32_t k = 0; k < kHeld; ++k) {
            const uint32_t i = first + k * distance;
            if (i < tile.elements) held[k] = b.read(y, thc_cell(i));
          }
        }
        for (uint32_t l = 0; l < kHeldLevels; ++l) {
          if (level + l >= levels) break;
          for (uint32_t k = 0; k < kHeld; ++k)
            if ((k >> l & 1) == 0) butterfly(held[k], held[k + (1U << l)]);
        }
        for (uint32_t k = 0; k < kHeld; ++k) {
          const uint32_t i = first + k * distance;
          if (i >= tile.elements) break;
          if (last) {
            put(i, held[k]);
          } else {
            b.write(y, thc_cell(i), held[k]);
          }
        }
      }
    });
  }
}

/// The norms of a tile's blocks, a warp each: `value(t, i)` is element i, for thread t, and
/// `take(t, k, norm)` gets that of block k.
template <class B, class Value, class Take>
LACONIC_DEVICE void block_norms(B& b, device::Cells<B, double, device::kThreads>& lanes,
                                const ThcTile& tile, uint32_t levels, Value value, Take take) {
  static_assert(device::kWarp == kNormLanes);
  const uint32_t block = 1U << levels;
  for (uint32_t first = 0; first < tile.blocks; first += device::kWarps) {
    b.each([&](uint32_t t) {
      const uint32_t begin = (first + t / device::kWarp) * block;
      double squares = 0;
      for (uint32_t i = begin + t % device::kWarp; i < begin + block && i < tile.count;
           i += device::kWarp)
        squares = with_square(squares, value(t, i));
      b.write(lanes, t, squares);
    });
    for (uint32_t half = kNormLanes / 2; half > 0; half /= 2) {
      b.each([&](uint32_t t) {
        if (t % device::kWarp < half) b.write(lanes, t, b.read(lanes, t) + b.read(lanes, t + half));
      });
    }
    b.alone([&](uint32_t t) {
      if (t % device::kWarp != 0 || first + t / device::kWarp >= tile.blocks) return;
      take(t, first + t / device::kWarp, norm_of_squares(b.read(lanes, t)));
    });
  }
}

/// Index i of those packed at `codes`; no byte after it is read.
template <class B>
[[nodiscard]] LACONIC_DEVICE uint32_t code_at(B& b, const uint8_t* codes, uint32_t bits,
                                              uint64_t i) {
  const uint64_t at = i * bits;
  const auto shift = static_cast<uint32_t>(at % 8);
  uint32_t window = uint32_t{b.read(codes, at / 8)} << 8;
  if (shift + bits > 8) window |= b.read(codes, at / 8 + 1);
  return code_in_window(window, shift, bits);
}

/// Norms of a round that begins: round 0's payload, Work::kept's maxima, and what decides about the
/// unit.
struct ThcMeasure {
  static constexpr const char* name = "laconic_ThcMeasure";
  struct Args {
    device::EncodeBatch batch;
    ThcFormat format;
    /// After a launch without: units whose residual could not be used, which becomes zeros.
    bool again = false;
  };
  template <class B>
  struct Shared {
    device::Cells<B, double, device::kThreads> lanes;
    device::Cells<B, uint32_t, device::kWarps> most;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    if (args.again && thc_verdict(device::measured_of(b, row), row.residual != nullptr,
                                  row.limit) != device::Verdict::reset)
      return;
    const ThcTile tile(row, b.index(), args.format.levels);
    device::PerThread<B, uint32_t> values(b), residual(b), norms(b);
    const device::Max max;
    block_norms(
        b, shared.lanes, tile, args.format.levels,
        [&](uint32_t t, uint32_t i) {
          const uint64_t at = tile.begin + i;
          const float x = device::gradient_at(b, row, at);
          values[t] = max(values[t], device::absolute_bits(x));
          if (row.residual == nullptr) return x;
          if (args.again) {
            b.write(row.residual, at, 0.0F);
            return x;
          }
          const float e = b.read(row.residual, at);
          residual[t] = max(residual[t], device::absolute_bits(e));
          return x + e;
        },
        [&](uint32_t t, uint32_t k, float norm) {
          norms[t] = max(norms[t], device::absolute_bits(norm));
          put_norm(b, row, args, tile.first + k, norm);
        });
    if (args.again) return;
    const uint32_t of_values = device::block_max(b, values, shared.most);
    const uint32_t of_residual = device::block_max(b, residual, shared.most);
    const uint32_t of_norms = device::block_max(b, norms, shared.most);
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.raise(&row.measured->values, of_values);
      b.raise(&row.measured->residual, of_residual);
      b.raise(&row.measured->sum, of_norms);
    });
  }

 private:
  template <class B>
  LACONIC_DEVICE static void put_norm(B& b, const device::EncodeRow& row, const Args& args,
                                      uint64_t block, float norm) {
    if (args.batch.round == 0) b.store(row.out, block * sizeof(float), norm);
    if (args.format.last)
      b.write(reinterpret_cast<uint16_t*>(row.quantized.kept), block, short_norm(norm));
  }
};

/// Quantized values of rotated blocks.
struct ThcEncode {
  static constexpr const char* name = "laconic_ThcEncode";
  struct Args {
    device::EncodeBatch batch;
    ThcFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, float, kThcCells> y;
    ThcTables<B> tables;
    device::Cells<B, double, device::kThreads> lanes;
    device::Cells<B, uint32_t, device::kWarps> most;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    // Without a residual nothing can be spoiled: norms are measured on the way.
    const bool measures = args.batch.begins && !args.batch.residual;
    bool reset = false;
    if (!measures) {
      const device::Verdict verdict =
          thc_verdict(device::measured_of(b, row), row.residual != nullptr, row.limit);
      if (!device::gives_payload(verdict)) return;
      reset = verdict == device::Verdict::reset;
    }
    const ThcTile tile(row, b.index(), args.format.levels);
    const SignStream signs{row.quantized.shared, row.offset};
    shared.tables.fill(b, args.format, tile, signs, row.quantized.kept);
    device::PerThread<B, uint32_t> values(b), norms(b);
    const device::Max max;
    b.each([&](uint32_t t) {
      for (uint32_t i = t; i < tile.elements; i += device::kThreads) {
        const float x = i < tile.count ? device::input_at(b, row, tile.begin + i, reset) : 0.0F;
        values[t] = max(values[t], device::absolute_bits(x));
        b.write(shared.y, thc_cell(i), with_sign(x, shared.tables.sign(b, i), i));
      }
    });
    if (measures || (args.batch.begins && reset)) {
      block_norms(
          b, shared.lanes, tile, args.format.levels,
          [&](uint32_t, uint32_t i) { return b.read(shared.y, thc_cell(i)); },
          [&](uint32_t t, uint32_t k, float norm) {
            norms[t] = max(norms[t], device::absolute_bits(norm));
            if (args.format.last)
              b.write(reinterpret_cast<uint16_t*>(row.quantized.kept), tile.first + k,
                      short_norm(norm));
          });
    }
    transform(
        b, shared.y, tile, args.format.levels,
        [&](uint32_t first, float(&held)[kHeld]) {
          for (uint32_t k = 0; k < kHeld; ++k) held[k] = b.read(shared.y, thc_cell(first + k));
        },
        [&](uint32_t i, float y) { b.write(shared.y, thc_cell(i), y * args.format.scale); });
    b.each([&](uint32_t t) { quantize(b, shared, row, args.format, tile, t); });
    b.each([&](uint32_t t) { pack(b, shared, row, args.format.grid.bits, tile, t); });
    if (row.residual != nullptr) leave(b, shared, row, args.format, tile, reset);
    if (!measures) return;
    const uint32_t of_values = device::block_max(b, values, shared.most);
    const uint32_t of_norms = device::block_max(b, norms, shared.most);
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.raise(&row.measured->values, of_values);
      b.raise(&row.measured->sum, of_norms);
    });
  }

 private:
  /// Rotated elements become indices. A thread's 16 draw from one block of Philox.
  template <class B>
  LACONIC_DEVICE static void quantize(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                      const ThcFormat& format, const ThcTile& tile, uint32_t t) {
    constexpr uint32_t kShares = kGridGroup / kHeld;
    for (uint32_t u = t; u < tile.elements / kHeld; u += device::kThreads) {
      const uint32_t first = u / kShares * kGridGroup + u % kShares * 2;
      const float range = b.read(shared.tables.ranges, first >> format.levels);
      const bool counts = codes_mean_something(range);
      const GridPosition position(counts ? range : 1.0F, format.grid.last);
      const RandomBlock random = philox(row.key, grid_counter(row.offset + tile.begin + first));
      for (uint32_t k = 0; k < kHeld; ++k) {
        const uint32_t e = k / 2 * kHeld + k % 2;  // from `first` on
        const uint32_t cell = thc_cell(first + e);
        const uint32_t at = position.of(b.read(shared.y, cell));
        const uint32_t z =
            index_in_cell(b.read(shared.tables.cells, grid_cell(at)), at, grid_bits(random, e)) &
            (kMaxTable - 1);
        b.write(shared.y, cell, counts ? static_cast<float>(z) : 0.0F);
      }
    }
  }
  template <class B>
  LACONIC_DEVICE static void pack(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                  uint32_t bits, const ThcTile& tile, uint32_t t) {
    for (uint32_t u = t; u < tile.elements / 8; u += device::kThreads) {
      uint32_t packed = 0;
      for (uint32_t k = 0; k < 8; ++k)
        packed = packed << bits | static_cast<uint32_t>(b.read(shared.y, thc_cell(8 * u + k)));
      for (uint32_t k = 0; k < bits; ++k)
        b.write(row.out, (tile.begin / 8 + u) * bits + k,
                static_cast<uint8_t>(packed >> (8 * (bits - 1 - k))));
    }
  }
  /// The residual becomes x + e - decode(codes).
  template <class B>
  LACONIC_DEVICE static void leave(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                   const ThcFormat& format, const ThcTile& tile, bool reset) {
    transform(
        b, shared.y, tile, format.levels,
        [&](uint32_t first, float(&held)[kHeld]) {
          const float range = b.read(shared.tables.ranges, first >> format.levels);
          const float scale = value_scale(range, format.grid.last);
          for (uint32_t k = 0; k < kHeld; ++k) {
            const auto z = static_cast<uint32_t>(b.read(shared.y, thc_cell(first + k)));
            held[k] = grid_value(b.read(shared.tables.values, z), scale);
          }
        },
        [&](uint32_t i, float y) {
          if (i >= tile.count) return;
          const uint64_t at = tile.begin + i;
          const float a = device::input_at(b, row, at, reset);
          const bool sent = codes_mean_something(b.read(shared.tables.ranges, i >> format.levels));
          const float own = with_sign(y * format.scale, shared.tables.sign(b, i), i);
          b.write(row.residual, at, sent ? a - own : a);
        });
  }
};

/// The elements that a payload adds to a sum, four or two in a word; zeros of a unit without one.
struct ThcLanes {
  static constexpr const char* name = "laconic_ThcLanes";
  using Args = ThcEncode::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, kMaxTable> values;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const bool sent = device::gives_payload(
        thc_verdict(device::measured_of(b, row), row.residual != nullptr, row.limit));
    const ThcTile tile(row, b.index(), args.format.levels);
    b.each([&](uint32_t t) {
      if (t < kMaxTable) b.write(shared.values, t, uint32_t{args.format.grid.value[t]});
    });
    const uint32_t together = 4 / args.batch.lane_bytes;
    auto* const words = reinterpret_cast<uint32_t*>(row.quantized.lanes);
    b.alone([&](uint32_t t) {
      for (uint32_t w = t; w < tile.elements / together; w += device::kThreads) {
        const uint64_t first = tile.begin + uint64_t{w} * together;
        uint32_t word = 0;
        for (uint32_t k = 0; k < together && sent; ++k) {
          const uint32_t z = code_at(b, row.out, args.format.grid.bits, first + k);
          word |= b.read(shared.values, z) << (8 * args.batch.lane_bytes * k);
        }
        b.write(words, first / together, word);
      }
    });
  }
};

/// Lengths, offsets, and norms of round 0.
struct ThcCheck {
  static constexpr const char* name = "laconic_ThcCheck";
  struct Args {
    device::CheckBatch batch;
    uint32_t levels = 0;
    uint32_t bits = 0;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const ThcTile tile(row, b.index(), args.levels);
    const uint64_t block = uint64_t{1} << args.levels;
    const uint64_t each = args.batch.round == 0 ? sizeof(float) : block / 8 * args.bits;
    const bool right =
        args.batch.round <= 1 && row.bytes == tile.of_unit * each && row.offset % block == 0;
    b.alone([&](uint32_t t) {
      if (!right) {
        if (t == 0) b.raise(row.malformed, 1);
        return;
      }
      if (args.batch.round != 0 || t >= tile.blocks) return;
      // Compares bits: NaN and all negative values are above.
      if (b.template load<uint32_t>(row.payload, (tile.first + t) * sizeof(float)) >
          float_bits(kMostNorm))
        b.raise(row.malformed, 1);
    });
  }
};

/// The weighted sum of codes, or of one sum of them.
struct ThcDecode {
  static constexpr const char* name = "laconic_ThcDecode";
  struct Args {
    device::DecodeBatch batch;
    ThcFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, float, kThcCells> y;
    ThcTables<B> tables;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const auto* const row = device::row_at(b, args.batch.rows, args.batch.units, b.index());
    const ThcFormat& format = args.format;
    const auto* const quantized = &row->quantized;
    const Place place{b.read(&row->count, 0), b.read(&row->first_tile, 0)};
    const ThcTile tile(place, b.index(), format.levels);
    shared.tables.fill(b, format, tile,
                       {b.read(&quantized->shared, 0), b.read(&quantized->offset, 0)},
                       b.read(&quantized->kept, 0));
    const uint32_t terms = b.read(&row->terms, 0);
    float* const values = b.read(&row->values, 0) + tile.begin;
    const uint8_t* granules = b.read(&quantized->granules, 0);
    if (granules != nullptr) granules += tile.first;
    const bool add = b.read(&row->add, 0);
    const auto counts = [&](uint32_t block) {
      return codes_mean_something(b.read(shared.tables.ranges, block)) &&
             (granules == nullptr || b.read(granules, block) != 0);
    };
    LACONIC_ROLLED
    for (uint32_t k = 0; k < terms; ++k) {
      const float weight = b.read(&row->weight[k], 0);
      transform(
          b, shared.y, tile, format.levels,
          [&](uint32_t first, float(&held)[kHeld]) {
            if (b.read(&quantized->contributors, 0) == nullptr) {
              from_codes(b, shared, *row, format, tile, k, first, held);
            } else {
              from_sums(b, shared, *row, format, tile, k, first, held);
            }
          },
          [&](uint32_t i, float y) {
            if (i >= tile.count || !counts(i >> format.levels)) return;
            const float more = weight * with_sign(y * format.scale, shared.tables.sign(b, i), i);
            b.write(values, i, add || k != 0 ? b.read(values, i) + more : more);
          });
    }
    b.alone([&](uint32_t t) {
      for (uint32_t i = t; i < tile.count && !add; i += device::kThreads)
        if (terms == 0 || !counts(i >> format.levels)) b.write(values, i, 0.0F);
    });
  }

 private:
  struct Place {
    uint64_t count = 0;
    uint64_t first_tile = 0;
  };

  /// 16 values of codes, from a byte on.
  template <class B>
  LACONIC_DEVICE static void from_codes(B& b, const Shared<B>& shared, const device::DecodeRow& row,
                                        const ThcFormat& format, const ThcTile& tile, uint32_t k,
                                        uint32_t first, float (&held)[kHeld]) {
    const uint32_t bits = format.grid.bits;
    const float scale =
        value_scale(b.read(shared.tables.ranges, first >> format.levels), format.grid.last);
    const uint8_t* codes = b.read(&row.payload[k], 0) + (tile.begin + first) / 8 * bits;
    uint32_t window = 0, ready = 0;
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (ready < bits) {
        window = window << 8 | b.read(codes++, 0);
        ready += 8;
      }
      ready -= bits;
      const uint32_t z = window >> ready & ((1U << bits) - 1);
      held[i] = grid_value(b.read(shared.tables.values, z), scale);
    }
  }
  /// 16 values of sums, of a byte or two each.
  template <class B>
  LACONIC_DEVICE static void from_sums(B& b, const Shared<B>& shared, const device::DecodeRow& row,
                                       const ThcFormat& format, const ThcTile& tile, uint32_t k,
                                       uint32_t first, float (&held)[kHeld]) {
    const uint32_t block = first >> format.levels;
    const uint32_t* who = b.read(&row.quantized.contributors, 0);
    if (b.read(&row.quantized.by_block, 0)) who += 2 * (tile.first + block);
    const uint32_t g = format.grid.last, added = b.read(who, 0);
    const float scale = mean_scale(b.read(shared.tables.ranges, block), g, b.read(who, 1));
    const bool bytes = b.read(&row.bytes[k], 0) == tile.of_unit << format.levels;
    const uint8_t* const sums = b.read(&row.payload[k], 0);
    for (uint32_t i = 0; i < kHeld; ++i) {
      const uint64_t at = tile.begin + first + i;
      const uint32_t sum = bytes ? b.read(sums, at) : b.template load<uint16_t>(sums, 2 * at);
      held[i] = grid_value(doubled_sum(sum, g, added), scale);
    }
  }
};

}  // namespace laconic::kernels
