// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Names as in the paper: M (rows x cols) is the gradient, P = M·Q, Q' = Mᵀ·P̂ with P̂ = orth(P),
// and the decoded matrix is P̂·Q'ᵀ. A factor is stored vector by vector: r vectors of `rows` or
// `cols` floats.
#include "codecs/powersgd/powersgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/slices.h"
#include "codecs/powersgd/gram_schmidt.h"
#include "kernels/core/basic.h"
#include "kernels/lowrank/lowrank.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

using kernels::kColumnPanel;
using kernels::kRowPanel;
using kernels::Output;
using kernels::Panel;
using Params = PowerSgd::Params;

constexpr uint64_t kAlign = 64;
// Tasks of a parallel loop. They change no bit: rows of P, and columns of Q', are independent.
constexpr uint64_t kTaskRows = 64;
constexpr uint64_t kTaskCols = 1024;
constexpr uint64_t kFewCols = 256;
constexpr uint64_t kTaskLanes = 65536;

// ---- what a unit is, and where its numbers lie ----

struct Shape {
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t rank = 0;  // 0: too small to gain, or a vector; travels as it is

  [[nodiscard]] bool raw() const noexcept { return rank == 0; }
  [[nodiscard]] uint64_t p_floats() const noexcept { return rows * rank; }
  [[nodiscard]] uint64_t q_floats() const noexcept { return cols * rank; }
  [[nodiscard]] uint64_t column_panels() const noexcept { return ceil_div(cols, kColumnPanel); }
  [[nodiscard]] uint64_t row_panels() const noexcept { return ceil_div(rows, kRowPanel); }
};

// r = min(rank, rows, cols), unless the factors are no smaller than the matrix.
Shape shape_of(const Params& params, const Unit& unit) noexcept {
  const Shape raw{unit.count, 1, 0};
  uint64_t elements = 0, ends = 0, sent = 0;
  const bool sane = checked_mul(unit.rows, unit.cols, &elements) && elements == unit.count &&
                    checked_add(unit.rows, unit.cols, &ends);
  if (!sane || unit.rows < 2 || unit.cols < 2) return raw;
  const uint64_t rank = std::min({uint64_t{params.rank}, unit.rows, unit.cols});
  if (!checked_mul(rank, ends, &sent) || sent >= elements) return raw;
  return {unit.rows, unit.cols, rank};
}

constexpr uint64_t bytes_of(uint64_t floats) noexcept { return floats * sizeof(float); }

// Norms of sums of `world` matrices of such elements, and so P, Q', their product and what it
// leaves of M, are below half of FLT_MAX.
float largest_input(uint64_t count, uint32_t world) noexcept {
  const double elements = std::sqrt(static_cast<double>(std::max<uint64_t>(count, 1)));
  const double margin = 4 * elements * static_cast<double>(std::max(world, 1U));
  return static_cast<float>(static_cast<double>(std::numeric_limits<float>::max()) / margin);
}

// Scratch of the calls, section by section: a factor Q, panel sums, Gram–Schmidt's sums.
struct Scratch {
  uint64_t sums;
  uint64_t process;
  uint64_t total;

  explicit Scratch(const Shape& shape) noexcept
      : sums(round_up(bytes_of(shape.q_floats()), kAlign)),
        process(sums + round_up(bytes_of(std::max(shape.p_floats() * shape.column_panels(),
                                                  shape.q_floats() * shape.row_panels())),
                                kAlign)),
        total(process + gram_schmidt_scratch(std::max(shape.rows, shape.cols))) {}
};

float* floats_at(MutBytes memory, uint64_t offset) noexcept {
  return reinterpret_cast<float*>(memory.data() + offset);
}

// ---- raw lanes ----

void encode_raw(const float* values, uint64_t count, float prescale, const Work& work,
                MutBytes out) {
  for_slices(work.pool, count, kTaskLanes, [&](uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) store(out.data() + bytes_of(i), values[i] * prescale);
  });
}

void decode_raw(std::span<const Term> terms, uint64_t count, const Work& work, Target target) {
  for_slices(work.pool, count, kTaskLanes, [&](uint64_t first, uint64_t last) {
    for (const Term& term : terms) {
      for (uint64_t i = first; i < last; ++i) {
        target.values[i] += term.weight * load<float>(term.payload.data() + bytes_of(i));
      }
    }
  });
}

