// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// 3LC on the device: kernels/threelc/threelc.h and zero_run.h. A tile is kTileColumns columns, a
// block each. Runs of zero bytes reach over tiles: a tile codes what lies between its outer ones
// into scratch memory, a block per unit finds where everything goes, and the tiles put it there.
#pragma once

#include "device/batch.h"
#include "kernels/threelc/zero_run.h"
#include "laconic/bytes.h"

namespace laconic::kernels {

inline constexpr uint32_t kTileColumns = 2048;
inline constexpr uint32_t kTileElements = kDigits * kTileColumns;
inline constexpr uint32_t kChunkTiles = 4;
/// Consecutive bytes of a tile that a thread looks at.
inline constexpr uint32_t kThreadBytes = kTileColumns / device::kThreads;

struct ThreeLcFormat {
  float s = 1.0F;
  bool chunks = false;  ///< a scale per chunk; else one
  bool zre = true;
  bool pad_one = false;
};

/// Elements with one scale: a unit, or a chunk of it.
struct ThreeLcPart {
  uint64_t index = 0;  ///< of the chunk
  uint64_t first = 0;  ///< element
  uint64_t count = 0;
  uint64_t columns = 0;
  uint64_t first_tile = 0;  ///< within the unit
  uint64_t tiles = 0;

  /// The columns of a tile, the first of which is the part's column `begin`.
  struct Stretch {
    uint64_t begin = 0;
    uint32_t columns = 0;
  };
  [[nodiscard]] LACONIC_HOST_DEVICE Stretch stretch(uint64_t tile) const {
    const uint64_t begin = (tile - first_tile) * kTileColumns;
    const uint64_t left = columns - begin;
    return {begin, static_cast<uint32_t>(left < kTileColumns ? left : kTileColumns)};
  }
  [[nodiscard]] LACONIC_HOST_DEVICE bool last(uint64_t tile) const {
    return tile + 1 == first_tile + tiles;
  }
};

[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t threelc_tiles(uint64_t count) {
  return ceil_div(count, kTileElements);
}
[[nodiscard]] LACONIC_HOST_DEVICE inline ThreeLcPart threelc_part(const ThreeLcFormat& format,
                                                                  uint64_t count, uint64_t tile) {
  ThreeLcPart part;
  part.count = count;
  if (format.chunks) {
    constexpr uint64_t kChunk = uint64_t{kChunkTiles} * kTileElements;
    part.index = tile / kChunkTiles;
    part.first = part.index * kChunk;
    part.first_tile = part.index * kChunkTiles;
    part.count = count - part.first < kChunk ? count - part.first : kChunk;
  }
  part.columns = ceil_div(part.count, kDigits);
  part.tiles = threelc_tiles(part.count);
  return part;
}
/// Bytes before the first coded byte: a scale, or every chunk's and their coded lengths.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t threelc_header(const ThreeLcFormat& format,
                                                                 uint64_t count) {
  return format.chunks ? ceil_div(threelc_tiles(count), kChunkTiles) * 6 : 4;
}
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t threelc_length_at(uint64_t count,
                                                                    uint64_t chunk) {
  return ceil_div(threelc_tiles(count), kChunkTiles) * 4 + chunk * 2;
}

/// Codes of a run of `zeros`, and the last one of it if it is not full.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t run_codes(uint64_t zeros) {
  return zeros / kLongestRun + (zeros % kLongestRun != 0 ? 1 : 0);
}
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint8_t rest_code(uint64_t zeros) {
  const uint64_t rest = zeros % kLongestRun;
  return static_cast<uint8_t>(rest == 1 ? kZeroByte : kRunBase + rest);
}
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint32_t expanded_bytes(uint8_t code) {
  return code < kFirstRunCode ? 1 : code - kRunBase;
}

/// A tile's bytes: zeros, coded bytes, zeros.
struct ThreeLcCoded {
  uint32_t head = 0;
  uint32_t body = 0;
  uint32_t tail = 0;
  uint32_t reserved = 0;
};
/// The run that is open before a tile: its place in the payload, and its length so far.
struct ThreeLcPlace {
  uint64_t run_at = 0;
  uint64_t run = 0;
};

/// EncodeRow::scratch: of every tile two maxima (Measure), its code, its place, and its body.
struct ThreeLcScratch {
  uint8_t* at = nullptr;
  uint64_t tiles = 0;

