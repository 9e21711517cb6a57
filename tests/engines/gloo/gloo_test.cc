// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks are processes here, forked before there is a thread, so that they can be killed and
// stopped.
#include "laconic/engine/gloo.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "engines/engine_table.h"
#include "laconic/random.h"
#include "laconic/session.h"
#include "support/subset.h"
#include "transport/plugin/plugin.h"

namespace laconic {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kLong = seconds(100);  // nothing takes as long unless something is wrong

/// What a rank's process has to talk to the test with.
class Stage {
 public:
  Stage(int to_test, int from_test) : to_test_(to_test), from_test_(from_test) {}
  void say(std::string line) const {
    line += '\n';
    if (::write(to_test_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
  }
  /// Until the test says go().
  void await_go() const {
    char byte = 0;
    if (::read(from_test_, &byte, 1) != 1) _exit(3);
  }

 private:
  int to_test_, from_test_;
};

/// Processes, one per rank. All are gone with it.
class Processes {
 public:
  using Body = std::function<void(uint32_t rank, const Stage& stage)>;
  explicit Processes(uint32_t count, const Body& body) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      int up[2], down[2];
      if (::pipe(up) != 0 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, down) != 0)
        throw std::runtime_error("no pipe");
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(120);
        body(rank, Stage(up[1], down[0]));
        _exit(0);
      }
      ::close(up[1]);
      ::close(down[0]);
      ranks_.push_back({child, rendezvous::detail::Fd(up[0]), rendezvous::detail::Fd(down[1]), {}});
    }
  }
  ~Processes() {
    for (const Rank& rank : ranks_) {
      if (rank.process < 0) continue;
      ::kill(rank.process, SIGKILL);
      ::waitpid(rank.process, nullptr, 0);
    }
  }
  /// The next line; what comes instead if none does.
  std::string heard(uint32_t rank) {
    Rank& from = ranks_[rank];
    const auto deadline = Clock::now() + kLong;
    for (;;) {
      if (const size_t end = from.said.find('\n'); end != std::string::npos) {
        std::string line = from.said.substr(0, end);
        from.said.erase(0, end + 1);
        return line;
      }
      pollfd waiting{from.up.get(), POLLIN, 0};
      if (::poll(&waiting, 1, rendezvous::detail::milliseconds_to(deadline)) <= 0)
        return "(silence)";
      char bytes[4096];
      const ssize_t n = ::read(from.up.get(), bytes, sizeof bytes);
      if (n <= 0) return ended(from);
      from.said.append(bytes, static_cast<size_t>(n));
    }
  }
  /// A rank that has ended is a failure of the test, not a signal.
  void go(uint32_t rank) { EXPECT_EQ(::send(ranks_[rank].down.get(), "g", 1, MSG_NOSIGNAL), 1); }
  void send(uint32_t rank, int signal) {
    const pid_t process = ranks_[rank].process;
    if (process < 0 || ::kill(process, signal) != 0) return;
    if (signal == SIGSTOP) ::waitpid(process, nullptr, WUNTRACED);  // its threads stop one by one
  }

 private:
  struct Rank;
  static std::string ended(Rank& rank) {
    int status = 0;
    if (::waitpid(std::exchange(rank.process, -1), &status, 0) <= 0 || status == 0)
      return "(ended)";
    return WIFSIGNALED(status) ? "(signal " + std::to_string(WTERMSIG(status)) + ")" : "(failed)";
  }
  struct Rank {
    pid_t process;
    rendezvous::detail::Fd up, down;
    std::string said;
  };
  std::vector<Rank> ranks_;
};

/// A folder that goes with the test, and a free port.
class Place {
 public:
  Place() {
    char name[] = "/tmp/laconic-gloo-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~Place() { std::filesystem::remove_all(folder_); }
  /// Another one for every name.
  std::string folder(const std::string& name = "a") const {
    ::mkdir((folder_ + "/" + name).c_str(), 0755);
    return "file:" + folder_ + "/" + name;
  }
  static std::string port() {
    const rendezvous::detail::Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd.get(), at, size) != 0 || ::getsockname(fd.get(), at, &size) != 0)
      throw std::runtime_error("no port");
    return "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }

 private:
  std::string folder_;
};

