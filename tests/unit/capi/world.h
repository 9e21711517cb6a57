// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks of the C ABI in one thread: each has a session and a buffer, and an engine made by hand
// executes what they ask for. Nothing here but laconic.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "laconic/laconic.h"

namespace laconic::test {

inline std::vector<float> wave(size_t n, float phase = 0.0F) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i) + phase);
  return x;
}

struct WorldSetup {
  const char* spec = "topk:ratio=0.1";
  uint32_t world = 2;
  uint32_t strategy = LACONIC_STRATEGY_AUTO;
  uint32_t sums = 1U << LACONIC_F32;  // the engine below adds no others
  bool aggregates = false;            // by the ranks' aggregators
};

class World {
 public:
  static constexpr uint64_t kWeights = 800, kBiases = 10, kElements = kWeights + kBiases;

  struct Rank {
    laconic_session* session = nullptr;
    laconic_exchange* exchange = nullptr;  // not null: begun and, as far as is known, not ended
    bool ended = false;                    // it has, and the others still run theirs
    std::vector<float> buffer = std::vector<float>(kElements);
    laconic_step steps[LACONIC_MAX_BATCH] = {};
    uint32_t count = 0;                        // steps fetched and not yet executed
    int32_t code = 0;                          // how its last exchange ended
    laconic_aggregator* aggregator = nullptr;  // the test's
  };