  [[nodiscard]] LACONIC_HOST_DEVICE static constexpr uint64_t bytes(uint64_t tiles) {
    return tiles * (8 + sizeof(ThreeLcCoded) + sizeof(ThreeLcPlace) + kTileColumns) + 16;
  }
  [[nodiscard]] LACONIC_HOST_DEVICE const uint32_t* maxima() const {
    return reinterpret_cast<const uint32_t*>(at);
  }
  [[nodiscard]] LACONIC_HOST_DEVICE ThreeLcCoded* coded() const {
    return reinterpret_cast<ThreeLcCoded*>(at + round_up(tiles * 8, 16));
  }
  [[nodiscard]] LACONIC_HOST_DEVICE ThreeLcPlace* places() const {
    return reinterpret_cast<ThreeLcPlace*>(coded() + tiles);
  }
  [[nodiscard]] LACONIC_HOST_DEVICE uint8_t* body(uint64_t tile) const {
    return reinterpret_cast<uint8_t*>(places() + tiles) + tile * kTileColumns;
  }
};

struct ThreeLcFits {
  float s = 1.0F;
  LACONIC_HOST_DEVICE bool operator()(uint32_t bits) const {
    ThreeLcScale scale;
    return threelc_scale(s, bits, &scale);
  }
};

/// The verdict of a unit that was measured.
template <class B>
[[nodiscard]] LACONIC_DEVICE device::Verdict threelc_verdict(B& b, const device::EncodeRow& row,
                                                             float s) {
  return device::verdict_of(device::measured_of(b, row), row.residual != nullptr, row.limit,
                            ThreeLcFits{s});
}

/// Digits of a tile, residuals, and the tile's code.
struct ThreeLcPack {
  static constexpr const char* name = "laconic_ThreeLcPack";
  struct Args {
    device::EncodeBatch batch;
    ThreeLcFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint8_t, kTileColumns> bytes;
    device::Cells<B, uint32_t, device::kThreads> scan;
    device::Cells<B, uint32_t, device::kWarps> most;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = threelc_verdict(b, row, args.format.s);
    if (!device::gives_payload(verdict)) return;
    const bool reset = verdict == device::Verdict::reset;
    const uint64_t tile = b.index() - row.first_tile;
    const ThreeLcPart part = threelc_part(args.format, row.count, tile);
    const ThreeLcPart::Stretch stretch = part.stretch(tile);
    const ThreeLcScratch scratch{row.scratch, threelc_tiles(row.count)};
    const uint64_t header = threelc_header(args.format, row.count);
    ThreeLcScale scale;
    (void)threelc_scale(args.format.s, largest(b, row, args.format, part, scratch, reset), &scale);
    b.each([&](uint32_t t) {
      for (uint32_t j = t; j < stretch.columns; j += device::kThreads) {
        const uint8_t byte =
            pack(b, row, part, scale, args.format.pad_one, stretch.begin + j, reset);
        if (args.format.zre) {
          b.write(shared.bytes, j, byte);
        } else {
          b.store(row.out, header + tile * kTileColumns + j, byte);
        }
      }
      if (t == 0 && tile == part.first_tile) {
        b.store(row.out, part.index * 4, scale.m);
        if (args.format.chunks && !args.format.zre)
          b.store(row.out, threelc_length_at(row.count, part.index),
                  static_cast<uint16_t>(part.columns));
      }
      if (t == 0 && tile + 1 == scratch.tiles && !args.format.zre)
        b.write(&row.measured->bytes, 0, header + part.first_tile * kTileColumns + part.columns);
    });
    if (args.format.zre) code(b, shared, stretch.columns, scratch, tile);
  }

 private:
  /// The largest absolute bits of a part's x + e.
  template <class B>
  LACONIC_DEVICE static uint32_t largest(B& b, const device::EncodeRow& row,
                                         const ThreeLcFormat& format, const ThreeLcPart& part,
                                         const ThreeLcScratch& scratch, bool reset) {
    if (!format.chunks)
      return reset ? b.read(&row.measured->values, 0) : b.read(&row.measured->sum, 0);
    uint32_t most = 0;
    for (uint64_t i = part.first_tile; i < part.first_tile + part.tiles; ++i)
      most = device::Max{}(most, b.read(scratch.maxima(), 2 * i + (reset ? 0 : 1)));
    return most;
  }

