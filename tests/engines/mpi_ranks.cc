// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank of an MPI job, for test_mpi.py: it writes its findings as JSON to its own file `out=`
// (with ".PID" appended to the name), because launchers mix what ranks print.
#include <dlfcn.h>
#include <laconic/engine/mpi_nodes.h>
#include <laconic/loopback.h>
#include <laconic/session.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "engines/engine_table.h"
#include "engines/plugin/plugin.h"
#include "json.h"
#include "session/session.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

/// The MPI calls of an engine for sums and at its end, what it sends and where it receives, and for
/// how many seconds before MPI_Finalize nothing has been called.
struct Calls {
  std::vector<std::string> names;
  std::vector<void*> rooms;              // of receives
  std::map<int, std::vector<int>> sent;  // bytes of each send, by rank
  std::chrono::steady_clock::time_point last;
  std::chrono::duration<double> rest{0};
  std::string stops_at;  // a call that this process does not make
};
Calls& calls() {
  static Calls all;
  return all;
}

/// Launchers let a stopped process go on before they end it.
void may_stop(const char* call) {
  if (calls().stops_at != call) return;
  ::raise(SIGSTOP);
  ::_exit(1);
}

using Floats = std::vector<float>;
using tools::Json;

class Arguments {
 public:
  Arguments(int count, char** list) {
    for (int i = 1; i < count; ++i) {
      const std::string text = list[i];
      const auto equal = text.find('=');
      values_[text.substr(0, equal)] = equal == std::string::npos ? "" : text.substr(equal + 1);
    }
  }
  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto at = values_.find(key);
    return at == values_.end() ? otherwise : at->second;
  }
  [[nodiscard]] uint64_t number(const std::string& key, uint64_t otherwise) const {
    const auto at = values_.find(key);
    return at == values_.end() ? otherwise : std::stoull(at->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

constexpr std::chrono::seconds kLong{100};  // nothing takes as long unless something is wrong

/// Whole or not at all: launchers kill the others when one rank ends without MPI_Finalize. So this
/// one waits, within bounds, until `reports=` ranks have said what they found.
void write(const Arguments& arguments, const Json& line) {
  namespace fs = std::filesystem;
  const fs::path out = arguments.text("out");
  const fs::path part = out.string() + "-part." + std::to_string(::getpid());
  std::ofstream(part) << line.dump() << "\n";
  fs::rename(part, out.string() + "." + std::to_string(::getpid()));
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  for (uint64_t found = 0; found < arguments.number("reports", 1);) {
    if (std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const fs::directory_iterator all(out.parent_path());
    found = static_cast<uint64_t>(std::count_if(begin(all), end(all), [&](const auto& entry) {
      return entry.path().stem() == out.filename();
    }));
  }
}

void report(const Arguments& arguments, const Engine& engine, Json line) {
  line["rank"] = engine.rank();
  line["world"] = engine.world();
  write(arguments, line);
}

Json error_json(const Result<void>& result) {
  if (result) return {{"code", "ok"}, {"message", ""}};
  return {{"code", errc_name(result.error().code)}, {"message", result.error().message}};
}

int table(Engine& engine, const Arguments& arguments) {
  const TableOutcome outcome =
      run_engine_table(engine, {.rank_order_sums = arguments.number("large_share", 1) == 0,
                                .timeout = kLong,
                                .stride = static_cast<uint32_t>(arguments.number("stride", 1)),
                                .longest = arguments.number("longest", 3'000'001)});
  report(arguments, engine,
         {{"cases", outcome.cases},
          {"failures", outcome.failures},
          {"first_failure", outcome.first_failure}});
  return outcome.passed() ? 0 : 1;
}

/// Sends the process of the victim a signal before or after the start of the batch with that
/// number. From there on the test waits a while for each batch.
class Struck final : public Engine {
 public:
  Struck(Engine& engine, bool victim, std::chrono::milliseconds timeout, uint64_t at, int signal,
         bool behind)
      : engine_(engine),
        victim_(victim),
        timeout_(timeout),
        at_(at),
        signal_(signal),
        behind_(behind) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_.caps(); }
  Result<void> run(std::span<const Step> batch) override {
    const bool now = victim_ && ran_ == at_;
    const auto deadline = std::chrono::steady_clock::now() + (ran_++ < at_ ? kLong : timeout_);
    if (now && !behind_) ::kill(::getpid(), signal_);
    const auto ticket = engine_.start(batch);
    if (now && behind_) ::kill(::getpid(), signal_);
    return ticket ? engine_.wait(*ticket, deadline) : Result<void>(ticket.error());
  }

 private:
  Engine& engine_;
  bool victim_;
  std::chrono::milliseconds timeout_;
  uint64_t at_, ran_ = 0;
  int signal_;
  bool behind_;
};

/// One step in which `victim` is struck at batch `at`. The others say what they got, what the next
/// step gives, and how far their residuals are from their gradients, which have
/// not been delivered.
int struck(Engine& mpi, const Arguments& arguments) {
  const bool victim = mpi.rank() == arguments.number("victim", 1);
  const std::chrono::milliseconds timeout(arguments.number("deadline", 1500));
  Struck engine(mpi, victim, timeout, arguments.number("at", 0),
                arguments.text("signal") == "kill" ? SIGKILL : SIGSTOP,
                arguments.number("behind", 0) != 0);
  const std::vector<Parameter> model{{"w", 300, 40}, {"b", 7, 1}};
  Options o;
  o.rank = mpi.rank();
  o.world = mpi.world();
  o.small_elements = 16;
  o.strategy = *collective::strategy_of(arguments.text("plan"));
  o.caps = mpi.caps();
  auto made = Session::create(arguments.text("spec", "3lc"), model, o);
  if (!made) return 3;
  Session& session = **made;
  const Layout layout = back_to_back(model, {0, 1});
  const Floats gradient = gradients(mpi.world(), layout.elements, 1)[mpi.rank()];
  Floats buffer = gradient;
  collective::Bucket bucket;
  bucket.buffer = buffer.data();
  const auto first = session::drive(session, bucket, layout, engine);
  double away = 0;
  for (const auto& entry : session.active().store.entries()) {
    for (size_t i = 0; entry.name == "residual/w" && i < entry.values.size(); ++i)
      away = std::max(away, std::fabs(static_cast<double>(entry.values[i] - gradient[i])));
  }
  bucket.step = 1;
  const auto next = session::drive(session, bucket, layout, engine);
  report(arguments, mpi,
         {{"first", error_json(first)}, {"next", error_json(next)}, {"away", away}});
  return 0;
}

/// Rank 1 sends nothing: the memory of rank 0's receive outlives the engine, which MPI does not.
int kept(std::unique_ptr<MpiEngine> engine, const Arguments& arguments) {
  const auto memory = std::make_shared<std::array<uint8_t, 64>>();
  const std::weak_ptr<void> seen = memory;
  Json line{{"rank", engine->rank()}};
  if (engine->rank() == 0) {
    const Message message{1, nullptr, 0, memory->data(), memory->size()};
    const Step step{.kind = StepKind::messages, .messages = {&message, 1}};
    const auto ticket = engine->start({&step, 1});
    const auto late = engine->wait(*ticket, std::chrono::steady_clock::now());
    line["late"] = error_json(late);
    engine->keep_until_end(memory);
  }
  const bool used = engine->rank() == 0;
  engine.reset();
  line["kept"] = used && seen.use_count() > 1;
  write(arguments, line);
  return 0;
}

/// The calls of an engine's end. The `absent=` rank does not come before the others have given up.
int end(std::unique_ptr<MpiEngine> engine, const Arguments& arguments) {
  Json line{{"rank", engine->rank()}};
  if (engine->rank() == arguments.number("absent", ~uint64_t{0})) {
    write(arguments, line);
    return 0;
  }
  calls().names.clear();
  engine.reset();
  line["calls"] = calls().names;
  line["rest"] = calls().rest.count();
  write(arguments, line);
  return 0;
}

/// Two batches with one tag in flight, each a message of unknown length, one of six full parts, and
/// a sum: they keep their order.
int one_tag(Engine& engine, const Arguments& arguments) {
  constexpr uint64_t kRoom = 4096;
  constexpr uint64_t kLanes = 2001;
  const uint32_t peer = 1 - engine.rank();
  const std::array<uint64_t, 2> lengths{6 * 512, 700};
  std::array<std::vector<uint8_t>, 2> out, in;
  std::array<Message, 2> messages;
  std::array<std::array<Step, 2>, 2> steps;
  std::array<Floats, 2> sums;
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < 2; ++i) {
    out[i].assign(lengths[i], static_cast<uint8_t>(i + 1));
    in[i].resize(kRoom);
    messages[i] = {peer, out[i].data(), out[i].size(), in[i].data(), kRoom};
    sums[i].assign(kLanes, static_cast<float>(i + 1));
    auto* lanes = reinterpret_cast<uint8_t*>(sums[i].data());
    steps[i] = {
        Step{.kind = StepKind::messages, .short_sends = true, .messages = {&messages[i], 1}},
        Step{.dtype = DType::f32, .count = kLanes, .send = lanes, .recv = lanes}};
    tickets.push_back(*engine.start(steps[i]));
  }
  bool right = true;
  for (size_t i = 0; i < 2; ++i) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    right = right && engine.wait(tickets[i], deadline).ok();
    out[i].resize(kRoom);
    right = right && in[i] == out[i] && sums[i] == Floats(kLanes, static_cast<float>(2 * i + 2));
  }
  report(arguments, engine, {{"right", right}});
  return 0;
}