// ---- the random start ----

// A number of mean 0 and variance 1, nearly normal: the sum of four 16-bit words (Irwin–Hall),
// which unlike a logarithm has the same bits everywhere. Power iteration only needs directions.
float normal(RandomBlock words, bool second) noexcept {
  const uint32_t a = words[second ? 2 : 0], b = words[second ? 3 : 1];
  const auto sum = static_cast<int32_t>((a & 0xFFFFU) + (a >> 16) + (b & 0xFFFFU) + (b >> 16));
  constexpr float kScale = 0x1.BB67AEp-16F;  // sqrt(3) / 2^16
  return static_cast<float>(sum - 2 * 0xFFFF) * kScale;
}

// Elements first, first + 1, … of the stream: element i is half i mod 2 of block i div 2.
void draw(RandomKey key, uint64_t first, std::span<float> out) noexcept {
  RandomBlock words{};
  for (uint64_t i = 0; i < out.size(); ++i) {
    const uint64_t element = first + i;
    if (i == 0 || element % 2 == 0) words = philox(key, element / 2);
    out[i] = normal(words, element % 2 != 0);
  }
}

// A zero or dependent vector of Q is replaced by one that all ranks share; else one gradient of
// zeros would end the warm start.
void refill(const void* key, uint64_t k, std::span<float> vector) {
  draw(*static_cast<const RandomKey*>(key), k * vector.size(), vector);
}

// Takes a factor of any finite numbers to where its columns' norms are floats. Directions stay.
void bring_into_range(std::span<float> q, Isa isa) {
  constexpr float kFar = 0x1p64F;
  const auto& kernels = kernels::basic_kernels(isa);
  if (kernels.scan(q.data(), q.size()).max_abs > kFar) kernels.scale(q.data(), 1 / kFar, q.size());
}

// The factor that round 0 multiplies with: orth(Q) of the state or of a fresh draw, in scratch.
const float* starting_factor(const Shape& shape, const Params& params, std::span<const float> state,
                             const Unit& unit, const Place& place, Work& work) {
  float* const q = floats_at(work.scratch, 0);
  const RandomKey key = shared_key(place.seed, place.step, unit.parameter);
  if (params.warm && state.size() == shape.q_floats()) {
    std::copy(state.begin(), state.end(), q);
    bring_into_range({q, shape.q_floats()}, work.isa);
  } else {
    draw(key, 0, {q, shape.q_floats()});
  }
  const MutBytes process = work.scratch.subspan(Scratch(shape).process);
  orthonormalize({q, shape.cols, shape.rank}, work, process, &refill, &key);
  return q;
}

// ---- the two products ----

// out_i = prescale · (sum of the panels' sums i, in order, in double)
void add_panels(const float* sums, uint64_t panels, uint64_t count, float prescale, MutBytes out) {
  constexpr uint64_t kBlock = 64;
  std::array<double, kBlock> total;
  for (uint64_t i = 0; i < count; i += kBlock) {
    const uint64_t n = std::min(kBlock, count - i);
    std::fill_n(total.begin(), n, 0.0);
    for (uint64_t panel = 0; panel < panels; ++panel) {
      const float* const x = sums + panel * count + i;
      for (uint64_t l = 0; l < n; ++l) total[l] += static_cast<double>(x[l]);
    }
    for (uint64_t l = 0; l < n; ++l) {
      store(out.data() + bytes_of(i + l), static_cast<float>(total[l]) * prescale);
    }
  }
}

bool all_finite(Bytes lanes) noexcept {
  uint32_t bad = 0;
  for (uint64_t at = 0; at + sizeof(float) <= lanes.size(); at += sizeof(float)) {
    bad |= (load<uint32_t>(lanes.data() + at) & 0x7F800000U) == 0x7F800000U ? 1U : 0U;
  }
  return bad == 0;
}

