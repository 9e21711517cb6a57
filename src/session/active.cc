// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/active.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/exchange/succession.h"
#include "control/rules.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

/// The call's, then those of the rules. A rule with a spec of its own leaves the strategy to the
/// planner, and `down` is not for it.
Result<std::vector<collective::Setting>> settings_of(std::string_view text, const Asked& asked,
                                                     const collective::Options& options) {
  const std::vector<Rule>& rules = asked.rules;
  std::vector<const codecs::Registered*> registered;
  for (const auto& codec : options.codecs) registered.push_back(codec.get());
  auto spec = Spec::parse(text, registered);
  if (!spec) return std::move(spec).error();
  std::vector<collective::Setting> settings{{*std::move(spec), options.strategy}};
  if (!asked.down.empty()) {
    auto down = Spec::parse(asked.down, registered);
    if (!down) {
      Error error = std::move(down).error();
      error.message = "down: " + error.message;
      return error;
    }
    settings[0].down = *std::move(down);
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].spec.empty()) {
      settings.push_back(settings.front());
      continue;
    }
    auto own = Spec::parse(rules[i].spec, registered);
    if (!own) {
      Error error = std::move(own).error();
      error.message = "rule " + std::to_string(i + 1) + ": " + error.message;
      return error;
    }
    settings.push_back({*std::move(own), collective::StrategyKind::automatic});
  }
  return settings;
}

Result<std::vector<uint32_t>> classes_of(std::span<const Rule> rules,
                                         const std::vector<collective::Parameter>& parameters) {
  std::vector<std::string_view> names;
  std::vector<uint64_t> elements;
  for (const collective::Parameter& p : parameters) {
    names.push_back(p.name);
    elements.push_back(p.count());
  }
  return control::classes_of(rules, names, elements);
}

/// Nothing but bundles of units with kernels: what else needs floats needs them on the host.
Result<void> check_device(const collective::Model& model, bool steers) {
  const auto refused = [](std::string_view what) {
    return Error{Errc::unsupported, concat({"codecs=device: ", what, " needs the host"}),
                 "codecs=host, or other settings (docs/guide/gpu.md)"};
  };
  if (model.options().owner_turns) return refused("an exchange with owner_turns");
  if (steers) return refused("a control policy or record");
  for (uint32_t i = 0; i < model.parameters().size(); ++i) {
    if (model.assignment(i).raw && model.strategy_of(i) != collective::StrategyKind::server_sum)
      continue;
    if (const auto way = model.strategy_of(i); collective::sums_lanes(way))
      return refused(concat({"strategy ", collective::strategy_name(way)}));
    const uint32_t c = model.class_of(i);
    for (uint32_t hop = 0; hop < 2; ++hop) {
      if (auto ok = pipeline::DeviceBatches::check(model.spec(c, hop)); !ok) return ok;
    }
  }
  return {};
}

/// The same rules without policies.
std::vector<Rule> fixed(std::span<const Rule> rules) {
  std::vector<Rule> still(rules.begin(), rules.end());
  for (Rule& rule : still) rule.control.clear();
  return still;
}

}  // namespace

Result<std::unique_ptr<Active>> Active::create(std::string_view spec, Asked asked,
                                               std::vector<collective::Parameter> parameters,
                                               const collective::Options& options) {
  if (options.window == 0 || options.window > collective::kMaxWindow) {
    return Error{Errc::value_out_of_range,
                 "window: expected 1 to " + std::to_string(collective::kMaxWindow) + ", found " +
                     std::to_string(options.window),
                 "2 overlaps encoding with the network, 1 runs one exchange at a time"};
  }
  auto settings = settings_of(spec, asked, options);
  if (!settings) return std::move(settings).error();
  auto class_of = classes_of(asked.rules, parameters);
  if (!class_of) return std::move(class_of).error();
  auto policy = Steering::wanted(asked.control, asked.rules);
  if (!policy) return policy.error();
  if (*policy && options.owner_turns) {
    return Error{Errc::unsupported, "control: settings cannot change in a session with owner_turns",
                 "choose the specs of push and pull, or use attach()"};
  }
  // Without a policy, too, it holds what ranks report.
  const bool steers = *policy || asked.records;
  collective::Options mine = options;
  mine.reports = options.world > 1 && !options.owner_turns && (options.reports || steers);
  auto model = collective::Model::create(*std::move(settings), *std::move(class_of),
                                         std::move(parameters), mine);
  if (!model) return std::move(model).error();
  if (asked.gpu != nullptr) {
    if (auto ok = check_device(*model, steers || options.reports); !ok)
      return std::move(ok).error();
  }
  std::unique_ptr<Active> active(new Active(*std::move(model)));
  active->asked = std::move(asked);
  if (auto bound = active->bind(mine, steers); !bound) return std::move(bound).error();
  return active;
}

