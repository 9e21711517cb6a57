// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The cut of the exactly k largest magnitudes on the device: a floor from a sample, then radix
// selection among what reaches it, by digits of 11, 10 and 10 bits. The floor changes no byte:
// where fewer than k elements reach it, all are looked at.
#pragma once

#include "device/queue.h"
#include "kernels/sparse/select_device.h"

namespace laconic::kernels {

inline constexpr uint32_t kNextDigits = 1024;  ///< of the second and third digit
/// SelectScratch::words: how many keys have each digit, in three rounds and, of the first one, a
/// second time; then the keys of the sample.
[[nodiscard]] constexpr uint32_t radix_round(uint32_t round) noexcept {
  return round == 0 ? 0 : 2 * kFirstDigits + (round - 1) * kNextDigits;
}
inline constexpr uint32_t kAgainWords = kFirstDigits;

/// Elements of a unit's sample; 0: it is not worth one.
[[nodiscard]] constexpr uint64_t radix_sample(uint64_t n, uint64_t k) noexcept {
  if (n < uint64_t{1} << 15 || k > n / 16) return 0;
  return n / 8 < 16384 ? n / 8 : 16384;
}
[[nodiscard]] constexpr uint64_t radix_words(uint64_t n, uint64_t k) noexcept {
  return radix_round(3) + radix_sample(n, k);
}

/// A rank in a sample of `size` of n, four standard deviations above the expected one: its key is
/// rarely above that of the k-th element.
[[nodiscard]] constexpr uint64_t radix_rank(uint64_t n, uint64_t k, uint64_t size) noexcept {
  const uint64_t expected = k * size / n;
  uint64_t deviation = 1;
  while (deviation * deviation < expected) ++deviation;
  const uint64_t rank = expected + 4 * deviation + 3;
  return rank < size ? rank : size;
}

/// The digit of the key of a rank, from the largest on, and its rank among keys with that digit.
struct RankedDigit {
  bool any = false;  ///< there are as many keys
  uint32_t digit = 0;
  uint32_t rank = 0;  ///< if not any: how many are missing
};
template <class B>
struct RankShared {
  device::Cells<B, uint32_t, device::kThreads> scan;
  device::Cells<B, uint32_t, 2> found;
};
/// `count_of(digit)`: how many keys have it.
template <uint32_t kCount, class B, class CountOf>
[[nodiscard]] LACONIC_DEVICE RankedDigit find_rank(B& b, RankShared<B>& shared, uint32_t rank,
                                                   CountOf count_of) {
  constexpr uint32_t kOwn = kCount / device::kThreads;
  device::PerThread<B, uint32_t> before(b), own(b);
  b.alone([&](uint32_t t) {
    for (uint32_t i = 0; i < kOwn; ++i) own[t] += count_of(kCount - 1 - (kOwn * t + i));
    before[t] = own[t];
  });
  const uint32_t all = device::scan<uint32_t>(b, before, shared.scan, device::Sum{});
  if (all < rank) return {false, 0, rank - all};
  b.each([&](uint32_t t) {
    if (before[t] >= rank || rank - before[t] > own[t]) return;
    uint32_t digit = kCount - 1 - kOwn * t, left = rank - before[t];
    for (uint32_t keys = count_of(digit); keys < left; keys = count_of(--digit)) left -= keys;
    b.write(shared.found, 0, digit);
    b.write(shared.found, 1, left);
  });
  return {true, b.read(shared.found, 0), b.read(shared.found, 1)};
}

/// The state of every unit, with the floor: a block per unit.
struct RadixSample {
  static constexpr const char* name = "laconic_RadixSample";
  struct Args {
    device::EncodeBatch batch;
    SparseFormat format;
  };
  template <class B>
  struct Shared {
    DigitCounts<B> digits;
    RankShared<B> rank;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const uint64_t n = row.count;
    const uint64_t k = kept_of(args.format.ratio, n);
    const uint64_t size = radix_sample(n, k);
    const uint32_t floor = size == 0
                               ? 1
                               : floor_of(b, shared, row, scratch.words() + radix_round(3), size,
                                          static_cast<uint32_t>(radix_rank(n, k, size)));
    b.alone([&](uint32_t t) {
      for (uint32_t i = t; i < radix_round(3); i += device::kThreads)
        b.write(scratch.words(), i, 0U);
      if (t == 0)
        b.write(scratch.state(), 0, SelectState{floor, 0, 0, static_cast<uint32_t>(k), 31, 0});
    });
  }

