// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/plan/model.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/concat.h"
#include "base/hash.h"
#include "pipeline/unit_codec.h"
#include "wire/bundle.h"

namespace laconic::collective {
namespace {

/// The cost of one more round, in bytes: 3–5 ms of a Gloo round on links of 50 Mbit/s to 1 Gbit/s,
/// where compression helps. Only chooses between strategies; no result depends on it.
constexpr uint64_t kRoundBytes = 32 * 1024;

Unit whole_unit(const Parameter& p) { return {p.count(), p.rows, p.cols, hash64(p.name), 0}; }

bool compresses_nothing(const Spec& spec) { return spec.codec().info.name == "none"; }

/// With one rank gradients stay as they are.
bool alone(const Options& options) { return options.world == 1; }
constexpr std::string_view kAlone = "one rank has nothing to exchange: gradients stay as they are";

bool compresses_nothing(const Spec& spec, const Spec* down) {
  return compresses_nothing(spec) && (down == nullptr || compresses_nothing(*down));
}

bool is_raw(const Spec& spec, const Spec* down, const Parameter& p, const Options& options) {
  return alone(options) || (compresses_nothing(spec, down) && !options.owner_turns) ||
         p.count() <= options.small_elements;
}

/// Or codes, which may follow an agreement.
bool all_lanes(const Plan& plan) {
  if (plan.rounds == 2 && plan.round[0].kind == RoundKind::agree_max)
    return plan.round[1].kind == RoundKind::lanes && plan.round[1].code_bits != 0;
  return std::all_of(plan.round.begin(), plan.round.begin() + plan.rounds,
                     [](const RoundPlan& r) { return r.kind == RoundKind::lanes; });
}

/// Codes travel as int32.
DType travelling(const RoundPlan& round) { return round.code_bits == 0 ? round.lane : DType::i32; }

uint64_t granule_of(const Spec& spec) { return std::max<uint32_t>(spec.contract().granule, 1); }

/// Granule of two_shot's ranges: contributions and means consist of whole granules.
uint64_t granule_of(const Spec& spec, const Spec* down) {
  return down == nullptr ? granule_of(spec) : std::lcm(granule_of(spec), granule_of(*down));
}

/// two_shot cuts a parameter where every owner gets at least a granule of it.
bool is_cut(uint64_t granule, const Parameter& p, uint64_t world) {
  return p.count() >= world * granule;
}

/// The share of `index` among `of`: whole granules, and the last one has the rest.
Range range_of(uint64_t elements, uint64_t granule, uint64_t index, uint64_t of) {
  const uint64_t granules = elements / granule;
  const uint64_t begin = granules * index / of * granule;
  const uint64_t end = index + 1 == of ? elements : granules * (index + 1) / of * granule;
  return {begin, end - begin};
}

Result<void> check_shard(const Options& options) {
  if (options.node_shards == 0 || options.node_shard >= options.node_shards) {
    return Error{
        Errc::invalid_argument,
        concat({"node_shard: expected a number below ", std::to_string(options.node_shards),
                ", the number of shards, found ", std::to_string(options.node_shard)}),
        "shards count from 0"};
  }
  if (options.node_shards == 1) return {};
  const std::string_view who = options.owner_turns       ? "owners with turns"
                               : options.caps.aggregates ? "aggregation servers"
                               : !options.codecs.empty() ? "registered codecs"
                                                         : "";
  if (who.empty()) return {};
  return Error{Errc::unsupported, concat({"node_shards: ", who, " take whole models"}),
               "omit node_shards"};
}

/// Why a parameter is not compressed, or how it was cut; nothing to say of one that went in one
/// piece where all do.
std::string reason_of(const Spec& spec, const Spec* down, const Options& options,
                      StrategyKind strategy, const Assignment& a) {
  const auto n = [](uint64_t x) { return std::to_string(x); };
  if (alone(options)) return std::string(kAlone);
  if (a.raw && compresses_nothing(spec, down) && !options.owner_turns)
    return "none does not compress";
  if (a.raw) return "at most small_elements = " + n(options.small_elements) + " elements";
  if (strategy != StrategyKind::two_shot) return {};
  if (a.pieces.size() > 1) return "cut into " + n(a.pieces.size()) + " ranges, one for each owner";
  return "whole to owner " + n(a.pieces[0].owner) + ": fewer than " + n(granule_of(spec, down)) +
         " elements for each of " + n(options.world) + " ranks";
}

/// Bytes that `behind` ranks send to all others under a strategy, for payloads of that many bytes
/// in all, and those that come down.
uint64_t bytes_sent(StrategyKind strategy, uint64_t world, uint64_t behind, uint64_t payload,
                    uint64_t means, const Volume& v) {
  const uint64_t content = payload + v.raw;
  const uint64_t tables = 4 * v.units;
  const uint64_t ring = 2 * (world - 1) * content / world;
  if (strategy == StrategyKind::server_sum) return behind * ring;
  if (strategy == StrategyKind::native_sum) return ring;
  const uint64_t others = world - behind;
  if (strategy == StrategyKind::gather_all)
    return behind * others * (content + tables + kBundleHeaderBytes);
  // A bundle to every other owner; then this owner's, with a world-th of everything, to all.
  const uint64_t seen = v.exact ? 0 : 4;
  const uint64_t up = (content + tables) * others / world + others * kBundleHeaderBytes;
  const uint64_t down = others * ((means + v.raw + tables) / world + kBundleHeaderBytes + seen);
  return behind * (up + down);
}

Error refuse(StrategyKind kind, const Spec& spec, std::string why) {
  return Error{Errc::unsupported,
               "strategy " + std::string(strategy_name(kind)) + " cannot carry " +
                   spec.canonical() + ": " + why,
               "omit the strategy to let the planner choose"};
}

bool by_server(const Options& options) {
  return options.caps.aggregates && !options.owner_turns && options.world <= kMaxAggregated &&
         (options.strategy == StrategyKind::automatic ||
          options.strategy == StrategyKind::server_sum);
}

bool has_codes(const Spec& spec, uint32_t world) {
  const Plan plan = spec.codec().plan(spec.params(), {1, 1, 1, 0, 0}, world);
  return plan.rounds != 0 && plan.round[plan.rounds - 1].code_bits != 0;
}

/// Setting::down, where it cannot be: two_shot alone has a way down, of one round.
std::optional<Error> no_way_down(const Spec& down, const std::vector<Parameter>& parameters,
                                 const Options& options) {
  const auto refused = [&](std::string why, std::string hint) {
    return Error{Errc::unsupported, concat({"down=", down.canonical(), ": ", why}),
                 std::move(hint)};
  };
  if (options.strategy != StrategyKind::automatic && options.strategy != StrategyKind::two_shot) {
    return refused(
        concat({"strategy ", strategy_name(options.strategy), " has no owners that send means"}),
        "omit strategy or down");
  }
  if (down.contract().whole_parameter)
    return refused("owners send ranges of parameters, which this codec cannot encode",
                   "use another codec for down, such as int8");
  const auto rounds = [&](const Unit& unit) {
    return down.codec().plan(down.params(), unit, options.world).rounds;
  };
  const bool several =
      rounds({1, 1, 1, 0, 0}) > 1 || std::ranges::any_of(parameters, [&](const Parameter& p) {
        return rounds(whole_unit(p)) > 1;
      });
  if (!several) return {};
  return refused("owners send means in one round, and this codec needs several",
                 "use another codec for down, such as int8");
}

/// Sums of codes that this world, or this engine, cannot have.
std::optional<Error> no_sums_of_codes(const Spec& spec, const Options& options, const Volume& v) {
  if (!v.codes) return {};
  const uint32_t most = spec.contract().headroom;
  if (options.world > most) {
    return Error{Errc::unsupported,
                 spec.canonical() + ": its elements hold sums of at most " + std::to_string(most) +
                     " ranks, there are " + std::to_string(options.world),
                 "use wider elements (lane=16), fewer bits or another codec"};
  }
  if (v.summable || by_server(options)) return {};
  return Error{Errc::unsupported, spec.canonical() + ": this engine cannot sum int32 elements",
               "use another backend or another codec"};
}

/// Volume of an all-reduce of float32.
Volume dense_volume(const std::vector<Parameter>& parameters) {
  Volume dense;
  for (const Parameter& p : parameters) dense.raw += sizeof(float) * p.count();
  return dense;
}

}  // namespace

uint64_t travelling_bytes(const RoundPlan& round) noexcept {
  return round.code_bits == 0 ? round.bytes : round.lanes * dtype_size(round.lane);
}

std::string_view strategy_name(StrategyKind kind) noexcept {
  switch (kind) {
    case StrategyKind::automatic:
      return "auto";
    case StrategyKind::native_sum:
      return "native_sum";
    case StrategyKind::gather_all:
      return "gather_all";
    case StrategyKind::two_shot:
      return "two_shot";
    case StrategyKind::server_sum:
      return "server_sum";
  }
  return "unknown";
}

std::optional<StrategyKind> strategy_of(std::string_view name) noexcept {
  for (const StrategyKind kind :
       {StrategyKind::automatic, StrategyKind::native_sum, StrategyKind::gather_all,
        StrategyKind::two_shot, StrategyKind::server_sum}) {
    if (name == strategy_name(kind)) return kind;
  }
  return {};
}

Volume volume_of(const Spec& spec, const std::vector<Parameter>& parameters, const Options& options,
                 StrategyKind strategy, const Spec* down) {
  Volume v;
  const bool varies =
      !spec.contract().exact_size || (down != nullptr && !down->contract().exact_size);
  v.exact = !varies || options.caps.short_sends;
  const uint64_t granule = granule_of(spec, down);
  if (down != nullptr) v.down.emplace();
  for (const Parameter& p : parameters) {
    if (is_raw(spec, down, p, options)) {
      v.raw += 4 * p.count();
      continue;
    }
    const Plan plan = spec.codec().plan(spec.params(), whole_unit(p), options.world);
    v.units +=
        strategy == StrategyKind::two_shot && is_cut(granule, p, options.world) ? options.world : 1;
    if (down != nullptr) {
      const RoundPlan mean =
          down->codec().plan(down->params(), whole_unit(p), options.world).round[0];
      v.down->expected += mean.expected;
      v.down->at_most += mean.bytes;
    }
    v.rounds = std::max<uint64_t>(v.rounds, plan.rounds);
    v.lanes = v.lanes && all_lanes(plan);
    for (uint32_t r = 0; r < plan.rounds; ++r) {
      const bool coded = plan.round[r].code_bits != 0;
      v.payload += travelling_bytes(plan.round[r]);
      v.expected += coded ? travelling_bytes(plan.round[r]) : plan.round[r].expected;
      v.codes = v.codes || coded;
      v.summable = v.summable && options.caps.can_sum(travelling(plan.round[r]));
    }
  }
  return v;
}

Prediction predicted_bytes(StrategyKind strategy, uint32_t world, const Volume& volume,
                           uint32_t behind) noexcept {
  const Prediction means = volume.down.value_or(Prediction{volume.expected, volume.payload});
  return {bytes_sent(strategy, world, behind, volume.expected, means.expected, volume),
          bytes_sent(strategy, world, behind, volume.payload, means.at_most, volume)};
}

Result<Choice> choose_strategy(const Spec& spec, const std::vector<Parameter>& parameters,
                               const Options& asked, const Spec* down) {
  Options options = asked;
  if (options.owner_turns && options.world > 1) {
    const bool other =
        options.strategy != StrategyKind::automatic && options.strategy != StrategyKind::two_shot;
    if (other) return refuse(options.strategy, spec, "no owner computes its means");
    options.strategy = StrategyKind::two_shot;
  }
  if (down != nullptr) {
    if (auto refused = no_way_down(*down, parameters, options)) return *std::move(refused);
    Options owners = options;
    owners.strategy = StrategyKind::two_shot;
    auto choice = choose_strategy(spec, parameters, owners);
    if (!choice) return Error{choice.error().code, choice.error().message, "omit down"};
    choice->reason = concat({"means are encoded by ", down->canonical()});
    return choice;
  }
  const Contract contract = spec.contract();
  const Volume v = volume_of(spec, parameters, options, StrategyKind::gather_all);
  const bool native = v.lanes && v.summable && contract.merge == Merge::linear &&
                      (contract.headroom == 0 || options.world <= contract.headroom);
  if (auto refused = no_sums_of_codes(spec, options, v)) return *std::move(refused);
  const bool codes = has_codes(spec, options.world);
  if (codes && by_server(options))
    return Choice{StrategyKind::server_sum, "an aggregator adds its quantized values"};
  if (options.strategy == StrategyKind::server_sum) {
    return refuse(
        options.strategy, spec,
        codes ? "this engine has no aggregator" : "its payload is not quantized values that add");
  }
  if (options.strategy == StrategyKind::native_sum && !native) {
    return refuse(options.strategy, spec, "this engine cannot sum its payload");
  }
  if (options.strategy != StrategyKind::automatic && options.strategy != StrategyKind::native_sum &&
      v.rounds > 1) {
    return refuse(options.strategy, spec, "it needs several all-reduce rounds");
  }
  if (options.strategy == StrategyKind::two_shot && contract.whole_parameter) {
    return refuse(options.strategy, spec, "it cannot encode part of a parameter");
  }
  if (options.strategy != StrategyKind::automatic)
    return Choice{options.strategy, options.owner_turns
                                        ? "owners update parameters between push and pull"
                                        : "requested in the call"};
  if (native)
    return Choice{StrategyKind::native_sum,
                  "the engine sums its payload: one all-reduce per round"};
  if (v.rounds > 1)
    return refuse(StrategyKind::gather_all, spec, "it needs several all-reduce rounds");

  const uint32_t behind = ranks_behind_port(options);
  const auto [gather, gather_most] =
      predicted_bytes(StrategyKind::gather_all, options.world, v, behind);
  const auto [shots, shots_most] =
      predicted_bytes(StrategyKind::two_shot, options.world,
                      volume_of(spec, parameters, options, StrategyKind::two_shot), behind);
  const auto text = [](uint64_t n) { return std::to_string(n); };
  const std::string sender = behind == 1 ? "a rank is" : "a host's " + text(behind) + " ranks are";
  const std::string figures =
      concat({" (bytes ", sender, " expected to send", behind == 1 ? "" : " to other hosts",
              ", and at most: gather_all ", text(gather), ", ", text(gather_most), "; two_shot ",
              text(shots), ", ", text(shots_most), ")"});
  if (contract.whole_parameter || options.world <= 2) {
    return Choice{StrategyKind::gather_all, "one round" + figures};
  }
  // A union of index sets loses nothing; re-encoding it does. So sparse codecs gather as long as
  // that stays far below the dense ring.
  if (contract.merge == Merge::set_union &&
      gather <=
          predicted_bytes(StrategyKind::native_sum, options.world, dense_volume(parameters), behind)
                  .expected /
              8) {
    return Choice{StrategyKind::gather_all,
                  "gathering loses nothing more and sends far less than a dense ring" + figures};
  }
  if (gather <= shots + kRoundBytes)
    return Choice{StrategyKind::gather_all, "one round is cheaper than two" + figures};
  return Choice{
      StrategyKind::two_shot,
      "owners compute the mean: traffic does not grow with the number of ranks" + figures};
}

Result<Model> Model::create(const Spec& spec, std::vector<Parameter> parameters,
                            const Options& options) {
  std::vector<uint32_t> class_of(parameters.size(), 0);
  return create({{.spec = spec, .strategy = options.strategy}}, std::move(class_of),
                std::move(parameters), options);
}

Result<Model> Model::create(std::vector<Setting> settings, std::vector<uint32_t> class_of,
                            std::vector<Parameter> parameters, const Options& options) {
  if (options.world == 0 || options.rank >= options.world) {
    return Error{Errc::invalid_argument,
                 "rank: expected a number below " + std::to_string(options.world) +
                     ", the number of ranks, found " + std::to_string(options.rank),
                 "ranks count from 0"};
  }
  if (auto ok = check_shard(options); !ok) return std::move(ok).error();
  if (options.world > kMaxWorld) {
    return Error{Errc::invalid_argument,
                 "world: expected at most " + std::to_string(kMaxWorld) + " ranks, found " +
                     std::to_string(options.world),
                 "use several groups"};
  }
  if (options.ranks_per_host > options.world) {
    return Error{Errc::invalid_argument,
                 "ranks_per_host: expected at most " + std::to_string(options.world) +
                     ", the number of ranks, found " + std::to_string(options.ranks_per_host),
                 "the ranks of the host that has the most"};
  }
  std::unordered_set<std::string_view> names;
  for (const Parameter& p : parameters) {
    uint64_t count = 0;
    if (!checked_mul(p.rows, p.cols, &count) || count > (uint64_t{1} << 40)) {
      return Error{Errc::shape_unsupported,
                   "parameter " + p.name + ": expected at most 2^40 elements, found " +
                       std::to_string(p.rows) + " x " + std::to_string(p.cols),
                   "split the parameter"};
    }
    if (!names.insert(p.name).second) {
      return Error{Errc::invalid_argument, "two parameters are named " + p.name,
                   "residuals are stored by name: make names unique"};
    }
  }
  Model model;
  model.options_ = options;
  model.settings_ = std::move(settings);
  for (Setting& setting : model.settings_) {
    setting.spec.prepare(options.world);
    if (setting.down) setting.down->prepare(options.world);
  }
  model.class_of_ = std::move(class_of);
  model.parameters_ = std::move(parameters);
  model.whole_ = model.parameters_;
  if (auto ok = model.choose(); !ok) return std::move(ok).error();
  model.agree();
  model.assign();
  if (auto ok = model.check_sizes(); !ok) return std::move(ok).error();
  return model;
}

/// Each class by itself. An aggregator adds the codes of one table.
Result<void> Model::choose() {
  std::optional<uint32_t> by_server;
  for (uint32_t c = 0; c < classes(); ++c) {
    std::vector<Parameter> members;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (class_of_[i] == c) members.push_back(parameters_[i]);
    }
    Options options = options_;
    options.strategy = settings_[c].strategy;
    auto choice = choose_strategy(spec(c), members, options, down_of(*this, c));
    if (!choice) return std::move(choice).error();
    members_.push_back(std::move(members));
    choices_.push_back(*std::move(choice));
    choices_[c].requested = settings_[c].strategy != StrategyKind::automatic;
    if (choices_[c].strategy != StrategyKind::server_sum || members_[c].empty()) continue;
    if (by_server && spec(*by_server).canonical() != spec(c).canonical()) {
      return Error{Errc::unsupported,
                   "rules: an aggregator adds the values of one spec, found " +
                       spec(*by_server).canonical() + " and " + spec(c).canonical(),
                   "use the same spec for both, or a codec without aggregation for one"};
    }
    by_server = c;
  }
  return {};
}