/// Lists what is sent to which rank where every rank gathers 4,000 bytes, and then takes part in a
/// large sum.
int sizes(Engine& engine, const Arguments& arguments) {
  const uint32_t world = engine.world();
  std::vector<uint8_t> own(4000, static_cast<uint8_t>(engine.rank() + 1)), all(4000 * world);
  const std::vector<uint64_t> counts(world, 4000), zeros(world);
  std::vector<uint64_t> offsets;
  for (uint32_t r = 0; r < world; ++r) offsets.push_back(4000 * r);
  const Step gather{.kind = StepKind::all_gather,
                    .tag = 1,
                    .send = own.data(),
                    .recv = all.data(),
                    .send_counts = counts,
                    .send_offsets = zeros,
                    .recv_counts = counts,
                    .recv_offsets = offsets};
  const auto sent = [&](const Step& step) {
    calls().sent.clear();
    Json line{{"ended", error_json(engine.run({&step, 1}))}};
    for (const auto& [peer, bytes] : calls().sent) line[std::to_string(peer)] = bytes;
    return line;
  };
  Json line{{"gather", sent(gather)}};
  bool good = true;
  for (uint32_t r = 0; r < world; ++r) {
    good = good && std::all_of(all.begin() + 4000 * r, all.begin() + 4000 * (r + 1),
                               [&](uint8_t byte) { return byte == r + 1; });
  }
  Floats lanes(3000, 1.0F);
  auto* at = reinterpret_cast<uint8_t*>(lanes.data());
  line["sum"] =
      sent({.dtype = DType::f32, .tag = 2, .count = lanes.size(), .send = at, .recv = at});
  line["right"] = good && lanes == Floats(3000, static_cast<float>(world));
  report(arguments, engine, line);
  return 0;
}

