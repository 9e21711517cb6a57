// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The optimizer between push and pull: masters, replicas and residuals against plain loops, and
// what becomes of them when a gradient is not finite, a rank fails, or a run is resumed.
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <map>

#include "laconic/registry.h"
#include "laconic/sharded.h"
#include "session/driver/driver.h"
#include "session/saved_state.h"
#include "support/oracle.h"

namespace laconic::test {
namespace {

using collective::Replica;

const std::vector<Parameter> kModel{{"w", 80, 50}, {"b", 7, 1}, {"v", 37, 11}, {"c", 12, 1}};
/// Buckets of a step, in the order in which backward finds them.
const std::vector<std::vector<uint32_t>> kBuckets{{3, 2}, {1, 0}};

/// Momentum SGD of one element's range, as a program would write it.
void step_of(Floats& velocity, const float* mean, float* master, uint64_t n) {
  velocity.resize(n);
  for (uint64_t i = 0; i < n; ++i) {
    velocity[i] = 0.9F * velocity[i] + mean[i];
    master[i] -= 0.1F * velocity[i];
  }
}

std::string key(const std::string& parameter, uint64_t offset) {
  return parameter + "@" + std::to_string(offset);
}

Floats first_values(uint32_t p) { return normal_numbers(kModel[p].count(), 900 + p); }

/// A rank with an optimizer, over the hub.
class Trainer {
 public:
  Trainer(Ranks& ranks, uint32_t rank, DType dtype = DType::f32, Engine* engine = nullptr)
      : ranks_(&ranks),
        rank_(rank),
        driver_(ranks.session(rank), engine == nullptr ? ranks.hub().engine(rank) : *engine,
                std::chrono::seconds(60)) {
    for (uint32_t p = 0; p < kModel.size(); ++p) {
      values.push_back(first_values(p));
      half_.emplace_back();
      for (const float x : values[p]) half_[p].push_back(float_to_bf16(x));
    }
    dtype_ = dtype;
    begin(true);
  }

  void begin(bool masters) {
    std::vector<Replica> replicas;
    for (uint32_t p = 0; p < kModel.size(); ++p)
      replicas.push_back(dtype_ == DType::f32 ? Replica{values[p].data(), dtype_}
                                              : Replica{half_[p].data(), dtype_});
    const auto set = driver_.turns().set_replicas(replicas, masters);
    ASSERT_TRUE(set) << set.error().message;
  }

  /// gradients: by bucket. `trouble`: of the last bucket.
  Result<bool> step(uint64_t step, const std::vector<Floats>& gradients,
                    const Error* trouble = nullptr, const Error* trouble_in_turn = nullptr) {
    push(step, gradients, trouble);
    auto turns = driver_.turns().begin();
    if (turns && trouble_in_turn == nullptr) turn(*turns);
    auto pulled = driver_.turns().pull(trouble_in_turn);
    if (turns) return pulled;
    EXPECT_FALSE(pulled);
    return pulled;
  }
  void push(uint64_t step, const std::vector<Floats>& gradients, const Error* trouble = nullptr) {
    buffers = gradients;
    for (size_t i = 0; i < kBuckets.size(); ++i) {
      Bucket bucket{.buffer = buffers[i].data(), .step = step, .index = static_cast<uint32_t>(i)};
      const Layout layout = back_to_back(kModel, kBuckets[i]);
      const bool last = i + 1 == kBuckets.size();
      (void)driver_.submit(bucket, layout, {.token = i, .trouble = last ? trouble : nullptr});
    }
  }
  void turn(const session::OwnerTurns::Turn& turns) {
    for (const collective::OwnedRange& r : turns.ranges) {
      Floats& mean = means[key(kModel[r.parameter].name, r.offset)];
      mean.resize(r.count);
      for (uint64_t i = 0; i < r.count; ++i) mean[i] += r.mean[i];
      step_of(velocities[key(kModel[r.parameter].name, r.offset)], r.mean, r.master, r.count);
    }
  }
  [[nodiscard]] Floats master(const std::string& at) {
    for (const auto& e : ranks_->session(rank_).active().store.entries()) {
      if (e.name == "master/" + at) return {e.values.begin(), e.values.end()};
    }
    return {};
  }
  session::Driver& driver() { return driver_; }
  [[nodiscard]] Floats replica(uint32_t p) const {
    if (dtype_ == DType::f32) return values[p];
    Floats wide;
    for (const uint16_t x : half_[p]) wide.push_back(bf16_to_float(x));
    return wide;
  }

