// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A codec's twin driven as a bucket's units: rows, memory, launches; and the same by the pipeline
// on the CPU.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "codecs/registry/twin.h"
#include "conformance/guarded.h"
#include "laconic/dtype.h"
#include "laconic/spec.h"
#include "pipeline/unit_codec.h"
#include "support/checked_device.h"

namespace laconic::conformance {

using device::Verdict;

inline const device::Codec& twin_of(const Spec& spec) { return *codecs::find_twin(spec.codec()); }

/// A unit to encode, with what remembers it.
struct Task {
  Unit unit;
  Place place;
  std::vector<float> gradient;
  std::vector<float> residual;  ///< empty: none
  std::vector<float> state{};   ///< of the codec; empty: as at the start
};

struct Coded {
  Verdict verdict = Verdict::zero;
  std::vector<uint8_t> payload;  ///< of the last round
  std::vector<float> residual;
  std::vector<uint8_t> agreed;  ///< payload of the round before it
  std::vector<uint8_t> kept;    ///< Work::kept
  std::vector<uint8_t> lanes;   ///< EncodeRow::lanes
};

/// The maxima of a round, in which other ranks' values are larger than some of `own`.
inline void join_others(MutBytes own) {
  for (uint64_t k = 0; 4 * k < own.size(); ++k)
    store(own.data() + 4 * k,
          load<float>(own.data() + 4 * k) * (1 + 0.25F * static_cast<float>(k % 3)));
}

inline Coded encode_on_cpu(const Spec& spec, const Task& task) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  pipeline::UnitSlot slot{task.unit, codec.plan(task.unit, task.place.world), {}, {}};
  std::vector<float> state = task.state;
  if (spec.codec().start != nullptr) state.resize(slot.plan.state_floats);
  slot.state = state;
  Coded coded;
  coded.residual = task.residual;
  if (!task.residual.empty()) slot.memory = {{MemoryKind::residual}, coded.residual.data()};
  const Guarded kept(slot.plan.kept_bytes), scratch(slot.plan.scratch_bytes);
  Work work{kept.bytes(), scratch.bytes(), best_isa(), nullptr};
  uint32_t round = codec.start(slot, work);
  coded.payload.resize(slot.plan.round[round].bytes);
  auto encoded = codec.encode(slot, task.place, task.gradient.data(), work, coded.payload, round);
  coded.verdict = encoded.outcome == pipeline::Outcome::zero      ? Verdict::zero
                  : encoded.outcome != pipeline::Outcome::payload ? Verdict::refused
                  : encoded.residual_reset                        ? Verdict::reset
                                                                  : Verdict::payload;
  while (encoded.outcome == pipeline::Outcome::payload && ++round < slot.plan.rounds) {
    std::vector<uint8_t> merged = coded.agreed = coded.payload;
    join_others(merged);
    codec.accept(slot, task.place, round - 1, merged, task.place.world, work);
    coded.payload.resize(slot.plan.round[round].bytes);
    encoded =
        codec.encode_round(slot, task.place, round, task.gradient.data(), work, coded.payload);
  }
  coded.payload.resize(encoded.bytes);
  coded.kept.assign(work.kept.begin(), work.kept.end());
  return coded;
}

/// Device memory that holds what Work::kept does.
inline uint8_t* place_kept(test::CheckedDevice& gpu, Bytes kept) {
  uint8_t* const at = gpu.memory().allocate("kept", kept.size(), 2);
  std::copy(kept.begin(), kept.end(), at);
  gpu.memory().set_written(at);
  return at;
}

/// Rows of a batch: every unit's first tile, and scratch memory of that member of Layout.
template <class Row>
uint64_t place_tiles(const Spec& spec, test::CheckedDevice& gpu, const Unit& unit, Row& row,
                     uint64_t device::Layout::*scratch, uint64_t tiles, uint64_t least = 0) {
  const device::Layout layout = twin_of(spec).layout(spec.params(), unit);
  row.count = unit.count;
  row.first_tile = tiles;
  row.scratch = gpu.memory().allocate("scratch", layout.*scratch, 1);
  return tiles + ceil_div(std::max(unit.count, least), layout.tile);
}

