// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/engine_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <vector>

#include "laconic/registry.h"
#include "support/oracle.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

using Memory = std::vector<uint8_t>;
using Found = std::optional<std::string>;  // what is wrong; nothing: as it should be

/// Runs batches and notes what is wrong. The engine's own failure ends the table.
class Table {
 public:
  Table(Engine& engine, const TableOptions& options) : engine_(engine), options_(options) {}

  [[nodiscard]] uint32_t me() const { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const { return engine_.caps(); }
  [[nodiscard]] const TableOptions& options() const { return options_; }
  [[nodiscard]] bool dead() const { return dead_; }
  TableOutcome& outcome() { return outcome_; }

  void begin(std::string name) {
    name_ = std::move(name);
    failed_ = false;
    ++outcome_.cases;
  }
  /// A case fails once.
  void check(const Found& wrong) {
    if (!wrong || failed_) return;
    failed_ = true;
    ++outcome_.failures;
    if (outcome_.first_failure.empty())
      outcome_.first_failure = name_ + ", rank " + std::to_string(me()) + ": " + *wrong;
  }
  Result<Ticket> start(std::span<const Step> batch) {
    auto ticket = engine_.start(batch);
    if (!ticket) died("start", ticket.error());
    return ticket;
  }
  bool wait(Ticket ticket) {
    const auto done = engine_.wait(ticket, std::chrono::steady_clock::now() + options_.timeout);
    if (!done) died("wait", done.error());
    return done.ok();
  }
  bool run(std::span<const Step> batch) {
    const auto ticket = start(batch);
    return ticket && wait(*ticket);
  }
  void died(const char* where, const Error& why) {
    dead_ = true;
    check(std::string(where) + " gave " + std::string(errc_name(why.code)) + ": " + why.message);
  }

 private:
  Engine& engine_;
  TableOptions options_;
  TableOutcome outcome_;
  std::string name_;
  bool failed_ = false;
  bool dead_ = false;
};

// ---- comparing ----

Found differs(const Memory& expected, const Memory& found, const std::string& what) {
  if (expected.size() != found.size()) return what + " has another size";
  for (size_t i = 0; i < found.size(); ++i) {
    if (expected[i] == found[i]) continue;
    return what + "[" + std::to_string(i) + "] is " + std::to_string(found[i]) + ", expected " +
           std::to_string(expected[i]);
  }
  return {};
}

/// bound 0: bit for bit, but one NaN is as good as another.
Found differs(std::span<const float> expected, std::span<const float> found, double bound,
              const std::string& what) {
  if (expected.size() != found.size()) return what + " has another length";
  double largest = 0;
  for (const float x : expected) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const double a = static_cast<double>(expected[i]), b = static_cast<double>(found[i]);
    const bool same = std::memcmp(&expected[i], &found[i], sizeof(float)) == 0 ||
                      (std::isnan(a) && std::isnan(b));
    if (same || (bound > 0 && std::fabs(a - b) <= bound * largest)) continue;
    return what + "[" + std::to_string(i) + "] is " + std::to_string(b) + ", the oracle has " +
           std::to_string(a);
  }
  return {};
}

// ---- raw steps ----

/// What rank `from` sends rank `to`: length and bytes differ for all of them, and some are empty.
Memory letter(uint32_t from, uint32_t to, uint32_t turn) {
  Memory bytes((from * 7 + to * 13 + turn * 5) % 29);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(from * 64 + to * 8 + turn + i);
  return bytes;
}

/// Letters one behind the other, with a gap before each.
struct Ragged {
  std::vector<uint64_t> counts, offsets;
  Memory memory;
  void add(const Memory& bytes, bool fill) {
    counts.push_back(bytes.size());
    offsets.push_back(memory.size() + 3);
    memory.resize(memory.size() + 3, 0xEE);
    if (fill) memory.insert(memory.end(), bytes.begin(), bytes.end());
    memory.resize(offsets.back() + bytes.size(), 0xEE);
  }
};

