// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Elements above a threshold or a cut, packed into a sparse payload: in one pass over memory each
// tile lists what reaches its unit's floor. Once the cut is known, tiles count what they keep, a
// block per unit finds where it goes, and the tiles put it there.
#pragma once

#include <bit>

#include "kernels/cast/cast_elements.h"
#include "kernels/sparse/select.h"
#include "kernels/sparse/sparse_device.h"

namespace laconic::kernels {

inline constexpr uint32_t kFirstDigits = 2048;  ///< of a key's leading 11 bits
inline constexpr uint32_t kFirstShift = 20;
/// Entries that a tile's list has room for. What does not fit is looked for in the tile again.
inline constexpr uint32_t kListMost = kSparseTile / 8;
static_assert(kSparseTile == 32 * device::kThreads);  // a word of bits for every thread

/// The selection of a unit, at most most_pairs: keys above `key`, and the first `ties` of those
/// equal to it. A launch before SelectCollect writes it, with `found` = 0.
struct SelectState {
  uint32_t floor = 0;  ///< tiles list keys from here on
  uint32_t found = 0;  ///< their number
  uint32_t key = 0;
  uint32_t ties = 0;
  uint32_t open = 0;   ///< bits of `key` that are not known yet
  uint32_t lists = 0;  ///< not 0: lists hold all that may be kept
};

/// Numbers of a tile's elements above the cut, and on it.
struct SelectCounts {
  uint32_t above = 0;
  uint32_t ties = 0;

  /// Counts of one element; the sum of such words has those of several.
  [[nodiscard]] LACONIC_HOST_DEVICE static constexpr uint32_t word(uint32_t key, uint32_t cut) {
    return key > cut ? 1U : key == cut ? 1U << 16 : 0U;
  }
  [[nodiscard]] LACONIC_HOST_DEVICE static constexpr SelectCounts of(uint32_t word) {
    return {word & 0xFFFF, word >> 16};
  }
};
/// The place of a tile's first kept element, and how many of those on the cut it keeps.
struct SelectPlaceOf {
  static constexpr uint32_t kAllTies = UINT32_MAX;
  uint32_t first = 0;
  uint32_t ties = 0;
};

/// EncodeRow::scratch of a unit of n elements of which `most` may be sent; `words` for what else a
/// codec needs.
struct SelectScratch {
  uint8_t* at = nullptr;
  uint64_t tiles = 0;
  uint64_t most = 0;

  [[nodiscard]] LACONIC_HOST_DEVICE static constexpr uint64_t bytes(uint64_t n, uint64_t most,
                                                                    uint64_t words) {
    const uint64_t tiles = ceil_div(n, kSparseTile);
    return 32 + tiles * (sizeof(SelectCounts) + sizeof(SelectPlaceOf) + 4 + kListMost * 6) +
           (most + words) * 4;
  }
  [[nodiscard]] LACONIC_HOST_DEVICE SelectState* state() const {
    return reinterpret_cast<SelectState*>(at);
  }
  [[nodiscard]] LACONIC_HOST_DEVICE SelectCounts* counts() const {
    return reinterpret_cast<SelectCounts*>(at + 32);
  }
  [[nodiscard]] LACONIC_HOST_DEVICE SelectPlaceOf* places() const {
    return reinterpret_cast<SelectPlaceOf*>(counts() + tiles);
  }
  /// Bits of the floats in a tile's list.
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t* values(uint64_t tile) const {
    return reinterpret_cast<uint32_t*>(places() + tiles) + tile * kListMost;
  }
  /// Indices of the kept elements.
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t* indices() const { return values(tiles); }
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t* listed() const { return indices() + most; }
  [[nodiscard]] LACONIC_HOST_DEVICE uint16_t* positions(uint64_t tile) const {
    return reinterpret_cast<uint16_t*>(listed() + tiles) + tile * kListMost;
  }
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t* words() const {
    return reinterpret_cast<uint32_t*>(positions(tiles));
  }
};
static_assert(sizeof(SelectState) <= 32);

[[nodiscard]] LACONIC_HOST_DEVICE inline SelectScratch select_scratch(const SparseFormat& format,
                                                                      uint8_t* scratch,
                                                                      uint64_t n) {
  return {scratch, ceil_div(n, kSparseTile), most_pairs(format, n)};
}

/// The verdict of a unit that was measured.
template <class B>
[[nodiscard]] LACONIC_DEVICE device::Verdict select_verdict(B& b, const device::EncodeRow& row) {
  return device::verdict_of(device::measured_of(b, row), row.residual != nullptr, row.limit,
                            device::UpTo{row.limit});
}

/// Elements of a tile that may be kept.
struct SelectTile {
  device::EncodeRow row;
  device::Range own;
  SelectScratch scratch;
  uint64_t tile = 0;
  bool reset = false;
  bool from_list = false;
  uint32_t listed = 0;