/// Encodes units as their exchange would: every round of theirs, and between rounds what the host
/// does for them.
class DeviceEncoder {
 public:
  DeviceEncoder(const Spec& spec, test::CheckedDevice& gpu, const std::vector<Task>& tasks,
                DType dtype, uint64_t shift, uint32_t lane_bytes)
      : spec_(spec), gpu_(gpu), tasks_(tasks), shift_(shift), lane_bytes_(lane_bytes) {
    const std::vector<device::Measured> zeros(tasks.size());
    measured_ = gpu.memory().allocate<device::Measured>("measured", zeros);
    for (std::size_t u = 0; u < tasks.size(); ++u) add(u, dtype);
  }
  std::vector<Coded> run() {
    for (uint32_t round = 0; round < kMaxRounds; ++round) {
      for (const bool begins : {false, true}) launch(round, begins);
      for (std::size_t u = 0; u < units_.size(); ++u)
        if (units_[u].first <= round && round + 1 < units_[u].plan.rounds) accept(u, round);
    }
    std::vector<Coded> coded;
    for (std::size_t u = 0; u < units_.size(); ++u) coded.push_back(result(u));
    return coded;
  }

 private:
  struct OnDevice {
    Plan plan;
    std::vector<uint8_t> kept;  ///< the host's
    uint32_t first = 0;         ///< round
    device::EncodeRow row;
    std::vector<uint8_t> agreed;
  };

