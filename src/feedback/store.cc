// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "feedback/store.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "laconic/bytes.h"

namespace laconic::feedback {
namespace {

bool remembers_gradients(StateKind kind) {
  return kind != StateKind::codec_state && kind != StateKind::range && kind != StateKind::master;
}

}  // namespace

Result<std::span<float>> Store::add(StateKind kind, std::string name, uint64_t count,
                                    Residence** home) {
  if (names_.contains(name)) {
    return Error{Errc::invalid_argument, "state " + name + " already exists",
                 "parameter names must be unique"};
  }
  Arena arena;
  if (!arena.reserve(std::max<uint64_t>(count, 1) * sizeof(float))) {
    return Error{Errc::out_of_memory,
                 "not enough memory for " + name + ", " + std::to_string(count) + " floats",
                 "error feedback needs one float per compressed element; +noef needs none"};
  }
  const std::span<float> values(reinterpret_cast<float*>(arena.bytes().data()), count);
  std::fill(values.begin(), values.end(), 0.0F);
  memory_.push_back(std::move(arena));
  entries_.push_back({std::move(name), kind, values, Residence(values)});
  names_.insert(entries_.back().name);
  if (home != nullptr) *home = &entries_.back().home;
  return values;
}

Result<void> Store::to_host() {
  Result<void> first;
  for (Entry& entry : entries_) {
    if (auto moved = entry.home.to_host(); !moved && first) first = std::move(moved);
  }
  return first;
}

Result<void> Store::read() const {
  for (const Entry& entry : entries_) {
    if (auto copied = entry.home.read(); !copied) return copied;
  }
  return {};
}

Result<void> Store::scale_residuals(float factor) {
  if (auto moved = to_host(); !moved) return moved;
  for (Entry& entry : entries_) {
    if (entry.kind == StateKind::codec_state || entry.kind == StateKind::master) continue;
    for (float& x : entry.values) x *= factor;
  }
  return {};
}

double Store::residual_norm() const noexcept {
  double sum = 0;
  for (const Entry& entry : entries_) {
    if (entry.kind != StateKind::residual) continue;
    if (!entry.home.read()) return std::numeric_limits<double>::quiet_NaN();
    for (const float x : entry.values) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(sum);
}

uint64_t Store::residual_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (remembers_gradients(entry.kind)) bytes += entry.values.size_bytes();
  }
  return bytes;
}

uint64_t Store::state_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (!remembers_gradients(entry.kind)) bytes += entry.values.size_bytes();
  }
  return bytes;
}

Result<void> check_values(const Store::Entry& entry, const uint8_t* values, uint64_t count) {
  const auto corrupt = [](std::string what) {
    return Error{Errc::state_corrupt, std::move(what), "use an older checkpoint"};
  };
  if (count != entry.values.size()) {
    return corrupt(entry.name + " holds " + std::to_string(count) + " values, this run needs " +
                   std::to_string(entry.values.size()));
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (!std::isfinite(load<float>(values + i * sizeof(float))))
      return corrupt("value " + std::to_string(i) + " of " + entry.name + " is not finite");
  }
  return {};
}

Result<void> accepts(const StateHeader& mine, const StateHeader& saved) {
  const auto number = [](auto x) { return std::to_string(x); };
  if (saved.version <= kStateVersionOfShards && saved.node_shards != mine.node_shards) {
    const auto shape = [&](uint32_t shards) {
      return shards == 1 ? std::string("whole models") : number(shards) + " shards of a node";
    };
    return Error{Errc::state_world,
                 "state: expected one of " + shape(mine.node_shards) + ", found one of " +
                     shape(saved.node_shards),
                 "run as many ranks on each node as the saved run, with the same nodes setting"};
  }
  if (saved.version == 0 || saved.version > mine.version) {
    return Error{
        Errc::state_version,
        "state: expected version 1 to " + number(mine.version) + ", found " + number(saved.version),
        "load it with the release that wrote it, or start without it"};
  }
  if (saved.world != mine.world) {
    return Error{Errc::state_world,
                 "state: expected one for " + number(mine.world) + " ranks, found one for " +
                     number(saved.world),
                 "flush() before the last checkpoint, then start without the old state"};
  }
  if (saved.rank != mine.rank) {
    return Error{Errc::state_rank,
                 "state: expected one for rank " + number(mine.rank) + ", found one for rank " +
                     number(saved.rank),
                 "residuals differ by rank: save and load one state per rank"};
  }
  if (saved.node_shard != mine.node_shard) {
    return Error{Errc::state_rank,
                 "state: expected one for shard " + number(mine.node_shard) +
                     ", found one for shard " + number(saved.node_shard),
                 "residuals differ by rank: save and load one state per rank"};
  }
  if (saved.model_hash != mine.model_hash) {
    return Error{Errc::state_model,
                 "state: expected this model, found another (parameter names or shapes differ)",
                 "load it into the model that saved it"};
  }
  if (saved.spec != mine.spec) {
    return Error{Errc::state_spec,
                 "state: expected spec '" + mine.spec + "', found '" + saved.spec + "'",
                 "attach with the saved spec, or flush() before changing it"};
  }
  if (saved.agreement != mine.agreement) {
    return Error{Errc::state_spec,
                 "state: expected this run's settings, found others (seed, small_elements or "
                 "strategy)",
                 "attach with the settings it was saved with"};
  }
  return {};
}

}  // namespace laconic::feedback
