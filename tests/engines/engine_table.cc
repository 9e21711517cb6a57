// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/engine_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engines/table.h"
#include "laconic/registry.h"
#include "laconic/sharded.h"
#include "support/lanes.h"
#include "support/oracle.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

/// Sizes that 8 does not divide, also for rows and columns; one that is uncompressed, one that is
/// empty, and one of which two_shot cannot give every owner a part.
const std::vector<Parameter> kRaggedModel{{"fc.weight", 31, 37}, {"fc.bias", 61, 1},
                                          {"norm", 13, 1},       {"odd", 521, 1},
                                          {"none", 0, 7},        {"head.weight", 9, 23}};
/// One compressed parameter that goes whole to one owner: all other ranges are empty.
const std::vector<Parameter> kSmallModel{{"only", 19, 1}, {"nothing", 0, 1}, {"one", 1, 1}};

struct Shape {
  const char* name;
  const std::vector<Parameter>& parameters;
  std::vector<std::vector<uint32_t>> buckets;
};
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{{"ragged", kRaggedModel, {{5, 4, 3}, {2, 1, 0}}},
                                      {"small", kSmallModel, {{1}, {2}, {0, 1}}}};
  return all;
}

struct Case {
  std::string spec;
  StrategyKind strategy;
  const Shape* shape;
  DType dtype;
  [[nodiscard]] std::string name() const {
    return spec + " by " + std::string(collective::strategy_name(strategy)) + ", " + shape->name +
           " model, " + std::string(dtype_name(dtype));
  }
};
constexpr uint64_t kSteps = 4;

/// The registry: every codec with its defaults, and with error feedback where that is not among
/// them.
std::vector<std::string> specs() {
  std::vector<std::string> all;
  for (const CodecTable* codec : all_codecs()) {
    all.emplace_back(codec->info.name);
    const auto with = Spec::parse(all.back() + "+ef");
    if (with && with->feedback() && !Spec::parse(all.back())->feedback())
      all.push_back(with->canonical());
  }
  return all;
}

std::vector<Case> cases(uint32_t world, EngineCaps caps) {
  std::vector<Case> all;
  for (const std::string& spec : specs()) {
    for (const StrategyKind strategy :
         {StrategyKind::native_sum, StrategyKind::gather_all, StrategyKind::two_shot}) {
      for (const Shape& shape : shapes()) {
        Options o;
        o.world = world;
        o.strategy = strategy;
        o.small_elements = 16;
        o.caps = caps;
        if (!collective::choose_strategy(*Spec::parse(spec), shape.parameters, o)) continue;
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
          all.push_back({spec, strategy, &shape, dtype});
      }
    }
  }
  return all;
}

Memory narrowed(DType dtype, const Floats& values) {
  Memory bytes(values.size() * dtype_size(dtype) + 4);  // an empty bucket has a buffer, too
  for (size_t i = 0; i < values.size(); ++i)
    store_lane(dtype, bytes.data() + i * dtype_size(dtype), values[i]);
  return bytes;
}
Floats widened(DType dtype, const Memory& bytes, uint64_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = load_lane(dtype, bytes.data() + i * dtype_size(dtype));
  return values;
}

/// An owner re-encodes what it takes back again unless it knows better: it got what is not finite,
/// or too little. How much comes of a predicted size no oracle knows, so there all owners get it.
bool every_owner_hears(const Case& c) {
  const auto spec = Spec::parse(c.spec);
  return c.strategy == StrategyKind::two_shot && !spec->codec().contract(spec->params()).exact_size;
}

/// The bucket of every rank in a step: noise; then parameters that are zero on one rank and on all;
/// then one that is not finite; then noise.
std::vector<Floats> inputs(const Case& c, const Layout& layout, uint32_t world, uint64_t step) {
  auto all = gradients(world, layout.elements, step * 17 + layout.parameters[0] + 1);
  const auto set = [&](uint32_t rank, size_t at, float value) {
    std::fill_n(all[rank].begin() + static_cast<ptrdiff_t>(layout.offsets[at]),
                c.shape->parameters[layout.parameters[at]].count(), value);
  };
  const size_t last = layout.parameters.size() - 1;
  if (step == 1) {
    for (uint32_t r = 0; r < world; ++r) set(r, last, 0);
    set(world / 2, 0, 0);
  } else if (step == 2 && layout.elements != 0) {
    const uint64_t apart = every_owner_hears(c) ? 16 : layout.elements;
    for (uint64_t k = layout.elements / 2 % apart; k < layout.elements; k += apart)
      all[world - 1][k] = std::numeric_limits<float>::infinity();
  }
  for (Floats& values : all) {
    for (float& x : values) x = round_to(c.dtype, x);
  }
  return all;
}

struct Expected {
  Floats mean;
  std::map<std::string, Floats> memory;
};
/// [step, bucket] -> [rank]
using Expectations = std::vector<std::vector<Expected>>;

