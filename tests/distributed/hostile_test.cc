// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Bytes from the network are hostile: whatever arrives instead of a bundle, every rank gets a
// message, nothing is lost, and the next exchange works.
#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"
#include "support/even_codec.h"
#include "support/ranks.h"
#include "wire/bundle.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}};

/// An engine that damages what one rank receives in one collective. Collective 0 enrols the layout.
class Tampering final : public Engine {
 public:
  Tampering(Engine& engine, uint32_t victim, uint64_t call, uint64_t seed)
      : engine_(&engine), victim_(victim), call_(call), random_(seed) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    auto result = engine_->run(batch);
    if (result && rank() == victim_ && calls_++ == call_) damage(batch[0]);
    return result;
  }

 private:
  void damage(const Step& step) {
    const uint32_t from = (rank() + 1) % world();
    const uint64_t bytes = step.recv_counts[from];
    uint8_t* at = step.recv + step.recv_offsets[from];
    if (bytes == 0) return;
    switch (random_() % 3) {
      case 0:
        at[random_() % std::min(bytes, kBundleHeaderBytes)] ^=
            static_cast<uint8_t>(1U << random_() % 8);
        break;
      case 1:
        std::memset(at, static_cast<int>(random_() % 256), bytes);
        break;
      default:
        for (uint64_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(random_());
    }
  }

  Engine* engine_;
  uint32_t victim_;
  uint64_t call_;
  uint64_t calls_ = 0;
  std::mt19937_64 random_;
};

class Hostile : public testing::TestWithParam<std::tuple<std::string, StrategyKind>> {};

TEST_P(Hostile, DamagedBundlesAreRefusedAndNothingIsLost) {
  const auto& [spec, strategy] = GetParam();
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  const uint64_t collectives = strategy == StrategyKind::two_shot || spec == "even" ? 3 : 2;
  Even even;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    test::Setup setup{spec, 3, kModel, strategy, 64, 1, kAllSums};
    setup.codec = [&](uint32_t) { return even.table(); };
    Ranks group(setup);
    auto buffers = gradients(3, layout.elements, seed);
    const auto originals = buffers;
    std::vector<Result<void>> results(3);
    group.on_all([&](uint32_t r) {
      Tampering engine(group.hub().engine(r), 1, seed % collectives, seed);
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      results[r] = session::drive(group.session(r), bucket, layout, engine);
    });
    ASSERT_FALSE(results[1]) << "seed " << seed;
    EXPECT_FALSE(results[1].error().message.empty());
    // there was a round left to report it
    const bool all_know = seed % collectives + 1 < collectives;
    for (uint32_t r = 0; r < 3; ++r) {
      if (all_know) {
        EXPECT_FALSE(results[r]);
      }
      if (results[r]) continue;
      // First step: what is put back is exactly the gradient.
      for (const auto& e : group.session(r).active().store.entries()) {
        if (e.kind != feedback::StateKind::residual) continue;
        const uint32_t p = e.name == "residual/a" ? 0 : 2;
        for (size_t i = 0; i < e.values.size(); ++i) {
          ASSERT_EQ(e.values[i], originals[r][layout.offsets[p] + i]) << e.name << " rank " << r;
        }
      }
    }
    // If only the victim noticed, the other ranks have received lengths that it has not: the job
    // has to restart.
    const bool in_step = all_know || group.session(0).model().spec().contract().exact_size;
    if (!in_step) continue;
    buffers = gradients(3, layout.elements, seed + 100);
    group.on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.step = 1;
      results[r] = session::drive(group.session(r), bucket, layout, group.hub().engine(r));
    });
    for (const auto& result : results) EXPECT_TRUE(result) << result.error().message;
  }
}

/// A liar that keeps its checksums right: an owner's mean claims to have seen `claimed` bytes of a
/// rank that was granted less, in every exchange.
class Lying final : public Engine {
 public:
  Lying(Engine& engine, uint64_t claimed) : engine_(&engine), claimed_(claimed) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    const Step& step = batch[0];
    uint8_t* own = step.send;
    const bool mean = step.kind == StepKind::all_gather && own[5] == 1;
    if (mean && rank() == 0) lie(own);
    return engine_->run(batch);
  }

 private:
  void lie(uint8_t* bundle) {
    const auto slots = load<uint32_t>(bundle + 48);
    const uint64_t seen = kBundleHeaderBytes + 4 * uint64_t{slots};
    store(bundle + seen, static_cast<uint32_t>(claimed_ / 4));
    store(bundle + 6, static_cast<uint8_t>(bundle[6] | 16U));  // incomplete: it wants more
    const auto bytes = load<uint64_t>(bundle + 32);
    store(bundle + 8, hash64(Bytes(bundle + 16, bytes - 16), load<uint64_t>(bundle)));
  }

  Engine* engine_;
  uint64_t claimed_;
};

/// Above the bound it is refused as it arrives; below it the repeat rounds are counted. Honest
/// ranks never send what they do not have.
TEST(HostileOwner, UnsentLengthsAreRefused) {
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  for (const uint64_t claimed : {uint64_t{1} << 30, uint64_t{1200}}) {
    Ranks group({"3lc", 3, kModel, StrategyKind::two_shot, 64, 1, kAllSums});
    std::vector<Result<void>> results(3);
    for (uint64_t step = 0; step < 3; ++step) {
      auto buffers = gradients(3, layout.elements, step);
      const auto originals = buffers;
      group.on_all([&](uint32_t r) {
        Lying engine(group.hub().engine(r), step == 2 ? claimed : 0);
        Bucket bucket;
        bucket.buffer = buffers[r].data();
        bucket.step = step;
        Engine& honest = group.hub().engine(r);
        results[r] = session::drive(group.session(r), bucket, layout, step == 2 ? engine : honest);
      });
      for (uint32_t r = 0; r < 3; ++r) ASSERT_EQ(results[r].ok(), step < 2) << "rank " << r;
    }
    for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(results[r].error().code, Errc::bound_exceeded);
  }
}

/// A rank that can only report its failure, and receives damaged answers.
TEST(HostileStatus, RankThatRefusesLayoutStopsWithOthers) {
  const Layout outside{{0}, {1}, 3000};
  Ranks group({"3lc", 3, kModel, StrategyKind::two_shot, 64, 1, kAllSums});
  std::vector<float> buffers[3];
  group.on_all([&](uint32_t r) {
    buffers[r].resize(3001);
    Tampering engine(group.hub().engine(r), 2, 0, 1);  // what rank 0 says
    Bucket bucket;
    bucket.buffer = buffers[r].data();
    const auto done = session::drive(group.session(r), bucket, outside, engine);
    ASSERT_FALSE(done) << "rank " << r;
    EXPECT_FALSE(done.error().message.empty());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Hostile,
                         testing::Values(std::tuple{"3lc", StrategyKind::two_shot},
                                         std::tuple{"3lc", StrategyKind::gather_all},
                                         std::tuple{"even", StrategyKind::gather_all},
                                         std::tuple{"topk:ratio=0.1", StrategyKind::gather_all},
                                         std::tuple{"sidco:ratio=0.1", StrategyKind::two_shot},
                                         std::tuple{"int8+ef", StrategyKind::two_shot}));

}  // namespace
}  // namespace laconic::test