bool Model::uses(StrategyKind strategy) const noexcept {
  for (uint32_t c = 0; c < classes(); ++c) {
    // A model without parameters has the strategy of the call.
    if (choices_[c].strategy == strategy && (!members_[c].empty() || classes() == 1)) return true;
  }
  return false;
}

bool Model::feedback() const noexcept {
  return !alone() && std::ranges::any_of(settings_, [](const Setting& s) {
    return s.spec.feedback() || s.at(1).feedback();
  });
}

std::string Model::configured() const {
  const auto text_of = [&](uint32_t c) {
    const Spec* const down = down_of(*this, c);
    return down == nullptr ? spec(c).canonical()
                           : concat({spec(c).canonical(), ";down=", down->canonical()});
  };
  if (classes() == 1) return text_of(0);
  std::string listing;
  for (uint32_t c = 1; c < classes(); ++c) listing += concat({text_of(c), ";"});
  for (const uint32_t c : class_of_) listing += concat({std::to_string(c), ","});
  return concat({text_of(0), ";rules=", std::to_string(hash64(listing))});
}

const Field* Model::movable(uint32_t of) const {
  const CodecTable& codec = spec(of).codec();
  const auto marked =
      std::ranges::find_if(codec.fields, [](const Field& f) { return f.actuator.marked; });
  if (marked == codec.fields.end() || codec.table != nullptr) return nullptr;
  Spec least = spec(of), most = spec(of);
  least.move(*marked, std::max(marked->min, marked->actuator.min), options_.world);
  most.move(*marked, std::min(marked->max, marked->actuator.max), options_.world);
  for (uint32_t i = 0; i < parameters_.size(); ++i) {
    if (class_of_[i] != of) continue;
    for (const Piece& piece : assignments_[i].pieces) {
      const Plan a = codec.plan(least.params(), piece.unit, options_.world);
      const Plan b = codec.plan(most.params(), piece.unit, options_.world);
      const bool same_rounds =
          a.rounds == b.rounds || choices_[of].strategy == StrategyKind::native_sum;
      const bool whole = marked->type == FieldType::integer;
      if (!same_rounds || (!whole && a.state_floats != b.state_floats)) return nullptr;
    }
  }
  return &*marked;
}