  /// body(position in the tile, float) for a thread's share of them.
  template <class B, class Body>
  LACONIC_DEVICE void each_of(B& b, uint32_t t, Body body) const {
    if (from_list) {
      for (uint32_t j = t; j < listed; j += device::kThreads)
        body(uint32_t{b.read(scratch.positions(tile), j)},
             bits_float(b.read(scratch.values(tile), j)));
      return;
    }
    for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads)
      body(static_cast<uint32_t>(i - own.begin), device::input_at(b, row, i, reset));
  }
};
/// `lists`: whether the unit's lists hold what may be kept.
template <class B>
[[nodiscard]] LACONIC_DEVICE SelectTile select_tile(B& b, const device::EncodeRow& row,
                                                    const SelectScratch& scratch, bool lists,
                                                    device::Verdict verdict) {
  SelectTile made{row, device::range_of(row, b.index(), kSparseTile), scratch};
  made.tile = b.index() - row.first_tile;
  made.reset = verdict == device::Verdict::reset;
  if (!lists) return made;
  made.listed = b.read(scratch.listed(), made.tile);
  made.from_list = made.listed <= kListMost;
  return made;
}

/// Numbers of a tile's keys with each digit.
template <class B>
struct DigitCounts {
  device::Cells<B, uint32_t, kFirstDigits> cells;

  /// In a phase that a barrier ends, as add.
  LACONIC_DEVICE void clear(B& b, uint32_t t, uint32_t digits) {
    for (uint32_t d = t; d < digits; d += device::kThreads) b.write(cells, d, 0U);
  }
  LACONIC_DEVICE void add(B& b, uint32_t digit) { b.add(cells, digit, 1); }
  [[nodiscard]] LACONIC_DEVICE uint32_t of(B& b, uint32_t digit) { return b.read(cells, digit); }
  /// Adds them to a unit's.
  LACONIC_DEVICE void add_to(B& b, uint32_t t, uint32_t digits, uint32_t* unit) {
    for (uint32_t d = t; d < digits; d += device::kThreads) {
      const uint32_t keys = of(b, d);
      if (keys != 0) b.add(unit, d, keys);
    }
  }
};

/// A bit for each element of a tile, and how many there are before each word.
template <class B>
struct TileBits {
  device::Cells<B, uint32_t, device::kThreads> words;
  device::Cells<B, uint32_t, device::kThreads> before;

  /// In a phase that a barrier ends.
  LACONIC_DEVICE void clear(B& b, uint32_t t) { b.write(words, t, 0U); }
  LACONIC_DEVICE void set(B& b, uint32_t position) {
    b.add(words, position / 32, 1U << (position % 32));
  }
  /// After a barrier, between phases: ranks may be read in phases that follow. Returns how many
  /// are set.
  [[nodiscard]] LACONIC_DEVICE uint32_t count(B& b) {
    device::PerThread<B, uint32_t> own(b);
    b.alone([&](uint32_t t) { own[t] = static_cast<uint32_t>(std::popcount(b.read(words, t))); });
    const uint32_t all = device::scan<uint32_t>(b, own, before, device::Sum{});
    b.each([&](uint32_t t) { b.write(before, t, own[t]); });
    return all;
  }
  [[nodiscard]] LACONIC_DEVICE uint32_t rank(B& b, uint32_t position) {
    const uint32_t below = b.read(words, position / 32) & ((1U << (position % 32)) - 1);
    return b.read(before, position / 32) + static_cast<uint32_t>(std::popcount(below));
  }
};