 private:
  /// The key of the rank in the sample, but for its last ten bits.
  template <class B>
  LACONIC_DEVICE static uint32_t floor_of(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                          uint32_t* keys, uint64_t size, uint32_t rank) {
    const auto count_of = [&](uint32_t digit) { return shared.digits.of(b, digit); };
    b.each([&](uint32_t t) { shared.digits.clear(b, t, kFirstDigits); });
    b.each([&](uint32_t t) {
      for (uint64_t i = t; i < size; i += device::kThreads) {
        const uint32_t key =
            magnitude_key(device::input_at(b, row, sample_position(i, row.count, size), false));
        b.write(keys, i, key);
        shared.digits.add(b, key >> kFirstShift);
      }
    });
    const RankedDigit first = find_rank<kFirstDigits>(b, shared.rank, rank, count_of);
    b.each([&](uint32_t t) { shared.digits.clear(b, t, kNextDigits); });
    b.each([&](uint32_t t) {
      for (uint64_t i = t; i < size; i += device::kThreads) {
        const uint32_t key = b.read(keys, i);
        if (key >> kFirstShift == first.digit) shared.digits.add(b, (key >> 10) % kNextDigits);
      }
    });
    const RankedDigit second = find_rank<kNextDigits>(b, shared.rank, first.rank, count_of);
    return device::Max{}(1U, first.digit << kFirstShift | second.digit << 10);
  }
};

/// True if the lists do not hold the k largest elements. Until RadixNarrow, SelectState::ties is k.
[[nodiscard]] LACONIC_HOST_DEVICE inline bool look_again(const SelectState& state,
                                                         device::Verdict verdict) {
  return verdict == device::Verdict::reset || (state.found < state.ties && state.floor > 1);
}

/// Counts the keys with each digit of a round. SelectCollect did so for round 0, which is repeated
/// for units that are looked at again.
struct RadixDigits {
  static constexpr const char* name = "laconic_RadixDigits";
  struct Args {
    device::EncodeBatch batch;
    SparseFormat format;
    uint32_t round = 0;
  };
  template <class B>
  struct Shared {
    DigitCounts<B> digits;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    const SelectState state = b.read(scratch.state(), 0);
    const bool first = args.round == 0;
    if (first ? !look_again(state, verdict) : state.open == 0) return;
    const SelectTile tile = select_tile(b, row, scratch, state.lists != 0, verdict);
    const uint32_t digits = first ? kFirstDigits : kNextDigits;
    const uint32_t shift = first ? kFirstShift : state.open - 10;
    b.each([&](uint32_t t) { shared.digits.clear(b, t, digits); });
    b.each([&](uint32_t t) {
      tile.each_of(b, t, [&](uint32_t, float a) {
        const uint32_t key = magnitude_key(a);
        if (key != 0 && key >> state.open == state.key >> state.open)
          shared.digits.add(b, (key >> shift) % digits);
      });
    });
    uint32_t* const to = scratch.words() + (first ? kAgainWords : radix_round(args.round));
    b.alone([&](uint32_t t) { shared.digits.add_to(b, t, digits, to); });
  }
};

/// A round's digit of the k-th key: a block per unit.
struct RadixNarrow {
  static constexpr const char* name = "laconic_RadixNarrow";
  using Args = RadixDigits::Args;
  template <class B>
  using Shared = RankShared<B>;

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SelectScratch scratch = select_scratch(args.format, row.scratch, row.count);
    SelectState state = b.read(scratch.state(), 0);
    if (state.open == 0) return;
    const bool first = args.round == 0;
    const bool again = first && look_again(state, verdict);
    const uint32_t* const counts =
        scratch.words() + (again ? kAgainWords : radix_round(args.round));
    const auto count_of = [&](uint32_t digit) { return b.read(counts, digit); };
    const RankedDigit found = first ? find_rank<kFirstDigits>(b, shared, state.ties, count_of)
                                    : find_rank<kNextDigits>(b, shared, state.ties, count_of);
    state.ties = found.rank;
    if (found.any) {
      state.open = first ? kFirstShift : state.open - 10;
      state.key |= found.digit << state.open;
      if (first) state.lists = again ? 0 : 1;
    } else {  // zeros fill up, and no list holds these
      state.open = 0;
    }
    b.alone([&](uint32_t t) {
      if (t == 0) b.write(scratch.state(), 0, state);
    });
  }
};

/// All launches of an encoder that sends exactly what the ratio says.
inline void encode_largest(device::Queue& queue, const device::EncodeBatch& batch,
                           const SparseFormat& format) {
  queue.launch<RadixSample>(batch.units, {batch, format});
  queue.launch<SelectCollect>(batch.tiles, {batch, format, true});
  for (uint32_t round = 0; round < 3; ++round) {
    queue.launch<RadixDigits>(batch.tiles, {batch, format, round});
    queue.launch<RadixNarrow>(batch.units, {batch, format, round});
  }
  queue.launch<SelectCount>(batch.tiles, {batch, format});
  queue.launch<SelectPlace>(batch.units, {batch, format});
  queue.launch<SelectPut>(batch.tiles, {batch, format});
  queue.launch<SelectFinish>(batch.tiles, {batch, format});
}

}  // namespace laconic::kernels