void Model::limit(uint32_t of, const Field& field, double least, double most) {
  limits_.resize(settings_.size());
  limits_[of] = {&field, least, most};
}

uint64_t Model::state_at_most(uint32_t of, const Unit& unit, uint32_t hop) const {
  const CodecTable& codec = spec(of, hop).codec();
  uint64_t floats = codec.plan(spec(of, hop).params(), unit, options_.world).state_floats;
  if (of >= limits_.size() || limits_[of].field == nullptr) return floats;
  if (hop == 1 && settings_[of].down) return floats;  // which does not move
  const Limits& within = limits_[of];
  if (within.field->type != FieldType::integer) return floats;
  Spec other = spec(of);
  for (double value = within.least; value <= within.most; ++value) {
    other.move(*within.field, value, options_.world);
    floats = std::max(floats, codec.plan(other.params(), unit, options_.world).state_floats);
  }
  return floats;
}

bool Model::has_units(uint32_t of) const {
  for (uint32_t i = 0; i < parameters_.size(); ++i) {
    if (class_of_[i] == of && !assignments_[i].raw) return true;
  }
  return false;
}

const Spec& Model::spec_of_codes() const {
  for (uint32_t c = 0; c < classes(); ++c) {
    if (choices_[c].strategy == StrategyKind::server_sum && !members_[c].empty()) return spec(c);
  }
  return spec();
}