  explicit World(const WorldSetup& setup) : setup_(setup), ranks(setup.world) {
    for (uint32_t r = 0; r < setup.world; ++r) {
      const laconic_session_options o = options(r);
      EXPECT_EQ(laconic_session_create(&o, parameters(), 2, &ranks[r].session), 0)
          << laconic_last_message();
    }
    gather_cards();
  }
  ~World() {
    for (Rank& rank : ranks) laconic_session_destroy(rank.session);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  static const laconic_parameter* parameters() {
    static constexpr laconic_parameter kList[] = {{"w", 40, 20}, {"b", 10, 1}};
    return kList;
  }
  [[nodiscard]] laconic_session_options options(uint32_t rank) const {
    laconic_session_options o{};
    o.struct_size = sizeof o;
    o.rank = rank;
    o.world = setup_.world;
    o.strategy = setup_.strategy;
    o.spec = setup_.spec;
    o.seed = 1;
    o.small_elements = 64;
    o.engine_sums = setup_.sums;
    o.aggregates = setup_.aggregates ? 1 : 0;
    return o;
  }

  /// Both parameters, the biases first; or the other way round from now on: another layout, which
  /// the sessions see for the first time.
  laconic_bucket bucket(uint32_t rank) {
    static constexpr uint32_t kWhich[] = {1, 0, 1};
    static constexpr uint64_t kOffsets[2][2] = {{0, kBiases}, {0, kWeights}};
    laconic_bucket b{};
    b.struct_size = sizeof b;
    b.dtype = LACONIC_F32;
    b.step = step_;
    b.buffer = ranks[rank].buffer.data();
    b.elements = kElements;
    b.count = 2;
    b.parameters = kWhich + (weights_first ? 1 : 0);
    b.offsets = kOffsets[weights_first ? 1 : 0];
    return b;
  }

  /// The layout that bucket() has now will not come back.
  void release(uint32_t rank) {
    const laconic_bucket b = bucket(rank);
    EXPECT_EQ(laconic_session_release_layout(ranks[rank].session, &b), 0);
  }

  int32_t begin(uint32_t rank) {
    const laconic_bucket b = bucket(rank);
    return laconic_exchange_begin(ranks[rank].session, &b, &ranks[rank].exchange);
  }
  void begin_all() {
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].exchange != nullptr || ranks[r].ended) continue;
      EXPECT_EQ(begin(r), 0) << laconic_last_message();
    }
  }
  int32_t next(uint32_t rank) {
    Rank& r = ranks[rank];
    r.code = laconic_exchange_next(r.exchange, r.steps, sizeof(laconic_step), LACONIC_MAX_BATCH,
                                   &r.count);
    if (r.code != 0 || r.count == 0) {
      r.exchange = nullptr;
      r.ended = true;
    }
    return r.code;
  }

  /// Configuration cards that the ranks gather before the first exchange.
  [[nodiscard]] std::vector<uint8_t>& cards() { return cards_; }

  /// Brings every rank to the end of the exchange that one of them has begun. Where they cannot go
  /// on together (one has given up before its turn), the others abort, as after a lost peer.
  void settle() {
    const auto runs = [](const Rank& r) { return r.exchange != nullptr || r.ended; };
    if (std::none_of(ranks.begin(), ranks.end(), runs)) return;
    begin_all();
    while (advance()) {
    }
    for (Rank& rank : ranks) {
      if (rank.exchange != nullptr) laconic_exchange_abort(rank.exchange);
      rank.exchange = nullptr;
      rank.ended = false;
      rank.count = 0;
    }
    ++step_;
  }

  /// Every rank's next batch, executed; false when one of them has ended.
  bool advance() {
    if (!step_together()) return false;
    run();
    return !testing::Test::HasFatalFailure();
  }

  /// One exchange of new gradients to its end: 0, or the first rank's failure.
  int32_t exchange() {
    for (uint32_t r = 0; r < ranks.size(); ++r)
      ranks[r].buffer = wave(kElements, static_cast<float>(r + 10 * step_));
    begin_all();
    settle();
    for (const Rank& rank : ranks) {
      if (rank.code != 0) return rank.code;
    }
    return 0;
  }

 private:
  void gather_cards() {
    cards_.resize(ranks.size() * LACONIC_AGREEMENT_BYTES);
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      uint8_t* const card = cards_.data() + r * LACONIC_AGREEMENT_BYTES;
      EXPECT_EQ(laconic_session_agreement(ranks[r].session, card), 0);
    }
  }

  /// Every rank has its next batch; false when one of them has ended.
  bool step_together() {
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].exchange != nullptr && ranks[r].count == 0) next(r);
    }
    return std::all_of(ranks.begin(), ranks.end(), [](auto& r) { return r.exchange != nullptr; });
  }

  /// The engine.
  void run() {
    for (uint32_t i = 0; i < ranks[0].count; ++i) {
      for (Rank& rank : ranks) {
        ASSERT_EQ(rank.steps[i].kind, ranks[0].steps[i].kind);
        ASSERT_EQ(rank.steps[i].tag, ranks[0].steps[i].tag);
      }
      EXPECT_TRUE(tags_.insert(ranks[0].steps[i].tag).second) << "a tag came twice";
      if (ranks[0].steps[i].kind == LACONIC_ALL_REDUCE) {
        add(i);
      } else if (ranks[0].steps[i].kind == LACONIC_AGGREGATE) {
        aggregate(i);
      } else {
        move(i);
      }
    }
    for (Rank& rank : ranks) rank.count = 0;
  }
  void add(uint32_t i) {
    ASSERT_EQ(ranks[0].steps[i].dtype, static_cast<uint32_t>(LACONIC_F32));
    std::vector<float> sum(ranks[0].steps[i].count);
    for (Rank& rank : ranks) {
      const auto* lanes = static_cast<const float*>(rank.steps[i].send);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += lanes[k];
    }
    for (Rank& rank : ranks) {
      if (!sum.empty()) std::memcpy(rank.steps[i].recv, sum.data(), sum.size() * sizeof(float));
    }
  }
  void aggregate(uint32_t i) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks) {
      threads.emplace_back([&rank, i] {
        EXPECT_EQ(laconic_aggregator_run(rank.aggregator, &rank.steps[i], sizeof(laconic_step)), 0)
            << laconic_last_message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void move(uint32_t i) {
    for (uint32_t to = 0; to < ranks.size(); ++to) {
      for (uint32_t from = 0; from < ranks.size(); ++from) {
        const laconic_step& s = ranks[from].steps[i];
        const laconic_step& d = ranks[to].steps[i];
        const uint64_t bytes = std::min(s.send_counts[to], d.recv_counts[from]);
        std::memmove(static_cast<char*>(d.recv) + d.recv_offsets[from],
                     static_cast<const char*>(s.send) + s.send_offsets[to], bytes);
      }
    }
  }

  WorldSetup setup_;
  uint64_t step_ = 0;
  std::vector<uint8_t> cards_;
  std::set<uint32_t> tags_;  // of all steps so far

 public:
  std::vector<Rank> ranks;
  bool weights_first = false;
};

}  // namespace laconic::test