Expectations expectations(const Case& c, uint32_t world, EngineCaps caps) {
  Oracle oracle(
      {c.spec, world, c.shape->parameters, c.strategy, 16, 1, caps.sums, caps.short_sends});
  Expectations all;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (const auto& bucket : c.shape->buckets) {
      const Layout layout = back_to_back(c.shape->parameters, bucket);
      auto values = inputs(c, layout, world, step);
      oracle.exchange(layout, c.dtype, values, step);
      std::vector<Expected> ranks;
      for (uint32_t r = 0; r < world; ++r) ranks.push_back({values[r], oracle.memory(r)});
      all.push_back(std::move(ranks));
    }
  }
  return all;
}

/// Ranks that are threads of one process share what the oracle has computed for all of them.
std::shared_ptr<const Expectations> shared_expectations(const Case& c, uint32_t world,
                                                        EngineCaps caps) {
  struct Slot {
    std::once_flag once;
    std::shared_ptr<const Expectations> value;
  };
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Slot>> slots;
  std::shared_ptr<Slot> slot;
  {
    const std::scoped_lock lock(mutex);
    const std::string key = c.name() + std::to_string(world) + "," + std::to_string(caps.sums) +
                            "," + std::to_string(caps.short_sends ? 1 : 0);
    if (slots.size() > 4) {  // ranks are never that far apart
      std::erase_if(slots,
                    [&](const auto& s) { return s.first != key && s.second.use_count() == 1; });
    }
    auto& at = slots[key];
    if (!at) at = std::make_shared<Slot>();
    slot = at;
  }
  std::call_once(slot->once, [&] {
    slot->value = std::make_shared<const Expectations>(expectations(c, world, caps));
  });
  return slot->value;
}

/// The driver of a session, by start and wait. False: the engine has failed.
bool exchange(Table& table, Session& session, const collective::Bucket& bucket,
              const Layout& layout) {
  auto begun = session.begin(bucket, layout);
  if (!begun) {
    table.check("begin: " + begun.error().message);
    return false;  // the other ranks wait for this one
  }
  std::array<Step, kMaxBatch> batch;
  for (;;) {
    const auto steps = session.next(**begun, batch);
    if (!steps) {
      table.check("next: " + steps.error().message);
      return true;
    }
    if (*steps == 0) return true;
    if (!table.run({batch.data(), *steps})) {
      session.abort(Error{Errc::engine_failed, "the engine has failed", {}});
      return false;
    }
  }
}

/// Every rank holds the same bits: the ranks' hashes, gathered by the engine itself.
bool replicas_agree(Table& table, uint64_t hash) {
  const uint32_t world = table.world();
  std::vector<uint64_t> hashes(world), counts(world, 8), zeros(world), offsets(world);
  for (uint32_t r = 0; r < world; ++r) offsets[r] = 8 * r;
  const Step step{.kind = StepKind::all_gather,
                  .tag = 1,
                  .send = reinterpret_cast<uint8_t*>(&hash),
                  .recv = reinterpret_cast<uint8_t*>(hashes.data()),
                  .send_counts = counts,
                  .send_offsets = zeros,
                  .recv_counts = counts,
                  .recv_offsets = offsets};
  if (!table.run({&step, 1})) return false;
  for (uint32_t r = 0; r < world; ++r) {
    if (hashes[r] != hash) table.check("rank " + std::to_string(r) + " holds other bits");
  }
  return true;
}

/// The widest error of the sums that a case contains.
double bound_of(const Case& c, const Table& table) {
  if (table.options().rank_order_sums) return 0;
  double bound = sum_bound(DType::f32, table.world());
  const auto spec = Spec::parse(c.spec);
  const Unit unit{100, 10, 10, 0, 0};
  const Plan plan = spec->codec().plan(spec->params(), unit, table.world());
  if (c.strategy == StrategyKind::native_sum) {
    for (uint32_t r = 0; r < plan.rounds; ++r) {
      if (plan.round[r].kind == RoundKind::lanes)
        bound = std::max(bound, sum_bound(plan.round[r].lane, table.world()));
    }
  }
  return std::max(bound, sum_bound(c.dtype, table.world()));
}

