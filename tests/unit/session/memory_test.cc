// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A session's count of its memory, against what it has requested from the system and not returned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <unordered_map>

#include "laconic/dtype.h"
#include "session/describe.h"
#include "support/ranks.h"
#include "support/sanitizer.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}, {"c", 40, 10}};
constexpr uint32_t kWorld = 3;
constexpr uint64_t kCompressed = 3000 + 3000 + 400;

/// A model's session on one rank that never meets the others.
std::unique_ptr<Session> session(const char* spec, uint32_t world, uint32_t rank,
                                 StrategyKind strategy = StrategyKind::automatic) {
  Options o;
  o.world = world;
  o.rank = rank;
  o.small_elements = 64;
  o.strategy = strategy;
  auto made = Session::create(spec, kModel, o);
  EXPECT_TRUE(made) << made.error().message;
  return *std::move(made);
}

TEST(Memory, ResidualsAreOneFloatPerCompressedElement) {
  const auto bytes = [](const char* spec) {
    const auto s = session(spec, kWorld, 1);
    EXPECT_EQ(s->stats().residual_bytes, session::memory_of(*s).residual_bytes);
    return session::memory_of(*s).residual_bytes;
  };
  EXPECT_EQ(bytes("topk:ratio=0.1"), 4 * kCompressed);
  EXPECT_EQ(bytes("powersgd:rank=2"), 4 * kCompressed);
  EXPECT_EQ(bytes("topk:ratio=0.1+noef"), 0U);
  EXPECT_EQ(bytes("bf16"), 0U);
  EXPECT_EQ(bytes("bf16+ef"), 4 * kCompressed);
  EXPECT_EQ(bytes("none"), 0U);
}

/// Each rank's own, and every mean's with one of them.
TEST(Memory, ResidualsOfOwnedMeansCount) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < kWorld; ++r)
    sum += session::memory_of(*session("3lc", kWorld, r, StrategyKind::two_shot)).residual_bytes;
  EXPECT_EQ(sum, 4 * kCompressed * (kWorld + 1));
}

/// PowerSGD remembers a factor of cols x rank for each matrix; the flush two numbers where there is
/// something to flush.
TEST(Memory, StateCountsRemainingMemory) {
  const auto bytes = [](const char* spec) {
    return session::memory_of(*session(spec, kWorld, 0)).state_bytes;
  };
  EXPECT_EQ(bytes("topk:ratio=0.1+noef"), 0U);
  EXPECT_EQ(bytes("topk:ratio=0.1"), 2 * sizeof(float));
  EXPECT_EQ(bytes("powersgd:rank=2") % sizeof(float), 0U);
  EXPECT_GE(bytes("powersgd:rank=2"), (50 + 10) * 2 * sizeof(float));
  EXPECT_EQ(bytes("powersgd:rank=4") - bytes("powersgd:rank=2"),
            bytes("powersgd:rank=6") - bytes("powersgd:rank=4"));
}

std::vector<std::string> reasons(const Session& s) {
  std::vector<std::string> found;
  for (uint32_t i = 0; i < kModel.size(); ++i) found.push_back(s.model().assignment(i).reason);
  return found;
}

TEST(Reasons, ReasonsNameUncompressedAndCutParameters) {
  using testing::ElementsAre;
  const std::string small = "at most small_elements = 64 elements";
  const std::string nothing = "none does not compress";
  const std::string alone = "one rank has nothing to exchange: gradients stay as they are";
  EXPECT_THAT(reasons(*session("topk", kWorld, 0)), ElementsAre("", small, "", ""));
  EXPECT_THAT(reasons(*session("none", kWorld, 0)),
              ElementsAre(nothing, nothing, nothing, nothing));
  EXPECT_THAT(reasons(*session("int8:block=256", kWorld, 0, StrategyKind::two_shot)),
              ElementsAre("cut into 3 ranges, one for each owner", small,
                          "cut into 3 ranges, one for each owner",
                          "whole to owner 0: fewer than 256 elements for each of 3 ranks"));
  EXPECT_THAT(reasons(*session("int8:block=256", 1, 0, StrategyKind::two_shot)),
              ElementsAre(alone, alone, alone, alone));
  EXPECT_NE(session::explain(*session("topk", kWorld, 0)).find("\"reason\": \"" + small + "\""),
            std::string::npos);
}

}  // namespace
}  // namespace laconic::test