  std::vector<Floats> values;                // parameters
  std::vector<Floats> buffers;               // of the last step
  std::map<std::string, Floats> velocities;  // by range
  std::map<std::string, Floats> means;       // the sum of those that were stepped

 private:
  Ranks* ranks_;
  uint32_t rank_;
  DType dtype_ = DType::f32;
  std::vector<std::vector<uint16_t>> half_;
  session::Driver driver_;
};

/// gradients[rank][bucket], other ones in every step.
std::vector<std::vector<Floats>> gradients_of(uint32_t world, uint64_t step) {
  std::vector<std::vector<Floats>> all(world);
  for (size_t b = 0; b < kBuckets.size(); ++b) {
    const uint64_t n = back_to_back(kModel, kBuckets[b]).elements;
    const auto drawn = gradients(world, n, 7 * step + b + 1);
    for (uint32_t r = 0; r < world; ++r) all[r].push_back(drawn[r]);
  }
  return all;
}

Setup setup_of(const std::string& spec, uint32_t world, const std::string& pull = {}) {
  Setup setup{spec, world, kModel, StrategyKind::two_shot};
  setup.down = pull;
  setup.turn = [](const std::string&, uint64_t, Floats&) {};
  return setup;
}

/// Specs that a push can have: what goes by two_shot, without several rounds.
std::vector<std::string> specs_of_pushes() {
  std::vector<std::string> specs{"3lc:s=1.5", "int8+ef", "topk:ratio=0.1+decay=0.9", "bf16+ef",
                                 "dgc:ratio=0.1"};
  Options o;
  o.world = 3;
  o.small_elements = 16;
  o.strategy = StrategyKind::two_shot;
  o.owner_turns = true;
  for (const CodecTable* codec : all_codecs()) {
    if (collective::choose_strategy(*Spec::parse(codec->info.name), kModel, o))
      specs.emplace_back(codec->info.name);
  }
  std::erase_if(specs, [](const std::string& s) { return !Spec::parse(s); });
  return specs;
}

/// All that the ranks hold, against an optimizer between two passes of the oracle.
void compare_with_oracle(const std::string& spec, uint32_t world, const std::string& pull = {}) {
  SCOPED_TRACE(spec + " and " + pull + " on " + std::to_string(world));
  Setup setup = setup_of(spec, world, pull);
  Ranks ranks(setup);
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < world; ++r) trainers.emplace_back(ranks, r);