/// The part of a sum of 8 MiB that has been sent when it has begun.
int pace(Engine& engine, const Arguments& arguments) {
  Floats lanes(2 << 20, 1.0F);
  auto* at = reinterpret_cast<uint8_t*>(lanes.data());
  const Step step{.dtype = DType::f32, .tag = 1, .count = lanes.size(), .send = at, .recv = at};
  calls().sent.clear();
  const auto ticket = engine.start({&step, 1});
  Json line{{"begun", calls().sent[1 - static_cast<int>(engine.rank())]}};
  const auto last = std::chrono::steady_clock::now() + kLong;
  line["ended"] = error_json(ticket ? engine.wait(*ticket, last) : ticket.error());
  line["right"] = lanes == Floats(lanes.size(), 2.0F);
  report(arguments, engine, line);
  return 0;
}

/// All of these bytes, one way or the other.
Message one_way(bool receives, uint32_t peer, std::vector<uint8_t>& bytes) {
  return receives ? Message{peer, nullptr, 0, bytes.data(), bytes.size()}
                  : Message{peer, bytes.data(), bytes.size(), nullptr, 0};
}

/// Rank 0 begins to receive an unknown number of parts, which rank 1 does not send before another
/// exchange has ended.
int other_tag(Engine& engine, const Arguments& arguments) {
  const bool receives = engine.rank() == 0;
  const uint32_t peer = 1 - engine.rank();
  std::vector<uint8_t> first(4096, 7), second(4096, 8), go(1);
  const std::array<Message, 3> messages{one_way(receives, peer, first),
                                        one_way(receives, peer, second),
                                        one_way(!receives, peer, go)};
  std::array<Step, 3> steps;
  for (uint32_t i = 0; i < 3; ++i) {
    steps[i] = {.kind = StepKind::messages,
                .short_sends = true,
                .tag = i + 1,
                .messages = {&messages[i], 1}};
  }
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  std::array<Ticket, 3> tickets;
  const auto start = [&](size_t i) { tickets[i] = *engine.start({&steps[i], 1}); };
  if (receives) start(0);
  start(1);
  Json line;
  for (const auto& [what, i] : {std::pair{"other", 1}, {"told", 2}, {"one", 0}}) {
    const auto at = static_cast<size_t>(i);
    if (at == 2 || (at == 0 && !receives)) start(at);
    const auto ended = engine.wait(tickets[at], deadline);
    line[what] = error_json(ended);
    if (!ended) break;
  }
  report(arguments, engine, line);
  return 0;
}