GlooOptions options(uint32_t rank, uint32_t world, const std::string& rendezvous,
                    milliseconds timeout = seconds(30)) {
  return {.rank = rank,
          .world = world,
          .rendezvous = rendezvous,
          .interface_ = "lo",
          .timeout = timeout};
}

std::string text(const Error& error) {
  return std::string(errc_name(error.code)) + ": " + error.message;
}
template <class T>
std::string text(const Result<T>& result) {
  return result ? "ok" : text(result.error());
}

std::unique_ptr<GlooEngine> join(const Stage& stage, const GlooOptions& wanted) {
  auto engine = GlooEngine::create(wanted);
  if (!engine) {
    stage.say(text(engine));
    _exit(2);
  }
  return *std::move(engine);
}

/// One batch, with all memory that it needs.
class Batch {
 public:
  Batch(StepKind kind, uint32_t rank, uint32_t world, uint64_t bytes, uint32_t tag)
      : rank_(rank),
        counts_(world, bytes),
        zeros_(world),
        send_(world * bytes),
        recv_(world * bytes) {
    for (uint32_t r = 0; r < world; ++r) {
      offsets_.push_back(r * bytes);
      std::fill_n(send_.begin() + static_cast<ptrdiff_t>(r * bytes), bytes, mark(rank, r));
      if (r != rank)
        messages_.push_back({r, &send_[r * bytes], bytes, recv_.data() + r * bytes, bytes});
    }
    step_.kind = kind;
    step_.tag = tag;
    if (kind == StepKind::all_reduce) {
      sum_.assign(bytes / 4 + 1, static_cast<float>(rank + 1));
      step_.dtype = DType::f32;
      step_.count = sum_.size();
      step_.send = step_.recv = reinterpret_cast<uint8_t*>(sum_.data());
    } else if (kind == StepKind::messages) {
      step_.messages = messages_;
    } else {
      step_.send = send_.data();
      step_.recv = recv_.data();
      step_.send_counts = step_.recv_counts = counts_;
      step_.send_offsets = kind == StepKind::all_gather ? zeros_ : offsets_;
      step_.recv_offsets = offsets_;
    }
  }
  Batch(const Batch&) = delete;
  [[nodiscard]] std::span<const Step> steps() const { return {&step_, 1}; }
  Result<void> run(Engine& engine, milliseconds timeout = seconds(50)) const {
    auto ticket = engine.start(steps());
    return ticket ? engine.wait(*ticket, Clock::now() + timeout) : Result<void>(ticket.error());
  }
  /// What should have arrived has.
  [[nodiscard]] bool complete() const {
    const auto world = static_cast<uint32_t>(counts_.size());
    if (step_.kind == StepKind::all_reduce) {
      const auto total = static_cast<float>(world * (world + 1) / 2);
      return std::all_of(sum_.begin(), sum_.end(), [&](float x) { return x == total; });
    }
    for (uint32_t r = 0; r < world; ++r) {
      if (r == rank_ && step_.kind == StepKind::messages) continue;
      const uint32_t to = step_.kind == StepKind::all_gather ? 0 : rank_;
      for (uint64_t i = 0; i < counts_[r]; ++i) {
        if (recv_[offsets_[r] + i] != mark(r, to)) return false;
      }
    }
    return true;
  }
  void overwrite(uint8_t byte) {
    std::fill(recv_.begin(), recv_.end(), byte);
    if (!sum_.empty()) std::memset(sum_.data(), byte, sum_.size() * sizeof(float));
  }
  [[nodiscard]] bool is_all(uint8_t byte) const {
    const auto* at = reinterpret_cast<const uint8_t*>(sum_.data());
    const auto same = [&](uint8_t x) { return x == byte; };
    return std::all_of(recv_.begin(), recv_.end(), same) &&
           std::all_of(at, at + sum_.size() * sizeof(float), same);
  }

 private:
  static uint8_t mark(uint32_t from, uint32_t to) {
    return static_cast<uint8_t>(1 + from * 16 + to);
  }
  uint32_t rank_;
  std::vector<uint64_t> counts_, zeros_, offsets_;
  std::vector<uint8_t> send_, recv_;
  std::vector<float> sum_;
  std::vector<Message> messages_;
  Step step_;
};

// ---- the table ----