/// Everything that the model needs: with the memory for all that policies may ask of it.
Result<void> Active::bind(const collective::Options& options, bool steers) {
  if (options.threads > 1) pool = std::make_unique<ThreadPool>(options.threads);
  codecs = collective::codecs_of(model, best_isa(), pool.get());
  if (steers) {
    auto made = model.alone()  // nothing there for a policy to move
                    ? Steering::create(model, {}, fixed(asked.rules), store)
                    : Steering::create(model, asked.control, asked.rules, store);
    if (!made) return std::move(made).error();
    steering.emplace(*std::move(made));
  }
  if (asked.gpu != nullptr && !model.alone()) {
    auto made = pipeline::DeviceBatches::create(asked.gpu);
    if (!made) return std::move(made).error();
    device = *std::move(made);
  }
  const auto create = [&] {
    const pipeline::Batches* const batches = device.get();
    return collective::RankState::create(model, codecs, store,
                                         batches ? *batches : pipeline::host_batches());
  };
  auto made = steers ? steering->at_most(model, create) : create();
  if (!made) return std::move(made).error();
  state = *std::move(made);
  if (steers) {
    heard.reports.reserve(options.world);
    state->set_settings(hash());
    replan_units();
  }
  if (options.reports) norms = NormSample(*state);
  if (model.feedback()) {
    if (auto bound = flush.bind(store); !bound) return bound;
  }
  for (uint32_t i = 0; i < most_in_flight(options.window); ++i) {
    auto spare = collective::Exchange::create_spare(*state, counters);
    if (!spare) return std::move(spare).error();
    spares.push_back(*std::move(spare));
  }
  return {};
}

feedback::StateHeader Active::state_header() const {
  const auto& options = model.options();
  const uint32_t version = options.node_shards > 1 ? feedback::kStateVersionOfShards
                           : options.owner_turns   ? feedback::kStateVersionOfMasters
                                                   : feedback::kStateVersion;
  return {version,           options.rank,       options.world,       model.model_hash(),
          model.agreement(), model.configured(), options.node_shards, options.node_shard};
}

uint64_t Active::hash() const noexcept {
  const uint64_t policies = steering ? steering->hash() : 0;
  if (succession.versions_before == 0 && flush.parts() == 0) return policies;
  const std::array<uint64_t, 3> words{policies, succession.versions_before, flush.parts()};
  return hash64(std::span<const uint64_t>(words));
}

bool Active::all_dense() const noexcept {
  if (!steering) return false;
  bool any = false;
  for (uint32_t c = 0; c < model.classes(); ++c) {
    if (!model.has_units(c)) continue;
    if (!steering->way(c).dense) return false;
    any = true;
  }
  return any;
}

void Active::set_ways() noexcept {
  for (uint32_t c = 0; steering && c < model.classes(); ++c) state->set_way(c, steering->way(c));
}

/// After specs have moved.
void Active::replan_units() {
  for (pipeline::UnitCodec& codec : codecs) codec.refresh();
  for (uint32_t c = 0; c < model.classes(); ++c) state->replan(c);
}

Result<void> Active::begin_step(uint64_t step, Recorder* recorder) {
  flush.begin_step(all_dense());
  auto steered = steer(step, recorder);
  if (std::exchange(succession.begins, false)) succession.since = step;
  state->set_settings(hash());
  return steered;
}

