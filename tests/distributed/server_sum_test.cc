// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums of an aggregator: while all ranks are in every sum, quantized values give the same bits as
// over the engine's own integers; and how a rank that is not in it recovers. fixed_point_test.cc
// has the small parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "laconic/loopback.h"
#include "laconic/session.h"
#include "support/impatient.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using Floats = std::vector<float>;
constexpr uint32_t kMostRanks = 5;

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{
      {"a.weight", 50, 60}, {"a.bias", 50, 1}, {"b.weight", 33, 71}, {"b.bias", 33, 1}};
  return list;
}
constexpr uint64_t kElements = 50 * 60 + 50 + 33 * 71 + 33;

/// Values that the codec transmits exactly; small parameters, which are fixed point on the way to a
/// server, to its accuracy: half of 2^-18 of the largest magnitude.
void expect_equal_means(const Floats& a, const Floats& b) {
  uint64_t at = 0;
  for (const Parameter& p : model()) {
    const auto from = static_cast<ptrdiff_t>(at), to = from + static_cast<ptrdiff_t>(p.count());
    at += p.count();
    const Floats x(a.begin() + from, a.begin() + to), y(b.begin() + from, b.begin() + to);
    if (p.count() > 64) {
      ASSERT_TRUE(same_bits(x, y)) << p.name;
      continue;
    }
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 0.1 * 0x1p-18) << p.name << i;
  }
}

/// The same whatever the world is.
Floats gradient(uint32_t rank, uint64_t step) {
  return gradients(kMostRanks, kElements, step + 1)[rank];
}

bool nobody(uint32_t, uint64_t, uint64_t) { return false; }

struct Outcome {
  std::vector<Floats> means;  // by step
  std::vector<std::string> errors;
  std::vector<uint8_t> state;
  std::string explained, stats;
};

using Gradient = std::function<Floats(uint32_t rank, uint64_t step)>;

std::vector<Outcome> train(const std::string& spec, const std::string& plan, uint32_t world,
                           uint64_t steps, const LeavesOut& leaves_out = nobody,
                           const Gradient& of = gradient) {
  EngineCaps caps{kAllSums, false};
  caps.aggregates = plan == "server_sum";
  LoopbackHub hub(world, std::chrono::seconds(100), caps);
  std::vector<Outcome> outcomes(world);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Impatient engine(hub.engine(rank), leaves_out);
      SessionOptions options;
      options.plan = plan;
      options.small_elements = 64;
      options.seed = 5;
      auto session = laconic::Session::create(spec, model(), engine, options);
      ASSERT_TRUE(session) << session.error().message;
      for (uint64_t step = 0; step < steps; ++step) {
        Floats g = of(rank, step);
        auto done = (*session)->average(step, g);
        outcomes[rank].errors.push_back(done ? "" : done.error().message);
        outcomes[rank].means.push_back(g);
      }
      outcomes[rank].state = *(*session)->save();
      outcomes[rank].explained = (*session)->explain();
      outcomes[rank].stats = (*session)->stats();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

class ServerSum : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ServerSum,
                         testing::Values("thc:block=256", "thc:block=512,scale=exact",
                                         "thc:block=256,bits=2,lane=16+noef",
                                         "thc:block=256,bits=3+decay=0.5"),
                         [](const auto& which) { return "spec" + std::to_string(which.index); });

TEST_P(ServerSum, SumsHaveBitsOfEngineSums) {
  for (const uint32_t world : {2U, 5U}) {
    SCOPED_TRACE(world);
    const Gradient zero_at_times = [](uint32_t rank, uint64_t step) {
      Floats g = gradient(rank, step);
      if (rank == 0 && step == 1) std::fill_n(g.begin(), 3000, 0.0F);  // a unit of one rank
      if (step == 3) std::fill_n(g.begin() + 3050, 33 * 71, 0.0F);     // of all ranks
      return g;
    };
    const auto by_server = train(GetParam(), "server_sum", world, 6, nobody, zero_at_times);
    const auto by_engine = train(GetParam(), "native_sum", world, 6, nobody, zero_at_times);
    for (uint32_t r = 0; r < world; ++r) {
      for (uint64_t step = 0; step < 6; ++step) {
        ASSERT_EQ(by_server[r].errors[step], "");
        ASSERT_TRUE(same_bits(by_server[r].means[step], by_server[0].means[step])) << step;
        expect_equal_means(by_server[r].means[step], by_engine[r].means[step]);
      }
    }
    EXPECT_NE(by_server[0].explained.find("\"strategy\": \"server_sum\""), std::string::npos);
  }
}