#if !defined(LACONIC_ASAN) && !defined(LACONIC_TSAN)  // they have allocators of theirs

extern "C" void __libc_free(void* p);  // NOLINT: glibc's own, after the free below

namespace {

/// Memory without a ledger.
template <class T>
struct Plain {
  using value_type = T;
  Plain() = default;
  template <class U>
  Plain(const Plain<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(size_t n) { return static_cast<T*>(std::malloc(n * sizeof(T))); }
  void deallocate(T* p, size_t) { __libc_free(p); }
  friend bool operator==(const Plain&, const Plain&) { return true; }
};

/// Bytes that the ranks have requested and not returned.
struct Ledger {
  struct Taken {
    int rank;
    size_t bytes;
  };
  std::mutex mutex;
  std::unordered_map<void*, Taken, std::hash<void*>, std::equal_to<>,
                     Plain<std::pair<void* const, Taken>>>
      taken;
  std::array<uint64_t, 8> bytes{};
};

Ledger& ledger() {
  static auto* const one = new (std::malloc(sizeof(Ledger))) Ledger;
  return *one;
}

/// The rank whose code this thread runs; -1: none.
thread_local int rank_here = -1;

void note(void* p, size_t bytes) {
  if (rank_here < 0 || p == nullptr) return;
  const std::lock_guard lock(ledger().mutex);
  ledger().taken[p] = {rank_here, bytes};
  ledger().bytes[static_cast<size_t>(rank_here)] += bytes;
}

void forget(void* p) {
  const std::lock_guard lock(ledger().mutex);
  const auto at = ledger().taken.find(p);
  if (at == ledger().taken.end()) return;
  ledger().bytes[static_cast<size_t>(at->second.rank)] -= at->second.bytes;
  ledger().taken.erase(at);
}

void* allocate(size_t bytes) {
  void* const p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  note(p, bytes);
  return p;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

/// The allocator that arenas call.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, alignment, bytes) != 0) return nullptr;
  note(p, bytes);
  return p;
}
extern "C" void free(void* p) {
  if (p != nullptr) forget(p);
  __libc_free(p);
}

namespace laconic::test {
namespace {

uint64_t taken_by(uint32_t rank) {
  const std::lock_guard lock(ledger().mutex);
  return ledger().bytes[rank];
}

/// Whether every batch finds the session's count to be the ledger's, but for the objects that the
/// buffers hang on: `unsaid` is what was taken and not reported.
class Auditor final : public Engine {
 public:
  Auditor(Engine& engine, const Session& session, std::set<uint64_t>* unsaid)
      : engine_(&engine), session_(&session), unsaid_(unsaid) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    const int here = std::exchange(rank_here, -1);  // engines have memory of their own
    unsaid_->insert(taken_by(rank()) - session::memory_of(*session_).exchange_bytes);
    auto done = engine_->run(batch);
    rank_here = here;
    return done;
  }

 private:
  Engine* engine_;
  const Session* session_;
  std::set<uint64_t>* unsaid_;
};

using Case = std::tuple<const char*, StrategyKind, DType, bool>;

/// A group whose exchanges are audited.
class Audited {
 public:
  Audited(const Case& of, uint32_t world) : dtype_(std::get<2>(of)), group_(setup(of, world)) {}