  template <class B>
  LACONIC_DEVICE static uint8_t pack(B& b, const device::EncodeRow& row, const ThreeLcPart& part,
                                     ThreeLcScale scale, bool pad_one, uint64_t column,
                                     bool reset) {
    int32_t byte = kZeroByte;
    int32_t weight = 81;
    for (uint32_t i = 0; i < kDigits; ++i, weight /= 3) {
      const uint64_t at = i * part.columns + column;
      if (at >= part.count) {
        byte -= pad_one ? 0 : weight;
        continue;
      }
      const Quantized r = quantize(device::input_at(b, row, part.first + at, reset), scale);
      byte += r.q * weight;
      if (row.residual != nullptr) b.write(row.residual, part.first + at, r.rest);
    }
    return static_cast<uint8_t>(byte);
  }

  /// The code that byte i adds to the body, if any: a run of zeros adds its codes where each ends.
  /// `start`: where the run of zeros that i may belong to begins.
  struct Code {
    bool any = false;
    uint8_t code = 0;
  };
  template <class B>
  LACONIC_DEVICE static Code code_of(B& b, Shared<B>& shared, uint32_t i, uint32_t start) {
    const uint8_t byte = b.read(shared.bytes, i);
    if (byte != kZeroByte) return {true, byte};
    const uint32_t zeros = i - start + 1;
    if (zeros % kLongestRun == 0) return {true, 255};
    return {b.read(shared.bytes, i + 1) != kZeroByte, rest_code(zeros)};
  }

  template <class B>
  LACONIC_DEVICE static void code(B& b, Shared<B>& shared, uint32_t n,
                                  const ThreeLcScratch& scratch, uint64_t tile) {
    // Positions from the end for the first other byte, from the beginning (+ 1) for the last one.
    device::PerThread<B, uint32_t> from_end(b), run_start(b), made(b);
    b.alone([&](uint32_t t) {
      for (uint32_t i = kThreadBytes * t; i < kThreadBytes * (t + 1) && i < n; ++i) {
        if (b.read(shared.bytes, i) == kZeroByte) continue;
        if (from_end[t] == 0) from_end[t] = n - i;
        run_start[t] = i + 1;
      }
    });
    const uint32_t head = n - device::block_max(b, from_end, shared.most);
    const uint32_t end = device::scan<uint32_t>(b, run_start, shared.scan, device::Max{});
    b.alone([&](uint32_t t) {
      uint32_t start = run_start[t];
      for (uint32_t i = kThreadBytes * t; i < kThreadBytes * (t + 1) && i < end; ++i) {
        if (i < head) continue;
        if (code_of(b, shared, i, start).any) ++made[t];
        if (b.read(shared.bytes, i) != kZeroByte) start = i + 1;
      }
    });
    const uint32_t body = device::scan<uint32_t>(b, made, shared.scan, device::Sum{});
    b.alone([&](uint32_t t) {
      uint32_t start = run_start[t];
      for (uint32_t i = kThreadBytes * t; i < kThreadBytes * (t + 1) && i < end; ++i) {
        if (i < head) continue;
        const Code code = code_of(b, shared, i, start);
        if (code.any) b.write(scratch.body(tile), made[t]++, code.code);
        if (b.read(shared.bytes, i) != kZeroByte) start = i + 1;
      }
      if (t == 0)
        b.write(scratch.coded(), tile, ThreeLcCoded{head, body, end == 0 ? 0 : n - end, 0});
    });
  }
};