// P = M·Q. Tasks run from the last rows to the first: what prepared M left its end in the cache,
// and round 1 finds its beginning there.
void encode_p(const Shape& shape, const float* m, const float* q, float prescale, Work& work,
              MutBytes out) {
  const auto& kernel = kernels::lowrank_kernels(work.isa);
  float* const sums = floats_at(work.scratch, Scratch(shape).sums);
  const uint64_t panels = shape.column_panels();
  const uint64_t tasks = ceil_div(shape.rows, kTaskRows) * panels;
  parallel_for(work.pool, tasks, [&](uint64_t task) {
    const uint64_t from_last = tasks - 1 - task;
    const uint64_t panel = from_last % panels;
    const uint64_t i = from_last / panels * kTaskRows, j = panel * kColumnPanel;
    const Panel part{std::min(kTaskRows, shape.rows - i), std::min(kColumnPanel, shape.cols - j),
                     shape.cols};
    kernel.project(m + i * shape.cols + j, part, {q + j, shape.cols, shape.rank},
                   sums + panel * shape.p_floats() + i, shape.rows);
  });
  add_panels(sums, panels, shape.p_floats(), prescale, out);
}

// Columns of one task of Q': wide pieces stream better, so they are only as narrow as it takes to
// give every thread one.
uint64_t task_columns(const Shape& shape, const ThreadPool* pool) noexcept {
  const uint64_t threads = pool == nullptr ? 1 : pool->threads();
  const uint64_t share = round_up(ceil_div(shape.row_panels() * shape.cols, threads), kAlign);
  return std::clamp(share, kFewCols, kTaskCols);
}

// Q' = Mᵀ·P̂
void encode_q(const Shape& shape, const float* m, const float* p, float prescale, Work& work,
              MutBytes out) {
  const auto& kernel = kernels::lowrank_kernels(work.isa);
  float* const sums = floats_at(work.scratch, Scratch(shape).sums);
  const uint64_t width = task_columns(shape, work.pool);
  const uint64_t panels = shape.row_panels(), pieces = ceil_div(shape.cols, width);
  parallel_for(work.pool, panels * pieces, [&](uint64_t task) {
    const uint64_t panel = task / pieces;
    const uint64_t i = panel * kRowPanel, j = task % pieces * width;
    const Panel part{std::min(kRowPanel, shape.rows - i), std::min(width, shape.cols - j),
                     shape.cols};
    kernel.back_project(m + i * shape.cols + j, part, {p + i, shape.rows, shape.rank},
                        sums + panel * shape.q_floats() + j, shape.cols);
  });
  add_panels(sums, panels, shape.q_floats(), prescale, out);
}

// ---- the reconstruction ----

// The kernel reads floats: lanes at an odd address are copied to scratch.
const float* aligned_lanes(Bytes payload, Work& work) {
  if (reinterpret_cast<uintptr_t>(payload.data()) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(payload.data());
  }
  std::memcpy(work.scratch.data(), payload.data(), payload.size());
  return floats_at(work.scratch, 0);
}

// out = base + weight · P̂·Q'ᵀ
void reconstruct(const Shape& shape, const float* p, const float* q, float weight, Output output,
                 const Work& work, float* out) {
  const auto& kernel = kernels::lowrank_kernels(work.isa);
  const uint64_t panels = shape.column_panels();
  parallel_for(work.pool, ceil_div(shape.rows, kTaskRows) * panels, [&](uint64_t task) {
    const uint64_t i = task / panels * kTaskRows, j = task % panels * kColumnPanel;
    const Panel part{std::min(kTaskRows, shape.rows - i), std::min(kColumnPanel, shape.cols - j),
                     shape.cols};
    kernel.reconstruct(out + i * shape.cols + j, part, {p + i, shape.rows, shape.rank},
                       {q + j, shape.cols, shape.rank}, weight, output);
  });
}

}  // namespace

Contract PowerSgd::contract(const Params&) {
  Contract contract;
  contract.zero_stays_zero = true;  // a row of P is that row of M times Q
  contract.merge = Merge::linear;
  contract.feedback = Feedback::aggregate;
  contract.memory_default = MemoryKind::residual;
  contract.memories = memory_set(MemoryKind::residual);
  contract.whole_parameter = true;
  contract.checks_finite = true;
  return contract;  // contraction 0: a matrix orthogonal to Q is lost whole, its residual is not
}

