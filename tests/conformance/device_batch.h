// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A codec's twin driven as a bucket's units: rows, memory, launches; and the same by the pipeline
// on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "codecs/registry/twin.h"
#include "conformance/codec_law.h"
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
  std::vector<uint8_t> payload;
  std::vector<float> residual;
};

inline Coded encode_on_cpu(const Spec& spec, const Task& task) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  std::vector<float> state = task.state;
  pipeline::UnitSlot slot{task.unit, codec.plan(task.unit, task.place.world), {}, state};
  Coded coded;
  coded.residual = task.residual;
  if (!task.residual.empty()) slot.memory = {{MemoryKind::residual}, coded.residual.data()};
  const Guarded kept(slot.plan.kept_bytes), scratch(slot.plan.scratch_bytes);
  Work work{kept.bytes(), scratch.bytes(), best_isa(), nullptr};
  coded.payload.resize(slot.plan.round[0].bytes);
  const auto encoded = codec.encode(slot, task.place, task.gradient.data(), work, coded.payload);
  coded.payload.resize(encoded.bytes);
  coded.verdict = encoded.outcome == pipeline::Outcome::zero      ? Verdict::zero
                  : encoded.outcome != pipeline::Outcome::payload ? Verdict::refused
                  : encoded.residual_reset                        ? Verdict::reset
                                                                  : Verdict::payload;
  return coded;
}

/// Rows of a batch: every unit's first tile and scratch memory.
template <class Row>
uint64_t place_tiles(const Spec& spec, test::CheckedDevice& gpu, const Unit& unit, Row& row,
                     uint64_t tiles, uint64_t least = 0) {
  const device::Layout layout = twin_of(spec).layout(spec.params(), unit);
  row.count = unit.count;
  row.first_tile = tiles;
  row.scratch = gpu.memory().allocate("scratch", layout.scratch, 1);
  return tiles + ceil_div(std::max(unit.count, least), layout.tile);
}

