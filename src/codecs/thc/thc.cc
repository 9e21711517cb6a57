// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/thc/thc.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/slices.h"
#include "codecs/thc/tables.h"
#include "kernels/rotate/grid.h"
#include "kernels/rotate/rotate.h"
#include "kernels/rotate/thc_elements.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

using kernels::codes_mean_something;
using kernels::Grid;
using kernels::kLargestRotation;
using kernels::kMostNorm;
using kernels::short_norm;

// Round 0: a norm of every block (f32). Round 1: codes, block by block.

constexpr float kLargestInput = 0x1p108F;  // two of them in √8192 of a block stay below kMostNorm

/// `scale=last`: norms grow from step to step. Of the last largest norm and of the floor, which
/// lets a block that was zero come back.
constexpr float kMargin = 1.1F;
constexpr float kFloor = 0x1p-10F;

/// Elements of a task, whole blocks.
constexpr uint64_t kTask = 1 << 16;

float long_norm(uint16_t norm) { return bits_float(uint32_t{norm} << 16); }

/// How a unit lies in blocks and in Work::kept.
struct Blocks {
  uint64_t count;  ///< elements of the unit
  uint32_t size;
  uint64_t blocks;
  uint64_t code_bytes;  ///< of a block
  uint64_t ranges_at;
  bool last;

  Blocks(const Thc::Params& params, const Unit& unit)
      : count(unit.count),
        size(256U << params.block),
        blocks(ceil_div(unit.count, size)),
        code_bytes(size / 8 * params.bits),
        ranges_at(kernels::thc_ranges_at(blocks)),
        last(params.scale == Thc::Scale::last) {}

  [[nodiscard]] float range(const Work& work, uint64_t block) const {
    return load<float>(work.kept.data() + ranges_at + block * sizeof(float));
  }
  void set_range(Work& work, uint64_t block, float range) const {
    store(work.kept.data() + ranges_at + block * sizeof(float), range);
  }
  [[nodiscard]] uint64_t kept_bytes() const { return ranges_at + (blocks + 1) * sizeof(float); }
  void set_measured(Work& work, bool measured) const {
    store<uint32_t>(work.kept.data() + ranges_at + blocks * sizeof(float), measured ? 1 : 0);
  }
  [[nodiscard]] bool measured(const Work& work) const {
    return load<uint32_t>(work.kept.data() + ranges_at + blocks * sizeof(float)) != 0;
  }
  /// This rank's norm, for the range of the next exchange.
  void keep_norm(Work& work, uint64_t block, float norm) const {
    if (last) store(work.kept.data() + block * sizeof(uint16_t), short_norm(norm));
  }
  [[nodiscard]] uint64_t elements_of(uint64_t block) const {
    return std::min<uint64_t>(size, count - block * size);
  }
};

uint32_t lane_bits_for(const Thc::Params& params, uint32_t world) {
  if (params.lane == Thc::Lane::eight) return 8;
  if (params.lane == Thc::Lane::sixteen) return 16;
  return world <= thc::largest_world(params.bits, 8) ? 8 : 16;
}

/// The range beyond which a share p of independent normal elements with that norm lies.
float range_of(const Thc::Params& params, const Blocks& b, float norm) {
  return params.reach * norm / std::sqrt(static_cast<float>(b.size));
}

float finite_norm(float norm) { return norm > 0 ? std::min(norm, kMostNorm) : 0.0F; }

Grid grid_of(const Thc::Params& params) {
  return kernels::make_grid(params.bits, params.values.data());
}

/// body(block) for all blocks, on the pool.
template <class Body>
void for_blocks(const Blocks& b, const Work& work, Body&& body) {
  const uint64_t each = std::max<uint64_t>(kTask / b.size, 1);
  for_slices(work.pool, b.blocks, each, [&](uint64_t begin, uint64_t end) {
    for (uint64_t block = begin; block < end; ++block) body(block);
  });
}

struct alignas(64) Rotated {
  std::array<float, kLargestRotation> y;
};

/// The positions of a unit in random streams. `offset` is a multiple of the block.
struct Streams {
  RandomKey signs;
  RandomKey rounding;
  uint64_t offset;

  Streams(const Unit& unit, const Place& place)
      : signs(shared_key(place.seed, place.step, unit.parameter)),
        rounding(own_key(place.seed, place.step, unit.parameter, place.rank, place.hop)),
        offset(unit.offset) {}
};

