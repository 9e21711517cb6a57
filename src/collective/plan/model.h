// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Model: the parameters, the strategy of each class of parameters, and the owners of ranges.
// Everything here is a pure function of (parameter list, classes, settings, world, options), not of
// buckets, iterations or data. Two buckets or eight give the same units, owners and random
// counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/registry/registered.h"
#include "laconic/codec.h"
#include "laconic/engine.h"
#include "laconic/parameter.h"
#include "laconic/spec.h"

namespace laconic::collective {

enum class StrategyKind : uint8_t {
  automatic = 0,
  native_sum = 1,
  gather_all = 2,
  two_shot = 3,
  server_sum = 4,  ///< native_sum, but by an aggregator
};
std::string_view strategy_name(StrategyKind kind) noexcept;
/// Strategies without bundles: what they send is added on the way.
constexpr bool sums_lanes(StrategyKind kind) noexcept {
  return kind == StrategyKind::native_sum || kind == StrategyKind::server_sum;
}
/// None for a name that is no strategy's.
std::optional<StrategyKind> strategy_of(std::string_view name) noexcept;

using laconic::Parameter;

/// A flush is asked for in bits, one lane each: whatever type the lanes have, and however many
/// ranks add theirs, a bit is set where the sum is above zero.
inline constexpr uint32_t kWishLanes = 16;

inline constexpr uint32_t kMaxWindow = 8;
/// Elements up to which an exchange is short: its wire is mostly waiting, so that where the window
/// is 2 or more, kMaxWindow of them may be in flight.
inline constexpr uint64_t kShortElements = 1 << 16;

struct Options {
  uint32_t rank = 0;
  uint32_t world = 1;
  /// Ranks behind one port to the network: those of the host that has the most. `world`: all are
  /// on one host, and nothing leaves it. What a strategy costs is what leaves the port.
  uint32_t ranks_per_host = 1;
  uint64_t seed = 0;
  uint64_t small_elements = 4096;  ///< parameters of at most this many elements go uncompressed
  StrategyKind strategy = StrategyKind::automatic;
  EngineCaps caps;
  uint32_t threads = 1;
  uint32_t window = 1;  ///< exchanges in flight at a time, at most kMaxWindow
  /// Seconds that only go forward, for what a rank observes; empty: the system's.
  std::function<double()> now;
  bool reports = false;  ///< a step's first exchange carries what the ranks observed
  uint64_t part = 0;     ///< dense bytes of a bucket's parts, which the driver cuts; 0: uncut
  /// An owner keeps a float32 master of its ranges, which the program moves by the mean, and what
  /// comes down is the change of the parameters (docs/decisions/0050). By two_shot alone.
  bool owner_turns = false;
  /// This rank and its peers exchange one of several shards of the model, cut by Assignment::held;
  /// other sessions have the rest (docs/decisions/0055).
  uint32_t node_shards = 1;
  uint32_t node_shard = 0;
  /// Registered codecs that specs may name.
  std::vector<std::shared_ptr<const codecs::Registered>> codecs{};
};

/// A piece of a parameter that is coded as a tensor of its own.
struct Piece {
  Unit unit;
  uint32_t owner = 0;  ///< two_shot: the rank that takes the mean; else unused
};

/// Elements of a parameter.
struct Range {
  uint64_t first = 0;
  uint64_t count = 0;
};

/// How a parameter is cut between the shards of a node.
struct Cut {
  uint64_t granule = 0;  ///< ranges are multiples of it; 0: one shard has all
  uint32_t shard = 0;    ///< that shard
  bool operator==(const Cut&) const = default;
};

/// How one parameter travels.
struct Assignment {
  Range held;          ///< what this shard has of it; without shards: all
  bool raw = true;     ///< uncompressed lanes
  std::string reason;  ///< why it is; of a compressed one, how it was cut, if it was
  std::vector<Piece> pieces;
};

/// The planner's answer for a model, with its reasons in words.
struct Choice {
  StrategyKind strategy = StrategyKind::native_sum;
  std::string reason;
  bool requested = false;  ///< by the call or its rule; in a Model's choices
};

/// Bytes of something whose size may vary.
struct Prediction {
  uint64_t expected = 0;
  uint64_t at_most = 0;
};

/// The bytes of a model's exchange.
struct Volume {
  uint64_t payload = 0;   ///< bytes of one rank's compressed units, at most
  uint64_t expected = 0;  ///< expected bytes, as RoundPlan::expected
  uint64_t raw = 0;       ///< bytes of uncompressed lanes
  uint64_t units = 0;     ///< slots of one rank's bundles, each 4 bytes; pieces under two_shot
  uint64_t rounds = 1;    ///< of the codec
  bool lanes = true;      ///< every round is lanes,
  bool summable = true;   ///< of a type that the engine adds
  bool codes = false;     ///< lanes are made of codes
  bool exact = true;      ///< no lengths have to be predicted
  /// two_shot: of all payloads that come down, where they have another codec.
  std::optional<Prediction> down{};
};
/// Bytes of a round as an engine sums them: codes are expanded.
uint64_t travelling_bytes(const RoundPlan& round) noexcept;
/// Volume of the units of `strategy`. `down`: null, or Setting::down.
Volume volume_of(const Spec& spec, const std::vector<Parameter>& parameters, const Options& options,
                 StrategyKind strategy, const Spec* down = nullptr);

/// Ranks whose bytes share the port that a choice is about; 1 where all are on one host.
constexpr uint32_t ranks_behind_port(const Options& options) noexcept {
  return options.ranks_per_host < options.world ? std::max(options.ranks_per_host, 1U) : 1;
}

/// Bytes that `behind` ranks with one port send through it in a step whose parameters travel in one
/// bucket, headers included. A ring passes it once, if ranks are numbered host by host.
Prediction predicted_bytes(StrategyKind strategy, uint32_t world, const Volume& volume,
                           uint32_t behind = 1) noexcept;

class Model;
/// Bytes of a parameter's payload in one rank's bundles, without headers, by its setting of now.
/// `hop` 1: in the bundles of all owners together.
Prediction payload_of(const Model& model, uint32_t parameter, uint32_t hop = 0);

/// How a class of parameters is to travel.
struct Setting {
  Spec spec;
  StrategyKind strategy = StrategyKind::automatic;  ///< asked for
  /// Spec of the means of two_shot; none: the same spec.
  std::optional<Spec> down{};