void all_to_all(Table& table, uint32_t turn) {
  table.begin("all_to_all " + std::to_string(turn));
  Ragged send, recv, expected;
  for (uint32_t r = 0; r < table.world(); ++r) {
    send.add(letter(table.me(), r, turn), true);
    recv.add(letter(r, table.me(), turn), false);
    expected.add(letter(r, table.me(), turn), true);
  }
  const Step step{.kind = StepKind::all_to_all,
                  .tag = 8 + turn,
                  .send = send.memory.data(),
                  .recv = recv.memory.data(),
                  .send_counts = send.counts,
                  .send_offsets = send.offsets,
                  .recv_counts = recv.counts,
                  .recv_offsets = recv.offsets};
  if (table.run({&step, 1})) table.check(differs(expected.memory, recv.memory, "recv"));
}

void all_gather(Table& table, uint32_t turn) {
  table.begin("all_gather " + std::to_string(turn));
  Memory own = letter(table.me(), 0, turn);
  Ragged recv, expected;
  for (uint32_t r = 0; r < table.world(); ++r) {
    recv.add(letter(r, 0, turn), false);
    expected.add(letter(r, 0, turn), true);
  }
  const std::vector<uint64_t> counts(table.world(), own.size()), zeros(table.world());
  const Step step{.kind = StepKind::all_gather,
                  .tag = 16 + turn,
                  .send = own.data(),
                  .recv = recv.memory.data(),
                  .send_counts = counts,
                  .send_offsets = zeros,
                  .recv_counts = recv.counts,
                  .recv_offsets = recv.offsets};
  if (table.run({&step, 1})) table.check(differs(expected.memory, recv.memory, "recv"));
}

/// A ring: to the next rank, from the one before. `bytes` may be more than an engine sends at once.
void ring(Table& table, uint64_t bytes) {
  table.begin("ring of messages of " + std::to_string(bytes) + " bytes");
  const uint32_t world = table.world();
  const uint32_t next = (table.me() + 1) % world, before = (table.me() + world - 1) % world;
  const auto content = [&](uint32_t rank) {
    Memory all(bytes);
    for (uint64_t i = 0; i < bytes; ++i) all[i] = static_cast<uint8_t>(i * 7 + (i >> 8) + rank);
    return all;
  };
  const Memory out = content(table.me());
  Memory in(bytes);
  std::vector<Message> messages;
  if (world == 2) {
    messages = {{next, out.data(), bytes, in.data(), bytes}};
  } else if (world > 2) {
    messages = {{next, out.data(), bytes, nullptr, 0}, {before, nullptr, 0, in.data(), bytes}};
  }
  const Step step{.kind = StepKind::messages, .tag = (1U << 28) - 1, .messages = messages};
  if (table.run({&step, 1}) && world > 1) table.check(differs(content(before), in, "recv"));
}

void shorter_than_room(Table& table, StepKind kind) {
  if (!table.caps().short_sends) return;
  table.begin(kind == StepKind::messages ? "short messages" : "short all_to_all");
  constexpr uint64_t kRoom = 64;
  const uint32_t world = table.world(), me = table.me();
  const auto length = [](uint32_t from, uint32_t to) { return 1 + from * 3 + to; };
  Memory out(world * kRoom), in(world * kRoom, 0xEE), expected(world * kRoom, 0xEE);
  std::vector<Message> messages;
  std::vector<uint64_t> counts, rooms(world, kRoom), offsets;
  for (uint32_t r = 0; r < world; ++r) {
    offsets.push_back(r * kRoom);
    counts.push_back(r == me ? kRoom : length(me, r));
    std::fill_n(out.begin() + static_cast<ptrdiff_t>(offsets[r]), kRoom,
                static_cast<uint8_t>(me + 1));
    const bool received = r != me || kind == StepKind::all_to_all;
    std::fill_n(expected.begin() + static_cast<ptrdiff_t>(offsets[r]),
                !received ? 0
                : r == me ? kRoom
                          : length(r, me),
                static_cast<uint8_t>(r + 1));
    if (r != me)
      messages.push_back({r, out.data() + offsets[r], counts[r], in.data() + offsets[r], kRoom});
  }
  Step step{.kind = kind, .short_sends = true, .tag = 77};
  if (kind == StepKind::messages) {
    step.messages = messages;
  } else {
    step.send = out.data();
    step.recv = in.data();
    step.send_counts = counts;
    step.send_offsets = step.recv_offsets = offsets;
    step.recv_counts = rooms;
  }
  if (table.run({&step, 1})) table.check(differs(expected, in, "recv"));
}