  std::map<std::string, Floats> masters, velocities;  // by range, of all owners
  std::vector<Floats> replicas;
  for (uint32_t p = 0; p < kModel.size(); ++p) replicas.push_back(first_values(p));
  setup.turn = [&](const std::string& name, uint64_t offset, Floats& values) {
    size_t p = 0;
    while (kModel[p].name != name) ++p;
    const float* replica = replicas[p].data() + offset;
    const auto [at, is_new] = masters.try_emplace(key(name, offset));
    if (is_new) at->second.assign(replica, replica + values.size());
    step_of(velocities[key(name, offset)], values.data(), at->second.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = at->second[i] - replica[i];
  };
  Oracle oracle(setup);

  for (uint64_t step = 0; step < 5; ++step) {
    auto given = gradients_of(world, step);
    if (step == 2) given[world - 1] = std::vector<Floats>{Floats(given[0][0].size()), given[1][1]};
    if (step == 3) {
      for (auto& of_rank : given) std::fill(of_rank[0].begin(), of_rank[0].end(), 0.0F);
    }
    on_all(world, [&](uint32_t r) {
      const auto stepped = trainers[r].step(step, given[r]);
      ASSERT_TRUE(stepped) << stepped.error().message;
      EXPECT_TRUE(*stepped);
    });
    for (size_t b = 0; b < kBuckets.size(); ++b) {
      const Layout layout = back_to_back(kModel, kBuckets[b]);
      std::vector<Floats> values;
      for (uint32_t r = 0; r < world; ++r) values.push_back(given[r][b]);
      oracle.exchange(layout, DType::f32, values, step);
      ASSERT_FALSE(oracle.skipped());
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        const uint32_t p = layout.parameters[i];
        const Floats came(
            values[0].begin() + static_cast<ptrdiff_t>(layout.offsets[i]),
            values[0].begin() + static_cast<ptrdiff_t>(layout.offsets[i] + kModel[p].count()));
        if (kModel[p].count() > setup.small_elements) {
          for (size_t k = 0; k < came.size(); ++k) replicas[p][k] += came[k];
        }
        for (Trainer& t : trainers) {
          if (kModel[p].count() <= setup.small_elements) {
            const Floats got(t.buffers[b].begin() + static_cast<ptrdiff_t>(layout.offsets[i]),
                             t.buffers[b].begin() +
                                 static_cast<ptrdiff_t>(layout.offsets[i] + kModel[p].count()));
            ASSERT_TRUE(same_bits(got, came)) << kModel[p].name << " in step " << step;
          }
          ASSERT_TRUE(same_bits(t.values[p], replicas[p])) << kModel[p].name << ", step " << step;
        }
      }
    }
    for (uint32_t r = 0; r < world; ++r) {
      size_t found = 0;
      for (const auto& e : ranks.session(r).active().store.entries()) {
        const Floats mine(e.values.begin(), e.values.end());
        if (e.kind == feedback::StateKind::master) {
          ++found;
          ASSERT_TRUE(same_bits(mine, masters.at(e.name.substr(7)))) << e.name;
        } else if (e.name != "state/flush") {
          ASSERT_TRUE(same_bits(mine, oracle.memory(r).at(e.name))) << e.name << ", " << step;
        }
      }
      EXPECT_EQ(found, trainers[r].means.size());
    }
  }
}

TEST(OwnerTurn, MastersReplicasAndResidualsMatchPlainLoops) {
  for (const std::string& spec : specs_of_pushes()) compare_with_oracle(spec, 3);
  for (const char* spec : {"none", "3lc", "topk"}) compare_with_oracle(spec, 2);
  compare_with_oracle("3lc", 5);
  for (const std::string& spec : specs_of_pushes()) {
    compare_with_oracle("3lc:s=1.5", 3, spec);
    compare_with_oracle(spec, 3, "int8");
  }
}

/// Everything that this rank holds: parameters, and the store.
std::vector<Floats> held(Ranks& ranks, const Trainer& trainer, uint32_t rank) {
  std::vector<Floats> all = trainer.values;
  for (const auto& e : ranks.session(rank).active().store.entries()) {
    if (e.name != "state/flush") all.emplace_back(e.values.begin(), e.values.end());
  }
  return all;
}

/// A push to the rank itself is not encoded; its residual is checked all the same.
TEST(OwnerTurn, UnusableResidualOfOwnRangeIsReset) {
  Ranks ranks(setup_of("3lc", 2));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 2; ++r) trainers.emplace_back(ranks, r);
  for (uint64_t step = 0; step < 2; ++step) {
    on_all(2, [&](uint32_t r) {
      const auto stepped = trainers[r].step(step, gradients_of(2, step)[r]);
      ASSERT_TRUE(stepped) << stepped.error().message;
      EXPECT_TRUE(*stepped);
    });
    for (const auto& e : ranks.session(1).active().store.entries()) {
      if (e.name != "residual/w") continue;
      EXPECT_EQ(e.values.back(), 0) << "the owner of the end of w";
      if (step == 0) e.values.back() = std::numeric_limits<float>::infinity();
    }
  }
  EXPECT_EQ(ranks.session(1).stats().counters.residual_resets, 1);
  EXPECT_EQ(trainers[1].values, trainers[0].values);
  EXPECT_TRUE(all_finite(trainers[1].values[0].data(), trainers[1].values[0].size()));
}

/// The NaN lies in a range of the last bucket that one owner alone receives.
TEST(OwnerTurn, NanInLastBucketSkipsStepOnAllRanks) {
  for (const char* spec : {"3lc", "none", "bf16", "int8+ef", "topk"}) {
    for (const size_t at : {size_t{3}, size_t{2900}}) {  // of `b`, which is small; of `w`
      SCOPED_TRACE(spec + std::string(" at ") + std::to_string(at));
      Ranks ranks(setup_of(spec, 3));
      std::deque<Trainer> trainers;
      for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r);
      std::vector<std::vector<Floats>> before(3);
      on_all(3, [&](uint32_t r) {
        auto given = gradients_of(3, 0)[r];
        ASSERT_TRUE(*trainers[r].step(0, given));
        before[r] = held(ranks, trainers[r], r);
        given = gradients_of(3, 1)[r];
        if (r == 1) given[1][at] = std::nanf("");
        const auto stepped = trainers[r].step(1, given);
        ASSERT_TRUE(stepped) << stepped.error().message;
        EXPECT_FALSE(*stepped);
      });
      for (uint32_t r = 0; r < 3; ++r) {
        const auto after = held(ranks, trainers[r], r);
        ASSERT_EQ(after.size(), before[r].size());
        for (size_t i = 0; i < after.size(); ++i) {
          for (size_t k = 0; k < after[i].size(); ++k)
            ASSERT_NEAR(after[i][k], before[r][i][k], 1e-8) << "residuals within a rounding";
        }
        for (size_t p = 0; p < kModel.size(); ++p) EXPECT_EQ(after[p], before[r][p]);
      }
      on_all(3, [&](uint32_t r) { EXPECT_TRUE(*trainers[r].step(2, gradients_of(3, 2)[r])); });
      EXPECT_EQ(trainers[1].values, trainers[0].values);
    }
  }
}