RoundPlan Model::round_of_codes() const {
  const Spec& spec = spec_of_codes();
  const Plan plan = spec.codec().plan(spec.params(), {1, 1, 1, 0, 0}, options_.world);
  return plan.round[plan.rounds - 1];
}

uint32_t Model::values_per_granule() const {
  const uint64_t bytes = spec_of_codes().contract().granule * dtype_size(round_of_codes().lane);
  return std::max(kWishLanes, static_cast<uint32_t>(bytes / sizeof(int32_t)));
}

AggregationJob Model::aggregation_job() const {
  const Spec& spec = spec_of_codes();
  const RoundPlan round = round_of_codes();
  AggregationJob job;
  job.code_bits = round.code_bits;
  job.lane_bits = static_cast<uint32_t>(8 * dtype_size(round.lane));
  job.lanes = spec.contract().granule;
  job.values = values_per_granule();
  job.agreement = agreement_;
  job.table = spec.codec().table(spec.params());
  return job;
}

/// Limits of codecs and bundles: 4 GiB of payload in a slot, 4 GiB of summed elements.
Result<void> Model::check_sizes() const {
  for (uint32_t i = 0; i < parameters_.size(); ++i) {
    const Spec& spec = this->spec(class_of_[i]);
    const bool bundles = !sums_lanes(strategy_of(i));
    if (assignments_[i].raw && bundles && parameters_[i].count() > kMaxSlotBytes / sizeof(float)) {
      return Error{Errc::shape_unsupported,
                   "parameter " + parameters_[i].name +
                       ": expected at most 2^30 - 4 uncompressed elements, found " +
                       std::to_string(parameters_[i].count()),
                   "split the parameter or use strategy native_sum"};
    }
    for (const Piece& piece : assignments_[i].pieces) {
      for (const Spec* of : {&spec, &this->spec(class_of_[i], 1)}) {
        const Plan plan = of->codec().plan(of->params(), piece.unit, options_.world);
        if (pipeline::check_unit(*of, piece.unit) == Errc::ok &&
            (!bundles || plan.round[0].bytes <= kMaxSlotBytes))
          continue;
        return Error{Errc::shape_unsupported,
                     "parameter " + parameters_[i].name + " is too large for " + of->canonical() +
                         " in one piece",
                     "split the parameter or use the codec none"};
      }
    }
  }
  return {};
}