float round_lane(DType type, double x) { return round_to(type, static_cast<float>(x)); }

/// Multiples of 1/8, exact in all types; their sums are not.
float lane(uint32_t rank, uint64_t i) {
  return static_cast<float>(static_cast<int64_t>((i * 37 + rank * 101) % 251) - 125) *
         (rank == 1 ? 16.0F : 0.125F);
}
void put_lane(DType type, uint8_t* at, float x) {
  const uint16_t half = type == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
  std::memcpy(at, type == DType::f32 ? static_cast<const void*>(&x) : &half, dtype_size(type));
}
float get_lane(DType type, const uint8_t* at) {
  float x = 0;
  uint16_t half = 0;
  std::memcpy(type == DType::f32 ? static_cast<void*>(&x) : &half, at, dtype_size(type));
  return type == DType::f32 ? x : type == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
}

void sum(Table& table, DType type, uint64_t count) {
  if (!table.caps().can_sum(type)) return;
  table.begin("sum of " + std::to_string(count) + " lanes of " + std::string(dtype_name(type)));
  const uint64_t size = dtype_size(type);
  Memory lanes(count * size);
  uint8_t* at = lanes.data();
  Floats expected(count), found(count);
  for (uint64_t i = 0; i < count; ++i) {
    put_lane(type, at + i * size, lane(table.me(), i));
    double total = static_cast<double>(lane(0, i));
    for (uint32_t r = 1; r < table.world(); ++r)
      total = static_cast<double>(round_lane(type, total + static_cast<double>(lane(r, i))));
    expected[i] = static_cast<float>(total);
  }
  const Step step{.dtype = type, .tag = 5, .count = count, .send = at, .recv = at};
  if (!table.run({&step, 1})) return;
  for (uint64_t i = 0; i < count; ++i) found[i] = get_lane(type, at + i * size);
  const double bound = table.options().rank_order_sums ? 0 : sum_bound(type, table.world());
  table.check(differs(expected, found, bound, "sum"));
}

/// As many batches of as many steps as may be under way, waited for from the last to the first.
void tickets(Table& table) {
  table.begin("tickets");
  std::array<std::array<float, kMaxBatch>, kMaxTickets> x{};
  std::array<std::array<Step, kMaxBatch>, kMaxTickets> batches;
  std::vector<Ticket> started;
  for (uint32_t turn = 0; turn < kMaxTickets && !table.dead(); ++turn) {
    for (uint32_t i = 0; i < kMaxBatch; ++i) {
      x[turn][i] = static_cast<float>(turn * kMaxBatch + i);
      auto* at = reinterpret_cast<uint8_t*>(&x[turn][i]);
      batches[turn][i] = {
          .dtype = DType::f32, .tag = turn * kMaxBatch + i, .count = 1, .send = at, .recv = at};
    }
    if (const auto ticket = table.start(batches[turn])) started.push_back(*ticket);
  }
  for (; !started.empty() && !table.dead(); started.pop_back()) table.wait(started.back());
  for (uint32_t i = 0; i < kMaxTickets * kMaxBatch && !table.dead(); ++i) {
    const auto expected = static_cast<float>(i * table.world());
    const float found = x[i / kMaxBatch][i % kMaxBatch];
    if (found != expected) table.check("batch " + std::to_string(i / kMaxBatch) + " is wrong");
  }
}