class GlooTable : public testing::TestWithParam<uint32_t> {};

TEST_P(GlooTable, IsPassed) {
  const uint32_t world = GetParam();
  const Place place;
  const std::string where = world == 4 ? Place::port() : place.folder();
  Processes ranks(world, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, world, where));
    test::TableOptions wanted{.rank_order_sums = false};
    wanted.stride = test::kOneWorld ? 9 : 1;
    const auto outcome = test::run_engine_table(*engine, wanted);
    stage.say(outcome.passed() ? "passed" : outcome.first_failure);
  });
  for (uint32_t r = 0; r < world; ++r) EXPECT_EQ(ranks.heard(r), "passed");
}
INSTANTIATE_TEST_SUITE_P(Ranks, GlooTable, testing::Values(3, 4),
                         testing::PrintToStringParamName());

// ---- the plug-in ----

transport::PluginOptions plugged(uint32_t rank, uint32_t world, const std::string& where) {
  transport::PluginOptions wanted;
  wanted.timeout = seconds(30);
  wanted.rank = rank;
  wanted.world = world;
  wanted.rendezvous = where;
  wanted.interface = "lo";
  return wanted;
}

std::string plugin_file() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib" /
         LACONIC_GLOO_PLUGIN;
}

TEST(GlooPlugin, PassesTheTable) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    auto engine = transport::open_plugin(plugin_file(), plugged(rank, 3, place.folder()));
    if (!engine) return stage.say(text(engine));
    test::TableOptions options{.rank_order_sums = false};
    options.stride = test::kOneWorld ? 15 : 5;
    const auto outcome = test::run_engine_table(**engine, options);
    stage.say(outcome.passed() ? "passed" : outcome.first_failure);
  });
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.heard(r), "passed");
}

TEST(GlooPlugin, SaysWhatItIsAndWhatIsWrong) {
  Processes ranks(1, [&](uint32_t, const Stage& stage) {
    const auto table = transport::load_plugin(plugin_file());
    stage.say(table ? std::string((*table)->engine) + ", " + (*table)->library : text(table));
    stage.say(text(transport::open_plugin(plugin_file(), plugged(3, 3, "file:x"))));
    stage.say(text(transport::open_plugin(plugin_file(), plugged(0, 3, "x"))));
    stage.say(text(transport::open_plugin(plugin_file(), plugged(0, 0, "file:x"))));
  });
  EXPECT_EQ(ranks.heard(0), "gloo, " + GlooEngine::library());
  EXPECT_TRUE(ranks.heard(0).ends_with("there is no rank 3 in a world of 3"));
  EXPECT_TRUE(ranks.heard(0).ends_with("a rendezvous cannot be 'x'"));
  EXPECT_TRUE(ranks.heard(0).ends_with("there is no rank 0 in a world of 0"));
}

/// An exception of Gloo's is caught in the plug-in, and its fault is told through it.
TEST(GlooPlugin, TellsWhoIsGone) {
  constexpr uint32_t kWorld = 3;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    auto engine = transport::open_plugin(plugin_file(), plugged(rank, kWorld, place.folder()));
    if (!engine) return stage.say(text(engine));
    const Batch batch(StepKind::all_gather, rank, kWorld, 3 << 20, 2);
    stage.say("ready");
    if (rank == 2) stage.await_go();
    stage.say(text(batch.run(**engine)));
    stage.say(text(batch.run(**engine)));
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 0U, 1U}) {
    const std::string said = ranks.heard(r);
    EXPECT_TRUE(said.ends_with("rank 2 is gone")) << said;
  }
}

// ---- sums ----

float noise(uint32_t rank, uint64_t i) {
  return static_cast<float>(philox({1, rank}, i / 4, 3)[i % 4] >> 8) / 65536.0F - 100.0F;
}