void Model::agree() {
  std::string listing;
  for (const Parameter& p : parameters_) {
    listing += p.name + ":" + std::to_string(p.rows) + "x" + std::to_string(p.cols) + ";";
  }
  model_hash_ = hash64(listing);
  listing += configured() + ";" + std::to_string(options_.world) + ";" +
             std::to_string(options_.small_elements) + ";" +
             std::string(strategy_name(choice().strategy)) + ";" + std::to_string(options_.seed);
  for (uint32_t c = 1; c < classes(); ++c)
    listing += concat({";", strategy_name(choice(c).strategy)});
  for (size_t i = 0; i < parameters_.size();
       ++i) {  // a callback's word, not a function of the spec
    const Spec& spec = this->spec(class_of_[i]);
    if (spec.registered() == nullptr) continue;
    const Plan plan = spec.codec().plan(spec.params(), whole_unit(parameters_[i]), options_.world);
    listing +=
        concat({";", std::to_string(plan.round[0].bytes), ",", std::to_string(plan.state_floats)});
  }
  if (options_.owner_turns) listing += ";turns";
  if (options_.node_shards > 1)
    listing += concat({";shards=", std::to_string(options_.node_shards)});
  agreement_ = hash64(listing);
  if (alone()) {  // whatever was planned, which saved states are hashed with
    for (Choice& choice : choices_) choice = {StrategyKind::native_sum, std::string(kAlone)};
  }
}

