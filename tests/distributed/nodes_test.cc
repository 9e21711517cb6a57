// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shards of nodes: after every step each rank holds what the oracle computes of the node means, bit
// for bit, and the shards together are the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>

#include "laconic/registry.h"
#include "laconic/session.h"
#include "session/saved_state.h"
#include "support/oracle.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{
      {"fc1.weight", 61, 67}, {"fc1.bias", 61, 1}, {"tiny", 1, 1},  {"fc2.weight", 67, 65},
      {"fc2.bias", 7, 1},     {"odd", 1031, 1},    {"norm", 16, 1}, {"head.weight", 17, 33}};
  return list;
}
const Layout& whole() {
  static const Layout layout = back_to_back(model(), {0, 1, 2, 3, 4, 5, 6, 7});
  return layout;
}

struct Case {
  std::string spec;
  StrategyKind strategy;
  uint32_t nodes, ranks;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.spec << " by " << strategy_name(c.strategy) << " on " << c.nodes << " x " << c.ranks;
}
std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = c.spec + "_" + std::string(strategy_name(c.strategy)) + "_" +
                     std::to_string(c.nodes) + "_" + std::to_string(c.ranks);
  for (char& x : name) {
    if (std::isalnum(static_cast<unsigned char>(x)) == 0) x = '_';
  }
  return name;
}

Setup setup_of(const Case& c, uint32_t shard) {
  Setup setup;
  setup.spec = c.spec;
  setup.world = c.nodes;
  setup.parameters = model();
  setup.strategy = c.strategy;
  setup.node_shards = c.ranks;
  setup.node_shard = shard;
  return setup;
}

/// What a shard has of the gradients of a whole model.
Floats shard_of(const Oracle& oracle, const Floats& gradient, const std::vector<uint32_t>& order) {
  Floats values;
  for (const uint32_t p : order) {
    const auto [first, count] = oracle.held()[p];
    const auto from = gradient.begin() + static_cast<ptrdiff_t>(whole().offsets[p] + first);
    values.insert(values.end(), from, from + static_cast<ptrdiff_t>(count));
  }
  return values;
}

class Nodes : public testing::TestWithParam<Case> {
 protected:
  Nodes() {
    for (uint32_t s = 0; s < GetParam().ranks; ++s) {
      shards_.push_back(std::make_unique<Ranks>(setup_of(GetParam(), s)));
      oracles_.push_back(std::make_unique<Oracle>(shards_.back()->setup()));
    }
  }

  void step(uint64_t number, const std::vector<Floats>& node_means) {
    for (const std::vector<uint32_t>& order : {std::vector<uint32_t>{7, 6, 5, 4}, {3, 2, 1, 0}}) {
      for (size_t s = 0; s < shards_.size(); ++s) {
        SCOPED_TRACE("step " + std::to_string(number) + ", shard " + std::to_string(s));
        exchange(*shards_[s], *oracles_[s], order, node_means, number);
        if (HasFatalFailure()) return;
      }
    }
  }

  static void exchange(Ranks& ranks, Oracle& oracle, const std::vector<uint32_t>& order,
                       const std::vector<Floats>& node_means, uint64_t number) {
    const Layout layout = back_to_back(ranks.session(0).model().parameters(), order);
    std::vector<Floats> buffers;
    for (const Floats& mean : node_means) buffers.push_back(shard_of(oracle, mean, order));
    std::vector<Floats> expected = buffers;
    for (const auto& result : ranks.exchange(layout, buffers, number))
      ASSERT_TRUE(result) << result.error().message;
    oracle.exchange(layout, DType::f32, expected, number);
    for (uint32_t r = 0; r < ranks.world(); ++r) {
      ASSERT_TRUE(same_bits(expected[r], buffers[r])) << "rank " << r;
      const auto& entries = ranks.session(r).active().store.entries();
      ASSERT_EQ(entries.size(), oracle.memory(r).size());
      for (const auto& entry : entries) {
        const auto found = oracle.memory(r).find(entry.name);
        ASSERT_NE(found, oracle.memory(r).end()) << entry.name;
        ASSERT_TRUE(same_bits(found->second, {entry.values.begin(), entry.values.end()}))
            << entry.name;
      }
    }
  }

  std::vector<std::unique_ptr<Ranks>> shards_;
  std::vector<std::unique_ptr<Oracle>> oracles_;
};