/// Two ranks have one order of summing: 16-bit lanes are those of one rounded addition.
TEST(GlooSums, RoundAsLanesDo) {
  constexpr uint64_t kCount = 5001;
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 2, place.folder()));
    for (const DType type : {DType::f16, DType::bf16}) {
      const auto narrow = [&](float x) {
        return type == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
      };
      const auto wide = [&](uint16_t x) {
        return type == DType::f16 ? f16_to_float(x) : bf16_to_float(x);
      };
      std::vector<uint16_t> lanes, expected;
      for (uint64_t i = 0; i < kCount; ++i) {
        lanes.push_back(narrow(noise(rank, i)));
        expected.push_back(narrow(wide(narrow(noise(0, i))) + wide(narrow(noise(1, i)))));
      }
      auto* at = reinterpret_cast<uint8_t*>(lanes.data());
      const Step step{.dtype = type, .tag = 1, .count = kCount, .send = at, .recv = at};
      if (auto done = engine->run({&step, 1}); !done) stage.say(text(done));
      stage.say(lanes == expected ? "equal" : "different");
    }
  });
  for (const uint32_t r : {0U, 1U, 0U, 1U}) EXPECT_EQ(ranks.heard(r), "equal");
}

TEST(GlooSums, AreTheSameBitsOnAllRanks) {
  constexpr uint32_t kWorld = 4;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    std::vector<float> lanes;
    for (uint64_t i = 0; i < 100'003; ++i) lanes.push_back(noise(rank, i));
    auto* at = reinterpret_cast<uint8_t*>(lanes.data());
    const Step step{.dtype = DType::f32, .tag = 1, .count = lanes.size(), .send = at, .recv = at};
    if (auto done = engine->run({&step, 1}); !done) stage.say(text(done));
    uint64_t hash = 0;
    for (size_t i = 0; i < lanes.size() * 4; ++i) hash = hash * 1099511628211U + at[i];
    stage.say(std::to_string(hash));
  });
  const std::string first = ranks.heard(0);
  for (uint32_t r = 1; r < kWorld; ++r) EXPECT_EQ(ranks.heard(r), first);
}

// ---- one rank ----

TEST(GlooEngineAlone, NeedsNobody) {
  auto engine = GlooEngine::create({});
  ASSERT_TRUE(engine) << text(engine);
  for (const StepKind kind :
       {StepKind::all_reduce, StepKind::all_gather, StepKind::all_to_all, StepKind::messages}) {
    const Batch batch(kind, 0, 1, 100, 1);
    EXPECT_EQ(text(batch.run(**engine)), "ok");
    EXPECT_TRUE(batch.complete());
    EXPECT_EQ(text((*engine)->run(batch.steps())), "ok");
  }
}

// ---- a rank dies, a rank stops ----

/// When it happens: no batch yet, between two, or in the middle of one.
struct Phase {
  const char* name;
  bool in_batch;
  bool first;
  StepKind kind;
};
const Phase kPhases[] = {{"before_the_first", false, true, StepKind::all_reduce},
                         {"between_batches", false, false, StepKind::all_gather},
                         {"in_all_reduce", true, false, StepKind::all_reduce},
                         {"in_all_gather", true, false, StepKind::all_gather},
                         {"in_all_to_all", true, false, StepKind::all_to_all},
                         {"in_messages", true, false, StepKind::messages}};
constexpr uint64_t kBytes = 3 << 20;  // more than sockets hold

struct Fall {
  Phase phase;
  bool tcp;
  uint32_t victim;
};
std::string name_of(const testing::TestParamInfo<Fall>& info) {
  return std::string(info.param.phase.name) + (info.param.tcp ? "_tcp" : "_file") + "_rank" +
         std::to_string(info.param.victim);
}
std::vector<Fall> falls(const std::vector<std::pair<bool, uint32_t>>& kinds) {
  std::vector<Fall> all;
  for (const Phase& phase : kPhases) {
    for (const auto& [tcp, victim] : kinds) all.push_back({phase, tcp, victim});
  }
  return all;
}