Plan PowerSgd::plan(const Params& params, const Unit& unit, uint32_t world) {
  const Shape shape = shape_of(params, unit);
  Plan plan;
  plan.largest_input = largest_input(unit.count, world);
  if (shape.raw()) {
    plan.round[0] = {RoundKind::lanes, DType::f32, bytes_of(unit.count)};
    return plan;
  }
  plan.rounds = 2;
  plan.round[0] = {RoundKind::lanes, DType::f32, bytes_of(shape.p_floats())};
  plan.round[1] = {RoundKind::lanes, DType::f32, bytes_of(shape.q_floats())};
  plan.state_floats = params.warm ? shape.q_floats() : 0;
  plan.kept_bytes = bytes_of(shape.p_floats());
  plan.scratch_bytes = Scratch(shape).total;
  return plan;
}

void PowerSgd::init(const Params& params, const Unit& unit, const Place& place,
                    std::span<float> state) {
  if (!params.warm) return;
  draw(shared_key(place.seed, 0, unit.parameter), 0, state);
}

Encoded PowerSgd::encode(const Call<Params>& call, Source source, MutBytes out) {
  const Shape shape = shape_of(*call.params, call.unit);
  if (shape.raw()) {
    encode_raw(source.values, call.unit.count, call.place.prescale, call.work, out);
    return {bytes_of(call.unit.count), all_finite(out.first(bytes_of(call.unit.count)))};
  }
  if (call.round == 0) {
    const float* const q =
        starting_factor(shape, *call.params, call.state, call.unit, call.place, call.work);
    encode_p(shape, source.values, q, call.place.prescale, call.work, out);
    // Every element of M is in some sum, times something or times zero: NaN and infinity show.
    return {bytes_of(shape.p_floats()), all_finite(out.first(bytes_of(shape.p_floats())))};
  }
  encode_q(shape, source.values, floats_at(call.work.kept, 0), call.place.prescale, call.work, out);
  return {bytes_of(shape.q_floats()), all_finite(out.first(bytes_of(shape.q_floats())))};
}

void PowerSgd::accept(const Call<Params>& call, MutBytes merged, uint32_t) {
  const Shape shape = shape_of(*call.params, call.unit);
  if (shape.raw()) return;
  float* const p = floats_at(call.work.kept, 0);  // sum or mean: orth does not see the scale
  std::memcpy(p, merged.data(), bytes_of(shape.p_floats()));
  const MutBytes process = call.work.scratch.subspan(Scratch(shape).process);
  orthonormalize({p, shape.rows, shape.rank}, call.work, process);
}

Errc PowerSgd::check(const Params& params, const Unit& unit, uint32_t round, Bytes payload) {
  const Plan expected = plan(params, unit, 1);
  if (round >= expected.rounds) return Errc::payload_malformed;
  return payload.size() == expected.round[round].bytes ? Errc::ok : Errc::payload_malformed;
}

void PowerSgd::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const Shape shape = shape_of(*call.params, call.unit);
  if (shape.raw() || terms.empty()) {
    if (!target.add) std::fill_n(target.values, call.unit.count, 0.0F);
    return decode_raw(terms, call.unit.count, call.work, target);
  }
  Output output = kernels::choose_output(target.add, bytes_of(call.unit.count));
  for (const Term& term : terms) {
    reconstruct(shape, floats_at(call.work.kept, 0), aligned_lanes(term.payload, call.work),
                term.weight, output, call.work, target.values);
    output = Output::add;
  }
}

void PowerSgd::commit(const Call<Params>& call, std::span<float> state, Bytes, Bytes merged,
                      uint32_t contributors) {
  const Shape shape = shape_of(*call.params, call.unit);
  const bool whole = !shape.raw() && call.params->warm &&
                     merged.size() == bytes_of(shape.q_floats()) &&
                     state.size() == shape.q_floats();
  if (!whole || contributors == 0 || !all_finite(merged)) return;
  for (uint64_t i = 0; i < state.size(); ++i) {
    state[i] = load<float>(merged.data() + bytes_of(i)) / static_cast<float>(contributors);
  }
}

}  // namespace laconic::codecs
