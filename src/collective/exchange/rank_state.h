// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// RankState: the units that one rank encodes and the units that it owns, bound to their memory in
// the store.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collective/plan/layout.h"
#include "collective/plan/model.h"
#include "feedback/store.h"
#include "pipeline/batch_codec.h"
#include "wire/bundle.h"

namespace laconic::collective {

/// A piece of a parameter on this rank.
struct RankPiece {
  uint32_t owner = 0;
  const pipeline::UnitCodec* codec = nullptr;
  const pipeline::UnitCodec* down = nullptr;  ///< two_shot: of the mean
  pipeline::UnitSlot send;                    ///< hop 0: this rank's gradient in that range
  /// two_shot, hop 1: the mean of that range. Memory and state where this rank owns it.
  pipeline::UnitSlot mean;
  /// All that their state may grow to while settings move.
  std::span<float> send_state, mean_state;
  /// Options::owner_turns, when this rank owns it.
  std::span<float> master;
};

/// A parameter as the program has it, on the host: f32, f16 or bf16.
struct Replica {
  void* values = nullptr;
  DType dtype = DType::f32;

  /// out = the elements from `offset` on.
  void read(Isa isa, uint64_t offset, std::span<float> out) const noexcept;
  /// Adds to them, rounding once to their type.
  void add(const kernels::BasicKernels& kernels, Isa isa, uint64_t offset,
           std::span<const float> change) const noexcept;
};

/// How the compressed parameters of a class travel in the step at hand.
struct Way {
  bool dense = false;  ///< as float32, which a policy has turned to
  uint32_t parts = 0;  ///< 1/parts of their residuals goes with them; 0: nothing
};

struct RankParameter {
  bool raw = true;
  uint32_t of = 0;  ///< its class
  StrategyKind strategy = StrategyKind::native_sum;
  uint64_t first = 0;                          ///< where its elements begin in the whole parameter,
  uint64_t count = 0;                          ///< and how many this shard holds
  const pipeline::UnitCodec* codec = nullptr;  ///< of its class
  /// Memory of what this shard holds of it; without arrays if there is no feedback, or if it is
  /// uncompressed (except under server_sum).
  feedback::Memory memory;
  std::vector<RankPiece> pieces;
  pipeline::UnitSlot fixed;  ///< raw, server_sum: travels as fixed point; `state` is its range
  uint64_t rest = 0;         ///< rest_of, when a flush in 16 bits ended; 0: none did
  Replica replica;           ///< Options::owner_turns: set before each pull
};
/// A hash of a parameter's residual, or without one of those of the means that this rank owns;
/// never 0.
uint64_t rest_of(const RankParameter& parameter) noexcept;

/// For RankState::create.
std::vector<pipeline::UnitCodec> codecs_of(const Model& model, Isa isa, ThreadPool* pool);

class RankState {
 public:
  /// Allocates memory and codec state in `store` (names: residual/P or mean/P, momentum/P,
  /// owner_residual/P@offset, master/P@offset, state/P@offset#hop, range/P). A mean that this rank
  /// owns has a residual at most, and so has what travels as fixed point: averages and momentum are
  /// for codecs.
  /// `codecs`: by class, and then, unless those of hop 0 do for all, those of hop 1 by class
  /// (codecs_of). `batches` outlive the state.
  static Result<std::unique_ptr<RankState>> create(
      const Model& model, std::span<const pipeline::UnitCodec> codecs, feedback::Store& store,
      const pipeline::Batches& batches = pipeline::host_batches());

  /// Hash of the current settings, the same on all ranks; every bundle carries it. 0: as at attach.
  void set_settings(uint64_t hash) noexcept { settings_ = hash; }
  [[nodiscard]] uint64_t settings() const noexcept { return settings_; }
  /// A class's spec has moved: its units have other plans. Takes no memory.
  void replan(uint32_t of) noexcept;
  /// Between two steps. Exchanges have to plan again where `dense` changes.
  void set_way(uint32_t of, const Way& way) noexcept { ways_[of] = way; }
  [[nodiscard]] const Way& way(uint32_t parameter) const noexcept {
    return ways_[parameters_[parameter].of];
  }
  /// All of a residual went out but for what 16 bits rounded off.
  void note_rest(uint32_t index) noexcept { parameters_[index].rest = rest_of(parameters_[index]); }
  [[nodiscard]] const RankParameter& parameter(uint32_t index) const { return parameters_[index]; }
  void set_replica(uint32_t index, const Replica& replica) noexcept {
    parameters_[index].replica = replica;
  }
  [[nodiscard]] const Model& model() const noexcept { return *model_; }
  /// The strategies' means to encode and decode.
  [[nodiscard]] const pipeline::Batches& batches() const noexcept { return *batches_; }
  /// The means that all codecs share.
  [[nodiscard]] const kernels::BasicKernels& kernels() const noexcept {
    return codecs_[0].kernels();
  }
  [[nodiscard]] Isa isa() const noexcept { return codecs_[0].isa(); }
  [[nodiscard]] uint32_t rank() const noexcept { return model_->options().rank; }
  /// Varying lengths travel as they are; capacities are bounds and nothing is predicted.
  [[nodiscard]] bool short_sends() const noexcept { return model_->options().caps.short_sends; }
  [[nodiscard]] uint32_t world() const noexcept { return model_->options().world; }
  [[nodiscard]] Place place(uint64_t step, uint32_t hop) const noexcept {
    return {model_->options().seed, step, rank(), world(), hop, 1.0F};
  }
  /// Hash of the codec state of a layout's units and of its ranges, where lanes add up only if all
  /// ranks encode by the same; else 0.
  [[nodiscard]] uint64_t shared_state(const Layout& layout) const noexcept;
  /// Bytes in the store of a class's parameters.
  [[nodiscard]] uint64_t held_by_class(uint32_t of) const noexcept;
  [[nodiscard]] const std::string& name_of(uint32_t parameter) const {
    return model_->parameters()[parameter].name;
  }
  /// The header's identity of a bundle from rank `from`: of this exchange, of this bucket's layout.
  template <class Exchanged>
  [[nodiscard]] BundleId bundle_id(BundleKind kind, uint32_t from, const Exchanged& input,
                                   uint8_t round) const noexcept {
    return {kind,
            round,
            static_cast<uint16_t>(from),
            static_cast<uint16_t>(world()),
            input.step,
            input.sequence,
            model_->agreement() ^ settings_ ^ input.layout};
  }

 private:
  RankState(const Model& model, std::span<const pipeline::UnitCodec> codecs,
            const pipeline::Batches& batches)
      : model_(&model), codecs_(codecs), batches_(&batches), ways_(model.classes()) {}
  Result<void> bind(feedback::Store& store);
  Result<void> bind_state(feedback::Store& store, const std::string& name, uint32_t of,
                          const pipeline::UnitCodec& codec, pipeline::UnitSlot& slot, uint32_t hop);
  Result<void> bind_piece(feedback::Store& store, const Parameter& parameter, const Piece& piece,
                          RankParameter& mine);
  Result<void> bind_mean(feedback::Store& store, const Parameter& parameter,
                         const RankParameter& mine, RankPiece& piece);

  const Model* model_;
  std::span<const pipeline::UnitCodec> codecs_;
  const pipeline::Batches* batches_;
  std::vector<RankParameter> parameters_;
  std::vector<Way> ways_;  // by class
  uint64_t settings_ = 0;
};

}  // namespace laconic::collective