/// Messages and sums of one batch, with those of the next behind them.
void mixed_batches(Table& table) {
  table.begin("mixed batches");
  constexpr uint32_t kTurns = 3;
  struct Turn {
    Memory own, all, expected;
    std::vector<uint64_t> counts, zeros, offsets;
    float sum = 1;
    std::array<Step, 3> steps;
  };
  std::vector<Turn> turns(kTurns);
  std::vector<Ticket> started;
  const uint32_t world = table.world();
  for (uint32_t t = 0; t < kTurns && !table.dead(); ++t) {
    Turn& turn = turns[t];
    const uint64_t bytes = t == 1 ? 200'000 : 10;  // beyond what an engine sends at once unasked
    turn.own.assign(bytes, static_cast<uint8_t>(table.me() * 16 + t));
    turn.all.resize(bytes * world);
    turn.counts.assign(world, bytes);
    turn.zeros.assign(world, 0);
    for (uint32_t r = 0; r < world; ++r) {
      turn.offsets.push_back(r * bytes);
      turn.expected.insert(turn.expected.end(), bytes, static_cast<uint8_t>(r * 16 + t));
    }
    auto* at = reinterpret_cast<uint8_t*>(&turn.sum);
    turn.steps = {Step{.kind = StepKind::all_gather,
                       .tag = 100 + 3 * t,
                       .send = turn.own.data(),
                       .recv = turn.all.data(),
                       .send_counts = turn.counts,
                       .send_offsets = turn.zeros,
                       .recv_counts = turn.counts,
                       .recv_offsets = turn.offsets},
                  Step{.dtype = DType::f32, .tag = 101 + 3 * t, .count = 1, .send = at, .recv = at},
                  Step{.kind = StepKind::messages, .tag = 102 + 3 * t}};
    if (const auto ticket = table.start(turn.steps)) started.push_back(*ticket);
  }
  for (const Ticket ticket : started) {
    if (!table.dead()) table.wait(ticket);
  }
  for (uint32_t t = 0; t < kTurns && !table.dead(); ++t) {
    table.check(differs(turns[t].expected, turns[t].all, "gathered"));
    if (turns[t].sum != static_cast<float>(world)) table.check("a sum is wrong");
  }
}

void raw_steps(Table& table) {
  for (const uint32_t turn : {0U, 1U, 2U}) {
    if (!table.dead()) all_to_all(table, turn);
    if (!table.dead()) all_gather(table, turn);
  }
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{5000}, uint64_t{3'000'001}}) {
    if (!table.dead()) ring(table, bytes);
  }
  for (const StepKind kind : {StepKind::messages, StepKind::all_to_all}) {
    if (!table.dead()) shorter_than_room(table, kind);
  }
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const uint64_t count : {0U, 1U, 2U, 7U, 1001U, 70'001U}) {
      if (!table.dead()) sum(table, type, count);
    }
  }
  if (!table.dead()) tickets(table);
  if (!table.dead()) mixed_batches(table);
}

// ---- sessions ----

/// Sizes that 8 does not divide, rows and columns that it does not either; one that is raw, one
/// that is empty, and one of which two_shot cannot give every owner a part.
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
    put_lane(dtype, bytes.data() + i * dtype_size(dtype), values[i]);
  return bytes;
}
Floats widened(DType dtype, const Memory& bytes, uint64_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = get_lane(dtype, bytes.data() + i * dtype_size(dtype));
  return values;
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
    all[world - 1][layout.elements / 2] = std::numeric_limits<float>::infinity();
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
      session.abort({Errc::engine_failed, "the engine has failed", {}});
      return false;
    }
  }
}

uint64_t hash_of(const Floats& values) {
  return hash64(Bytes(reinterpret_cast<const uint8_t*>(values.data()), 4 * values.size()));
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
  const auto expected = shared_expectations(c, table.world(), table.caps());
  uint64_t hash = 0;
  for (uint64_t step = 0, at = 0; step < kSteps; ++step) {
    for (const auto& order : c.shape->buckets) {
      const Layout layout = back_to_back(c.shape->parameters, order);
      Memory buffer = narrowed(c.dtype, inputs(c, layout, table.world(), step)[table.me()]);
      collective::Bucket bucket;
      bucket.buffer = buffer.data();
      bucket.dtype = c.dtype;
      bucket.step = step;
      if (!exchange(table, **session, bucket, layout)) return;
      const Expected& mine = (*expected)[at++][table.me()];
      // Only sums of the engine's own may differ: those of native_sum, and of step 2, which goes
      // out uncompressed.
      const bool sums = c.strategy == StrategyKind::native_sum || step == 2;
      const double bound = sums ? bound_of(c, table) : 0;
      const std::string where = "step " + std::to_string(step) + ", ";
      const Floats mean = widened(c.dtype, buffer, layout.elements);
      table.check(differs(mine.mean, mean, bound, where + "mean"));
      hash = hash * 31 + hash_of(mean);
      const double kept = c.strategy == StrategyKind::native_sum ? bound : 0;
      for (const auto& entry : (*session)->store().entries()) {
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
    if (number++ % options.stride == 0) run_case(table, c);
  }
  return table.outcome();
}

}  // namespace laconic::test