/// The sum of all that was given, and of what owners stepped with and residuals hold.
void expect_nothing_lost(Ranks& ranks, std::deque<Trainer>& trainers, uint64_t steps) {
  for (uint32_t p = 0; p < kModel.size(); ++p) {
    if (kModel[p].count() <= 16) continue;
    std::vector<double> given(kModel[p].count()), have(kModel[p].count());
    for (uint64_t step = 0; step < steps; ++step) {
      const auto all = gradients_of(ranks.world(), step);
      for (size_t b = 0; b < kBuckets.size(); ++b) {
        const Layout layout = back_to_back(kModel, kBuckets[b]);
        for (size_t i = 0; i < layout.parameters.size(); ++i) {
          if (layout.parameters[i] != p) continue;
          for (const auto& of_rank : all) {
            for (size_t k = 0; k < given.size(); ++k)
              given[k] += of_rank[b][layout.offsets[i] + k] / static_cast<double>(all.size());
          }
        }
      }
    }
    for (uint32_t r = 0; r < ranks.world(); ++r) {
      for (const auto& [at, mean] : trainers[r].means) {
        if (at.substr(0, at.find('@')) != kModel[p].name) continue;
        const uint64_t offset = std::stoull(at.substr(at.find('@') + 1));
        for (size_t k = 0; k < mean.size(); ++k) have[offset + k] += mean[k];
      }
      for (const auto& e : ranks.session(r).active().store.entries()) {
        if (e.name != "residual/" + kModel[p].name) continue;
        for (size_t k = 0; k < have.size(); ++k)
          have[k] += e.values[k] / static_cast<double>(ranks.world());
      }
    }
    for (size_t k = 0; k < given.size(); ++k)
      ASSERT_NEAR(have[k], given[k], 1e-5) << kModel[p].name << " at " << k;
  }
}

TEST(OwnerTurn, FailureOfOneRankIsErrorOnAllAndLosesNothing) {
  for (const bool in_turn : {false, true}) {
    Ranks ranks(setup_of("3lc", 3));
    std::deque<Trainer> trainers;
    for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r);
    const Error trouble{Errc::out_of_memory, "the disk is on fire", {}};
    std::vector<std::string> messages(3);
    on_all(3, [&](uint32_t r) {
      for (uint64_t step = 0; step < 6; ++step) {
        const bool fails = step == 2 || step == 3;
        const Error* mine = fails && r == 1 ? &trouble : nullptr;
        const auto stepped = trainers[r].step(step, gradients_of(3, step)[r],
                                              in_turn ? nullptr : mine, in_turn ? mine : nullptr);
        ASSERT_EQ(static_cast<bool>(stepped), !fails);
        if (!fails) continue;
        EXPECT_EQ(stepped.error().code, Errc::peer_failed);
        messages[r] = stepped.error().message;
      }
    });
    EXPECT_NE(messages[0].find("the disk is on fire"), std::string::npos) << messages[0];
    EXPECT_EQ(messages[1], messages[0]);
    EXPECT_EQ(messages[2], messages[0]);
    for (uint32_t r = 1; r < 3; ++r) EXPECT_EQ(trainers[r].values, trainers[0].values);
    expect_nothing_lost(ranks, trainers, 6);
  }
}

