// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/rank_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "kernels/cast/cast.h"

namespace laconic::collective {

using feedback::StateKind;

namespace {

Result<void> bind_memory(feedback::Store& store, const Parameter& parameter, RankParameter& mine) {
  feedback::Memory& memory = mine.memory;
  memory.settings = mine.codec->spec().memory();
  const MemoryKind kind = memory.settings.kind;
  if (kind == MemoryKind::none) return {};
  auto values =
      kind == MemoryKind::ema
          ? store.add(StateKind::mean, "mean/" + parameter.name, parameter.count(), &memory.home)
          : store.add(StateKind::residual, "residual/" + parameter.name, parameter.count(),
                      &memory.home);
  if (!values) return std::move(values).error();
  memory.values = values->data();
  if (kind != MemoryKind::momentum) return {};
  auto momentum = store.add(StateKind::momentum, "momentum/" + parameter.name, parameter.count());
  if (!momentum) return std::move(momentum).error();
  memory.momentum = momentum->data();
  return {};
}

Result<void> bind_fixed(feedback::Store& store, const Parameter& parameter, RankParameter& mine) {
  const Spec& spec = mine.codec->spec();
  mine.fixed.unit = {mine.count, parameter.rows, parameter.cols, 0, 0};
  if (spec.feedback()) {
    auto values = store.add(StateKind::residual, "residual/" + parameter.name, mine.count);
    if (!values) return std::move(values).error();
    mine.memory = {{MemoryKind::residual, 0.0F, spec.memory().decay}, values->data()};
    mine.fixed.memory = mine.memory;
  }
  auto range = store.add(StateKind::range, "range/" + parameter.name, 1);
  if (!range) return std::move(range).error();
  mine.fixed.state = *range;
  return {};
}

}  // namespace

std::vector<pipeline::UnitCodec> codecs_of(const Model& model, Isa isa, ThreadPool* pool) {
  std::vector<pipeline::UnitCodec> codecs;
  bool down = false;
  for (uint32_t c = 0; c < model.classes(); ++c) {
    codecs.emplace_back(model.spec(c), isa, pool);
    down = down || down_of(model, c) != nullptr;
  }
  for (uint32_t c = 0; down && c < model.classes(); ++c)
    codecs.emplace_back(model.spec(c, 1), isa, pool);
  return codecs;
}

Result<std::unique_ptr<RankState>> RankState::create(const Model& model,
                                                     std::span<const pipeline::UnitCodec> codecs,
                                                     feedback::Store& store,
                                                     const pipeline::Batches& batches) {
  std::unique_ptr<RankState> state(new RankState(model, codecs, batches));
  if (auto r = state->bind(store); !r) return std::move(r).error();
  return state;
}

Result<void> RankState::bind_state(feedback::Store& store, const std::string& name, uint32_t of,
                                   const pipeline::UnitCodec& codec, pipeline::UnitSlot& slot,
                                   uint32_t hop) {
  const uint64_t floats = model_->state_at_most(of, slot.unit, hop);
  if (floats == 0) return {};
  auto values = store.add(StateKind::codec_state,
                          "state/" + name + "@" + std::to_string(slot.unit.offset) + "#" +
                              std::to_string(hop) +
                              std::string(slot.plan.state_may_lack ? feedback::kMayLack : ""),
                          floats);
  if (!values) return std::move(values).error();
  slot.state = *values;
  codec.init(slot, place(0, hop));
  return {};
}

Result<void> RankState::bind_piece(feedback::Store& store, const Parameter& parameter,
                                   const Piece& piece, RankParameter& mine) {
  RankPiece bound;
  bound.owner = piece.owner;
  bound.codec = mine.codec;
  bound.send.unit = piece.unit;
  bound.send.plan = mine.codec->plan(piece.unit, world());
  bound.send.memory = mine.memory.from(piece.unit.offset - mine.first);
  if (auto r = bind_state(store, parameter.name, mine.of, *mine.codec, bound.send, 0); !r) return r;
  if (mine.strategy == StrategyKind::two_shot) {
    if (auto r = bind_mean(store, parameter, mine, bound); !r) return r;
  }
  bound.send_state = bound.send.state;
  bound.mean_state = bound.mean.state;
  mine.pieces.push_back(std::move(bound));
  return {};
}

Result<void> RankState::bind_mean(feedback::Store& store, const Parameter& parameter,
                                  const RankParameter& mine, RankPiece& piece) {
  const bool own = codecs_.size() > model_->classes();
  piece.down = &codecs_[own ? model_->classes() + mine.of : mine.of];
  pipeline::UnitSlot& mean = piece.mean;
  mean.unit = piece.send.unit;
  mean.plan = piece.down->plan(mean.unit, world());
  if (piece.owner != rank()) return {};
  if (model_->options().owner_turns) {  // what is not delivered remains in master - replica
    auto master = store.add(StateKind::master,
                            "master/" + parameter.name + "@" + std::to_string(mean.unit.offset),
                            mean.unit.count);
    if (!master) return std::move(master).error();
    piece.master = *master;
  } else if (const Spec& spec = piece.down->spec(); spec.feedback()) {
    feedback::Residence* home = nullptr;
    auto residual =
        store.add(StateKind::owner_residual,
                  "owner_residual/" + parameter.name + "@" + std::to_string(mean.unit.offset),
                  mean.unit.count, &home);
    if (!residual) return std::move(residual).error();
    mean.memory = {
        {MemoryKind::residual, 0.0F, spec.memory().decay}, residual->data(), nullptr, home};
  }
  return bind_state(store, parameter.name, mine.of, *piece.down, mean, 1);
}

Result<void> RankState::bind(feedback::Store& store) {
  for (uint32_t i = 0; i < model_->parameters().size(); ++i) {
    const Parameter& p = model_->parameters()[i];
    const Assignment& a = model_->assignment(i);
    RankParameter mine;
    mine.raw = a.raw;
    mine.of = model_->class_of(i);
    mine.strategy = model_->strategy_of(i);
    mine.first = a.held.first;
    mine.count = p.count();
    mine.codec = &codecs_[mine.of];
    if (!a.raw && (mine.count != 0 || a.held.count == model_->whole()[i].count())) {
      if (auto r = bind_memory(store, p, mine); !r) return r;
    } else if (mine.strategy == StrategyKind::server_sum) {
      if (auto r = bind_fixed(store, p, mine); !r) return r;
    }
    for (const Piece& piece : a.pieces) {
      if (auto r = bind_piece(store, p, piece, mine); !r) return r;
    }
    parameters_.push_back(std::move(mine));
  }
  return {};
}

void Replica::read(Isa isa, uint64_t offset, std::span<float> out) const noexcept {
  const auto* from = static_cast<const uint8_t*>(values) + offset * dtype_size(dtype);
  if (dtype == DType::f32)
    std::memcpy(out.data(), from, out.size_bytes());
  else
    kernels::widen(kernels::cast_kernels(isa), dtype, out.data(), from, out.size());
}

void Replica::add(const kernels::BasicKernels& kernels, Isa isa, uint64_t offset,
                  std::span<const float> change) const noexcept {
  auto* to = static_cast<uint8_t*>(values) + offset * dtype_size(dtype);
  if (dtype == DType::f32)
    return kernels.add(reinterpret_cast<float*>(to), change.data(), change.size());
  std::array<float, 1024> sums;
  for (uint64_t first = 0; first < change.size(); first += sums.size()) {
    const uint64_t count = std::min<uint64_t>(sums.size(), change.size() - first);
    uint8_t* const at = to + first * dtype_size(dtype);
    kernels::widen(kernels::cast_kernels(isa), dtype, sums.data(), at, count);
    kernels.add(sums.data(), change.data() + first, count);
    kernels::narrow(kernels::cast_kernels(isa), dtype, at, sums.data(), count);
  }
}

uint64_t rest_of(const RankParameter& parameter) noexcept {
  if (const float* residual = parameter.memory.residual(); residual != nullptr)
    return hash64(std::span<const float>(residual, parameter.count)) | 1;
  uint64_t hash = 0;
  for (const RankPiece& piece : parameter.pieces) {
    const float* const owned = piece.mean.memory.values;
    if (owned != nullptr) hash = hash64(std::span<const float>(owned, piece.mean.unit.count), hash);
  }
  return hash | 1;
}

void RankState::replan(uint32_t of) noexcept {
  for (RankParameter& p : parameters_) {
    if (p.codec != &codecs_[of]) continue;
    for (RankPiece& piece : p.pieces) {
      const auto again = [&](const pipeline::UnitCodec& codec, pipeline::UnitSlot& slot,
                             std::span<float> state) {
        slot.plan = codec.plan(slot.unit, world());
        slot.state = state.first(std::min<size_t>(slot.plan.state_floats, state.size()));
      };
      again(*piece.codec, piece.send, piece.send_state);
      if (piece.down != nullptr) again(*piece.down, piece.mean, piece.mean_state);
    }
  }
}

uint64_t RankState::held_by_class(uint32_t of) const noexcept {
  uint64_t floats = 0;
  for (const RankParameter& p : parameters_) {
    if (p.codec != &codecs_[of]) continue;
    floats += p.memory.values != nullptr ? p.count : 0;
    floats += p.memory.momentum != nullptr ? p.count : 0;
    floats += p.fixed.state.size();
    for (const RankPiece& piece : p.pieces) {
      floats += piece.send.state.size() + piece.mean.state.size();
      floats += piece.mean.memory.values != nullptr ? piece.mean.unit.count : 0;
    }
  }
  return floats * sizeof(float);
}

uint64_t RankState::shared_state(const Layout& layout) const noexcept {
  uint64_t hash = 0;
  const auto add = [&](std::span<const float> state) { hash = hash64(state, hash); };
  for (const uint32_t p : layout.parameters) {
    if (parameters_[p].codec->contract().merge != Merge::linear) continue;
    for (const RankPiece& piece : parameters_[p].pieces) add(piece.send.state);
    add(parameters_[p].fixed.state);
  }
  return hash;
}

}  // namespace laconic::collective
