// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// SIDCo's thresholds on the device. Units that have a last threshold list what reaches it, and the
// others take the moments of all elements. Each stage of a fit is a launch over all chunks, and a
// block per unit that fits. A second look, at magnitudes far from 1 or at a residual of no use, is
// rare: the unit's block does it alone.
#pragma once

#include "kernels/sidco/sidco_elements.h"
#include "kernels/sparse/moments_elements.h"
#include "kernels/sparse/select_device.h"

namespace laconic::kernels {

struct SidcoFormat {
  SparseFormat sparse;
  sidco::Law law = sidco::Law::pareto;
  sidco::Mode mode = sidco::Mode::fixed;
  uint32_t stages = 0;       ///< of a fit; 0: by the codec state
  uint32_t most_stages = 1;  ///< of any unit
  bool guard = true;
  bool adapts = false;  ///< the codec state is sidco::Adaptation

  /// The codec state is the last threshold, 0 if there is none.
  [[nodiscard]] LACONIC_HOST_DEVICE bool keeps_threshold() const { return guard && !adapts; }
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t state_floats() const {
    return adapts ? sidco::Adaptation::kFloats : keeps_threshold() ? 1 : 0;
  }
};

/// A unit between launches.
struct SidcoWork {
  enum class Way : uint32_t {
    fit,
    last,  ///< what reaches the last threshold is sent, or the largest of it
    all,   ///< all elements that are not zero
  };
  sidco::Threshold eta;  ///< of the next stage's exceedances, at last of the selection
  float scale = 1.0F;
  Way way = Way::fit;
  double step = 0;       ///< ratio of later stages
  uint64_t nonzero = 0;  ///< elements
  uint64_t fitted = 0;   ///< elements above the first threshold tried
  uint32_t left = 0;     ///< stages
};

/// EncodeRow::scratch: SelectScratch, the work, moments of chunks.
struct SidcoScratch {
  SelectScratch select;
  SidcoWork* work = nullptr;
  ChunkMoments* moments = nullptr;
  uint64_t chunks = 0;
};
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t sidco_work_at(const SidcoFormat& format,
                                                                uint64_t n) {
  return round_up(SelectScratch::bytes(n, most_pairs(format.sparse, n), 0), 16);
}
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t sidco_scratch_bytes(const SidcoFormat& format,
                                                                      uint64_t n) {
  return sidco_work_at(format, n) + sizeof(SidcoWork) +
         ceil_div(n, kMomentsChunk) * sizeof(ChunkMoments);
}
[[nodiscard]] LACONIC_HOST_DEVICE inline SidcoScratch sidco_scratch(const SidcoFormat& format,
                                                                    const device::EncodeRow& row) {
  uint8_t* const at = row.scratch + sidco_work_at(format, row.count);
  return {select_scratch(format.sparse, row.scratch, row.count), reinterpret_cast<SidcoWork*>(at),
          reinterpret_cast<ChunkMoments*>(at + sizeof(SidcoWork)),
          ceil_div(row.count, kMomentsChunk)};
}

/// The key of the largest magnitude that is encoded.
template <class B>
[[nodiscard]] LACONIC_DEVICE uint32_t sidco_max_key(B& b, const device::EncodeRow& row,
                                                    bool reset) {
  return reset ? b.read(&row.measured->values, 0) : b.read(&row.measured->sum, 0);
}

/// The codec state goes to Measured, the last threshold to SelectState: a block per unit.
struct SidcoBegin {
  static constexpr const char* name = "laconic_SidcoBegin";
  struct Args {
    device::EncodeBatch batch;
    SidcoFormat format;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const SidcoScratch scratch = sidco_scratch(args.format, row);
    uint32_t most = 0;
    float last = 0;
    for (uint32_t i = 0; row.state != nullptr && i < args.format.state_floats(); ++i) {
      const float state = b.read(row.state, i);
      most = device::Max{}(most, device::absolute_bits(state));
      if (args.format.keeps_threshold()) last = state;
    }
    SidcoWork work;
    SelectState select;
    if (last > 0) {
      work.way = SidcoWork::Way::last;
      work.eta = sidco::threshold_from(last);
      select.floor = work.eta.key;
    }
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.raise(&row.measured->state, most);
      b.write(scratch.work, 0, work);
      b.write(scratch.select.state(), 0, select);
    });
  }
};