class GlooFall : public testing::TestWithParam<Fall> {
 protected:
  static constexpr uint32_t kWorld = 4;
  /// Ranks run until `victim` has got `signal` in its phase; survivors say how their batch ended,
  /// then do what `after` wants. In the middle of a batch `held` begin it later, so that nobody can
  /// have completed it before.
  void fall(int signal, milliseconds timeout, const std::vector<uint32_t>& held,
            const std::function<void(uint32_t, const Stage&, std::unique_ptr<GlooEngine>, Batch&)>&
                after) {
    const auto [phase, tcp, victim] = GetParam();
    const std::string where = tcp ? Place::port() : place_.folder();
    ranks_ = std::make_unique<Processes>(kWorld, [&](uint32_t rank, const Stage& stage) {
      auto engine = join(stage, options(rank, kWorld, where));
      if (!phase.first) {
        const Batch batch(StepKind::all_reduce, rank, kWorld, 1000, 1);
        if (const auto done = batch.run(*engine); !done || !batch.complete()) stage.say(text(done));
      }
      Batch batch(phase.kind, rank, kWorld, kBytes, 2);
      Result<Ticket> ticket = Errc::internal;
      const bool later = !phase.in_batch || std::count(held.begin(), held.end(), rank) != 0;
      if (!later) ticket = engine->start(batch.steps());
      stage.say("ready");
      if (later) stage.await_go();
      if (later) ticket = engine->start(batch.steps());
      // One after the other, so that the first has to tell the rest why it leaves.
      const auto patience = rank == victim ? seconds(50) : timeout + rank * milliseconds(40);
      stage.say(text(engine->wait(*ticket, Clock::now() + patience)));
      after(rank, stage, std::move(engine), batch);
    });
    for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks_->heard(r), "ready");
    ranks_->send(victim, signal);
    if (!phase.in_batch) survivors([&](uint32_t r) { ranks_->go(r); });
  }
  void survivors(const std::function<void(uint32_t)>& act) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      if (r != GetParam().victim) act(r);
    }
  }
  Place place_;
  std::unique_ptr<Processes> ranks_;
};

class GlooKill : public GlooFall {};

TEST_P(GlooKill, IsHeardByAllWithTheRankAndANewGroupGoesOn) {
  const uint32_t victim = GetParam().victim;
  const std::string next = GetParam().tcp ? Place::port() : place_.folder("b");
  fall(SIGKILL, seconds(50), {1},
       [&](uint32_t rank, const Stage& stage, std::unique_ptr<GlooEngine> engine, Batch& batch) {
         stage.say(text(batch.run(*engine)));  // and ever after
         engine.reset();
         const uint32_t fewer = rank - (rank > victim ? 1 : 0);
         engine = join(stage, options(fewer, kWorld - 1, next));
         const Batch again(StepKind::all_reduce, fewer, kWorld - 1, 1000, 1);
         const auto done = again.run(*engine);
         stage.say(text(done) + (again.complete() ? "" : ", but wrong"));
       });
  const std::string gone = "peer_failed: rank " + std::to_string(victim) + " is gone";
  for (const uint32_t r : {0U, 2U, 3U, 1U}) {
    if (r == victim) continue;
    if (r == 1 && GetParam().phase.in_batch) ranks_->go(1);
    EXPECT_EQ(ranks_->heard(r), gone);
    EXPECT_EQ(ranks_->heard(r), gone);
  }
  survivors([&](uint32_t r) { EXPECT_EQ(ranks_->heard(r), "ok"); });
}
INSTANTIATE_TEST_SUITE_P(Phases, GlooKill,
                         testing::ValuesIn(falls({{false, 2}, {true, 2}, {true, 0}})), name_of);

class GlooStall : public GlooFall {};

TEST_P(GlooStall, IsATimeOutThatNamesTheRankAndLeavesTheMemoryAlone) {
  const uint32_t victim = GetParam().victim;
  std::vector<uint32_t> others;
  survivors([&](uint32_t r) { others.push_back(r); });
  fall(SIGSTOP, milliseconds(600), others,
       [&](uint32_t rank, const Stage& stage, std::unique_ptr<GlooEngine>, Batch& batch) {
         if (rank == victim) return;
         batch.overwrite(0x5A);
         stage.await_go();
         stage.say(batch.is_all(0x5A) ? "untouched" : "written to");
       });
  if (GetParam().phase.in_batch) survivors([&](uint32_t r) { ranks_->go(r); });
  survivors([&](uint32_t r) {
    const std::string said = ranks_->heard(r);
    const std::string rank = "timed_out: rank " + std::to_string(victim) + " did not answer";
    EXPECT_TRUE(said.starts_with(rank)) << "rank " << r << ": " << said;
  });
  ranks_->send(victim, SIGCONT);
  if (!GetParam().phase.in_batch) ranks_->go(victim);
  const std::string said = ranks_->heard(victim);  // all have left it
  EXPECT_TRUE(said.find(": rank") != std::string::npos) << said;
  survivors([&](uint32_t r) {
    ranks_->go(r);
    EXPECT_EQ(ranks_->heard(r), "untouched");
  });
}
INSTANTIATE_TEST_SUITE_P(Phases, GlooStall, testing::ValuesIn(falls({{false, 2}, {true, 0}})),
                         name_of);