TEST_P(Nodes, EveryShardMatchesOracle) {
  const Case& c = GetParam();
  for (uint32_t p = 0; p < model().size(); ++p) {
    uint64_t held = 0;
    for (uint32_t s = 0; s < c.ranks; ++s) {
      const auto& range = shards_[s]->session(0).model().assignment(p).held;
      ASSERT_EQ(std::pair(range.first, range.count), oracles_[s]->held()[p]) << model()[p].name;
      held += range.count;
    }
    ASSERT_EQ(held, model()[p].count());
  }
  const auto fresh = [&](uint64_t seed) { return gradients(c.nodes, whole().elements, seed); };
  ASSERT_NO_FATAL_FAILURE(step(0, fresh(1)));
  auto values = fresh(2);  // one parameter has no gradient, and a part of another
  std::fill_n(values[0].begin() + static_cast<ptrdiff_t>(whole().offsets[5]), 1031, 0.0F);
  std::fill_n(values[0].begin(), 3000, 0.0F);
  ASSERT_NO_FATAL_FAILURE(step(1, values));
  values = fresh(3);  // not finite in one shard: it alone goes uncompressed
  values[c.nodes - 1][whole().offsets[3] + 1000] = std::numeric_limits<float>::infinity();
  ASSERT_NO_FATAL_FAILURE(step(2, values));
  for (size_t s = 0; s < shards_.size(); ++s) {
    ASSERT_TRUE(shards_[s]->session(0).flush(2));
    oracles_[s]->flush(0, 2);
  }
  for (uint64_t n = 3; n < 7; ++n) ASSERT_NO_FATAL_FAILURE(step(n, fresh(n + 1)));
}

/// Gradients of all ranks of a step, node by node.
std::vector<Floats> ranks_of_step(const Case& c, uint64_t number) {
  auto values = gradients(c.nodes * c.ranks, whole().elements, number + 1);
  if (number == 1) {  // one parameter has no gradient on a rank, and a part of another
    std::fill_n(values[0].begin() + static_cast<ptrdiff_t>(whole().offsets[5]), 1031, 0.0F);
    std::fill_n(values[1].begin(), 3000, 0.0F);
  }
  if (number == 2)  // not finite in one shard: it alone goes uncompressed
    values.back()[whole().offsets[3] + 1000] = std::numeric_limits<float>::infinity();
  return values;
}

/// The mean of each node, whose ranks are added in rank order.
std::vector<Floats> means_of_nodes(const Case& c, const std::vector<Floats>& values) {
  std::vector<Floats> means;
  for (uint32_t n = 0; n < c.nodes; ++n) {
    Floats total = values[n * c.ranks];
    for (uint32_t s = 1; s < c.ranks; ++s) {
      for (size_t i = 0; i < total.size(); ++i) total[i] += values[n * c.ranks + s][i];
    }
    for (float& x : total) x *= 1.0F / static_cast<float>(c.ranks);
    means.push_back(std::move(total));
  }
  return means;
}

constexpr uint64_t kSteps = 7;