TEST_P(ServerSum, NonFiniteIsSentUncompressedOnAllRanks) {
  for (const uint64_t when : {0U, 2U}) {
    const Gradient one_bad = [&](uint32_t rank, uint64_t step) {
      Floats g = gradient(rank, step);
      if (rank == 1 && step == when) g[7] = std::numeric_limits<float>::infinity();
      return g;
    };
    const auto outcomes = train(GetParam(), "server_sum", 3, 4, nobody, one_bad);
    for (const Outcome& o : outcomes) {
      EXPECT_TRUE(std::isinf(o.means[when][7]));
      EXPECT_TRUE(same_bits(o.means[when], outcomes[0].means[when]));
      for (const float x : o.means[3]) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(ServerSum, ReplicasStayEqualForAnyExcludedRank) {
  const LeavesOut some = [](uint32_t rank, uint64_t exchange, uint64_t granule) {
    return rank != 0 && (rank * 7 + exchange * 5 + granule * 3) % 4 == 0;
  };
  const auto outcomes = train(GetParam(), "server_sum", 4, 6, some);
  for (const Outcome& o : outcomes) {
    for (uint64_t step = 0; step < 6; ++step) {
      ASSERT_EQ(o.errors[step], "");
      ASSERT_TRUE(same_bits(o.means[step], outcomes[0].means[step]));
    }
    EXPECT_NE(o.stats.find("\"partial_granules\":"), std::string::npos);
  }
  EXPECT_EQ(outcomes[0].stats.find("\"partial_granules\": 0,"), std::string::npos);
  EXPECT_NE(outcomes[0].stats.find("\"excluded_granules\": 0,"), std::string::npos);
  EXPECT_EQ(outcomes[1].stats.find("\"excluded_granules\": 0,"), std::string::npos);
}

/// A rank that is left out of everything in step 0 delivers both gradients in step 1: with the
/// residual, the mean of two steps is what it should be, to what is still in the residuals.
TEST(ServerSumResiduals, ExcludedGradientIsSentLater) {
  const LeavesOut rank_1_at_first = [](uint32_t rank, uint64_t exchange, uint64_t) {
    return rank == 1 && exchange == 0;
  };
  const Gradient constant = [](uint32_t rank, uint64_t) { return gradient(rank, 0); };
  const auto outcomes =
      train("thc:block=256,scale=exact", "server_sum", 2, 12, rank_1_at_first, constant);
  // Delivered: step 0 was rank 0's alone, whole; from then on half of everybody's.
  const Floats a = gradient(0, 0), b = gradient(1, 0);
  double error = 0, size = 0, without = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    double delivered = 0;
    for (uint64_t step = 0; step < 12; ++step)
      delivered += static_cast<double>(outcomes[0].means[step][i]) * (step == 0 ? 1 : 2);
    // rank 0: 12 gradients; rank 1: 12, the first of them late
    const double expected = 12.0 * a[i] + 12.0 * b[i];
    error += std::pow(delivered - expected, 2);
    without += std::pow(delivered - (expected - b[i]), 2);
    size += std::pow(b[i], 2);
  }
  EXPECT_LT(error / size, 0.1) << "but for what the last step left in two residuals";
  EXPECT_GT(without / size, 0.5);
}

TEST(ServerSumPlan, ServerIsChosenIfPresentAndRefusedElsewhere) {
  LoopbackHub hub(1);
  SessionOptions options;
  options.plan = "server_sum";
  options.small_elements = 64;
  const auto none = laconic::Session::create("thc", model(), hub.engine(0), options);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("this engine has no aggregator"), std::string::npos);
  EngineCaps caps{kAllSums, false};
  caps.aggregates = true;
  LoopbackHub adding(1, std::chrono::seconds(100), caps);
  const auto frames = laconic::Session::create("int8", model(), adding.engine(0), options);
  ASSERT_FALSE(frames);
  EXPECT_NE(frames.error().message.find("its payload is not quantized values that add"),
            std::string::npos);
  SessionOptions small;
  small.small_elements = 64;
  LoopbackHub two(2, std::chrono::seconds(100), caps);
  on_all(2, [&](uint32_t r) {
    const auto by_itself = laconic::Session::create("thc", model(), two.engine(r), small);
    ASSERT_TRUE(by_itself) << by_itself.error().message;
    EXPECT_NE((*by_itself)->explain().find("\"strategy\": \"server_sum\""), std::string::npos);
  });
}

}  // namespace
}  // namespace laconic::test
