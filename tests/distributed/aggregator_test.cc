// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sessions whose codes real servers add, over UDP on the loopback interface.
#include "laconic/engine/aggregator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "laconic/loopback.h"
#include "laconic/session.h"
#include "support/ranks.h"
#include "support/serving.h"

namespace laconic::test {
namespace {

using Floats = std::vector<float>;
constexpr uint32_t kMostRanks = 5;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{
      {"a.weight", 150, 200}, {"a.bias", 150, 1}, {"b.weight", 133, 171}, {"b.bias", 133, 1}};
  return list;
}
constexpr uint64_t kElements = 150 * 200 + 150 + 133 * 171 + 133;

/// The same whatever the world is.
Floats gradient(uint32_t rank, uint64_t step) {
  return gradients(kMostRanks, kElements, step + 1)[rank];
}

/// body(rank, engine of that rank) on a thread each.
template <class Body>
void on_ranks(uint32_t world, Body body) {
  LoopbackHub hub(world, seconds(100));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] { body(rank, hub.engine(rank)); });
  for (std::thread& thread : threads) thread.join();
}

SessionOptions options_for(const std::string& plan) {
  SessionOptions options;
  options.plan = plan;
  options.small_elements = 256;
  options.part = 0;
  return options;
}

std::vector<std::vector<Floats>> by_engine(const std::string& spec, uint32_t world,
                                           uint64_t steps) {
  std::vector<std::vector<Floats>> means(world);
  on_ranks(world, [&](uint32_t rank, Engine& engine) {
    auto session = laconic::Session::create(spec, model(), engine, options_for("native_sum"));
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t step = 0; step < steps; ++step) {
      means[rank].push_back(gradient(rank, step));
      ASSERT_TRUE((*session)->average(step, means[rank].back()));
    }
  });
  return means;
}

/// `between(rank, step)` before each step.
template <class Between>
std::vector<std::vector<Floats>> by_server(const std::string& spec, uint32_t world, uint64_t steps,
                                           const AggregatorOptions& aggregator, Between between) {
  std::vector<std::vector<Floats>> means(world);
  on_ranks(world, [&](uint32_t rank, Engine& inner) {
    auto engine = AggregatorEngine::create(inner, aggregator);
    ASSERT_TRUE(engine) << engine.error().message;
    auto session = laconic::Session::create(spec, model(), **engine, options_for("auto"));
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t step = 0; step < steps; ++step) {
      between(rank, step);
      means[rank].push_back(gradient(rank, step));
      const auto done = (*session)->average(step, means[rank].back());
      ASSERT_TRUE(done) << done.error().message;
    }
    EXPECT_NE((*session)->explain().find("server_sum"), std::string::npos);
  });
  return means;
}

/// Values that the codec transmits exactly; small parameters to the accuracy of fixed point.
void expect_equal_means(const Floats& a, const Floats& b) {
  uint64_t at = 0;
  for (const Parameter& p : model()) {
    for (uint64_t i = at; i < at + p.count(); ++i) {
      if (p.count() > 256) {
        ASSERT_EQ(float_bits(a[i]), float_bits(b[i])) << p.name << i - at;
      } else {
        ASSERT_NEAR(a[i], b[i], 0.1 * 0x1p-18) << p.name << i - at;
      }
    }
    at += p.count();
  }
}

void expect_same(const std::vector<std::vector<Floats>>& a,
                 const std::vector<std::vector<Floats>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    ASSERT_EQ(a[r].size(), b[r].size());
    for (size_t step = 0; step < a[r].size(); ++step) {
      ASSERT_TRUE(same_bits(a[r][step], a[0][step])) << "rank " << r << ", step " << step;
      expect_equal_means(a[r][step], b[r][step]);
    }
  }
}

constexpr auto kNothing = [](uint32_t, uint64_t) {};

TEST(Aggregator, SumsHaveBitsOfEngineSums) {
  for (const char* spec : {"thc", "thc:block=512,scale=exact", "thc:bits=2,lane=16+noef"}) {
    SCOPED_TRACE(spec);
    Serving server;
    AggregatorOptions options;
    options.servers = {server.address()};
    expect_same(by_server(spec, 3, 5, options, kNothing), by_engine(spec, 3, 5));
  }
}