/// Places of the runs and bodies of tiles: a block per unit.
struct ThreeLcJoin {
  static constexpr const char* name = "laconic_ThreeLcJoin";
  using Args = ThreeLcPack::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint64_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0 || !device::gives_payload(threelc_verdict(b, row, args.format.s))) return;
    const ThreeLcScratch scratch{row.scratch, threelc_tiles(row.count)};
    // Zero bytes at tiles' ends so far; how many of them were before the open run; payload bytes.
    uint64_t zeros = 0, closed = 0, made = 0;
    for (uint64_t first = 0; first < scratch.tiles; first += device::kThreads) {
      device::PerThread<B, ThreeLcCoded> coded(b);
      device::PerThread<B, uint64_t> before(b), run_from(b), size(b);
      b.alone([&](uint32_t t) {
        if (first + t >= scratch.tiles) return;
        coded[t] = b.read(scratch.coded(), first + t);
        before[t] = uint64_t{coded[t].head} + coded[t].tail;
      });
      const uint64_t more = device::scan<uint64_t>(b, before, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        before[t] += zeros;
        const uint64_t tile = first + t;
        if (tile >= scratch.tiles) return;
        // A run begins at a part's beginning, and again where a body ends one.
        if (threelc_part(args.format, row.count, tile).first_tile == tile) run_from[t] = before[t];
        if (coded[t].body != 0) run_from[t] = before[t] + coded[t].head;
      });
      const uint64_t last = device::scan<uint64_t>(b, run_from, shared.scan, device::Max{});
      b.alone([&](uint32_t t) {
        const uint64_t tile = first + t;
        if (tile >= scratch.tiles) return;
        const ThreeLcPart part = threelc_part(args.format, row.count, tile);
        const uint64_t from =
            part.first_tile == tile ? before[t] : device::Max{}(closed, run_from[t]);
        run_from[t] = before[t] - from;  // the open run
        size[t] = size_of(coded[t], run_from[t], part.last(tile));
      });
      const uint64_t sizes = device::scan<uint64_t>(b, size, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        if (first + t < scratch.tiles)
          b.write(scratch.places(), first + t, ThreeLcPlace{made + size[t], run_from[t]});
      });
      zeros += more;
      closed = device::Max{}(closed, last);
      made += sizes;
    }
    b.alone([&](uint32_t t) {
      if (t == 0) b.write(&row.measured->bytes, 0, threelc_header(args.format, row.count) + made);
    });
  }

  /// Bytes of the runs that a tile ends, and of its body; `run`: zeros that are open before it.
  [[nodiscard]] LACONIC_HOST_DEVICE static uint64_t size_of(const ThreeLcCoded& coded, uint64_t run,
                                                            bool last) {
    const uint64_t closed = run_codes(run + coded.head);
    if (coded.body == 0) return last ? closed : 0;
    return closed + coded.body + (last ? run_codes(coded.tail) : 0);
  }
};

/// Bodies to their places, and the runs around them.
struct ThreeLcPut {
  static constexpr const char* name = "laconic_ThreeLcPut";
  using Args = ThreeLcPack::Args;
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    if (!device::gives_payload(threelc_verdict(b, row, args.format.s))) return;
    const uint64_t tile = b.index() - row.first_tile;
    const ThreeLcPart part = threelc_part(args.format, row.count, tile);
    const ThreeLcScratch scratch{row.scratch, threelc_tiles(row.count)};
    const ThreeLcCoded coded = b.read(scratch.coded(), tile);
    const ThreeLcPlace place = b.read(scratch.places(), tile);
    uint8_t* const to = row.out + threelc_header(args.format, row.count);
    const uint64_t run = place.run + coded.head;
    const bool last = part.last(tile);
    const uint64_t body_at = place.run_at + run_codes(run);
    const uint8_t* const body = scratch.body(tile);
    b.alone([&](uint32_t t) {
      put_run(b, to + place.run_at, place.run, run, last || coded.body != 0, t);
      if (coded.body != 0) {
        for (uint32_t i = t; i < coded.body; i += device::kThreads)
          b.write(to, body_at + i, b.read(body, i));
        put_run(b, to + body_at + coded.body, 0, coded.tail, last, t);
      }
      if (t != 0 || !last || !args.format.chunks) return;
      const uint64_t begin = b.read(scratch.places(), part.first_tile).run_at;
      const uint64_t end = place.run_at + ThreeLcJoin::size_of(coded, place.run, true);
      b.store(row.out, threelc_length_at(row.count, part.index),
              static_cast<uint16_t>(end - begin));
    });
  }

 private:
  /// The codes of a run that begins at `to` which zeros [from, until) complete.
  template <class B>
  LACONIC_DEVICE static void put_run(B& b, uint8_t* to, uint64_t from, uint64_t until, bool ends,
                                     uint32_t t) {
    for (uint64_t i = from / kLongestRun + t; i < until / kLongestRun; i += device::kThreads)
      b.write(to, i, uint8_t{255});
    if (t == 0 && ends && until % kLongestRun != 0)
      b.write(to, until / kLongestRun, rest_code(until));
  }
};

/// A thread's share of a slice of coded bytes: how many digit bytes they make.
template <class B>
[[nodiscard]] LACONIC_DEVICE uint32_t expanded_share(B& b, const uint8_t* coded, uint64_t from,
                                                     uint64_t to, uint32_t t) {
  uint32_t made = 0;
  for (uint64_t i = from + uint64_t{kThreadBytes} * t;
       i < from + uint64_t{kThreadBytes} * (t + 1) && i < to; ++i)
    made += expanded_bytes(b.read(coded, i));
  return made;
}