float norm_of(const Blocks& b, uint64_t block, Source source, const Work& work) {
  const uint64_t at = block * b.size;
  const float* add = source.residual == nullptr ? nullptr : source.residual + at;
  return kernels::norm_of_squares(
      kernels::rotate_kernels(work.isa).square_norm(source.values + at, add, b.elements_of(block)));
}

/// body(block) → norm, for all blocks; false when one is not finite or above kMostNorm.
template <class Body>
bool all_in_reach(const Blocks& b, Work& work, Body&& body) {
  std::atomic<bool> good{true};
  for_blocks(b, work, [&](uint64_t block) {
    const float norm = body(block);
    if (!(norm <= kMostNorm)) good.store(false, std::memory_order_relaxed);
    b.keep_norm(work, block, norm);
  });
  return good.load(std::memory_order_relaxed);
}

void encode_block(const Blocks& b, const Grid& grid, const Streams& streams, uint64_t block,
                  Source source, const Work& work, uint8_t* codes) {
  const float range = b.range(work, block);
  if (!codes_mean_something(range)) {  // all ranks have zeros here, or nearly
    std::fill_n(codes, b.code_bytes, uint8_t{0});
    if (source.residual != nullptr) {
      const uint64_t at = block * b.size;
      for (uint64_t i = at; i < at + b.elements_of(block); ++i)
        source.residual[i] = source.values[i] + source.residual[i];
    }
    return;
  }
  const auto& rotate = kernels::rotate_kernels(work.isa);
  const auto& rounding = kernels::grid_kernels(work.isa);
  const uint64_t at = block * b.size, count = b.elements_of(block);
  const kernels::SignStream signs{streams.signs, streams.offset + at};
  const kernels::RoundingStream random{streams.rounding, streams.offset + at};
  Rotated rotated;
  float* y = rotated.y.data();
  if (source.residual == nullptr) {
    rotate.rotate(source.values + at, nullptr, count, b.size, signs, y);
    return rounding.quantize(y, b.size, grid, range, random, codes, nullptr);
  }
  float* residual = source.residual + at;
  rotate.rotate(source.values + at, residual, count, b.size, signs, y);
  rounding.quantize(y, b.size, grid, range, random, codes, y);
  rotate.remainder(y, b.size, signs, count, source.values + at, residual, residual);
}

}  // namespace

void Thc::prepare(Params& params, uint32_t world) {
  params.reach = static_cast<float>(thc::clamping_point(static_cast<double>(params.p)));
  const uint32_t lane_bits = lane_bits_for(params, world);
  const uint64_t fits = std::min<uint64_t>(world, thc::largest_world(params.bits, lane_bits));
  const auto p = static_cast<double>(params.p);
  const thc::Table table = params.table == Table::uniform
                               ? thc::uniform_table(params.bits, p)
                               : *thc::choose_table(params.bits, p, fits, lane_bits);
  params.values = table.value;
}

Contract Thc::contract(const Params& params) {
  Contract c;
  c.merge = Merge::linear;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual);
  c.fused = true;
  c.checks_finite = true;
  c.stochastic = true;
  c.granule = 256U << params.block;
  c.headroom =
      static_cast<uint32_t>(thc::largest_world(params.bits, params.lane == Lane::eight ? 8 : 16));
  return c;  // contraction 0: what lies beyond the range is left
}

Plan Thc::plan(const Params& params, const Unit& unit, uint32_t world) {
  const Blocks b(params, unit);
  Plan plan;
  plan.rounds = 2;
  plan.round[0] = {.kind = RoundKind::agree_max, .bytes = b.blocks * sizeof(float)};
  plan.round[1] = {.kind = RoundKind::lanes,
                   .lane = lane_bits_for(params, world) == 8 ? DType::u8 : DType::u16,
                   .bytes = b.blocks * b.code_bytes,
                   .code_bits = static_cast<uint8_t>(params.bits),
                   .lanes = b.blocks * b.size,
                   .maxima = b.last ? b.blocks : 0};
  plan.state_floats = b.last ? b.blocks : 0;
  plan.kept_bytes = b.kept_bytes();
  plan.largest_input = kLargestInput;
  return plan;
}

uint32_t Thc::start(const Call<Params>& call) {
  const Blocks b(*call.params, call.unit);
  if (!b.last) return 0;
  float most = 0;
  for (const float norm : call.state) most = std::max(most, finite_norm(norm));
  if (most == 0) return 0;
  b.set_measured(call.work, false);
  for (uint64_t block = 0; block < b.blocks; ++block) {
    const float norm = std::max(finite_norm(call.state[block]), kFloor * most);
    b.set_range(call.work, block, range_of(*call.params, b, kMargin * norm));
  }
  return 1;
}