Result<void> Active::steer(uint64_t step, Recorder* recorder) {
  if (!steering) return {};
  auto moved = steering->begin_step(step, model, counters.rounds);
  if (!moved) return std::move(moved).error();
  if (recorder != nullptr) recorder->begin_step(*steering);
  set_ways();
  if (!*moved) return {};
  replan_units();
  bool fits = true;
  for (auto& exchange : exchanges) fits = exchange->replan() && fits;
  return fits ? Result<void>() : collective::no_exchange_memory();
}

Result<void> Active::check_layout(const collective::LayoutView& layout) const {
  const auto& parameters = model.parameters();
  if (layout.parameters.size() != layout.offsets.size())
    return Error{Errc::invalid_argument,
                 "bucket: expected " + std::to_string(layout.parameters.size()) +
                     " offsets, found " + std::to_string(layout.offsets.size()),
                 "give one offset per parameter"};
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    uint64_t end = 0;
    if (layout.parameters[i] >= parameters.size() ||
        !checked_add(layout.offsets[i], parameters[layout.parameters[i]].count(), &end) ||
        end > layout.elements) {
      return Error{Errc::shape_unsupported,
                   "bucket: entry " + std::to_string(i) +
                       " lies outside the buffer or names no parameter of the attached model",
                   "attach again after changing the model"};
    }
  }
  return {};
}

/// With the memory for all that policies may ask of it.
Result<std::unique_ptr<collective::Exchange>> Active::create_exchange(
    const collective::LayoutView& layout, DType dtype) {
  const auto create = [&] {
    return collective::Exchange::create(*state, layout.copy(), dtype, counters);
  };
  if (!steering) return create();
  struct Back {
    Active* active;
    ~Back() {
      active->set_ways();
      active->replan_units();
    }
  };
  const auto largest = [&] {
    const Back back{this};
    return steering->at_most(model, [&] {
      for (uint32_t c = 0; c < model.classes(); ++c) state->set_way(c, {});
      replan_units();
      return create();
    });
  };
  auto made = largest();
  if (made && !(*made)->replan()) return collective::no_exchange_memory();
  return made;
}

Result<collective::Exchange*> Active::exchange_for(const collective::LayoutView& layout,
                                                   DType dtype) {
  for (auto& exchange : exchanges) {
    if (exchange->is_for(layout, dtype)) return exchange.get();
  }
  return without_throwing([&]() -> Result<collective::Exchange*> {
    if (auto ok = check_layout(layout); !ok) return std::move(ok).error();
    exchanges.reserve(exchanges.size() + 1);
    auto made = create_exchange(layout, dtype);
    if (!made) return std::move(made).error();
    exchanges.push_back(*std::move(made));
    return exchanges.back().get();
  });
}

collective::Exchange& Active::messenger(const Error& why, const collective::Bucket& bucket,
                                        const collective::LayoutView& layout,
                                        const InFlight& in_flight) {
  for (auto& exchange : exchanges) {
    const bool known = exchange->enrolled() && exchange->bucket().index == bucket.index &&
                       exchange->dtype() == bucket.dtype &&
                       exchange->layout().elements <= layout.elements;
    if (known && why.code != Errc::out_of_memory && !in_flight.has(*exchange)) return *exchange;
  }
  const auto idle = [&](const auto& spare) { return !in_flight.has(*spare); };
  return **std::ranges::find_if(spares, idle);  // one per exchange in flight
}

void Active::keep(const collective::Bucket& bucket, const collective::LayoutView& layout) {
  const auto fits = without_throwing([&] { return check_layout(layout); });
  if (fits && !bucket.raw)
    (void)collective::keep_bucket(*state, layout, bucket.buffer, bucket.dtype);
}

void Active::take_over(const Active& before, uint64_t last) noexcept {
  collective::hand_over(*before.state, *state);
  flush.take_over(before.flush);
  counters = before.counters;
  succession = {before.version() + 1, last + 1, true};  // or a later step: see begin_step
  state->set_settings(hash());
  if (steering) steering->begin_after(counters.rounds, succession.versions_before);
}

}  // namespace laconic::session