/// The sums that a stage takes of a unit.
struct SidcoStage {
  MomentsInput in;
  bool square = false;
  bool log = false;
  bool reset = false;
  bool measures = false;  ///< nothing has measured the unit yet
  bool none = false;      ///< the unit has no such stage
};
[[nodiscard]] LACONIC_HOST_DEVICE inline float sidco_scale(uint32_t max_key) {
  return sidco::needs_scale(max_key) ? sidco::scale_for(max_key) : 1.0F;
}
template <class B>
[[nodiscard]] LACONIC_DEVICE SidcoStage sidco_stage(B& b, const device::EncodeRow& row,
                                                    const SidcoFormat& format, uint32_t stage) {
  SidcoStage of;
  of.square =
      format.law != sidco::Law::exponential && (stage > 0 || format.law == sidco::Law::pareto);
  of.log = stage == 0 && format.law == sidco::Law::gamma_pareto;
  const SidcoScratch scratch = sidco_scratch(format, row);
  const SidcoWork work = b.read(scratch.work, 0);
  if (stage == 0 && work.way == SidcoWork::Way::fit) {
    of.measures = true;
    return of;
  }
  const auto verdict = select_verdict(b, row);
  of.reset = verdict == device::Verdict::reset;
  of.none = !device::gives_payload(verdict);
  if (stage > 0) {
    of.none = of.none || work.left == 0;
    of.in = {work.eta.key, work.scale, work.eta.value * work.scale};
  } else {
    const uint64_t found = b.read(&scratch.select.state()->found, 0);
    const uint64_t k = kept_of(format.sparse.ratio, row.count);
    of.none = of.none || (!of.reset && sidco::serves(found, row.count, k));
    of.in.scale = sidco_scale(sidco_max_key(b, row, of.reset));
  }
  return of;
}

/// ChunkMoments in shared memory, which has no initial values.
struct ChunkWords {
  uint32_t word[sizeof(ChunkMoments) / 4];
};
inline constexpr uint32_t kChunksAtOnce = device::kThreads / kMomentsLanes;  ///< of a block
inline constexpr uint32_t kTilesAtOnce = kChunksAtOnce * kMomentsChunk / kSparseTile;
template <class B>
using ChunkCells = device::Cells<B, ChunkWords, device::kThreads>;

/// `lane(thread)` gives a lane's sums, `take(thread, sums)` takes a chunk's: of the first thread of
/// its lanes.
template <class B, class Lane, class Take>
LACONIC_DEVICE void fold_lanes(B& b, ChunkCells<B>& cells, Lane lane, Take take) {
  const auto at = [&](uint32_t t) { return std::bit_cast<ChunkMoments>(b.read(cells, t)); };
  b.each([&](uint32_t t) { b.write(cells, t, std::bit_cast<ChunkWords>(lane(t))); });
  for (uint32_t half = kMomentsLanes / 2; half != 0; half /= 2) {
    b.each([&](uint32_t t) {
      if (t % kMomentsLanes < half)
        b.write(cells, t, std::bit_cast<ChunkWords>(joined(at(t), at(t + half))));
    });
  }
  b.alone([&](uint32_t t) {  // its own cell, which it is the next to write
    if (t % kMomentsLanes == 0) take(t, at(t));
  });
}

/// A lane's sums of a chunk. `most`, if not null, becomes the largest bits.
template <class B>
[[nodiscard]] LACONIC_DEVICE ChunkMoments lane_moments(B& b, const device::EncodeRow& row,
                                                       uint64_t chunk, uint32_t lane,
                                                       const SidcoStage& stage,
                                                       device::Measured* most) {
  const device::Max max;
  ChunkMoments m;
  const uint64_t begin = chunk * kMomentsChunk;
  const uint64_t end = begin + kMomentsChunk < row.count ? begin + kMomentsChunk : row.count;
  for (uint64_t i = begin + lane; i < end; i += kMomentsLanes) {
    const float x = device::gradient_at(b, row, i);
    const float e = row.residual == nullptr || stage.reset ? 0.0F : b.read(row.residual, i);
    const uint32_t key = magnitude_key(row.residual == nullptr ? x : e + x);
    add_element(m, key, stage.in, stage.square, stage.log);
    if (most == nullptr) continue;
    most->values = max(most->values, device::absolute_bits(x));
    most->residual = max(most->residual, device::absolute_bits(e));
    most->sum = max(most->sum, key);
  }
  return m;
}