TEST(OwnerTurn, FlushSendsResidualsOfPushes) {
  Ranks ranks(setup_of("topk:ratio=0.01", 3));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r);
  on_all(3, [&](uint32_t r) {
    for (uint64_t step = 0; step < 6; ++step) {
      if (step == 3 && r == 2) {
        ASSERT_TRUE(ranks.session(r).flush(2));
      }
      const auto before = trainers[r].values;
      ASSERT_TRUE(*trainers[r].step(step, gradients_of(3, step)[r]));
      EXPECT_NE(trainers[r].values[0], before[0]) << "the change came down";
    }
    EXPECT_EQ(ranks.session(r).stats().residual_norm, 0.0);
  });
  EXPECT_EQ(trainers[1].values, trainers[0].values);
  EXPECT_EQ(trainers[2].values, trainers[0].values);
  expect_nothing_lost(ranks, trainers, 6);
}

/// A NaN in the same step: residuals stay as they were.
TEST(OwnerTurn, SkippedStepOfAFlushLosesNoResidual) {
  Ranks ranks(setup_of("topk:ratio=0.01", 2));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 2; ++r) trainers.emplace_back(ranks, r);
  on_all(2, [&](uint32_t r) {
    for (uint64_t step = 0; step < 3; ++step) {
      if (step == 1) {
        ASSERT_TRUE(ranks.session(r).flush(1));
      }
      ASSERT_TRUE(*trainers[r].step(step, gradients_of(2, step)[r]));
      if (step != 1) continue;
      const double norm = ranks.session(r).stats().residual_norm;
      auto bad = gradients_of(2, 50)[r];
      bad[1][2900] = std::nanf("");
      EXPECT_FALSE(*trainers[r].step(2, bad));
      EXPECT_GT(norm, 0.0);
      EXPECT_NEAR(ranks.session(r).stats().residual_norm, norm, 1e-9);
      break;
    }
  });
}

/// Masters are float32 whatever the parameters are.
TEST(OwnerTurn, MastersOfBf16ReplicasMatchThoseOfFloats) {
  Ranks halves(setup_of("3lc", 2)), floats(setup_of("3lc", 2));
  std::deque<Trainer> half, full;
  for (uint32_t r = 0; r < 2; ++r) {
    half.emplace_back(halves, r, DType::bf16);
    full.emplace_back(floats, r);
    for (uint32_t p = 0; p < kModel.size(); ++p) full[r].values[p] = half[r].replica(p);
    full[r].begin(true);
  }
  on_all(2, [&](uint32_t r) {
    for (uint64_t step = 0; step < 10; ++step) {
      ASSERT_TRUE(*half[r].step(step, gradients_of(2, step)[r]));
      ASSERT_TRUE(*full[r].step(step, gradients_of(2, step)[r]));
    }
  });
  for (uint32_t r = 0; r < 2; ++r) {
    for (const auto& [at, mean] : full[r].means) EXPECT_EQ(half[r].master(at), full[r].master(at));
  }
}

TEST(OwnerTurn, Bf16ReplicasStayEqualAndFollowMasters) {
  Ranks ranks(setup_of("3lc", 3));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r, DType::bf16);
  on_all(3, [&](uint32_t r) {
    for (uint64_t step = 0; step < 40; ++step)
      ASSERT_TRUE(*trainers[r].step(step, gradients_of(3, step % 10)[r]));
    // Without gradients masters stand still, and pulls bring replicas as near as their type can.
    trainers[r].velocities.clear();
    const std::vector<Floats> nothing{Floats(419), Floats(4007)};
    for (uint64_t step = 40; step < 400; ++step) {
      trainers[r].push(step, nothing);
      ASSERT_TRUE(trainers[r].driver().turns().begin());
      ASSERT_TRUE(*trainers[r].driver().turns().pull());
    }
  });
  for (uint32_t p = 0; p < kModel.size(); ++p) {
    EXPECT_EQ(trainers[1].replica(p), trainers[0].replica(p));
    EXPECT_EQ(trainers[2].replica(p), trainers[0].replica(p));
  }
  for (uint32_t r = 0; r < 3; ++r) {
    for (const collective::OwnedRange& range : trainers[r].driver().turns().owned()) {
      const Floats replica = trainers[r].replica(range.parameter);
      // The codec's scale is that of the largest gap, which half of a last place may be.
      const auto larger = [](float x, float y) { return std::abs(x) < std::abs(y); };
      const float largest = *std::max_element(range.master, range.master + range.count, larger);
      for (uint64_t i = 0; i < range.count; ++i)
        EXPECT_NEAR(replica[range.offset + i], range.master[i], std::abs(largest) / 256);
    }
  }
}