  /// The spec at a hop (Place::hop).
  [[nodiscard]] const Spec& at(uint32_t hop) const noexcept {
    return hop == 1 && down ? *down : spec;
  }
};
/// Parameters are classed by rules (control/rules.h): the first class has those that no rule
/// matches.
inline constexpr uint32_t kMaxClasses = 32;  // the number of bits that Model has for classes

/// Refuses what the contract forbids; otherwise the strategy with the fewest predicted bytes plus
/// rounds. With `down`, which is null or Setting::down: two_shot.
Result<Choice> choose_strategy(const Spec& spec, const std::vector<Parameter>& parameters,
                               const Options& options, const Spec* down = nullptr);

/// Parameters, their classes and assignments, the strategies: fixed at attach.
class Model {
 public:
  /// A model with one class, under options.strategy.
  static Result<Model> create(const Spec& spec, std::vector<Parameter> parameters,
                              const Options& options);
  /// `settings`: by class, 1 to kMaxClasses. `class_of`: by parameter.
  static Result<Model> create(std::vector<Setting> settings, std::vector<uint32_t> class_of,
                              std::vector<Parameter> parameters, const Options& options);

  [[nodiscard]] uint32_t classes() const noexcept {
    return static_cast<uint32_t>(settings_.size());
  }
  /// The spec of a class; class 0 has the call's spec. `hop` 1: the spec of the means that owners
  /// send.
  [[nodiscard]] const Spec& spec(uint32_t of = 0, uint32_t hop = 0) const noexcept {
    return settings_[of].at(hop);
  }
  [[nodiscard]] const Choice& choice(uint32_t of = 0) const noexcept { return choices_[of]; }
  /// Another value of a field of a class's spec, not of Setting::down: lengths change, units and
  /// strategies stay. Takes no memory.
  void move(uint32_t of, const Field& field, double value) {
    settings_[of].spec.move(field, value, options_.world);
  }
  /// The field of a class that a policy may move; null: there is none, or its value decides what
  /// codes add up to. State at a smaller value is the beginning of that at a larger one.
  [[nodiscard]] const Field* movable(uint32_t of) const;
  /// Limits the values of a class's field that a control policy may choose; called before anything
  /// is bound.
  void limit(uint32_t of, const Field& field, double least, double most);
  /// Floats of state that a unit of a class needs at a hop at most, wherever its field moves.
  [[nodiscard]] uint64_t state_at_most(uint32_t of, const Unit& unit, uint32_t hop) const;
  /// Is any of its parameters compressed?
  [[nodiscard]] bool has_units(uint32_t of) const;
  /// A class's parameters, whole.
  [[nodiscard]] const std::vector<Parameter>& members(uint32_t of) const { return members_[of]; }
  /// Before anything is bound: a policy may turn a class to float32.
  void open_dense(uint32_t of) noexcept { dense_ |= 1U << of; }
  [[nodiscard]] bool dense(uint32_t of) const noexcept { return (dense_ >> of & 1U) != 0; }
  [[nodiscard]] uint32_t class_of(uint32_t parameter) const { return class_of_[parameter]; }
  [[nodiscard]] StrategyKind strategy_of(uint32_t parameter) const {
    return choices_[class_of_[parameter]].strategy;
  }
  /// Does any class with parameters travel so?
  [[nodiscard]] bool uses(StrategyKind strategy) const noexcept;
  /// Does any class remember what it did not send?
  [[nodiscard]] bool feedback() const noexcept;
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  /// One rank: gradients pass through, and nothing is sent, compressed or remembered.
  [[nodiscard]] bool alone() const noexcept { return options_.world == 1; }
  /// EngineCaps::scales_from of all ranks together.
  void agree_on_scaling(uint64_t from) noexcept { options_.caps.scales_from = from; }
  /// As this shard holds them: of what is cut, and of what other shards have, only the name is that
  /// of whole().
  [[nodiscard]] const std::vector<Parameter>& parameters() const noexcept { return parameters_; }
  /// As they were given.
  [[nodiscard]] const std::vector<Parameter>& whole() const noexcept { return whole_; }
  /// How each parameter is cut between the shards.
  [[nodiscard]] const std::vector<Cut>& cuts() const noexcept { return cuts_; }
  [[nodiscard]] const Assignment& assignment(uint32_t parameter) const {
    return assignments_[parameter];
  }
  /// Identity of the settings in a saved state: the call's spec, that of its means if it differs,
  /// and a number for the rules and their parameters.
  [[nodiscard]] std::string configured() const;
  /// The spec whose values an aggregator adds, if a class uses server_sum.
  [[nodiscard]] const Spec& spec_of_codes() const;
  /// The job for Engine::join, if a class uses server_sum.
  [[nodiscard]] AggregationJob aggregation_job() const;
  /// Hash over names, sizes, classes, world, specs, options: equal on all ranks or nothing works.
  /// Travels in every bundle.
  [[nodiscard]] uint64_t agreement() const noexcept { return agreement_; }
  /// Hash over names and sizes only: identity of the model in saved state.
  [[nodiscard]] uint64_t model_hash() const noexcept { return model_hash_; }
  /// Lanes of 32 bits in a granule, at most: its sum is no longer than that of a granule of codes.
  [[nodiscard]] uint32_t values_per_granule() const;
  /// Engine-added float sums depend on an element's place in the buffer: does any of ours? Those of
  /// ways out and flushes, which every strategy has, do not count.
  [[nodiscard]] bool layout_matters() const noexcept {
    return !alone() && (dense_ != 0 || uses(StrategyKind::native_sum));
  }