/// Moments of all chunks, kChunksAtOnce in a block.
struct SidcoMoments {
  static constexpr const char* name = "laconic_SidcoMoments";
  struct Args {
    device::EncodeBatch batch;
    SidcoFormat format;
    uint32_t stage = 0;
  };
  template <class B>
  struct Shared {
    ChunkCells<B> cells;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    device::PerThread<B, const device::EncodeRow*> own(b);
    device::PerThread<B, uint64_t> chunk(b);
    device::PerThread<B, device::Measured> most(b);
    // A chunk is two tiles of its unit, of which one has an even place in any pair.
    LACONIC_ROLLED
    for (uint32_t odd = 0; odd < 2; ++odd) {
      fold_lanes(
          b, shared.cells,
          [&](uint32_t t) {
            own[t] = nullptr;
            most[t] = {};
            const uint64_t tile =
                b.index() * kTilesAtOnce + t / kMomentsLanes * (kTilesAtOnce / kChunksAtOnce) + odd;
            if (tile >= args.batch.tiles) return ChunkMoments{};
            const auto* const at = device::row_at(b, args.batch.rows, args.batch.units, tile);
            const device::EncodeRow row = b.read(at, 0);
            if ((tile - row.first_tile) % 2 != 0) return ChunkMoments{};
            const SidcoStage stage = sidco_stage(b, row, args.format, args.stage);
            if (stage.none) return ChunkMoments{};
            own[t] = at;
            chunk[t] = (tile - row.first_tile) / 2;
            return lane_moments(b, row, chunk[t], t % kMomentsLanes, stage,
                                stage.measures ? &most[t] : nullptr);
          },
          [&](uint32_t t, const ChunkMoments& m) {
            if (own[t] == nullptr) return;
            b.write(sidco_scratch(args.format, b.read(own[t], 0)).moments, chunk[t], m);
          });
      raise(b, own, most);
    }
  }

 private:
  template <class B>
  LACONIC_DEVICE static void raise(B& b, device::PerThread<B, const device::EncodeRow*>& own,
                                   device::PerThread<B, device::Measured>& most) {
    device::PerThread<B, uint32_t> values(b), residual(b), sum(b);
    b.alone([&](uint32_t t) {
      values[t] = most[t].values;
      residual[t] = most[t].residual;
      sum[t] = most[t].sum;
    });
    b.warp_max(values);
    b.warp_max(residual);
    b.warp_max(sum);
    b.alone([&](uint32_t t) {
      if (t % device::kWarp != 0 || (values[t] | residual[t] | sum[t]) == 0) return;
      device::Measured* const measured = b.read(&own[t]->measured, 0);
      b.raise(&measured->values, values[t]);
      b.raise(&measured->residual, residual[t]);
      b.raise(&measured->sum, sum[t]);
    });
  }
};

/// A unit of which a block looks at all elements, or at those in its lists.
struct SidcoUnit {
  device::EncodeRow row;
  SelectScratch scratch;
  bool reset = false;

  /// body(float) for a lane's share of a tile.
  template <class B, class Body>
  LACONIC_DEVICE void each_of(B& b, uint64_t tile, uint32_t lane, bool lists, Body body) const {
    const uint32_t listed = lists ? b.read(scratch.listed(), tile) : 0;
    if (lists && listed <= kListMost) {
      for (uint32_t j = lane; j < listed; j += device::kWarp)
        body(bits_float(b.read(scratch.values(tile), j)));
      return;
    }
    const uint64_t begin = tile * kSparseTile;
    const uint64_t end = begin + kSparseTile < row.count ? begin + kSparseTile : row.count;
    for (uint64_t i = begin + lane; i < end; i += device::kWarp)
      body(device::input_at(b, row, i, reset));
  }
  /// body(thread, float) for all, a warp to a tile.
  template <class B, class Body>
  LACONIC_DEVICE void each(B& b, bool lists, Body body) const {
    b.each([&](uint32_t t) {
      for (uint64_t tile = t / device::kWarp; tile < scratch.tiles; tile += device::kWarps)
        each_of(b, tile, t % device::kWarp, lists, [&](float a) { body(t, a); });
    });
  }
  /// The number of elements with a key of at least `key`.
  template <class B>
  [[nodiscard]] LACONIC_DEVICE uint32_t count(B& b,
                                              device::Cells<B, uint32_t, device::kThreads>& scan,
                                              bool lists, uint32_t key) const {
    device::PerThread<B, uint32_t> own(b);
    each(b, lists, [&](uint32_t t, float a) { own[t] += magnitude_key(a) >= key ? 1U : 0U; });
    return device::scan<uint32_t>(b, own, scan, device::Sum{});
  }
};