/// Rank 1 begins to receive a message whose calls are all posted together, and a longer one, which
/// rank 0 does not send before the first has been waited for.
int places(Engine& engine, const Arguments& arguments) {
  const bool receives = engine.rank() == 1;
  const uint32_t peer = 1 - engine.rank();
  std::vector<uint8_t> first(4096, receives ? 0 : 7), second(12288, receives ? 0 : 8), go(1);
  const std::array<Message, 3> messages{one_way(receives, peer, first),
                                        one_way(receives, peer, second),
                                        one_way(!receives, peer, go)};
  std::array<Step, 3> steps;
  for (uint32_t i = 0; i < 3; ++i)
    steps[i] = {.kind = StepKind::messages, .tag = i + 1, .messages = {&messages[i], 1}};
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  const auto end = [&](const Result<Ticket>& ticket) {
    return error_json(ticket ? engine.wait(*ticket, deadline) : ticket.error());
  };
  Json line;
  const auto start = [&](size_t i) {
    calls().rooms.clear();
    calls().sent.clear();
    auto ticket = engine.start({&steps[i], 1});
    line["ahead"] = receives ? calls().rooms.size() : calls().sent[1].size();
    return ticket;
  };
  const auto one = start(0);
  std::optional<Result<Ticket>> other;
  if (receives) other = start(1);
  line["first"] = end(one);
  line["told"] = end(engine.start({&steps[2], 1}));
  if (!receives) other = start(1);
  line["second"] = end(*other);
  line["right"] =
      first == std::vector<uint8_t>(4096, 7) && second == std::vector<uint8_t>(12288, 8);
  report(arguments, engine, line);
  return 0;
}

/// Rank 0 begins to receive what no library sends unasked, and does not wait for it before rank 1,
/// which waits for its send, has reported.
int between(Engine& engine, const Arguments& arguments) {
  std::vector<uint8_t> memory(8'000'000);
  const bool receives = engine.rank() == 0;
  const Message message{1 - engine.rank(), memory.data(), receives ? 0 : memory.size(),
                        memory.data(), receives ? memory.size() : 0};
  const Step step{.kind = StepKind::messages, .messages = {&message, 1}};
  const Ticket ticket = *engine.start({&step, 1});
  const auto end = [&] {
    return error_json(engine.wait(ticket, std::chrono::steady_clock::now() + kLong));
  };
  if (receives) {
    write(arguments, {{"rank", 0}, {"begun", true}});  // until both have reported
    return end()["code"].text() == "ok" ? 0 : 1;
  }
  report(arguments, engine, {{"ended", end()}});
  return 0;
}