  void add(std::size_t u, DType dtype) {
    const Task& task = tasks_[u];
    OnDevice unit;
    unit.plan = spec_.codec().plan(spec_.params(), task.unit, task.place.world);
    unit.kept.resize(round_up(unit.plan.kept_bytes, 64));
    std::vector<float> state = task.state;
    state.resize(unit.plan.state_floats);
    if (spec_.codec().start != nullptr) {
      Work work{unit.kept, {}, best_isa(), nullptr};
      unit.first = spec_.codec().start({spec_.params(), state, task.unit, task.place, 0, work});
    }
    device::EncodeRow& row = unit.row;
    if (dtype == DType::f32) {
      row.values = gpu_.memory().allocate<float>("gradient", task.gradient);
    } else {
      std::vector<uint16_t> halves;
      for (const float x : task.gradient)
        halves.push_back(dtype == DType::f16 ? float_to_f16(x) : float_to_bf16(x));
      row.values = gpu_.memory().allocate<uint16_t>("gradient", halves);
    }
    if (!task.residual.empty()) {
      row.residual = gpu_.memory().allocate<float>("residual", task.residual);
      remembers_ = true;
    }
    if (!task.state.empty()) row.state = gpu_.memory().allocate<float>("state", task.state);
    row.quantized.kept = place_kept(gpu_, unit.kept);
    row.measured = measured_ + u;
    row.offset = task.unit.offset;
    row.key = own_key(task.place.seed, task.place.step, task.unit.parameter, task.place.rank,
                      task.place.hop);
    row.quantized.shared = shared_key(task.place.seed, task.place.step, task.unit.parameter);
    row.prescale = task.place.prescale;
    row.own_weight = task.place.prescale == 1.0F ? 1.0F : static_cast<float>(task.place.world);
    row.limit = float_bits(unit.plan.largest_input);
    row.dtype = dtype;
    if (lane_bytes_ != 0)
      row.quantized.lanes = gpu_.memory().allocate(
          "lanes", unit.plan.round[unit.plan.rounds - 1].lanes * lane_bytes_, 4);
    units_.push_back(std::move(unit));
  }
  /// A round of the units for which it is the first one, or of the others.
  void launch(uint32_t round, bool begins) {
    std::vector<device::EncodeRow> rows;
    uint64_t tiles = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      OnDevice& unit = units_[u];
      if (round >= unit.plan.rounds || round < unit.first || (round == unit.first) != begins)
        continue;
      tiles = place_tiles(spec_, gpu_, tasks_[u].unit, unit.row, &device::Layout::encode, tiles);
      unit.row.out = gpu_.memory().allocate("payload", unit.plan.round[round].bytes, 1, shift_);
      rows.push_back(unit.row);
    }
    if (rows.empty()) return;
    twin_of(spec_).encode(
        spec_.params(),
        {gpu_.memory().allocate<device::EncodeRow>("rows", rows),
         static_cast<uint32_t>(rows.size()), tiles, remembers_, round, begins, lane_bytes_},
        gpu_);
  }
  /// Maxima of all ranks, as the host knows them.
  void accept(std::size_t u, uint32_t round) {
    OnDevice& unit = units_[u];
    const uint64_t bytes = unit.plan.round[round].bytes;
    unit.agreed.assign(unit.row.out, unit.row.out + bytes);
    std::vector<uint8_t> merged = unit.agreed;
    join_others(merged);
    std::copy_n(unit.row.quantized.kept, unit.kept.size(), unit.kept.begin());
    Work work{unit.kept, {}, best_isa(), nullptr};
    spec_.codec().accept({spec_.params(), {}, tasks_[u].unit, tasks_[u].place, round, work}, merged,
                         tasks_[u].place.world);
    std::copy(unit.kept.begin(), unit.kept.end(), unit.row.quantized.kept);
  }
  Coded result(std::size_t u) {
    const OnDevice& unit = units_[u];
    const device::EncodeRow& row = unit.row;
    Coded c;
    c.verdict =
        twin_of(spec_).verdict(spec_.params(), measured_[u], row.residual != nullptr, row.limit);
    if (row.residual != nullptr) c.residual.assign(row.residual, row.residual + row.count);
    const RoundPlan& last = unit.plan.round[unit.plan.rounds - 1];
    if (row.quantized.lanes != nullptr)
      c.lanes.assign(row.quantized.lanes, row.quantized.lanes + last.lanes * lane_bytes_);
    if (!device::gives_payload(c.verdict)) return c;
    const uint64_t bytes = spec_.contract().exact_size ? last.bytes : measured_[u].bytes;
    c.payload.assign(row.out, row.out + bytes);
    c.agreed = unit.agreed;
    c.kept.assign(row.quantized.kept, row.quantized.kept + unit.plan.kept_bytes);
    return c;
  }

  const Spec& spec_;
  test::CheckedDevice& gpu_;
  const std::vector<Task>& tasks_;
  uint64_t shift_;
  uint32_t lane_bytes_;
  bool remembers_ = false;
  device::Measured* measured_ = nullptr;
  std::vector<OnDevice> units_;
};

inline std::vector<Coded> encode_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                           const std::vector<Task>& tasks, DType dtype = DType::f32,
                                           uint64_t shift = 0, uint32_t lane_bytes = 0) {
  return DeviceEncoder(spec, gpu, tasks, dtype, shift, lane_bytes).run();
}

/// Codec states after delivery of what was coded.
inline std::vector<std::vector<float>> commit_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                                        const std::vector<Task>& tasks,
                                                        const std::vector<Coded>& coded) {
  std::vector<device::CommitRow> rows(tasks.size());
  for (std::size_t u = 0; u < tasks.size(); ++u) {
    rows[u].state = gpu.memory().allocate<float>("state", tasks[u].state);
    rows[u].sent = gpu.memory().allocate<uint8_t>("sent", coded[u].payload);
    rows[u].bytes = coded[u].payload.size();
    rows[u].count = tasks[u].unit.count;
  }
  twin_of(spec).commit(
      spec.params(),
      {gpu.memory().allocate<device::CommitRow>("rows", rows), static_cast<uint32_t>(rows.size())},
      gpu);
  std::vector<std::vector<float>> states;
  for (std::size_t u = 0; u < tasks.size(); ++u)
    states.emplace_back(rows[u].state, rows[u].state + tasks[u].state.size());
  return states;
}

inline std::vector<float> commit_on_cpu(const Spec& spec, const Task& task, const Coded& coded) {
  std::vector<float> state = task.state;
  Work work;
  work.isa = best_isa();
  spec.codec().commit({spec.params(), state, task.unit, task.place, 0, work}, state, coded.payload,
                      {}, 1);
  return state;
}