TEST(Aggregator, TwoServersShareWork) {
  Serving a, b("127.0.0.1:0", 2);
  AggregatorOptions options;
  options.servers = {a.address(), b.address()};
  expect_same(by_server("thc", 4, 4, options, kNothing), by_engine("thc", 4, 4));
}

TEST(Aggregator, RestartedServerIsUsedAgain) {
  auto server = std::make_unique<Serving>();
  const std::string address = server->address();
  AggregatorOptions options;
  options.servers = {address};
  const auto restarted = [&](uint32_t rank, uint64_t step) {
    if (rank != 0 || step != 2) return;
    server.reset();
    server = std::make_unique<Serving>(address, 77);
  };
  expect_same(by_server("thc", 3, 5, options, restarted), by_engine("thc", 3, 5));
}

/// Around the engine of the group.
class Counting final : public Engine {
 public:
  explicit Counting(Engine& inner) : inner_(inner) {}
  ~Counting() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return inner_.caps(); }
  Result<void> run(std::span<const Step> batch) override {
    ++calls_;
    return inner_.run(batch);
  }
  [[nodiscard]] uint64_t calls() const noexcept { return calls_; }

 private:
  Engine& inner_;
  uint64_t calls_ = 0;
};

TEST(Aggregator, SteadyStateSendsNothingThroughGroup) {
  Serving server;
  AggregatorOptions options;
  options.servers = {server.address()};
  on_ranks(3, [&](uint32_t rank, Engine& group) {
    Counting inner(group);
    auto engine = AggregatorEngine::create(inner, options);
    ASSERT_TRUE(engine) << engine.error().message;
    auto session = laconic::Session::create("thc", model(), **engine, options_for("auto"));
    ASSERT_TRUE(session) << session.error().message;
    std::vector<uint64_t> calls;
    for (uint64_t step = 0; step < 9; ++step) {
      Floats g = gradient(rank, step);
      if (step == 5 && rank == 1) g[30000 + 7] = 1e6F;  // of a small parameter
      ASSERT_TRUE((*session)->average(step, g));
      calls.push_back(inner.calls());
      if (step == 5) {
        EXPECT_NEAR(g[30000 + 7], 1e6 / 3, 1);
      }
    }
    EXPECT_GT(calls[0], 0U);
    for (const uint64_t step : {1U, 2U, 3U, 4U}) EXPECT_EQ(calls[step], calls[0]) << step;
    EXPECT_EQ(calls[5], calls[0] + 2) << "a value out of range: who has failed; uncompressed";
    for (const uint64_t step : {6U, 7U, 8U}) EXPECT_EQ(calls[step], calls[5]) << step;
    EXPECT_NE((*session)->stats().find(rank == 1 ? "\"out_of_range\": 1" : "\"out_of_range\": 0"),
              std::string::npos);
    EXPECT_NE((*session)->explain().find("\"codec\": \"none\", \"lane\": \"i32\""),
              std::string::npos);
  });
}

TEST(Aggregator, LateRankIsNotAwaited) {
  Serving server;
  AggregatorOptions options;
  options.servers = {server.address()};
  options.quorum = 0.6;
  options.deadline = milliseconds(5);
  const auto late = [](uint32_t rank, uint64_t step) {
    if (rank == 2 && step == 2) std::this_thread::sleep_for(milliseconds(80));
  };
  const auto means = by_server("thc", 3, 6, options, late);
  for (uint64_t step = 0; step < 6; ++step) {
    ASSERT_TRUE(same_bits(means[0][step], means[1][step]));
    ASSERT_TRUE(same_bits(means[0][step], means[2][step]));
  }
}

aggregation::protocol::Token token_of(uint8_t seed) {
  aggregation::protocol::Token token;
  for (uint8_t i = 0; i < token.size(); ++i) token[i] = static_cast<uint8_t>(seed + 7 * i);
  return token;
}

std::string token_file(const char* name, const aggregation::protocol::Token& token) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            (std::string("laconic-") + name + std::to_string(::getpid())))
                               .string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(token.data()),
             static_cast<std::streamsize>(token.size()));
  return path;
}