/// Measures units, and lists what reaches their floor; not those whose floor is 0.
struct SelectCollect {
  static constexpr const char* name = "laconic_SelectCollect";
  struct Args {
    device::EncodeBatch batch;
    SparseFormat format;
    /// Adds the number of keys with each first digit to SelectScratch::words.
    bool digits = false;
    bool again = false;  ///< units are measured: what is listed is what is encoded
  };
  template <class B>
  struct Shared {
    TileBits<B> hits;
    DigitCounts<B> digits;
    device::Cells<B, uint32_t, device::kWarps> most;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kSparseTile);
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const uint64_t tile = b.index() - row.first_tile;
    const uint32_t floor = b.read(&scratch.state()->floor, 0);
    if (floor == 0) return;
    const auto verdict = args.again ? select_verdict(b, row) : device::Verdict::payload;
    if (!device::gives_payload(verdict)) return;
    const bool reset = verdict == device::Verdict::reset;
    b.each([&](uint32_t t) {
      shared.hits.clear(b, t);
      if (args.digits) shared.digits.clear(b, t, kFirstDigits);
    });
    device::PerThread<B, uint32_t> values(b), residual(b), sum(b);
    b.alone([&](uint32_t t) {
      const device::Max max;
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
        const float x = device::gradient_at(b, row, i);
        values[t] = max(values[t], device::absolute_bits(x));
        float a = x;
        if (row.residual != nullptr) {
          const float e = b.read(row.residual, i);
          residual[t] = max(residual[t], device::absolute_bits(e));
          a = (reset ? 0.0F : e) + x;
          sum[t] = max(sum[t], device::absolute_bits(e + x));
        }
        const uint32_t key = magnitude_key(a);
        if (key < floor) continue;
        shared.hits.set(b, static_cast<uint32_t>(i - own.begin));
        if (args.digits) shared.digits.add(b, key >> kFirstShift);
      }
    });
    if (args.again) {
      b.meet();  // all bits are there
    } else {
      (void)device::raise_measured(b, row, values, residual, sum, shared.most);
    }
    const uint32_t listed = shared.hits.count(b);
    b.alone([&](uint32_t t) {
      uint32_t at = b.read(shared.hits.before, t);
      for (uint32_t word = b.read(shared.hits.words, t); word != 0 && at < kListMost;
           word &= word - 1, ++at) {
        const uint32_t position = 32 * t + static_cast<uint32_t>(std::countr_zero(word));
        b.write(scratch.positions(tile), at, static_cast<uint16_t>(position));
        b.write(scratch.values(tile), at,
                float_bits(device::input_at(b, row, own.begin + position, reset)));
      }
      if (args.digits) shared.digits.add_to(b, t, kFirstDigits, scratch.words());
      if (t != 0) return;
      b.write(scratch.listed(), tile, listed);
      b.add(&scratch.state()->found, 0, listed);
    });
  }
};

/// Counts the elements of a tile above the cut, and on it.
struct SelectCount {
  static constexpr const char* name = "laconic_SelectCount";
  struct Args {
    device::EncodeBatch batch;
    SparseFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const SelectState cut = b.read(scratch.state(), 0);
    const SelectTile tile = select_tile(b, row, scratch, cut.lists != 0, verdict);
    device::PerThread<B, uint32_t> both(b);
    b.alone([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t, float a) {
        both[t] += SelectCounts::word(magnitude_key(a), cut.key);
      });
    });
    const uint32_t all = device::scan<uint32_t>(b, both, shared.scan, device::Sum{});
    b.alone([&](uint32_t t) {
      if (t == 0) b.write(scratch.counts(), tile.tile, SelectCounts::of(all));
    });
  }
};

/// Places of what tiles keep, ties to the first ones: a block per unit. Writes the number of pairs
/// into the header, if there is one.
struct SelectPlace {
  static constexpr const char* name = "laconic_SelectPlace";
  using Args = SelectCount::Args;
  template <class B>
  struct Shared {
    device::Cells<B, uint64_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0 || !device::gives_payload(select_verdict(b, row))) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const uint64_t most_ties = b.read(&scratch.state()->ties, 0);
    uint64_t ties = 0, kept = 0;
    for (uint64_t first = 0; first < scratch.tiles; first += device::kThreads) {
      device::PerThread<B, SelectCounts> counts(b);
      device::PerThread<B, uint64_t> before(b), place(b);
      b.alone([&](uint32_t t) {
        if (first + t < scratch.tiles) counts[t] = b.read(scratch.counts(), first + t);
        before[t] = counts[t].ties;
      });
      const uint64_t more = device::scan<uint64_t>(b, before, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        const uint64_t left = ties + before[t] < most_ties ? most_ties - ties - before[t] : 0;
        before[t] = left < counts[t].ties ? left : counts[t].ties;  // what it keeps of them
        place[t] = counts[t].above + before[t];
      });
      const uint64_t all = device::scan<uint64_t>(b, place, shared.scan, device::Sum{});
      b.alone([&](uint32_t t) {
        if (first + t >= scratch.tiles) return;
        b.write(scratch.places(), first + t,
                SelectPlaceOf{static_cast<uint32_t>(kept + place[t]),
                              before[t] == counts[t].ties ? SelectPlaceOf::kAllTies
                                                          : static_cast<uint32_t>(before[t])});
      });
      ties += more;
      kept += all;
    }
    if (args.format.header == 0) return;
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.store(row.out, 0, static_cast<uint32_t>(kept));
      b.write(&row.measured->bytes, 0,
              args.format.header + sparse_bytes(kept, row.count, args.format.values));
    });
  }
};