/// DecodeRow::scratch: of every term where each slice of coded bytes begins, in columns, or each
/// chunk's coded bytes, in bytes.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t* threelc_starts(uint8_t* scratch, uint64_t tiles,
                                                                  uint32_t term) {
  return reinterpret_cast<uint64_t*>(scratch) + term * tiles;
}

struct ThreeLcSizes {
  static constexpr const char* name = "laconic_ThreeLcSizes";
  struct Args {
    device::DecodeBatch batch;
    ThreeLcFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const auto* const row = device::row_at(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t tile = b.index() - b.read(&row->first_tile, 0);
    const uint64_t tiles = threelc_tiles(b.read(&row->count, 0));
    uint8_t* const scratch = b.read(&row->scratch, 0);
    LACONIC_ROLLED
    for (uint32_t k = 0; k < b.read(&row->terms, 0); ++k) {
      const uint8_t* const payload = b.read(&row->payload[k], 0);
      const uint64_t end = b.read(&row->bytes[k], 0);
      device::PerThread<B, uint32_t> made(b);
      b.alone([&](uint32_t t) {
        made[t] = expanded_share(b, payload, 4 + tile * kTileColumns, end, t);
      });
      const uint32_t all = device::scan<uint32_t>(b, made, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        if (t == 0) b.write(threelc_starts(scratch, tiles, k), tile, uint64_t{all});
      });
    }
  }
};

/// Sizes become starts: a block per unit.
struct ThreeLcStarts {
  static constexpr const char* name = "laconic_ThreeLcStarts";
  using Args = ThreeLcSizes::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint64_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::DecodeRow* const row = args.batch.rows + b.index();
    const uint64_t elements = b.read(&row->count, 0);
    const uint64_t tiles = threelc_tiles(elements);
    const uint64_t count = args.format.chunks ? ceil_div(tiles, kChunkTiles) : tiles;
    uint8_t* const scratch = b.read(&row->scratch, 0);
    LACONIC_ROLLED
    for (uint32_t k = 0; k < b.read(&row->terms, 0); ++k) {
      const uint8_t* const payload = b.read(&row->payload[k], 0);
      uint64_t* const starts = threelc_starts(scratch, tiles, k);
      uint64_t made = 0;
      for (uint64_t first = 0; first < count; first += device::kThreads) {
        device::PerThread<B, uint64_t> start(b);
        b.alone([&](uint32_t t) {
          if (first + t >= count) return;
          start[t] = args.format.chunks ? b.template load<uint16_t>(
                                              payload, threelc_length_at(elements, first + t))
                                        : b.read(starts, first + t);
        });
        const uint64_t more = device::scan<uint64_t>(b, start, shared.scan, device::Sum{});
        b.alone([&](uint32_t t) {
          if (first + t < count) b.write(starts, first + t, made + start[t]);
        });
        made += more;
      }
    }
  }
};

/// The sum of the terms of a tile's columns.
struct ThreeLcDecode {
  static constexpr const char* name = "laconic_ThreeLcDecode";
  using Args = ThreeLcSizes::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint8_t, device::kTerms * kTileColumns> digits;
    device::Cells<B, uint32_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const auto* const row = device::row_at(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t tile = b.index() - b.read(&row->first_tile, 0);
    const uint64_t elements = b.read(&row->count, 0);
    const uint32_t terms = b.read(&row->terms, 0);
    const ThreeLcPart part = threelc_part(args.format, elements, tile);
    const ThreeLcPart::Stretch stretch = part.stretch(tile);
    LACONIC_ROLLED
    for (uint32_t k = 0; k < terms; ++k) {
      const uint8_t* const payload = b.read(&row->payload[k], 0);
      if (args.format.zre) {
        expand(b, shared, *row, args.format, part, stretch, k);
        continue;
      }
      const uint64_t from = threelc_header(args.format, elements) + tile * kTileColumns;
      b.alone([&](uint32_t t) {
        for (uint32_t j = t; j < stretch.columns; j += device::kThreads)
          b.write(shared.digits, k * kTileColumns + j, b.read(payload, from + j));
      });
    }
    b.meet();  // all digits are there
    const bool add = b.read(&row->add, 0);
    float* const values = b.read(&row->values, 0) + part.first;
    float scale[device::kTerms] = {}, weights[device::kTerms] = {};
    for (uint32_t k = 0; k < device::kTerms; ++k) {
      if (k >= terms) break;
      scale[k] = b.template load<float>(b.read(&row->payload[k], 0), part.index * 4);
      weights[k] = b.read(&row->weight[k], 0);
    }
    b.alone([&](uint32_t t) {
      for (uint32_t j = t; j < stretch.columns; j += device::kThreads) {
        uint32_t place = 81;
        LACONIC_ROLLED
        for (uint32_t i = 0; i < kDigits; ++i, place /= 3) {
          const uint64_t at = i * part.columns + stretch.begin + j;
          if (at >= part.count) break;
          float sum = add ? b.read(values, at) : 0.0F;
          for (uint32_t k = 0; k < device::kTerms; ++k) {
            if (k >= terms) break;
            const uint32_t digit = digit_of(b.read(shared.digits, k * kTileColumns + j), place);
            sum += weights[k] * (digit == 0 ? -scale[k] : digit == 1 ? 0.0F : scale[k]);
          }
          b.write(values, at, sum);
        }
      }
    });
  }