/// One message on every rank, at create.
std::vector<Error> refusals(uint32_t world, const std::function<AggregatorOptions(uint32_t)>& of) {
  std::vector<Error> errors(world, Error{Errc::ok, {}, {}});
  on_ranks(world, [&](uint32_t rank, Engine& inner) {
    auto engine = AggregatorEngine::create(inner, of(rank));
    ASSERT_TRUE(engine) << engine.error().message;
    auto session = laconic::Session::create("thc", model(), **engine, options_for("auto"));
    ASSERT_FALSE(session);
    errors[rank] = session.error();
  });
  return errors;
}

TEST(Aggregator, WrongTokenGivesSameMessageOnEveryRank) {
  Serving server("127.0.0.1:0", 1, token_of(1));
  const std::string right = token_file("right", token_of(1)),
                    wrong = token_file("wrong", token_of(2));
  const auto errors = refusals(3, [&](uint32_t rank) {
    AggregatorOptions options;
    options.servers = {server.address()};
    options.token = rank == 1 ? wrong : right;
    options.timeout = seconds(2);
    return options;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.message, errors[0].message);
    EXPECT_NE(error.message.find("token"), std::string::npos) << error.message;
  }
  std::remove(right.c_str());
  std::remove(wrong.c_str());
}

TEST(Aggregator, PayloadsAreTaggedIfServerRequiresIt) {
  Serving server("127.0.0.1:0", 1, {}, true);
  AggregatorOptions options;
  options.servers = {server.address()};
  for (const Error& error : refusals(3, [&](uint32_t) { return options; })) {
    EXPECT_EQ(error.code, Errc::ranks_disagree);
    EXPECT_NE(error.message.find("the server requires tags over payloads"), std::string::npos)
        << error.message;
  }
  options.auth = AggregatorAuth::full;
  expect_same(by_server("thc", 3, 3, options, kNothing), by_engine("thc", 3, 3));
}

TEST(Aggregator, MulticastChangesNoBit) {
  Serving server(Serving::Io::gso, "127.0.0.1:0", 1, "239.7.4.2");
  AggregatorOptions options;
  options.servers = {server.address()};
  options.multicast = true;
  expect_same(by_server("thc", 3, 3, options, kNothing), by_engine("thc", 3, 3));
}

TEST(Aggregator, MissingServerIsReportedWithItsAddress) {
  const std::string address = "127.0.0.1:9";  // a port that no process uses
  const auto errors = refusals(2, [&](uint32_t) {
    AggregatorOptions options;
    options.servers = {address};
    options.timeout = seconds(2);
    return options;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.message, errors[0].message);
    EXPECT_NE(error.message.find(address), std::string::npos) << error.message;
  }
}

TEST(Aggregator, ImpossibleOptionsAreRefused) {
  LoopbackHub hub(1);
  const auto message = [&](const AggregatorOptions& options) {
    auto engine = AggregatorEngine::create(hub.engine(0), options);
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_EQ(message({}), "no aggregation server was given");
  AggregatorOptions options;
  options.servers = {"127.0.0.1:1"};
  options.quorum = 1.5;
  EXPECT_NE(message(options).find("quorum: expected 0 to 1"), std::string::npos);
  options.quorum = 1;
  options.token = "/nowhere/token";
  EXPECT_NE(message(options).find("token /nowhere/token: No such file"), std::string::npos);
  options.token = token_file("short", token_of(1));
  std::filesystem::resize_file(options.token, 31);
  EXPECT_NE(message(options).find(": not a file of 32 bytes"), std::string::npos);
  std::remove(options.token.c_str());
  options.token = token_file("zeros", {});
  EXPECT_NE(message(options).find("all its bytes are zero"), std::string::npos);
  std::remove(options.token.c_str());
  options.token.clear();
  options.deadline = std::chrono::hours(2);  // in microseconds, 32 bits would not hold it
  EXPECT_NE(message(options).find("at most one hour"), std::string::npos);
}

/// A quorum of 0.28 is 7 of 25 ranks: with 18 that never come sums would wait for one more.
TEST(Aggregator, QuorumCountsWholeRanks) {
  for (const auto& [quorum, world, needed] :
       {std::tuple(0.28, 25U, 7U), {0.75, 4U, 3U}, {0.76, 4U, 4U}, {0.0, 4U, 1U}, {1.0, 64U, 64U}})
    EXPECT_EQ(aggregator_quorum(quorum, world), needed) << quorum << " of " << world;
}

}  // namespace
}  // namespace laconic::test