void run_case(Table& table, const Case& c) {
  table.begin(c.name());
  Options o;
  o.rank = table.me();
  o.world = table.world();
  o.seed = 42;
  o.small_elements = 16;
  o.strategy = c.strategy;
  o.caps = table.caps();
  auto session = Session::create(c.spec, c.shape->parameters, o);
  if (!session) return table.check("create: " + session.error().message);
  const bool alone = table.world() == 1;  // gradients pass through, and there is nothing to keep
  const auto expected = alone ? nullptr : shared_expectations(c, table.world(), table.caps());
  uint64_t hash = 0;
  for (uint64_t step = 0, at = 0; step < kSteps; ++step) {
    for (const auto& order : c.shape->buckets) {
      const Layout layout = back_to_back(c.shape->parameters, order);
      Memory buffer = narrowed(c.dtype, inputs(c, layout, table.world(), step)[table.me()]);
      const Expected given{widened(c.dtype, buffer, layout.elements), {}};
      collective::Bucket bucket;
      bucket.buffer = buffer.data();
      bucket.dtype = c.dtype;
      bucket.step = step;
      if (!exchange(table, **session, bucket, layout)) return;
      // Only sums of the engine's own may differ: those of native_sum, and of step 2, which goes
      // out uncompressed.
      const bool sums = c.strategy == StrategyKind::native_sum || step == 2;
      const double bound = sums ? bound_of(c, table) : 0;
      const std::string where = "step " + std::to_string(step) + ", ";
      const Floats mean = widened(c.dtype, buffer, layout.elements);
      const Expected& mine = alone ? given : (*expected)[at++][table.me()];
      table.check(differs(mine.mean, mean, bound, where + "mean"));
      hash = hash * 31 + hash64(std::span<const float>(mean));
      const double kept = c.strategy == StrategyKind::native_sum ? bound : 0;
      for (const auto& entry : (*session)->active().store.entries()) {
        const auto found = mine.memory.find(entry.name);
        if (found == mine.memory.end()) {
          table.check(where + "the oracle has no " + entry.name);
        } else {
          table.check(differs(found->second, entry.values, kept, where + entry.name));
        }
      }
    }
  }
  replicas_agree(table, hash);
}

/// Gradient descent between push and pull, against the oracle of both ways.
void turns(Table& table, Engine& engine, const std::string& push, const std::string& pull) {
  table.begin(push + ", a turn, " + pull);
  const std::vector<uint32_t> order{5, 4, 3, 2, 1, 0};
  std::vector<Floats> values, wanted;
  for (const Parameter& p : kRaggedModel) values.push_back(normal_numbers(p.count(), p.count()));
  wanted = values;
  const std::vector<std::span<float>> spans(values.begin(), values.end());
  SessionOptions options;
  options.small_elements = 16;
  options.seed = 42;
  auto sharded = Sharded::create(push, pull, kRaggedModel, spans, engine, options);
  if (!sharded) return table.check("create: " + sharded.error().message);

  std::map<std::pair<std::string, uint64_t>, Floats> masters;
  test::Setup setup{push, table.world(), kRaggedModel, StrategyKind::two_shot};
  setup.down = pull;
  setup.turn = [&](const std::string& name, uint64_t offset, Floats& x) {
    size_t p = 0;
    while (kRaggedModel[p].name != name) ++p;
    const float* const replica = wanted[p].data() + offset;
    Floats& master = masters[{name, offset}];
    if (master.empty()) master.assign(replica, replica + x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      master[i] -= x[i];
      x[i] = master[i] - replica[i];
    }
  };
  Oracle oracle(setup);
  const Layout layout = back_to_back(kRaggedModel, order);
  for (uint64_t step = 0; step < kSteps; ++step) {
    auto all = gradients(table.world(), layout.elements, step + 1);
    Floats mine = all[table.me()];
    if (auto pushed = (*sharded)->push(step, {mine, order}); !pushed)
      return table.died("push", pushed.error());
    const auto stepped = (*sharded)->step([](const OwnedRange& range) -> Result<void> {
      for (size_t i = 0; i < range.mean.size(); ++i) range.master[i] -= range.mean[i];
      return {};
    });
    if (!stepped) return table.died("step", stepped.error());
    oracle.exchange(layout, DType::f32, all, step);
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t p = order[i];
      const float* const came = all[table.me()].data() + layout.offsets[i];
      const bool small = (*sharded)->is_small(p);
      for (size_t k = 0; k < wanted[p].size(); ++k) {
        if (small) values[p][k] -= mine[layout.offsets[i] + k];
        wanted[p][k] = small ? wanted[p][k] - came[k] : wanted[p][k] + came[k];
      }
      table.check(differs(wanted[p], values[p], 0, "step " + std::to_string(step)));
    }
  }
}

}  // namespace

double sum_bound(DType type, uint32_t world) noexcept {
  const int bits = type == DType::f32 ? 16 : type == DType::f16 ? 8 : 5;
  return world * std::ldexp(1.0, -bits);
}

TableOutcome run_engine_table(Engine& engine, const TableOptions& options) {
  Table table(engine, options);
  raw_steps(table);
  uint32_t number = 0;
  for (const Case& c : cases(table.world(), table.caps())) {
    if (table.dead()) break;
    if (number++ % options.stride != 0) continue;
    ++table.outcome().sessions;
    run_case(table, c);
  }
  for (const auto& [push, pull] : {std::pair("3lc", "3lc"), std::pair("topk:ratio=0.1", "int8")}) {
    if (!table.dead() && table.world() > 1) turns(table, engine, push, pull);
  }
  return table.outcome();
}

}  // namespace laconic::test