/// run() itself, without start and wait.
TEST(GlooRun, HearsOfADeathToo) {
  constexpr uint32_t kWorld = 4;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    const Batch batch(StepKind::all_reduce, rank, kWorld, kBytes, 2);
    stage.say("ready");
    if (rank == 2) stage.await_go();
    stage.say(text(engine->run(batch.steps())));
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 3U}) EXPECT_EQ(ranks.heard(r), "peer_failed: rank 2 is gone");
}

/// Gloo itself ends no wait for a message of which a part has arrived.
TEST(GlooRun, HearsOfADeathInTheMiddleOfAMessage) {
  constexpr uint32_t kWorld = 2;
  constexpr uint64_t kBig = uint64_t{256} << 20;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    auto engine = join(stage, options(rank, kWorld, place.folder()));
    auto sender = static_cast<float>(rank == 1 ? ::getpid() : 0);  // exact below 2^24
    auto* at = reinterpret_cast<uint8_t*>(&sender);
    const Step tell{.dtype = DType::f32, .tag = 1, .count = 1, .send = at, .recv = at};
    if (auto done = engine->run({&tell, 1}); !done) stage.say(text(done));
    std::vector<uint8_t> data(kBig, static_cast<uint8_t>(rank));
    Message message{1 - rank, nullptr, 0, data.data(), kBig};
    if (rank == 1) message = {0, data.data(), kBig, nullptr, 0};
    const Step step{.kind = StepKind::messages, .tag = 2, .messages = {&message, 1}};
    auto ticket = engine->start({&step, 1});
    if (rank == 0) {
      const volatile uint8_t* part = data.data() + 1'000'000;
      while (*part == 0) std::this_thread::yield();
      ::kill(static_cast<pid_t>(sender), SIGKILL);
    }
    stage.say(text(engine->wait(*ticket, Clock::now() + seconds(50))));
    engine.reset();
    stage.say("ended");
  });
  EXPECT_EQ(ranks.heard(0), "peer_failed: rank 1 is gone");
  EXPECT_EQ(ranks.heard(0), "ended");
}

// ---- the end ----

/// Rank 0 ends its engine while others still need each other, but not rank 0.
TEST(GlooEnd, InPeaceDisturbsNobody) {
  constexpr uint32_t kWorld = 3;
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
      auto engine = join(stage, options(rank, kWorld, where));
      std::vector<uint8_t> out(1000, static_cast<uint8_t>(rank)), in(1000);
      std::vector<Message> messages;
      if (rank != 0) messages = {{3 - rank, out.data(), 1000, in.data(), 1000}};
      const Step step{.kind = StepKind::messages, .tag = 1, .messages = messages};
      stage.say("ready");
      if (rank == 2) stage.await_go();
      auto ticket = engine->start({&step, 1});
      // Long enough that a wrong alarm is heard.
      const auto done = engine->wait(*ticket, Clock::now() + seconds(50));
      stage.say(text(done) + (rank == 0 || in[999] == 3 - rank ? "" : ", but wrong"));
      if (rank == 0) {
        engine.reset();
        stage.say("ended");
      }
      if (rank != 0) {
        engine->run({&step, 1}) ? stage.say("ok") : stage.say("not again");
        const Batch all(StepKind::all_gather, rank, kWorld, 10, 2);
        stage.say(text(all.run(*engine)));
      }
    });
    for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
    EXPECT_EQ(ranks.heard(0), "ok");
    EXPECT_EQ(ranks.heard(0), "ended");
    EXPECT_EQ(ranks.heard(0), "(ended)");
    ranks.go(2);
    for (const uint32_t r : {1U, 2U}) {
      EXPECT_EQ(ranks.heard(r), "ok");
      EXPECT_EQ(ranks.heard(r), "ok");
      EXPECT_EQ(ranks.heard(r), "peer_failed: rank 0 has ended before the others");
    }
  }
}