/// Which shard holds what: a function of the whole model, the same on all of them. A parameter of
/// at least a granule for each is cut into nearly equal ranges of whole granules; another one goes
/// to the shard with the least so far.
void Model::shard() {
  const uint64_t shards = options_.node_shards;
  std::vector<uint64_t> load(shards, 0);
  for (uint32_t i = 0; i < whole_.size(); ++i) {
    const Parameter& p = whole_[i];
    const Spec& spec = this->spec(class_of_[i]);
    const Spec* const down = down_of(*this, class_of_[i]);
    const uint64_t granule = granule_of(spec, down);
    const bool goes_whole = shards == 1 || p.count() <= options_.small_elements ||
                            spec.contract().whole_parameter || !is_cut(granule, p, shards);
    if (goes_whole) {
      const auto least = std::ranges::min_element(load) - load.begin();
      load[static_cast<size_t>(least)] += p.count();
      cuts_.push_back({0, static_cast<uint32_t>(least)});
    } else {
      for (uint64_t s = 0; s < shards; ++s)
        load[s] += range_of(p.count(), granule, s, shards).count;
      cuts_.push_back({granule, 0});
    }
    const Range held = held_by(*this, options_.node_shard, i);
    assignments_.emplace_back().held = held;
    if (held.count != p.count()) parameters_[i] = {p.name, held.count, 1};
  }
}