/// The session that users hold, and what it says where it cannot be made.
int create(MpiEngine& engine, const Arguments& arguments) {
  auto session = laconic::Session::create("3lc", {{"w", 100, 100}}, engine);
  Json line{{"create", error_json(session ? Result<void>() : session.error())},
            {"status", error_json(engine.status())},
            {"library", MpiEngine::library()}};
  if (session) {
    Floats mine(10'000, 1.0F);
    line["average"] = error_json((*session)->average(0, mine));
  }
  report(arguments, engine, line);
  return 0;
}

/// MPI is the program's, at its own thread level; `thread=1`: another thread waits.
int foreign(const Arguments& arguments) {
  const std::map<std::string, int> levels{{"single", MPI_THREAD_SINGLE},
                                          {"funneled", MPI_THREAD_FUNNELED},
                                          {"serialized", MPI_THREAD_SERIALIZED},
                                          {"multiple", MPI_THREAD_MULTIPLE}};
  if (MpiEngine(MPI_COMM_WORLD).status()) return 4;  // before MPI_Init
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, levels.at(arguments.text("level")), &level);
  int bad = 0;
  {
    MpiEngine engine(MPI_COMM_WORLD);
    if (arguments.number("thread", 0) != 0) {
      Result<void> ran;
      float x = 1;
      auto* at = reinterpret_cast<uint8_t*>(&x);
      const Step step{.dtype = DType::f32, .count = 1, .send = at, .recv = at};
      std::jthread([&] { ran = engine.run({&step, 1}); }).join();
      report(arguments, engine, {{"level", level}, {"ran", error_json(ran)}});
    } else {
      bad = table(engine, arguments);
    }
    MpiEngine alone(MPI_COMM_SELF);  // two in flight, and a world of one
    if (alone.world() != 1 || run_engine_table(alone, {.stride = 20}).failures != 0) bad = 5;
  }
  MPI_Finalize();
  if (MpiEngine(MPI_COMM_WORLD).status()) return 6;
  return bad;
}

/// Rank 1 sums `lanes=` floats, rank 0 ten: an Error, and a dead engine.
int mismatched_sums(MpiEngine& engine, const Arguments& arguments) {
  Floats lanes(engine.rank() == 0 ? 10 : arguments.number("lanes", 0));
  auto* at = reinterpret_cast<uint8_t*>(lanes.data());
  const Step step{.dtype = DType::f32, .count = lanes.size(), .send = at, .recv = at};
  const auto run = [&] {
    const Ticket ticket = *engine.start({&step, 1});
    return error_json(
        engine.wait(ticket, std::chrono::steady_clock::now() + std::chrono::seconds(1)));
  };
  Json line{{"first", run()}};
  if (const auto again = engine.start({&step, 1}); !again)
    line["again"] = error_json(again.error());
  report(arguments, engine, line);
  return 0;
}

/// Which sums MPI takes: `lanes` of float32 just below and at large_share of each rank.
int branch(MpiEngine& engine, const Arguments& arguments) {
  const uint64_t limit = arguments.number("large_share", 0) * engine.world() / sizeof(float);
  Json line{{"limit", limit}};
  for (const uint64_t count : {limit - 1, limit}) {
    Floats lanes(count, 1.0F);
    auto* at = reinterpret_cast<uint8_t*>(lanes.data());
    const Step step{.dtype = DType::f32, .count = count, .scale = 0.25F, .send = at, .recv = at};
    calls().names.clear();
    line[count < limit ? "below" : "ended"] = error_json(engine.run({&step, 1}));
    line[count < limit ? "small" : "large"] = calls().names;
    line["right"] = (line["right"].is_null() || line["right"].flag()) &&
                    lanes == Floats(count, 0.25F * static_cast<float>(engine.world()));
  }
  report(arguments, engine, line);
  return 0;
}

/// Rank 1 does not come to a large sum: the memory for its terms stays, also after the engine.
int kept_terms(std::unique_ptr<MpiEngine> engine, const Arguments& arguments) {
  static Floats lanes(4 << 20, 1.0F);
  Json line{{"rank", engine->rank()}};
  if (engine->rank() == 0) {
    auto* at = reinterpret_cast<uint8_t*>(lanes.data());
    const Step step{.dtype = DType::f32, .count = lanes.size(), .send = at, .recv = at};
    const auto ticket = engine->start({&step, 1});
    line["late"] = error_json(
        engine->wait(*ticket, std::chrono::steady_clock::now() + std::chrono::milliseconds(50)));
  }
  engine.reset();
  bool mapped = !calls().rooms.empty();
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (void* room : calls().rooms) {
    auto* at = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(room) / page * page);
    mapped = mapped && ::msync(at, page, MS_ASYNC) == 0;
  }
  line["kept"] = mapped;
  write(arguments, line);
  return 0;
}