 private:
  /// The digit bytes of a tile's columns of term k.
  template <class B>
  LACONIC_DEVICE static void expand(B& b, Shared<B>& shared, const device::DecodeRow& row,
                                    const ThreeLcFormat& format, const ThreeLcPart& part,
                                    const ThreeLcPart::Stretch& stretch, uint32_t k) {
    const uint64_t elements = b.read(&row.count, 0);
    const uint64_t tiles = threelc_tiles(elements);
    const uint64_t header = threelc_header(format, elements);
    const uint8_t* const payload = b.read(&row.payload[k], 0);
    const uint64_t* const starts = threelc_starts(b.read(&row.scratch, 0), tiles, k);
    uint64_t at = 0, end = b.read(&row.bytes[k], 0), column = 0;
    if (format.chunks) {
      at = header + b.read(starts, part.index);
      end = at + b.template load<uint16_t>(payload, threelc_length_at(elements, part.index));
    } else {
      uint64_t low = 0, high = tiles;  // the last slice that begins at or before the tile
      while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (b.read(starts, middle) <= stretch.begin) {
          low = middle;
        } else {
          high = middle;
        }
      }
      at = header + low * kTileColumns;
      column = b.read(starts, low);
    }
    const uint64_t until = stretch.begin + stretch.columns;
    for (; at < end && column < until; at += kTileColumns) {
      device::PerThread<B, uint32_t> start(b);
      b.alone([&](uint32_t t) { start[t] = expanded_share(b, payload, at, end, t); });
      const uint32_t made = device::scan<uint32_t>(b, start, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        uint64_t to = column + start[t];
        const uint64_t from = at + uint64_t{kThreadBytes} * t;
        for (uint64_t i = from; i < from + kThreadBytes && i < end; ++i) {
          const uint8_t code = b.read(payload, i);
          const uint8_t byte = code < kFirstRunCode ? code : kZeroByte;
          LACONIC_ROLLED
          for (uint32_t n = expanded_bytes(code); n > 0; --n, ++to) {
            if (to >= stretch.begin && to < until)
              b.write(shared.digits, k * kTileColumns + static_cast<uint32_t>(to - stretch.begin),
                      byte);
          }
        }
      });
      column += made;
    }
  }
};

/// CheckRow::scratch: a word that says whether a payload's outline is right, then of every tile how
/// many columns its slice makes, or where its chunk's coded bytes begin.
struct ThreeLcOutline {
  static constexpr const char* name = "laconic_ThreeLcOutline";
  struct Args {
    device::CheckBatch batch;
    ThreeLcFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint64_t, device::kThreads> scan;
    device::Cells<B, uint32_t, device::kWarps> bad;
  };