/// Every point of a step where a program may stop: before a push and after a pull.
TEST(OwnerTurn, ResumedRunContinuesBitForBit) {
  const auto setup = setup_of("3lc", 3);
  Ranks ranks(setup);
  std::deque<Trainer> trainers, resumed;
  for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r);
  std::vector<std::vector<uint8_t>> states(3);
  on_all(3, [&](uint32_t r) {
    for (uint64_t step = 0; step < 3; ++step)
      ASSERT_TRUE(*trainers[r].step(step, gradients_of(3, step)[r]));
    states[r] = *session::save_state(ranks.session(r), feedback::kStateVersionOfMasters);
  });
  Ranks again(setup);
  for (uint32_t r = 0; r < 3; ++r) resumed.emplace_back(again, r);
  for (uint32_t r = 0; r < 3; ++r) {
    resumed[r].values = trainers[r].values;
    resumed[r].velocities = trainers[r].velocities;
    const auto version = session::load_state(again.session(r), states[r]);
    ASSERT_TRUE(version) << version.error().message;
    resumed[r].begin(false);
  }
  on_all(3, [&](uint32_t r) {
    ASSERT_TRUE(*trainers[r].step(3, gradients_of(3, 3)[r]));
    trainers[r].push(4, gradients_of(3, 4)[r]);
    EXPECT_EQ(session::save_state(ranks.session(r)).error().code, Errc::exchange_order);
    ASSERT_TRUE(trainers[r].driver().turns().begin());
    EXPECT_EQ(session::save_state(ranks.session(r)).error().code, Errc::exchange_order);
    trainers[r].driver().break_off({Errc::engine_failed, "over", {}});
  });
  on_all(3, [&](uint32_t r) { ASSERT_TRUE(*resumed[r].step(3, gradients_of(3, 3)[r])); });
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(resumed[r].values, trainers[r].values);
  EXPECT_EQ(held(again, resumed[1], 1)[kModel.size()].size(), kModel[0].count());
}

TEST(OwnerTurn, NonFiniteMasterIsErrorOnAllRanksAndNamesParameter) {
  Ranks ranks(setup_of("3lc", 3));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 3; ++r) trainers.emplace_back(ranks, r);
  std::vector<std::string> messages(3);
  on_all(3, [&](uint32_t r) {
    trainers[r].push(0, gradients_of(3, 0)[r]);
    const auto turn = trainers[r].driver().turns().begin();
    ASSERT_TRUE(turn);
    for (const auto& range : turn->ranges) {
      if (kModel[range.parameter].name == "v") range.master[0] = std::nanf("");
    }
    const auto pulled = trainers[r].driver().turns().pull();
    ASSERT_FALSE(pulled);
    messages[r] = pulled.error().message;
  });
  EXPECT_NE(messages[0].find("the optimizer's update is not finite"), std::string::npos)
      << messages[0];
  EXPECT_NE(messages[0].find("parameter 2"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(messages[2], messages[0]);
}

TEST(OwnerTurn, LossScaleLeavesMasters) {
  Ranks ranks(setup_of("3lc", 2));
  Trainer trainer(ranks, 0);
  const auto before = held(ranks, trainer, 0);
  ASSERT_TRUE(ranks.session(0).scale_residuals(3.0F));
  EXPECT_EQ(held(ranks, trainer, 0), before);
}

TEST(OwnerTurn, ParkedPushesOfFailedEngineGoIntoResiduals) {
  Ranks ranks(setup_of("3lc", 2));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 2; ++r) trainers.emplace_back(ranks, r);
  on_all(2, [&](uint32_t r) {
    trainers[r].push(0, gradients_of(2, 0)[r]);
    ASSERT_TRUE(trainers[r].driver().turns().begin());
    trainers[r].driver().break_off({Errc::engine_failed, "over", {}});
    EXPECT_FALSE(trainers[r].driver().turns().pull());
    EXPECT_EQ(ranks.session(r).in_flight(), 0U);
  });
  expect_nothing_lost(ranks, trainers, 1);
}

/// Damages what a rank receives from the next one in its `call`-th collective.
class Tampering final : public Engine {
 public:
  Tampering(Engine& engine, uint64_t call) : engine_(&engine), call_(call) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_->caps(); }
  Result<void> run(std::span<const Step> batch) override {
    auto done = engine_->run(batch);
    if (calls_++ != call_) return done;
    const uint32_t from = (rank() + 1) % world();
    batch[0].recv[batch[0].recv_offsets[from] + 80] ^= 1;
    return done;
  }

 private:
  Engine* engine_;
  uint64_t call_, calls_ = 0;
};