inline std::vector<Coded> encode_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                           const std::vector<Task>& tasks, DType dtype = DType::f32,
                                           uint64_t shift = 0) {
  std::vector<device::EncodeRow> rows(tasks.size());
  const std::vector<device::Measured> zeros(tasks.size());
  auto* const measured = gpu.memory().allocate<device::Measured>("measured", zeros);
  uint64_t tiles = 0;
  bool remembers = false;
  for (std::size_t u = 0; u < tasks.size(); ++u) {
    const Task& task = tasks[u];
    device::EncodeRow& row = rows[u];
    tiles = place_tiles(spec, gpu, task.unit, row, tiles);
    const Plan plan = spec.codec().plan(spec.params(), task.unit, task.place.world);
    if (dtype == DType::f32) {
      row.values = gpu.memory().allocate<float>("gradient", task.gradient);
    } else {
      std::vector<uint16_t> halves;
      for (const float x : task.gradient)
        halves.push_back(dtype == DType::f16 ? float_to_f16(x) : float_to_bf16(x));
      row.values = gpu.memory().allocate<uint16_t>("gradient", halves);
    }
    if (!task.residual.empty()) {
      row.residual = gpu.memory().allocate<float>("residual", task.residual);
      remembers = true;
    }
    if (!task.state.empty()) row.state = gpu.memory().allocate<float>("state", task.state);
    row.out = gpu.memory().allocate("payload", plan.round[0].bytes, 1, shift);
    row.measured = measured + u;
    row.offset = task.unit.offset;
    row.key = own_key(task.place.seed, task.place.step, task.unit.parameter, task.place.rank,
                      task.place.hop);
    row.prescale = task.place.prescale;
    row.own_weight = task.place.prescale == 1.0F ? 1.0F : static_cast<float>(task.place.world);
    row.limit = float_bits(plan.largest_input);
    row.dtype = dtype;
  }
  const device::EncodeBatch batch{gpu.memory().allocate<device::EncodeRow>("rows", rows),
                                  static_cast<uint32_t>(rows.size()), tiles, remembers};
  twin_of(spec).encode(spec.params(), batch, gpu);

  std::vector<Coded> coded(tasks.size());
  for (std::size_t u = 0; u < tasks.size(); ++u) {
    Coded& c = coded[u];
    c.verdict = twin_of(spec).verdict(spec.params(), measured[u], rows[u].residual != nullptr,
                                      rows[u].limit);
    if (rows[u].residual != nullptr)
      c.residual.assign(rows[u].residual, rows[u].residual + tasks[u].unit.count);
    const Plan plan = spec.codec().plan(spec.params(), tasks[u].unit, tasks[u].place.world);
    const uint64_t bytes = spec.contract().exact_size ? plan.round[0].bytes : measured[u].bytes;
    if (c.verdict != Verdict::payload && c.verdict != Verdict::reset) continue;
    c.payload.assign(rows[u].out, rows[u].out + bytes);
  }
  return coded;
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
                                         const std::vector<std::vector<uint8_t>>& payloads) {
  std::vector<device::CheckRow> rows(payloads.size());
  const std::vector<uint32_t> zeros(payloads.size());
  auto* const malformed = gpu.memory().allocate<uint32_t>("malformed", zeros);
  uint64_t tiles = 0;
  for (std::size_t p = 0; p < payloads.size(); ++p) {
    tiles = place_tiles(spec, gpu, unit, rows[p], tiles, 1);
    rows[p].payload = gpu.memory().allocate<uint8_t>("payload", payloads[p]);
    rows[p].bytes = payloads[p].size();
    rows[p].malformed = malformed + p;
  }
  twin_of(spec).check(spec.params(),
                      {gpu.memory().allocate<device::CheckRow>("rows", rows),
                       static_cast<uint32_t>(rows.size()), tiles},
                      gpu);
  std::vector<bool> good;
  for (std::size_t p = 0; p < payloads.size(); ++p) good.push_back(malformed[p] == 0);
  return good;
}

/// The weighted sum of one unit's payloads, onto `base` if it has elements.
inline std::vector<float> decode_on_device(const Spec& spec, test::CheckedDevice& gpu,
                                           const Unit& unit, std::span<const Term> terms,
                                           const std::vector<float>& base) {
  device::DecodeRow row;
  const uint64_t tiles = place_tiles(spec, gpu, unit, row, 0);
  row.add = !base.empty();
  row.values = row.add ? gpu.memory().allocate<float>("values", base)
                       : reinterpret_cast<float*>(
                             gpu.memory().allocate("values", unit.count * sizeof(float), 4));
  row.terms = static_cast<uint32_t>(terms.size());
  for (std::size_t k = 0; k < terms.size(); ++k) {
    auto* const payload = gpu.memory().allocate("payload", terms[k].payload.size(), 1, k % 4);
    std::copy(terms[k].payload.begin(), terms[k].payload.end(), payload);
    gpu.memory().set_written(payload);
    row.payload[k] = payload;
    row.bytes[k] = terms[k].payload.size();
    row.weight[k] = terms[k].weight;
  }
  const std::vector<device::DecodeRow> rows{row};
  twin_of(spec).decode(spec.params(),
                       {gpu.memory().allocate<device::DecodeRow>("rows", rows), 1, tiles}, gpu);
  return {row.values, row.values + unit.count};
}

inline std::vector<float> decode_on_cpu(const Spec& spec, const Unit& unit,
                                        std::span<const Term> terms, std::vector<float> base) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  const Plan plan = codec.plan(unit, 8);
  const Guarded scratch(plan.scratch_bytes), kept(plan.kept_bytes);
  Work work{kept.bytes(), scratch.bytes(), best_isa(), nullptr};
  const bool add = !base.empty();
  base.resize(unit.count);
  codec.decode(unit, {}, terms, work, {base.data(), add});
  return base;
}

}  // namespace laconic::conformance