/// The mean of the last of four steps, or why there is none.
Result<Floats> mean_of_steps(Engine& across, Engine* inside, uint64_t seed) {
  SessionOptions options;
  options.inside = inside;
  options.window = 2;
  options.part = 1 << 16;
  auto session = laconic::Session::create("3lc", {{"a", 300, 200}, {"b", 300}, {"c", 90'000}},
                                          across, options);
  if (!session) return session.error();
  Floats mine;
  for (uint64_t step = 0; step < 4; ++step) {
    mine = normal_numbers(150'300, 1 + 4 * seed + step);
    if (auto done = (*session)->average(step, mine); !done) return done.error();
  }
  return mine;
}

/// The means of MpiNodes have the bits of ranks that are threads.
int nodes(MpiNodes& all, uint64_t rank, const Arguments& arguments) {
  const uint32_t ranks = all.inside() == nullptr ? 1 : all.inside()->world();
  const uint32_t count = all.across().world();
  const auto seed_of = [&](uint32_t node, uint32_t place) { return node * ranks + place; };
  const uint32_t place = all.inside() == nullptr ? 0 : all.inside()->rank();
  Json line{{"rank", rank}, {"why", all.why()}, {"count", all.count()}, {"ranks", ranks}};
  line["status"] = error_json(all.status());
  const auto found = mean_of_steps(all.across(), all.inside(), seed_of(all.across().rank(), place));
  line["error"] = found ? "" : found.error().message;
  std::vector<std::unique_ptr<LoopbackHub>> across, inside;
  for (uint32_t s = 0; s < ranks; ++s) across.push_back(std::make_unique<LoopbackHub>(count));
  for (uint32_t n = 0; n < count; ++n) inside.push_back(std::make_unique<LoopbackHub>(ranks));
  Floats expected;
  on_all(count * ranks, [&](uint32_t r) {
    Engine& own = across[r % ranks]->engine(r / ranks);
    Engine* const node = ranks == 1 ? nullptr : &inside[r / ranks]->engine(r % ranks);
    const auto mean = mean_of_steps(own, node, r);
    if (r == 0 && mean) expected = *mean;
  });
  line["same"] = found && !expected.empty() && same_bits(*found, expected);
  write(arguments, line);
  return 0;
}

/// Rank 1 sends `sent=` bytes, rank 0 expects 10 and nothing else: an Error, and a dead engine.
int mismatch(MpiEngine& engine, const Arguments& arguments) {
  std::vector<uint8_t> memory(arguments.number("sent", 0));
  std::array<uint8_t, 10> room{};
  const Message message = engine.rank() == 0 ? Message{1, nullptr, 0, room.data(), room.size()}
                                             : Message{0, memory.data(), memory.size(), nullptr, 0};
  const Step step{.kind = StepKind::messages, .messages = {&message, 1}};
  Json line{{"first", error_json(engine.run({&step, 1}))}};
  if (engine.rank() == 0) line["again"] = error_json(engine.run({&step, 1}));
  report(arguments, engine, line);
  return 0;
}

}  // namespace
}  // namespace laconic::test

// Ranks share their cores with other tests. One that waits sleeps where engine and library would
// give its core away, and no engine keeps one because there is another for each rank.
extern "C" {
[[gnu::visibility("default")]] int sched_yield() noexcept {
  const timespec pause{0, 100'000};
  return ::nanosleep(&pause, nullptr);
}
[[gnu::visibility("default")]] long sysconf(int name) noexcept {
  using Function = long (*)(int);
  static const auto own = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "sysconf"));
  return name == _SC_NPROCESSORS_ONLN ? 1 : own(name);
}
}