uint64_t bytes_of_class(const Model& model, uint32_t of, uint32_t behind) {
  const Options& options = model.options();
  const StrategyKind strategy = model.choice(of).strategy;
  const Volume volume =
      volume_of(model.spec(of), model.members(of), options, strategy, down_of(model, of));
  return predicted_bytes(strategy, options.world, volume, behind).expected / options.node_shards;
}

uint64_t dense_bytes_of_class(const Model& model, uint32_t of) {
  const Options& options = model.options();
  return predicted_bytes(StrategyKind::native_sum, options.world, dense_volume(model.members(of)))
             .expected /
         options.node_shards;
}

bool would_gather(const Model& model, uint32_t of) {
  Options options = model.options();
  if (!model.choice(of).requested) options.strategy = StrategyKind::automatic;
  const auto choice =
      choose_strategy(model.spec(of), model.members(of), options, down_of(model, of));
  return choice && choice->strategy == StrategyKind::gather_all;
}

Range held_by(const Model& model, uint32_t shard, uint32_t parameter) noexcept {
  const Cut& cut = model.cuts()[parameter];
  const uint64_t count = model.whole()[parameter].count();
  if (cut.granule != 0) return range_of(count, cut.granule, shard, model.options().node_shards);
  return {0, cut.shard == shard ? count : 0};
}