/// Collectives of the second step: two pushes, two pulls; of the first, two status rounds as well.
TEST(OwnerTurn, DamagedPushIsErrorOnAllRanksAndLosesNothing) {
  Ranks ranks(setup_of("3lc", 3));
  Tampering tampering(ranks.hub().engine(1), 7);
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 3; ++r)
    trainers.emplace_back(ranks, r, DType::f32, r == 1 ? &tampering : nullptr);
  std::vector<std::string> messages(3);
  on_all(3, [&](uint32_t r) {
    for (uint64_t step = 0; step < 4; ++step) {
      const auto stepped = trainers[r].step(step, gradients_of(3, step)[r]);
      ASSERT_EQ(static_cast<bool>(stepped), step != 1);
      if (!stepped) messages[r] = stepped.error().message;
    }
  });
  EXPECT_NE(messages[0].find("rank 1"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(messages[2], messages[0]);
  for (uint32_t r = 1; r < 3; ++r) EXPECT_EQ(trainers[r].values, trainers[0].values);
  expect_nothing_lost(ranks, trainers, 4);
}

/// The others cannot know: this rank's parameters stand still where theirs move.
TEST(OwnerTurn, DamagedPullIsErrorOnItsRankAndLosesNothing) {
  Ranks ranks(setup_of("3lc", 3));
  Tampering tampering(ranks.hub().engine(1), 9);
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 3; ++r)
    trainers.emplace_back(ranks, r, DType::f32, r == 1 ? &tampering : nullptr);
  on_all(3, [&](uint32_t r) {
    for (uint64_t step = 0; step < 4; ++step)
      EXPECT_EQ(static_cast<bool>(trainers[r].step(step, gradients_of(3, step)[r])),
                step != 1 || r != 1);
  });
  EXPECT_EQ(trainers[2].values, trainers[0].values);
  EXPECT_NE(trainers[1].values, trainers[0].values);
  expect_nothing_lost(ranks, trainers, 4);
}

/// A program that goes on without a turn, or after a failed one, does not lose its means.
TEST(OwnerTurn, PullWithoutTurnFails) {
  Ranks ranks(setup_of("3lc", 2));
  std::deque<Trainer> trainers;
  for (uint32_t r = 0; r < 2; ++r) trainers.emplace_back(ranks, r);
  on_all(2, [&](uint32_t r) {
    trainers[r].push(0, gradients_of(2, 0)[r]);
    if (r == 0) {
      const auto turn = trainers[r].driver().turns().begin();
      ASSERT_TRUE(turn);
      trainers[r].turn(*turn);
    }
    EXPECT_FALSE(trainers[r].driver().turns().pull());
  });
  EXPECT_EQ(trainers[1].values, trainers[0].values);
  expect_nothing_lost(ranks, trainers, 1);
}

/// The public class, over the hub: a step of plain SGD on masters and small parameters.
Result<bool> sgd(Sharded& sharded, std::vector<Floats>& values, uint64_t step,
                 std::vector<Floats>& gradients) {
  for (size_t b = 0; b < kBuckets.size(); ++b)
    (void)sharded.push(step, {gradients[b], kBuckets[b]});
  auto stepped = sharded.step([](const OwnedRange& range) -> Result<void> {
    for (size_t i = 0; i < range.mean.size(); ++i) range.master[i] -= range.mean[i];
    return {};
  });
  for (size_t b = 0; b < kBuckets.size() && stepped && *stepped; ++b) {
    const Layout layout = back_to_back(kModel, kBuckets[b]);
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const uint32_t p = layout.parameters[i];
      if (!sharded.is_small(p)) continue;
      for (size_t k = 0; k < values[p].size(); ++k)
        values[p][k] -= gradients[b][layout.offsets[i] + k];
    }
  }
  return stepped;
}

