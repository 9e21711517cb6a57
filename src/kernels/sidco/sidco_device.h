// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// SIDCo's selection on the device, after sidco_fit_device.h: tiles list what exceeds the threshold,
// a block per unit guards the count, and tiles put the elements into the payload. The guard's
// corrections are rare: the unit's block does them alone.
#pragma once

#include "kernels/sidco/sidco_fit_device.h"
#include "kernels/sparse/radix_device.h"

namespace laconic::kernels {

/// The cut, and places in the payload: a block per unit.
struct SidcoChoose {
  static constexpr const char* name = "laconic_SidcoChoose";
  struct Args {
    device::EncodeBatch batch;
    SidcoFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kThreads> scan;
    DigitCounts<B> digits;
    RankShared<B> rank;
    SelectPlace::Shared<B> place;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SidcoScratch scratch = sidco_scratch(args.format, row);
    const SidcoUnit unit{row, scratch.select, verdict == device::Verdict::reset};
    const SidcoWork work = b.read(scratch.work, 0);
    SelectState state = b.read(scratch.select.state(), 0);
    const uint32_t floor = work.eta.key;  // of the lists
    const uint64_t fitted = work.way == SidcoWork::Way::fit ? state.found : work.fitted;
    choose(b, shared, args.format, unit, work, &state);
    const uint32_t lowest = state.ties != 0 ? state.key : state.key + 1;
    state.lists = lowest >= floor ? 1 : 0;
    b.meet();  // all have read the state
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.write(scratch.select.state(), 0, state);
      b.store(row.out, 4, static_cast<uint32_t>(fitted));
    });
    if (state.ties == 0 && lowest == floor) {
      b.each([&](uint32_t t) {
        for (uint64_t tile = t; tile < scratch.select.tiles; tile += device::kThreads)
          b.write(scratch.select.counts(), tile,
                  SelectCounts{b.read(scratch.select.listed(), tile), 0});
      });
    } else {
      count_tiles(b, unit, state);
    }
    SelectPlace::run(b, shared.place, {args.batch, args.format.sparse});
  }

 private:
  /// SelectState::key and ties, from its `found`.
  template <class B>
  LACONIC_DEVICE static void choose(B& b, Shared<B>& shared, const SidcoFormat& format,
                                    const SidcoUnit& unit, const SidcoWork& work,
                                    SelectState* state) {
    const uint64_t n = unit.row.count;
    const uint64_t k = kept_of(format.sparse.ratio, n);
    sidco::Threshold eta = work.eta;
    uint32_t count = state->found;
    if (work.way == SidcoWork::Way::fit && format.guard && !sidco::in_band(count, k)) {
      sidco::Bracket bracket(sidco_max_key(b, unit.row, unit.reset), work.nonzero, eta, k);
      LACONIC_ROLLED
      for (uint32_t pass = 0; pass < sidco::kGuardPasses && !sidco::in_band(count, k); ++pass) {
        eta = bracket.next(count);
        count = unit.count(b, shared.scan, eta.key >= work.eta.key, eta.key);
      }
    }
    const uint64_t most = most_pairs(format.sparse, n);
    const bool fits = work.way == SidcoWork::Way::all ||
                      (format.guard ? sidco::in_band(count, k) : count >= 1 && count <= most);
    state->key = eta.key - 1;
    state->ties = 0;
    if (fits) return;
    const uint64_t wanted = format.guard ? k : count == 0 ? 1 : most;
    largest(b, shared, unit, state->found >= wanted, static_cast<uint32_t>(wanted), state);
  }

  /// The cut of exactly the `wanted` largest: radix selection by digits of 11, 10 and 10 bits.
  template <class B>
  LACONIC_DEVICE static void largest(B& b, Shared<B>& shared, const SidcoUnit& unit, bool lists,
                                     uint32_t wanted, SelectState* state) {
    const auto count_of = [&](uint32_t digit) { return shared.digits.of(b, digit); };
    uint32_t key = 0, rank = wanted;
    LACONIC_ROLLED
    for (uint32_t open = 31; open != 0;) {
      const uint32_t shift = open == 31 ? kFirstShift : open - 10;
      b.each([&](uint32_t t) { shared.digits.clear(b, t, kFirstDigits); });
      unit.each(b, lists, [&](uint32_t, float a) {
        const uint32_t own = magnitude_key(a);
        if (own >> open == key >> open) shared.digits.add(b, (own >> shift) % kFirstDigits);
      });
      const RankedDigit found = find_rank<kFirstDigits>(b, shared.rank, rank, count_of);
      rank = found.rank;
      key |= found.digit << shift;
      open = shift;
    }
    state->key = key;
    state->ties = rank;
  }

  /// The number of elements above the cut and on it, of each tile.
  template <class B>
  LACONIC_DEVICE static void count_tiles(B& b, const SidcoUnit& unit, const SelectState& cut) {
    LACONIC_ROLLED
    for (uint64_t first = 0; first < unit.scratch.tiles; first += device::kWarps) {
      device::PerThread<B, uint32_t> both(b);
      b.alone([&](uint32_t t) {
        const uint64_t tile = first + t / device::kWarp;
        if (tile >= unit.scratch.tiles) return;
        unit.each_of(b, tile, t % device::kWarp, cut.lists != 0,
                     [&](float a) { both[t] += SelectCounts::word(magnitude_key(a), cut.key); });
      });
      b.warp_scan(both, device::Sum{});
      b.alone([&](uint32_t t) {
        const uint64_t tile = first + t / device::kWarp;
        if (t % device::kWarp != device::kWarp - 1 || tile >= unit.scratch.tiles) return;
        b.write(unit.scratch.counts(), tile, SelectCounts::of(both[t]));
      });
    }
    b.meet();  // all counts are there
  }
};

/// State of units that were delivered: a block per unit.
struct SidcoCommit {
  static constexpr const char* name = "laconic_SidcoCommit";
  struct Args {
    device::CommitBatch batch;
    SidcoFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kWarps> most;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::CommitRow row = b.read(args.batch.rows, b.index());
    const SparseFormat& format = args.format.sparse;
    const uint64_t k = kept_of(format.ratio, row.count);
    if (k == 0 || row.bytes < format.header) return;
    if (args.format.keeps_threshold()) {
      const SparseSet set = sparse_set(b, format, row.count, row.sent);
      constexpr uint32_t kInfinity = sidco::kInfinityKey;
      device::PerThread<B, uint32_t> below(b);  // of infinity
      b.alone([&](uint32_t t) {
        for (uint64_t j = t; j < set.count; j += device::kThreads)
          below[t] = device::Max{}(below[t], kInfinity - device::absolute_bits(set.value(b, j)));
      });
      const uint32_t most = device::block_max(b, below, shared.most);
      b.alone([&](uint32_t t) {
        if (t == 0 && most != 0 && most != kInfinity)
          b.write(row.state, 0, bits_float(kInfinity - most));
      });
      return;
    }
    const uint32_t fitted = b.template load<uint32_t>(row.sent, 4);
    float state[sidco::Adaptation::kFloats];
    for (uint32_t i = 0; i < sidco::Adaptation::kFloats; ++i) state[i] = b.read(row.state, i);
    auto adaptation = sidco::Adaptation::from(state);
    adaptation.observe(args.format.mode, static_cast<double>(fitted) / static_cast<double>(k),
                       args.format.most_stages);
    adaptation.put(state);
    b.meet();  // all have read it
    b.alone([&](uint32_t t) {
      if (t < sidco::Adaptation::kFloats) b.write(row.state, t, state[t]);
    });
  }
};

}  // namespace laconic::kernels