void Model::assign() {
  shard();
  std::vector<uint64_t> load(options_.world, 0);  // elements of uncut pieces, by owner
  for (uint32_t i = 0; i < whole_.size(); ++i) {
    const Spec& spec = this->spec(class_of_[i]);
    const Spec* const down = down_of(*this, class_of_[i]);
    Assignment& a = assignments_[i];
    a.raw = is_raw(spec, down, whole_[i], options_);
    if (a.held.count == 0 && whole_[i].count() != 0) {
      a.reason = "another shard of the node has it";
      continue;
    }
    if (!a.raw) assign_pieces(i, load);
    a.reason = reason_of(spec, down, options_, strategy_of(i), a);
  }
}

/// Those of what this shard holds of a parameter. `load`: elements that owners have whole.
void Model::assign_pieces(uint32_t parameter, std::vector<uint64_t>& load) {
  Assignment& a = assignments_[parameter];
  const Parameter& p = parameters_[parameter];
  Unit all = whole_unit(p);
  all.offset = a.held.first;
  if (strategy_of(parameter) != StrategyKind::two_shot) {
    a.pieces.push_back({all, 0});
    return;
  }
  const uint64_t world = options_.world;
  const uint64_t granule =
      granule_of(spec(class_of_[parameter]), down_of(*this, class_of_[parameter]));
  if (is_cut(granule, p, world)) {
    for (uint64_t r = 0; r < world; ++r) {
      const auto [first, count] = range_of(p.count(), granule, r, world);
      a.pieces.push_back(
          {{count, count, 1, all.parameter, all.offset + first}, static_cast<uint32_t>(r)});
    }
    return;
  }
  const auto owner =
      static_cast<uint64_t>(std::min_element(load.begin(), load.end()) - load.begin());
  load[owner] += p.count();
  a.pieces.push_back({all, static_cast<uint32_t>(owner)});
}

Prediction payload_of(const Model& model, uint32_t parameter, uint32_t hop) {
  const Assignment& a = model.assignment(parameter);
  const Spec& spec = model.spec(model.class_of(parameter), hop);
  const uint64_t raw = a.raw ? model.parameters()[parameter].count() * sizeof(float) : 0;
  Prediction bytes{raw, raw};
  for (const Piece& piece : a.pieces) {
    const Plan plan = spec.codec().plan(spec.params(), piece.unit, model.options().world);
    for (uint32_t r = 0; r < plan.rounds; ++r) {
      const uint64_t sum = travelling_bytes(plan.round[r]);
      bytes.at_most += sum;
      bytes.expected += plan.round[r].code_bits == 0 ? plan.round[r].expected : sum;
    }
  }
  return bytes;
}

}  // namespace laconic::collective