  /// Gives, by rank, what the batches found taken and not reported.
  std::vector<std::set<uint64_t>> exchange(const Layout& layout, bool bad = false) {
    auto g = gradients(world(), layout.elements, step_);
    if (bad) g[0][5] = std::numeric_limits<float>::infinity();
    std::vector<std::vector<uint16_t>> half(world(), std::vector<uint16_t>(layout.elements));
    std::vector<std::set<uint64_t>> unsaid(world());
    group_.on_all([&](uint32_t r) {
      for (size_t i = 0; i < g[r].size(); ++i) half[r][i] = float_to_bf16(g[r][i]);
      Bucket bucket;
      bucket.buffer = dtype_ == DType::f32 ? static_cast<void*>(g[r].data()) : half[r].data();
      bucket.dtype = dtype_;
      bucket.step = step_;
      Auditor engine(group_.hub().engine(r), group_.session(r), &unsaid[r]);
      rank_here = static_cast<int>(r);
      const bool done = session::drive(group_.session(r), bucket, layout, engine).ok();
      rank_here = -1;
      EXPECT_TRUE(done);
    });
    ++step_;
    return unsaid;
  }
  void release(const Layout& layout) {
    for (uint32_t r = 0; r < world(); ++r) group_.session(r).release(layout, dtype_);
  }
  [[nodiscard]] uint32_t world() const { return group_.world(); }
  uint64_t reported(uint32_t rank) {
    return session::memory_of(group_.session(rank)).exchange_bytes;
  }

 private:
  static Setup setup(const Case& of, uint32_t world) {
    return {std::get<0>(of),
            world,
            kModel,
            std::get<1>(of),
            64,
            1,
            kAllSums,
            std::get<3>(of),
            {},
            {},
            {},
            true};
  }

  DType dtype_;
  Ranks group_;
  uint64_t step_ = 0;
};

class ExchangeMemory : public testing::TestWithParam<Case> {
 protected:
  /// Three layouts come and go. `objects`: what each takes that is not reported, the same for every
  /// layout, rank and number of ranks; 0: not known yet.
  void audit(uint32_t world, uint64_t* objects) {
    Audited group(GetParam(), world);
    const std::vector<Layout> layouts{back_to_back(kModel, {0, 1, 2}), back_to_back(kModel, {3, 1}),
                                      back_to_back(kModel, {1})};
    // their list has a capacity of three
    for (const Layout& layout : layouts) group.exchange(layout);
    for (const Layout& layout : layouts) group.release(layout);
    std::vector<uint64_t> before;
    for (uint32_t r = 0; r < world; ++r) {
      before.push_back(taken_by(r));
      EXPECT_EQ(group.reported(r), 0U);
    }

    for (uint64_t made = 1; made <= layouts.size(); ++made) {
      for (const bool bad : {false, true, false}) {  // an infinite gradient takes a copy with it
        const auto unsaid = group.exchange(layouts[made - 1], bad);
        for (uint32_t r = 0; r < world; ++r) {
          ASSERT_EQ(unsaid[r].size(), 1U) << "rank " << r;
          if (*objects == 0) *objects = *unsaid[r].begin() - before[r];
          EXPECT_EQ(*unsaid[r].begin() - before[r], made * *objects)
              << "rank " << r << " of " << world << ", layout " << made;
        }
      }
    }

    const uint64_t all = group.reported(0);
    EXPECT_GT(all, 3 * world * kMinCapacity);
    group.release(layouts[0]);
    EXPECT_LT(group.reported(0), all);
    EXPECT_EQ(taken_by(0), before[0] + group.reported(0) + 2 * *objects)
        << "the system has it back";
    group.release(layouts[1]);
    group.release(layouts[2]);
    for (uint32_t r = 0; r < world; ++r) {
      EXPECT_EQ(group.reported(r), 0U);
      EXPECT_EQ(taken_by(r), before[r]);
    }
  }
};

TEST_P(ExchangeMemory, BytesAreCountedExactly) {
  uint64_t objects = 0;
  for (const uint32_t world : {kWorld, 2U}) audit(world, &objects);
  EXPECT_LT(objects, 8192U) << "two objects, no buffers";
}

INSTANTIATE_TEST_SUITE_P(
    All, ExchangeMemory,
    testing::Values(Case{"3lc", StrategyKind::two_shot, DType::f32, false},
                    Case{"3lc", StrategyKind::two_shot, DType::f32, true},
                    Case{"topk:ratio=0.1", StrategyKind::gather_all, DType::bf16, false},
                    Case{"int8", StrategyKind::gather_all, DType::f32, true},
                    Case{"powersgd:rank=2", StrategyKind::native_sum, DType::f32, false},
                    Case{"bf16+ef", StrategyKind::native_sum, DType::bf16, false},
                    Case{"none", StrategyKind::native_sum, DType::f32, false}));

}  // namespace
}  // namespace laconic::test

#endif