/// Whether each payload of `unit` is one.
inline std::vector<bool> check_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                         const Unit& unit,
                                         const std::vector<std::vector<uint8_t>>& payloads,
                                         uint32_t round) {
  std::vector<device::CheckRow> rows(payloads.size());
  const std::vector<uint32_t> zeros(payloads.size());
  auto* const malformed = gpu.memory().allocate<uint32_t>("malformed", zeros);
  uint64_t tiles = 0;
  for (std::size_t p = 0; p < payloads.size(); ++p) {
    tiles = place_tiles(spec, gpu, unit, rows[p], &device::Layout::check, tiles, 1);
    rows[p].payload = gpu.memory().allocate<uint8_t>("payload", payloads[p]);
    rows[p].bytes = payloads[p].size();
    rows[p].offset = unit.offset;
    rows[p].malformed = malformed + p;
  }
  twin_of(spec).check(spec.params(),
                      {gpu.memory().allocate<device::CheckRow>("rows", rows),
                       static_cast<uint32_t>(rows.size()), tiles, round},
                      gpu);
  std::vector<bool> good;
  for (std::size_t p = 0; p < payloads.size(); ++p) good.push_back(malformed[p] == 0);
  return good;
}

/// The weighted sum of one unit's payloads, onto `base` if it has elements. `kept`: Work::kept.
inline std::vector<float> decode_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                           const Unit& unit, std::span<const Term> terms,
                                           const std::vector<float>& base, Bytes kept = {}) {
  device::DecodeRow row;
  const uint64_t tiles = place_tiles(spec, gpu, unit, row, &device::Layout::decode, 0);
  row.add = !base.empty();
  row.values = row.add ? gpu.memory().allocate<float>("values", base)
                       : reinterpret_cast<float*>(
                             gpu.memory().allocate("values", unit.count * sizeof(float), 4));
  row.terms = static_cast<uint32_t>(terms.size());
  row.quantized.offset = unit.offset;
  row.quantized.kept = place_kept(gpu, kept);
  row.quantized.shared = shared_key(0, 0, unit.parameter);
  for (std::size_t k = 0; k < terms.size(); ++k) {
    auto* const payload = gpu.memory().allocate("payload", terms[k].payload.size(), 1, k % 4);
    std::copy(terms[k].payload.begin(), terms[k].payload.end(), payload);
    gpu.memory().set_written(payload);
    row.payload[k] = payload;
    row.bytes[k] = terms[k].payload.size();
    row.weight[k] = terms[k].weight;
    if (!terms[k].granules.empty())
      row.quantized.granules = gpu.memory().allocate<uint8_t>("granules", terms[k].granules);
    if (terms[k].contributors.empty()) continue;
    std::vector<uint32_t> words;
    for (const Contributors& who : terms[k].contributors) {
      words.push_back(who.added);
      words.push_back(who.divisor);
    }
    row.quantized.contributors = gpu.memory().allocate<uint32_t>("contributors", words);
    row.quantized.by_block = terms[k].contributors.size() != 1;
  }
  const std::vector<device::DecodeRow> rows{row};
  twin_of(spec).decode(spec.params(),
                       {gpu.memory().allocate<device::DecodeRow>("rows", rows), 1, tiles}, gpu);
  return {row.values, row.values + unit.count};
}

inline std::vector<float> decode_on_cpu(const Spec& spec, const Unit& unit,
                                        std::span<const Term> terms, std::vector<float> base,
                                        Bytes before = {}) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  const Plan plan = codec.plan(unit, 8);
  const Guarded scratch(plan.scratch_bytes), kept(plan.kept_bytes);
  std::copy(before.begin(), before.end(), kept.data());
  Work work{kept.bytes(), scratch.bytes(), best_isa(), nullptr};
  const bool add = !base.empty();
  base.resize(unit.count);
  codec.decode(unit, {}, terms, work, {base.data(), add});
  return base;
}

}  // namespace laconic::conformance