/// Which elements of a tile are kept.
template <class B>
struct SelectKept {
  uint32_t key = 0;
  uint32_t ties = 0;  ///< SelectPlaceOf::ties
  TileBits<B>* of_ties = nullptr;

  /// Between phases. `bits` is used if the tile keeps some of its ties, and not all.
  LACONIC_DEVICE SelectKept(B& b, const SelectTile& tile, TileBits<B>& bits)
      : key(b.read(&tile.scratch.state()->key, 0)),
        ties(b.read(&tile.scratch.places()[tile.tile].ties, 0)),
        of_ties(&bits) {
    if (ties == 0 || ties == SelectPlaceOf::kAllTies) return;
    b.each([&](uint32_t t) { bits.clear(b, t); });
    b.each([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t position, float a) {
        if (magnitude_key(a) == key) bits.set(b, position);
      });
    });
    (void)bits.count(b);
  }
  [[nodiscard]] LACONIC_DEVICE bool operator()(B& b, uint32_t position, float a) const {
    const uint32_t own = magnitude_key(a);
    if (own != key || ties == 0) return own > key;
    return ties == SelectPlaceOf::kAllTies || of_ties->rank(b, position) < ties;
  }
};

/// A value as it is sent.
[[nodiscard]] LACONIC_HOST_DEVICE inline float sent_value(float a, DType type) {
  return type == DType::f32 ? a : bf16_to_float(encode_bf16(1.0F, a));
}

/// Values to their places in the payload, indices into scratch memory.
struct SelectPut {
  static constexpr const char* name = "laconic_SelectPut";
  using Args = SelectCount::Args;
  template <class B>
  struct Shared {
    TileBits<B> ties;
    TileBits<B> bits;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const bool lists = b.read(&scratch.state()->lists, 0) != 0;
    const SelectTile tile = select_tile(b, row, scratch, lists, verdict);
    const SparseSet set = sparse_set(b, args.format, row.count, row.out);
    const SelectKept<B> kept(b, tile, shared.ties);
    b.each([&](uint32_t t) { shared.bits.clear(b, t); });
    b.each([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t position, float a) {
        if (kept(b, position, a)) shared.bits.set(b, position);
      });
    });
    (void)shared.bits.count(b);
    const uint64_t first = b.read(&scratch.places()[tile.tile].first, 0);
    b.alone([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t position, float a) {
        if (!kept(b, position, a)) return;
        const uint64_t at = first + shared.bits.rank(b, position);
        b.write(scratch.indices(), at, static_cast<uint32_t>(tile.own.begin + position));
        if (set.type == DType::f32) {
          b.store(row.out, set.values + 4 * at, a);
        } else {
          b.store(row.out, set.values + 2 * at, encode_bf16(1.0F, a));
        }
      });
    });
  }
};

/// Packs the indices, and leaves in the residual what was not sent.
struct SelectFinish {
  static constexpr const char* name = "laconic_SelectFinish";
  using Args = SelectCount::Args;
  template <class B>
  struct Shared {
    TileBits<B> ties;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const SelectTile tile = select_tile(b, row, scratch, false, verdict);
    const SparseSet set = sparse_set(b, args.format, row.count, row.out);
    // Eight indices begin and end with a byte.
    const uint64_t share = round_up(ceil_div(set.count, scratch.tiles), 8);
    b.alone([&](uint32_t t) {
      for (uint64_t j = 8 * uint64_t{t}; j < share; j += 8 * uint64_t{device::kThreads})
        pack(b, row, scratch, set, tile.tile * share + j);
    });
    if (row.residual == nullptr) return;
    const SelectKept<B> kept(b, tile, shared.ties);
    b.alone([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t position, float a) {
        b.write(row.residual, tile.own.begin + position,
                kept(b, position, a) ? a + -1.0F * sent_value(a, set.type) : a);
      });
    });
  }

 private:
  /// Up to eight indices from j on, a multiple of 8.
  template <class B>
  LACONIC_DEVICE static void pack(B& b, const device::EncodeRow& row, const SelectScratch& scratch,
                                  const SparseSet& set, uint64_t j) {
    const uint64_t end = j + 8 < set.count ? j + 8 : set.count;
    uint64_t at = set.indices + j / 8 * set.width;
    uint64_t pending = 0;
    uint32_t bits = 0;
    for (; j < end; ++j) {
      pending |= uint64_t{b.read(scratch.indices(), j)} << bits;
      for (bits += set.width; bits >= 8; bits -= 8, pending >>= 8)
        b.write(row.out, at++, static_cast<uint8_t>(pending));
    }
    if (bits != 0) b.write(row.out, at, static_cast<uint8_t>(pending));
  }
};

}  // namespace laconic::kernels