Encoded Thc::encode(const Call<Params>& call, Source source, MutBytes out) {
  const Blocks b(*call.params, call.unit);
  const auto norm = [&](uint64_t block) { return norm_of(b, block, source, call.work); };
  if (call.round == 0) {
    b.set_measured(call.work, true);
    const bool good = all_in_reach(b, call.work, [&](uint64_t block) {
      const float own = norm(block);
      store(out.data() + block * sizeof(float), own);
      return own;
    });
    return {b.blocks * sizeof(float), good};
  }
  const Grid grid = grid_of(*call.params);
  const Streams streams(call.unit, call.place);
  const auto encode = [&](uint64_t block) {
    encode_block(b, grid, streams, block, source, call.work, out.data() + block * b.code_bytes);
  };
  const bool measures = b.last && !b.measured(call.work);
  if (measures && source.residual == nullptr) {  // nothing can be spoiled: one pass
    const bool good = all_in_reach(b, call.work, [&](uint64_t block) {
      encode(block);
      return norm(block);
    });
    return {b.blocks * b.code_bytes, good};
  }
  if (measures && !all_in_reach(b, call.work, norm)) return {0, false};
  for_blocks(b, call.work, encode);
  return {b.blocks * b.code_bytes, true};
}

std::span<const uint8_t> Thc::table(const Params& params) {
  return std::span(params.values).first(size_t{1} << params.bits);
}

void Thc::accept(const Call<Params>& call, MutBytes merged, uint32_t) {
  const Blocks b(*call.params, call.unit);
  for (uint64_t block = 0; block < b.blocks; ++block) {
    const float norm = finite_norm(load<float>(merged.data() + block * sizeof(float)));
    b.set_range(call.work, block, range_of(*call.params, b, norm));
  }
}

Errc Thc::check(const Params& params, const Unit& unit, uint32_t round, Bytes payload) {
  const Blocks b(params, unit);
  if (round > 1 || unit.offset % b.size != 0) return Errc::payload_malformed;
  const uint64_t bytes = b.blocks * (round == 0 ? sizeof(float) : b.code_bytes);
  if (payload.size() != bytes) return Errc::payload_malformed;
  for (uint64_t at = 0; round == 0 && at < bytes; at += sizeof(float)) {
    // Compares bits: NaN and all negative values are above.
    if (load<uint32_t>(payload.data() + at) > float_bits(kMostNorm)) return Errc::payload_malformed;
  }
  return Errc::ok;
}

void Thc::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const Blocks b(*call.params, call.unit);
  const auto& rotate = kernels::rotate_kernels(call.work.isa);
  const auto& rounding = kernels::grid_kernels(call.work.isa);
  const Grid grid = grid_of(*call.params);
  const Streams streams(call.unit, call.place);
  for_blocks(b, call.work, [&](uint64_t block) {
    const uint64_t at = block * b.size, count = b.elements_of(block);
    const float range = b.range(call.work, block);
    const kernels::SignStream signs{streams.signs, streams.offset + at};
    Rotated rotated;
    float* y = rotated.y.data();
    bool add = target.add;
    for (const Term& term : terms) {
      if (!codes_mean_something(range)) break;
      if (!term.granules.empty() && term.granules[block] == 0) continue;
      if (term.contributors.empty()) {
        rounding.dequantize(term.payload.data() + block * b.code_bytes, b.size, grid, range, y);
      } else {
        const Contributors who = term.contributors[term.contributors.size() == 1 ? 0 : block];
        const uint64_t lane = term.payload.size() / (b.blocks * b.size);
        const uint8_t* lanes = term.payload.data() + at * lane;
        (lane == 1 ? rounding.mean8 : rounding.mean16)(lanes, b.size, grid.last,
                                                       {who.added, who.divisor}, range, y);
      }
      rotate.unrotate(y, b.size, signs, count, term.weight, add, target.values + at);
      add = true;
    }
    if (!add) std::fill_n(target.values + at, count, 0.0F);
  });
}

void Thc::commit(const Call<Params>& call, std::span<float> state, Bytes, Bytes, uint32_t) {
  const Blocks b(*call.params, call.unit);
  for (uint64_t block = 0; block < state.size(); ++block) {
    state[block] = long_norm(load<uint16_t>(call.work.kept.data() + block * sizeof(uint16_t)));
  }
}

}  // namespace laconic::codecs