 private:
  Model() = default;
  Result<void> choose();
  void agree();
  void assign();
  void shard();
  void assign_pieces(uint32_t parameter, std::vector<uint64_t>& load);
  [[nodiscard]] Result<void> check_sizes() const;
  [[nodiscard]] RoundPlan round_of_codes() const;

  struct Limits {
    const Field* field = nullptr;  // null: it does not move
    double least = 0;
    double most = 0;
  };

  Options options_;
  std::vector<Limits> limits_;     // by class; empty: none moves
  std::vector<Setting> settings_;  // by class
  std::vector<Choice> choices_;    // one per class
  std::vector<std::vector<Parameter>>
      members_;  // one per class, whole: copies, so that changes take no memory
  std::vector<uint32_t> class_of_;
  std::vector<Parameter> whole_;
  std::vector<Parameter> parameters_;
  std::vector<Assignment> assignments_;
  std::vector<Cut> cuts_;
  uint64_t agreement_ = 0;
  uint64_t model_hash_ = 0;
  uint32_t dense_ = 0;  // a bit for each class
};

/// Bytes that a rank is expected to receive for the parameters of a class in a step, as its spec is
/// now; or that leave a port which `behind` ranks share.
[[nodiscard]] uint64_t bytes_of_class(const Model& model, uint32_t of, uint32_t behind = 1);
/// The same for an all-reduce of float32.
[[nodiscard]] uint64_t dense_bytes_of_class(const Model& model, uint32_t of);
/// Would the planner have a class's payloads gathered, with its spec as it is now?
[[nodiscard]] bool would_gather(const Model& model, uint32_t of);

/// The range of a parameter that a shard holds; for this rank's shard it is Assignment::held.
[[nodiscard]] Range held_by(const Model& model, uint32_t shard, uint32_t parameter) noexcept;

/// Setting::down of a class; null: none.
inline const Spec* down_of(const Model& model, uint32_t of) noexcept {
  const Spec& down = model.spec(of, 1);
  return &down == &model.spec(of) ? nullptr : &down;
}

}  // namespace laconic::collective