// MPI's profiling interface: these stand before the library's own.
extern "C" {
int MPI_Ialltoall(const void* send, int send_count, MPI_Datatype send_type, void* recv,
                  int recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  laconic::test::calls().names.emplace_back(send == MPI_IN_PLACE ? "MPI_Ialltoall in place" : "?");
  return PMPI_Ialltoall(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
}
int MPI_Iallreduce(const void* send, void* recv, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  laconic::test::calls().names.emplace_back("MPI_Iallreduce");
  return PMPI_Iallreduce(send, recv, count, type, op, comm, request);
}
int MPI_Irecv(void* at, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  laconic::test::calls().rooms.push_back(at);
  return PMPI_Irecv(at, count, type, from, tag, comm, request);
}
int MPI_Isend(const void* at, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  laconic::test::calls().sent[to].push_back(count);
  return PMPI_Isend(at, count, type, to, tag, comm, request);
}
int MPI_Comm_idup(MPI_Comm from, MPI_Comm* to, MPI_Request* request) {
  laconic::test::may_stop("MPI_Comm_idup");
  return PMPI_Comm_idup(from, to, request);
}
int MPI_Iallgather(const void* send, int send_count, MPI_Datatype send_type, void* recv,
                   int recv_count, MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  laconic::test::may_stop("MPI_Iallgather");
  return PMPI_Iallgather(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  laconic::test::calls().names.emplace_back("MPI_Ibarrier");
  return PMPI_Ibarrier(comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  const int code = PMPI_Test(request, done, status);
  laconic::test::calls().last = std::chrono::steady_clock::now();
  return code;
}
int MPI_Finalize() {
  auto& calls = laconic::test::calls();
  calls.names.emplace_back("MPI_Finalize");
  calls.rest = std::chrono::steady_clock::now() - calls.last;
  return PMPI_Finalize();
}
}

int main(int argc, char** argv) {
  using namespace laconic::test;
  const Arguments arguments(argc, argv);
  const std::string mode = arguments.text("mode");
  if (mode == "foreign") return foreign(arguments);
  if (!arguments.text("plugin").empty()) {
    laconic::engines::PluginOptions options;
    options.world = static_cast<uint32_t>(arguments.number("world", 0));
    const auto engine = laconic::engines::open_plugin(arguments.text("plugin"), options);
    if (!engine) {
      write(arguments, {{"opened", error_json(engine.error())}});
      return 7;
    }
    return mode == "table" ? table(**engine, arguments) : struck(**engine, arguments);
  }
  laconic::MpiOptions options;
  options.environment = std::getenv;
  options.timeout = std::chrono::milliseconds(arguments.number("timeout", 60'000));
  options.largest_call = arguments.number("largest_call", uint64_t{1} << 30);
  options.large_share = arguments.number("large_share", options.large_share);
  options.far_call = arguments.number("far_call", options.far_call);
  const char* launched = std::getenv("OMPI_COMM_WORLD_RANK");
  if (launched == nullptr) launched = std::getenv("PMI_RANK");
  const uint64_t rank = launched == nullptr ? 0 : std::stoull(launched);
  if (const uint64_t hosts = arguments.number("hosts", 0); hosts != 0)
    options.host = "host" + std::to_string(rank % hosts);
  if (rank == 1) calls().stops_at = arguments.text("stops_at");
  options.background = arguments.number("background", 1) != 0;
  if (mode == "kept" || mode == "kept_terms" || mode == "end") {
    auto engine = std::make_unique<laconic::MpiEngine>(&argc, &argv, options);
    if (mode == "kept_terms") return kept_terms(std::move(engine), arguments);
    return mode == "kept" ? kept(std::move(engine), arguments) : end(std::move(engine), arguments);
  }
  if (mode == "nodes") {
    laconic::MpiNodes all(&argc, &argv, options);
    return nodes(all, rank, arguments);
  }
  laconic::MpiEngine engine(&argc, &argv, options);
  if (mode == "table") return table(engine, arguments);
  if (mode == "struck") return struck(engine, arguments);
  if (mode == "create") return create(engine, arguments);
  if (mode == "one_tag") return one_tag(engine, arguments);
  if (mode == "sizes") return sizes(engine, arguments);
  if (mode == "pace") return pace(engine, arguments);
  if (mode == "places") return places(engine, arguments);
  if (mode == "other_tag") return other_tag(engine, arguments);
  if (mode == "between") return between(engine, arguments);
  if (mode == "mismatch") return mismatch(engine, arguments);
  if (mode == "mismatched_sums") return mismatched_sums(engine, arguments);
  if (mode == "branch") return branch(engine, arguments);
  return 2;
}