TEST(Sharded, StepsMatchOneRankWithAllGradients) {
  for (const uint32_t world : {1U, 3U}) {
    LoopbackHub hub(world);
    std::vector<std::vector<Floats>> values(world), exact(world);
    on_all(world, [&](uint32_t r) {
      for (uint32_t p = 0; p < kModel.size(); ++p) values[r].push_back(first_values(p));
      const std::vector<std::span<float>> spans(values[r].begin(), values[r].end());
      SessionOptions options;
      options.small_elements = 16;
      auto sharded = Sharded::create("none", "none", kModel, spans, hub.engine(r), options);
      ASSERT_TRUE(sharded) << sharded.error().message;
      EXPECT_EQ((*sharded)->owned().empty(), world == 1);
      for (uint64_t step = 0; step < 5; ++step) {
        auto given = gradients_of(world, step)[r];
        if (step == 3 && r == 0) given[0][5] = std::nanf("");
        const auto stepped = sgd(**sharded, values[r], step, given);
        ASSERT_TRUE(stepped) << stepped.error().message;
        EXPECT_EQ(*stepped, step != 3);
      }
      const auto state = (*sharded)->save();
      ASSERT_TRUE(state);
      EXPECT_TRUE((*sharded)->load(*state));
    });
    for (uint32_t p = 0; p < kModel.size(); ++p) {
      std::vector<double> wanted(values[0][p].begin(), values[0][p].end());
      Floats start = first_values(p);
      std::copy(start.begin(), start.end(), wanted.begin());
      for (uint64_t step = 0; step < 5; ++step) {
        if (step == 3) continue;
        const auto all = gradients_of(world, step);
        for (size_t b = 0; b < kBuckets.size(); ++b) {
          const Layout layout = back_to_back(kModel, kBuckets[b]);
          for (size_t i = 0; i < layout.parameters.size(); ++i) {
            for (size_t k = 0; k < wanted.size() && layout.parameters[i] == p; ++k) {
              for (const auto& of_rank : all)
                wanted[k] -= of_rank[b][layout.offsets[i] + k] / static_cast<double>(world);
            }
          }
        }
      }
      for (size_t k = 0; k < wanted.size(); ++k) ASSERT_NEAR(values[0][p][k], wanted[k], 1e-6);
      for (uint32_t r = 1; r < world; ++r) EXPECT_EQ(values[r][p], values[0][p]);
    }
  }
}

TEST(Sharded, ErrorInTurnIsReportedOnAllRanks) {
  LoopbackHub hub(3);
  on_all(3, [&](uint32_t r) {
    std::vector<Floats> values;
    for (uint32_t p = 0; p < kModel.size(); ++p) values.push_back(first_values(p));
    const std::vector<std::span<float>> spans(values.begin(), values.end());
    SessionOptions options;
    options.small_elements = 16;
    auto sharded = Sharded::create("3lc", "int8", kModel, spans, hub.engine(r), options);
    ASSERT_TRUE(sharded) << sharded.error().message;
    auto given = gradients_of(3, 0)[r];
    for (size_t b = 0; b < kBuckets.size(); ++b)
      ASSERT_TRUE((*sharded)->push(0, {given[b], kBuckets[b]}));
    const auto stepped = (*sharded)->step([&](const OwnedRange&) -> Result<void> {
      if (r != 1) return {};
      return Error{Errc::invalid_argument, "a rate below zero", {}};
    });
    ASSERT_FALSE(stepped);
    EXPECT_NE(stepped.error().message.find("a rate below zero"), std::string::npos);
  });
}

TEST(Sharded, ForeignValuesAreRefusedOnEveryRank) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    std::vector<Floats> values;
    for (uint32_t p = 0; p < kModel.size(); ++p) values.push_back(first_values(p));
    if (r == 1) values[2].pop_back();
    const std::vector<std::span<float>> spans(values.begin(), values.end());
    auto sharded = Sharded::create("3lc", "3lc", kModel, spans, hub.engine(r));
    ASSERT_FALSE(sharded);
    EXPECT_NE(sharded.error().message.find("values"), std::string::npos);
  });
}

TEST(OwnerTurn, SettingsWithoutOwnersAreRefused) {
  Options o;
  o.world = 2;
  o.owner_turns = true;
  const auto refused = [&](const char* spec, const char* control = "") {
    auto made = Session::create(spec, kModel, o, {}, control);
    return made ? std::string("taken") : made.error().message;
  };
  EXPECT_NE(refused("powersgd").find("powersgd"), std::string::npos);
  EXPECT_NE(refused("topk", "dc2").find("control"), std::string::npos);
  o.strategy = StrategyKind::gather_all;
  EXPECT_NE(refused("3lc").find("gather_all"), std::string::npos);
}

}  // namespace
}  // namespace laconic::test