/// laconic::Session with SessionOptions::inside: in, across, out.
TEST_P(Nodes, SessionOverNodesMatchesOracle) {
  const Case& c = GetParam();
  const std::vector<uint32_t> order{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<Floats> expected(kSteps, Floats(whole().elements));
  for (uint64_t number = 0; number < kSteps; ++number) {
    const auto means = means_of_nodes(c, ranks_of_step(c, number));
    for (auto& oracle : oracles_) {
      if (number == 3) oracle->flush(0, 2);
      std::vector<Floats> values;
      for (const Floats& mean : means) values.push_back(shard_of(*oracle, mean, order));
      std::vector<Parameter> held;
      for (const auto& [first, count] : oracle->held()) held.push_back({"", count, 1});
      oracle->exchange(back_to_back(held, order), DType::f32, values, number);
      auto from = values[0].begin();
      for (uint32_t p = 0; p < model().size(); ++p) {
        const auto [first, count] = oracle->held()[p];
        std::copy_n(from, count,
                    expected[number].begin() + static_cast<ptrdiff_t>(whole().offsets[p] + first));
        from += static_cast<ptrdiff_t>(count);
      }
    }
  }
  std::vector<std::unique_ptr<LoopbackHub>> across, inside;
  for (uint32_t s = 0; s < c.ranks; ++s) across.push_back(std::make_unique<LoopbackHub>(c.nodes));
  for (uint32_t n = 0; n < c.nodes; ++n) inside.push_back(std::make_unique<LoopbackHub>(c.ranks));
  on_all(c.nodes * c.ranks, [&](uint32_t r) {
    const uint32_t node = r / c.ranks, place = r % c.ranks;
    SessionOptions options;
    options.plan = strategy_name(c.strategy);
    options.inside = &inside[node]->engine(place);
    options.seed = 42;
    options.small_elements = 16;
    auto session = laconic::Session::create(c.spec, model(), across[place]->engine(node), options);
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t number = 0; number < kSteps; ++number) {
      if (number == 3 && r == 1) {
        ASSERT_TRUE((*session)->flush(2));
      }
      Floats mine = ranks_of_step(c, number)[r];
      const auto done = (*session)->average(number, mine);
      ASSERT_TRUE(done) << done.error().message;
      ASSERT_TRUE(same_bits(expected[number], mine)) << "step " << number << ", rank " << r;
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> list;
  const std::vector<std::pair<uint32_t, uint32_t>> shapes{{2, 2}, {3, 2}, {2, 3}};
  for (const CodecTable* codec : all_codecs()) {
    const std::string name(codec->info.name);
    if (!weekly() && !is_way(name)) continue;
    for (const auto& [nodes, ranks] : shapes) {
      if (kSanitized && nodes * ranks != 6) continue;
      for (const StrategyKind strategy :
           {StrategyKind::native_sum, StrategyKind::gather_all, StrategyKind::two_shot}) {
        Options o;
        o.world = nodes;
        o.strategy = strategy;
        o.small_elements = 16;
        o.caps.sums = kAllSums;
        if (collective::choose_strategy(*Spec::parse(name), model(), o))
          list.push_back({name, strategy, nodes, ranks});
      }
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, Nodes, testing::ValuesIn(cases()), case_name);

Result<std::unique_ptr<Session>> session_of(const std::string& spec, uint32_t shards,
                                            uint32_t shard) {
  Options o;
  o.world = 2;
  o.small_elements = 16;
  o.caps.sums = kAllSums;
  o.node_shards = shards;
  o.node_shard = shard;
  return Session::create(spec, model(), o);
}

TEST(NodeShards, AgreementCoversTheirNumberOnly) {
  const auto agreement = [](uint32_t shards, uint32_t shard) {
    return (*session_of("3lc", shards, shard))->model().agreement();
  };
  EXPECT_EQ(agreement(2, 0), agreement(2, 1));
  EXPECT_NE(agreement(2, 0), agreement(3, 0));
  EXPECT_NE(agreement(2, 0), agreement(1, 0));
}

TEST(NodeShards, ResidualsOfAllShardsAreThoseOfTheModel) {
  const auto floats = [](uint32_t shards, uint32_t shard) {
    return memory_of(**session_of("3lc", shards, shard)).residual_bytes / sizeof(float);
  };
  EXPECT_EQ(floats(3, 0) + floats(3, 1) + floats(3, 2), floats(1, 0));
  EXPECT_LE(floats(2, 0), floats(1, 0) * 11 / 20);
}

TEST(NodeShards, StateOfOtherShapeIsRefusedAsOfOtherWorld) {
  const auto saved = [](uint32_t shards, uint32_t shard) {
    return *session::save_state(**session_of("3lc", shards, shard));
  };
  const auto refused = [&](uint32_t shards, uint32_t shard, const std::vector<uint8_t>& state) {
    auto loaded = session::load_state(**session_of("3lc", shards, shard), state);
    return loaded ? Errc::ok : loaded.error().code;
  };
  EXPECT_EQ(refused(2, 1, saved(2, 1)), Errc::ok);
  EXPECT_EQ(refused(2, 1, saved(2, 0)), Errc::state_rank);
  EXPECT_EQ(refused(2, 1, saved(3, 1)), Errc::state_world);
  EXPECT_EQ(refused(2, 0, saved(1, 0)), Errc::state_world);
  EXPECT_EQ(refused(1, 0, saved(2, 0)), Errc::state_world);
}

TEST(NodeShards, StrategyOfWholeModelsIsRefused) {
  Options o;
  o.world = 2;
  o.node_shards = 2;
  o.node_shard = 2;
  EXPECT_EQ(Session::create("3lc", model(), o).error().code, Errc::invalid_argument);
  o.node_shard = 1;
  o.owner_turns = true;
  EXPECT_EQ(Session::create("3lc", model(), o).error().code, Errc::unsupported);
}

TEST(NodeShards, SettingThatCutsElsewhereIsRefusedByAll) {
  Ranks ranks(setup_of({"int8", StrategyKind::automatic, 2, 2}, 0));
  const auto prepared = [&](const std::string& spec) {
    auto ready = ranks.session(0).proposal().prepare({.spec = spec});
    return ready ? Errc::ok : ready.error().code;
  };
  EXPECT_EQ(prepared("int8+ef"), Errc::ok);
  EXPECT_EQ(prepared("powersgd"), Errc::unsupported);
}

}  // namespace
}  // namespace laconic::test
