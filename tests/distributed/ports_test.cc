// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Several ranks behind one port: what leaves a host is what plan and counters say.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "laconic/loopback.h"
#include "laconic/session.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 6, kPerHost = 2;
const std::vector<laconic::Parameter> kModel{{"w", 640, 80}, {"b", 17, 1}, {"v", 40, 30}};
constexpr uint64_t kElements = 640 * 80 + 17 + 40 * 30;

using PublicSession = laconic::Session;

uint32_t host(uint32_t rank) { return rank / kPerHost; }

/// Counts the bytes that a rank sends to ranks of other hosts.
class Counting final : public Engine {
 public:
  explicit Counting(Engine& engine) : engine_(&engine) {}
  ~Counting() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_->caps(); }
  Result<void> run(std::span<const Step> batch) override {
    for (const Step& step : batch) {
      for (uint32_t r = 0; r < world(); ++r) {
        if (host(r) == host(rank())) continue;
        if (step.kind == StepKind::all_gather) left += step.send_counts[0];
        if (step.kind == StepKind::all_to_all) left += step.send_counts[r];
      }
      for (const Message& m : step.messages)
        left += host(m.peer) == host(rank()) ? 0 : m.send_bytes;
    }
    return engine_->run(batch);
  }
  std::atomic<uint64_t> left = 0;

 private:
  Engine* engine_;
};

uint64_t number(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\": ");
  EXPECT_NE(at, std::string::npos) << key << " in " << json;
  return at == std::string::npos ? 0 : std::stoull(json.substr(at + key.size() + 4));
}

struct Counted {
  uint64_t left[kWorld / kPerHost] = {};  // by host, in a step
  std::string explained, stats;           // rank 0's
};

Counted counted(const std::string& spec, const std::string& plan, uint32_t per_host = kPerHost) {
  constexpr uint64_t kSteps = 4;
  LoopbackHub hub(kWorld, std::chrono::seconds(100), {kAllSums, true});
  std::atomic<uint64_t> left[kWorld / kPerHost] = {};
  Counted found;
  on_all(kWorld, [&](uint32_t r) {
    Counting engine(hub.engine(r));
    SessionOptions options;
    options.plan = plan;
    options.small_elements = 16;
    options.ranks_per_host = per_host;
    const auto session = PublicSession::create(spec, kModel, engine, options);
    ASSERT_TRUE(session) << session.error().message;
    engine.left = 0;  // the agreement
    for (uint64_t step = 0; step < kSteps; ++step) {
      auto mine = gradients(kWorld, kElements, step)[r];
      const auto done = (*session)->average(step, mine);
      ASSERT_TRUE(done) << done.error().message;
    }
    left[host(r)] += engine.left / kSteps;
    if (r == 0) found.explained = (*session)->explain(), found.stats = (*session)->stats();
  });
  std::copy(std::begin(left), std::end(left), found.left);
  return found;
}

TEST(Ports, PlanAndCountersGiveBytesThatLeaveAHost) {
  for (const std::string plan : {"gather_all", "two_shot"}) {
    for (const std::string spec : {"int8", "topk:ratio=0.02"}) {
      const Counted found = counted(spec, plan);
      const double port = static_cast<double>(number(found.stats, "port_bytes")) / 4;
      for (const uint64_t left : found.left) {
        EXPECT_NEAR(static_cast<double>(left), port, 0.04 * port) << plan << " " << spec;
        EXPECT_NEAR(static_cast<double>(left),
                    static_cast<double>(number(found.explained, "bytes")), 0.05 * port)
            << plan << " " << spec;
      }
      EXPECT_EQ(number(found.explained, "ring_bytes"), 2 * (kWorld - 1) * 4 * kElements / kWorld);
    }
  }
}

TEST(Ports, NothingLeavesOneHost) {
  const Counted found = counted("int8", "two_shot", kWorld);
  EXPECT_NE(found.explained.find("\"port\": null"), std::string::npos) << found.explained;
  EXPECT_EQ(number(found.stats, "port_bytes"), 0U);
  EXPECT_NE(found.stats.find("\"port_ratio\": null"), std::string::npos) << found.stats;
  EXPECT_EQ(number(found.stats, "wire_bytes"),
            number(counted("int8", "two_shot").stats, "wire_bytes"));
}

TEST(Ports, RingCrossesAPortOnce) {
  const std::string stats = counted("none", "native_sum").stats;
  const auto sent = static_cast<double>(number(stats, "wire_bytes"));
  EXPECT_NEAR(static_cast<double>(number(stats, "port_bytes")), sent, 0.01 * sent);
}

/// Three ranks of a host send less out of it by two_shot, a rank with a port of its own gathers.
TEST(Ports, RanksThatChooseDifferentlyDisagree) {
  LoopbackHub hub(kWorld, std::chrono::seconds(100), {kAllSums, true});
  on_all(kWorld, [&](uint32_t r) {
    SessionOptions options;
    options.small_elements = 16;
    options.ranks_per_host = r == 4 ? 1 : 3;
    const auto session = PublicSession::create("topk:ratio=0.022", kModel, hub.engine(r), options);
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, Errc::ranks_disagree);
    EXPECT_NE(session.error().message.find("rank 4"), std::string::npos) << session.error().message;
  });
}

}  // namespace
}  // namespace laconic::test