/// Fits a stage, or takes the last threshold: a block per unit.
struct SidcoFit {
  static constexpr const char* name = "laconic_SidcoFit";
  using Args = SidcoMoments::Args;
  template <class B>
  struct Shared {
    ChunkCells<B> cells;
    device::Cells<B, double, 3> totals;
    device::Cells<B, uint32_t, device::kThreads> scan;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const auto verdict = select_verdict(b, row);
    if (!device::gives_payload(verdict)) return;
    const SidcoScratch scratch = sidco_scratch(args.format, row);
    SidcoWork work = b.read(scratch.work, 0);
    SelectState select;
    const bool reset = verdict == device::Verdict::reset;
    if (args.stage > 0) {
      if (work.left == 0) return;
      refine(args.format, totals(b, shared, scratch), &work);
    } else if (work.way == SidcoWork::Way::last &&
               serves(b, shared, args.format, {row, scratch.select, reset}, &work, &select)) {
      if (!reset) select.floor = 0;  // its lists stand
    } else {
      const float scale = sidco_scale(sidco_max_key(b, row, reset));
      if (work.way == SidcoWork::Way::fit && (reset || scale != 1.0F))
        look_again(b, shared, args.format, row, scratch, scale, reset);
      begin(b, args.format, row, totals(b, shared, scratch), scale, &work);
    }
    if (work.way != SidcoWork::Way::last && work.left == 0) select.floor = work.eta.key;
    b.meet();  // all have read what follows
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      b.write(scratch.work, 0, work);
      b.write(scratch.select.state(), 0, select);
    });
  }

 private:
  template <class B>
  LACONIC_DEVICE static bool serves(B& b, Shared<B>& shared, const SidcoFormat& format,
                                    const SidcoUnit& unit, SidcoWork* work, SelectState* select) {
    const SelectState now = b.read(unit.scratch.state(), 0);
    const uint32_t count =
        unit.reset ? unit.count(b, shared.scan, false, work->eta.key) : now.found;
    if (!sidco::serves(count, unit.row.count, kept_of(format.sparse.ratio, unit.row.count)))
      return false;
    work->fitted = count;
    select->floor = work->eta.key;
    select->found = unit.reset ? 0 : count;
    return true;
  }

  /// The first stage's moments, of what is encoded.
  template <class B>
  LACONIC_DEVICE static void look_again(B& b, Shared<B>& shared, const SidcoFormat& format,
                                        const device::EncodeRow& row, const SidcoScratch& scratch,
                                        float scale, bool reset) {
    SidcoStage stage = sidco_stage(b, row, format, 0);
    stage.in.scale = scale;
    stage.reset = reset;
    LACONIC_ROLLED
    for (uint64_t first = 0; first < scratch.chunks; first += kChunksAtOnce) {
      fold_lanes(
          b, shared.cells,
          [&](uint32_t t) {
            const uint64_t chunk = first + t / kMomentsLanes;
            if (chunk >= scratch.chunks) return ChunkMoments{};
            return lane_moments(b, row, chunk, t % kMomentsLanes, stage, nullptr);
          },
          [&](uint32_t t, const ChunkMoments& m) {
            const uint64_t chunk = first + t / kMomentsLanes;
            if (chunk < scratch.chunks) b.write(scratch.moments, chunk, m);
          });
    }
    b.meet();  // all moments are there
  }

  /// Chunks, added in their order.
  template <class B>
  LACONIC_DEVICE static sidco::Totals totals(B& b, Shared<B>& shared, const SidcoScratch& scratch) {
    device::PerThread<B, uint32_t> count(b), below(b);
    device::PerThread<B, double> sum(b);  // of each kind, a thread's
    const auto at = [&](uint64_t i) {
      return std::bit_cast<ChunkMoments>(b.read(shared.cells, static_cast<uint32_t>(i)));
    };
    LACONIC_ROLLED
    for (uint64_t first = 0; first < scratch.chunks; first += device::kThreads) {
      const uint64_t left = scratch.chunks - first;
      const uint64_t now = left < device::kThreads ? left : device::kThreads;
      b.each([&](uint32_t t) {
        if (t >= now) return;
        const ChunkMoments m = b.read(scratch.moments, first + t);
        b.write(shared.cells, t, std::bit_cast<ChunkWords>(m));
        count[t] += m.count;
        below[t] = device::Max{}(below[t], 0x7FFFFFFFU - m.min_key);
      });
      b.each([&](uint32_t t) {
        for (uint64_t i = 0; t == 0 && i < now; ++i) sum[t] += static_cast<double>(at(i).sum);
        for (uint64_t i = 0; t == device::kWarp && i < now; ++i)
          sum[t] += static_cast<double>(at(i).square);
        for (uint64_t i = 0; t == 2 * device::kWarp && i < now; ++i)
          sum[t] += static_cast<double>(at(i).exponent) + static_cast<double>(at(i).log_fraction);
      });
    }
    b.alone([&](uint32_t t) {  // scans have barriers
      if (t % device::kWarp == 0 && t / device::kWarp < 3)
        b.write(shared.totals, t / device::kWarp, sum[t]);
    });
    sidco::Totals t;
    t.count = device::scan<uint32_t>(b, count, shared.scan, device::Sum{});
    t.min_key -= device::scan<uint32_t>(b, below, shared.scan, device::Max{});
    t.sum = b.read(shared.totals, 0);
    t.square = b.read(shared.totals, 1);
    t.log2_sum = b.read(shared.totals, 2);
    return t;
  }

  /// After the first pass over a unit.
  template <class B>
  LACONIC_DEVICE static void begin(B& b, const SidcoFormat& format, const device::EncodeRow& row,
                                   const sidco::Totals& t, float scale, SidcoWork* work) {
    const uint64_t k = kept_of(format.sparse.ratio, row.count);
    *work = {};
    work->nonzero = t.count;
    if (t.count <= k) {
      work->way = SidcoWork::Way::all;
      work->fitted = k;
      return;
    }
    work->scale = scale;
    sidco::Moments all = sidco::moments_of(t, 0);
    if (format.law == sidco::Law::gamma_pareto) all.log_mean = sidco::log_mean_of(t, scale);
    const double delta = static_cast<double>(k) / static_cast<double>(t.count);
    uint32_t stages = format.stages;
    if (stages == 0) {
      float state[sidco::Adaptation::kFloats] = {};
      for (uint32_t i = 0; row.state != nullptr && i < sidco::Adaptation::kFloats; ++i)
        state[i] = b.read(row.state, i);
      stages = sidco::Adaptation::from(state).stages_up_to(format.most_stages);
    }
    const bool one = stages == 1 || delta >= sidco::kFirstRatio;
    if (!one) {
      work->step = sidco::later_ratio(delta, stages);
      work->left = stages - 1;
    }
    const double eta = sidco::first_threshold(format.law, all, one ? delta : sidco::kFirstRatio);
    work->eta = sidco::threshold_at(eta * unit_of(scale));
  }

  LACONIC_DEVICE static void refine(const SidcoFormat& format, const sidco::Totals& t,
                                    SidcoWork* work) {
    double low = 0;
    const sidco::Moments z =
        sidco::moments_above(t, work->eta.value * work->scale, work->scale, &low);
    if (z.count < 2) {
      work->left = 0;
      return;
    }
    const double eta = sidco::tail_threshold(format.law, low, z, work->step);
    work->eta = sidco::threshold_at(eta * unit_of(work->scale));
    --work->left;
  }

  LACONIC_DEVICE static double unit_of(float scale) { return 1.0 / static_cast<double>(scale); }
};

}  // namespace laconic::kernels