TEST(GlooEnd, InTheMiddleOfABatchMakesItReturn) {
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    auto engine = join(stage, options(rank, 2, place.folder()));
    const Batch batch(StepKind::all_reduce, rank, 2, kBytes, 1);
    if (rank == 0) {
      EXPECT_TRUE(engine->start(batch.steps()));
      engine.reset();
      stage.say("ended");
    } else {
      stage.await_go();
      stage.say(text(batch.run(*engine)));
    }
  });
  EXPECT_EQ(ranks.heard(0), "ended");
  ranks.go(1);
  const std::string said = ranks.heard(1);
  EXPECT_TRUE(said.starts_with("peer_failed: rank 0 ")) << said;
}

/// The last batch of a group that ends at once, many times.
TEST(GlooEnd, LosesNothingOfTheLastBatch) {
  constexpr uint32_t kWorld = 4, kTimes = 8;
  const Place place;
  for (uint32_t turn = 0; turn < kTimes; ++turn) place.folder(std::to_string(turn));
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    for (uint32_t turn = 0; turn < kTimes; ++turn) {
      const auto engine = join(stage, options(rank, kWorld, place.folder(std::to_string(turn))));
      const Batch batch(turn % 2 == 0 ? StepKind::all_reduce : StepKind::all_to_all, rank, kWorld,
                        300'000, 1);
      const auto done = batch.run(*engine);
      if (!done || !batch.complete()) stage.say(text(done));
    }
    stage.say("ended");
  });
  for (uint32_t r = 0; r < kWorld; ++r) EXPECT_EQ(ranks.heard(r), "ended");
}

// ---- meeting ----

std::vector<std::string> meet(uint32_t count, const std::function<GlooOptions(uint32_t)>& wanted) {
  Processes ranks(count, [&](uint32_t rank, const Stage& stage) {
    auto engine = GlooEngine::create(wanted(rank));
    stage.say(text(engine));
    if (engine) stage.await_go();  // nobody leaves while others still come
  });
  std::vector<std::string> said;
  for (uint32_t r = 0; r < count; ++r) said.push_back(ranks.heard(r));
  return said;
}

TEST(GlooMeeting, NamesTheRanksThatDoNotCome) {
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    const auto said = meet(2, [&](uint32_t r) { return options(r, 4, where, milliseconds(300)); });
    for (const auto& line : said)
      EXPECT_EQ(line, "timed_out: ranks 2 and 3 did not come within 300 ms");
  }
  const auto alone =
      meet(1, [](uint32_t) { return options(1, 2, Place::port(), milliseconds(100)); });
  EXPECT_TRUE(alone[0].starts_with("timed_out: rank 0 does not listen at 127.0.0.1:")) << alone[0];
}

TEST(GlooMeeting, AnotherWorldOnOneRankIsEveryRanksError) {
  for (const uint32_t wrong : {3U, 5U}) {
    const Place place;
    const std::string where = wrong == 3 ? Place::port() : place.folder();
    const auto said = meet(4, [&](uint32_t r) { return options(r, r == 2 ? wrong : 4, where); });
    for (const auto& line : said) {
      EXPECT_EQ(line, said[0]);
      EXPECT_TRUE(line.starts_with("ranks_disagree: rank ")) << line;
      EXPECT_TRUE(line.find("a world of ") != std::string::npos) << line;
      EXPECT_TRUE(line.find("rank 2") != std::string::npos) << line;
    }
  }
}

TEST(GlooMeeting, AFolderServesOneJob) {
  const Place place;
  const auto first = meet(2, [&](uint32_t r) { return options(r, 2, place.folder()); });
  EXPECT_EQ(first, (std::vector<std::string>{"ok", "ok"}));
  const auto second = meet(2, [&](uint32_t r) { return options(r, 2, place.folder()); });
  for (const auto& line : second) {
    EXPECT_TRUE(line.starts_with("invalid_argument: rank ")) << line;
    EXPECT_TRUE(line.find(" has come twice") != std::string::npos) << line;
  }
}