  /// A block per payload: lengths and scales.
  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::CheckRow row = b.read(args.batch.rows, b.index());
    const uint64_t header = threelc_header(args.format, row.count);
    const uint64_t chunks =
        args.format.chunks ? ceil_div(threelc_tiles(row.count), kChunkTiles) : 1;
    bool right = row.count == 0 ? row.bytes == 0 : row.bytes >= header;
    if (right && row.count != 0) {
      device::PerThread<B, uint32_t> bad(b);
      uint64_t made = 0;
      for (uint64_t first = 0; first < chunks; first += device::kThreads) {
        device::PerThread<B, uint64_t> start(b);
        b.alone([&](uint32_t t) {
          const uint64_t chunk = first + t;
          if (chunk >= chunks) return;
          start[t] = args.format.chunks ? b.template load<uint16_t>(
                                              row.payload, threelc_length_at(row.count, chunk))
                                        : row.bytes - header;
          const uint64_t columns =
              threelc_part(args.format, row.count, chunk * kChunkTiles).columns;
          if (start[t] > columns || (!args.format.zre && start[t] != columns)) bad[t] = 1;
          // Finite and not negative (nor -0), as bits.
          if (b.template load<uint32_t>(row.payload, chunk * 4) >= 0x7F800000U) bad[t] = 1;
        });
        const uint64_t more = device::scan<uint64_t>(b, start, shared.scan, device::Sum{});
        b.alone([&](uint32_t t) {
          if (args.format.chunks && first + t < chunks)
            b.write(reinterpret_cast<uint64_t*>(row.scratch), 1 + first + t, made + start[t]);
        });
        made += more;
      }
      right = device::block_max(b, bad, shared.bad) == 0 && made == row.bytes - header;
    }
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.write(reinterpret_cast<uint64_t*>(row.scratch), 0, uint64_t{right});
      if (!right) b.raise(row.malformed, 1);
    });
  }
};

/// The coded bytes of a slice, or of a chunk.
struct ThreeLcCheck {
  static constexpr const char* name = "laconic_ThreeLcCheck";
  using Args = ThreeLcOutline::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kThreads> scan;
    device::Cells<B, uint32_t, device::kWarps> bad;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    auto* const words = reinterpret_cast<uint64_t*>(row.scratch);
    if (row.count == 0 || b.read(words, 0) == 0) return;
    const uint64_t tile = b.index() - row.first_tile;
    const ThreeLcPart part = threelc_part(args.format, row.count, tile);
    if (args.format.chunks && tile != part.first_tile) return;
    const uint64_t header = threelc_header(args.format, row.count);
    uint64_t at = header + tile * kTileColumns;
    uint64_t end = device::Max{}(at, row.bytes);
    if (args.format.chunks) {
      at = header + b.read(words, 1 + part.index);
      end = at + b.template load<uint16_t>(row.payload, threelc_length_at(row.count, part.index));
    } else if (end > at + kTileColumns) {
      end = at + kTileColumns;
    }
    device::PerThread<B, uint32_t> bad(b);
    uint64_t made = 0;
    for (; at < end; at += kTileColumns) {
      device::PerThread<B, uint32_t> share(b);
      b.alone([&](uint32_t t) {
        share[t] = expanded_share(b, row.payload, at, end, t);
        const uint64_t from = at + uint64_t{kThreadBytes} * t;
        const uint64_t bytes = from >= end                 ? 0
                               : end - from < kThreadBytes ? end - from
                                                           : kThreadBytes;
        if (!args.format.zre && share[t] != bytes) bad[t] = 1;
      });
      made += device::scan<uint32_t>(b, share, shared.scan, device::Sum{});
    }
    const bool run_codes = device::block_max(b, bad, shared.bad) != 0;
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      if (!args.format.chunks) b.write(words, 1 + tile, made);
      if (run_codes || (args.format.chunks && made != part.columns)) b.raise(row.malformed, 1);
    });
  }
};

/// Whether all slices together make all columns: a block per payload.
struct ThreeLcTotal {
  static constexpr const char* name = "laconic_ThreeLcTotal";
  using Args = ThreeLcOutline::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint64_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::CheckRow row = b.read(args.batch.rows, b.index());
    const auto* const words = reinterpret_cast<const uint64_t*>(row.scratch);
    if (row.count == 0 || b.read(words, 0) == 0) return;
    const ThreeLcPart part = threelc_part(args.format, row.count, 0);
    uint64_t made = 0;
    for (uint64_t first = 0; first < part.tiles; first += device::kThreads) {
      device::PerThread<B, uint64_t> of_tile(b);
      b.alone([&](uint32_t t) {
        if (first + t < part.tiles) of_tile[t] = b.read(words, 1 + first + t);
      });
      made += device::scan<uint64_t>(b, of_tile, shared.scan, device::Sum{});
    }
    b.alone([&](uint32_t t) {
      if (t == 0 && made != part.columns) b.raise(row.malformed, 1);
    });
  }
};

}  // namespace laconic::kernels