/// Ranks 0 and 1 of one job, and rank 1 of another: the second of a rank is refused, and those who
/// wait hear of it.
TEST(GlooMeeting, TwoJobsAtOnePlaceAreRefused) {
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    const auto said = meet(3, [&](uint32_t i) { return options(i == 2 ? 1 : i, 3, where); });
    EXPECT_EQ(said[0],
              "invalid_argument: rank 1 has come twice: by mistake, in another job, or in an "
              "earlier one");
    EXPECT_EQ(said[1], said[0]);
    EXPECT_EQ(said[2], said[0]);
  }
  const std::string where = Place::port();
  Processes ranks(2, [&](uint32_t, const Stage& stage) {
    auto engine = GlooEngine::create(options(0, 2, where, milliseconds(500)));
    stage.say(text(engine));
  });
  const std::string a = ranks.heard(0), b = ranks.heard(1);
  EXPECT_NE(a.find("rank 0 cannot listen at") != std::string::npos,
            b.find("rank 0 cannot listen at") != std::string::npos)
      << a << "; " << b;
}

TEST(GlooMeeting, SaysWhatIsWrongWithTheOptions) {
  const auto said = [](const GlooOptions& wanted) { return text(GlooEngine::create(wanted)); };
  EXPECT_EQ(said({.rank = 2, .world = 2}), "invalid_argument: there is no rank 2 in a world of 2");
  EXPECT_EQ(said({.rank = 0, .world = 0}), "invalid_argument: there is no rank 0 in a world of 0");
  for (const char* where : {"", "file:", "tcp:", "tcp:host", "tcp:host:", "tcp::5", "tcp:host:0",
                            "tcp:host:65536", "tcp:host:1x", "folder"}) {
    EXPECT_EQ(said({.rank = 0, .world = 2, .rendezvous = where}),
              "invalid_argument: a rendezvous cannot be '" + std::string(where) + "'");
  }
  EXPECT_EQ(said({.rank = 0, .world = 2, .rendezvous = "file:/nowhere/at/all"}),
            "engine_failed: the rendezvous folder /nowhere/at/all cannot be used: No such file or "
            "directory");
}

TEST(GlooMeeting, AnUnknownInterfaceIsEveryRanksError) {
  const Place place;
  const auto said = meet(2, [&](uint32_t r) {
    auto wanted = options(r, 2, place.folder());
    if (r == 1) wanted.interface_ = "nonesuch0";
    return wanted;
  });
  for (const auto& line : said)
    EXPECT_TRUE(line.find("Gloo cannot connect rank 1: ") != std::string::npos) << line;
}

// ---- sessions ----

struct Training {
  const char* spec;
  const char* plan;
};
class GlooSession : public testing::TestWithParam<Training> {};

/// Rank 2 dies in the first exchange: all that the others were to send stays in their residuals.
TEST_P(GlooSession, LosesNothingOfTheLivingWhenARankDies) {
  constexpr uint32_t kWorld = 4;
  constexpr uint64_t kRows = 300, kCols = 700;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    auto session =
        Session::create(GetParam().spec, {{"w", kRows, kCols}}, *engine, {.plan = GetParam().plan});
    std::vector<float> gradient;
    double squares = 0;
    for (uint64_t i = 0; i < kRows * kCols; ++i) {
      gradient.push_back(noise(rank, i));
      squares += std::pow(static_cast<double>(gradient.back()), 2);
    }
    stage.say(text(session));
    if (!session) return;
    if (rank == 2) stage.await_go();
    const auto done = (*session)->average(0, gradient);
    const std::string stats = (*session)->stats(), key = "\"residual_norm\":";
    const double norm = std::strtod(stats.c_str() + stats.find(key) + key.size(), nullptr);
    stage.say(text(done));
    stage.say(std::fabs(norm / std::sqrt(squares) - 1) < 1e-6 ? "kept" : stats);
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ok");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 3U}) {
    EXPECT_EQ(ranks.heard(r), "peer_failed: rank 2 is gone");
    EXPECT_EQ(ranks.heard(r), "kept");
  }
}
INSTANTIATE_TEST_SUITE_P(Strategies, GlooSession,
                         testing::Values(Training{"fp16+ef", "native_sum"},
                                         Training{"topk:ratio=0.05", "gather_all"},
                                         Training{"3lc", "two_shot"}),
                         [](const auto& training) { return std::string(training.param.plan); });

}  // namespace
}  // namespace laconic
