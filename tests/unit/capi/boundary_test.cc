// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Promises at the head of laconic.h for every function: null, structs of other sizes and failing
// allocations return codes, and everything works afterwards.
#include "capi/boundary.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <tuple>

#include "unit/capi/functions.h"

// ---- an operator new that fails on request, and counts ----

namespace {

std::atomic<int64_t> live{0};
thread_local int64_t fail_at = 0;  // 0: never; n: the n-th allocation of this thread from now on
thread_local bool fired = false;

bool allowed() {
  if (fail_at == 0 || --fail_at != 0) return true;
  fired = true;
  return false;
}
void* counted(void* p) {
  if (p != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return p;
}
void* take(std::size_t bytes) {
  return allowed() ? counted(std::malloc(bytes > 0 ? bytes : 1)) : nullptr;
}
void* take(std::size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return allowed() ? counted(std::aligned_alloc(a, (bytes + a) / a * a)) : nullptr;
}
void* or_throw(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void give(void* p) {
  if (p != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}

}  // namespace

void* operator new(std::size_t n) { return or_throw(take(n)); }
void* operator new[](std::size_t n) { return or_throw(take(n)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return take(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return take(n); }
void* operator new(std::size_t n, std::align_val_t a) { return or_throw(take(n, a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return or_throw(take(n, a)); }
void operator delete(void* p) noexcept { give(p); }
void operator delete[](void* p) noexcept { give(p); }
void operator delete(void* p, std::size_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t) noexcept { give(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give(p); }
void operator delete(void* p, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { give(p); }

namespace laconic::test {
namespace {

constexpr auto kInvalid = static_cast<int32_t>(Errc::invalid_argument);
constexpr auto kNoMemory = static_cast<int32_t>(Errc::out_of_memory);
using Change = Arguments::Change;

/// A codec and a world: between them every strategy, codec state, and rounds of lanes.
struct Scene {
  const char* name;
  const char* codec;
  WorldSetup setup;
};
void PrintTo(const Scene& scene, std::ostream* out) { *out << scene.name; }
constexpr Scene kScenes[] = {
    {"gather", "int8:block=64+ef", {"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL}},
    {"two_shot", "powersgd:rank=2", {"3lc", 2, LACONIC_STRATEGY_TWO_SHOT}},
    {"native", "sidco", {"powersgd:rank=2", 2, LACONIC_STRATEGY_NATIVE_SUM}},
    {"gather_two", "3lc", {"sidco", 2, LACONIC_STRATEGY_GATHER_ALL}},
};

/// Objects in the state that a call of `function` starts from.
std::unique_ptr<Objects> objects_for(const Scene& scene, const Function& function) {
  auto o = std::make_unique<Objects>(scene.codec, scene.setup);
  const std::string name = function.name;
  if (!name.ends_with("_create") && !name.ends_with("_over")) {  // something to fill and to destroy
    o->made_codec = o->create_codec();
    EXPECT_EQ(laconic_residual_create(10, &o->made_residual), 0);
    const laconic_session_options options = o->world.options(0);
    EXPECT_EQ(laconic_session_create(&options, World::parameters(), 2, &o->made_session), 0);
  }
  if (name.starts_with("laconic_aggregator")) {
    laconic_session_options options = o->world.options(0);
    options.spec = "thc";
    options.strategy = LACONIC_STRATEGY_SERVER_SUM;
    options.aggregates = 1;
    EXPECT_EQ(laconic_session_create(&options, World::parameters(), 2, &o->coded_session), 0);
    const laconic_aggregator_options said = aggregator_options();
    EXPECT_EQ(laconic_aggregator_open(&said, &o->aggregator), 0);
  }
  if (name.starts_with("laconic_driver") || name == "laconic_agree") {
    laconic_session_options options = o->world.options(0);
    options.world = 1;
    options.owner_turns = name == "laconic_driver_set_replicas" ? 1 : 0;
    EXPECT_EQ(laconic_session_create(&options, World::parameters(), 2, &o->lone_session), 0);
    if (name.starts_with("laconic_driver") && !name.ends_with("_create")) {
      EXPECT_EQ(laconic_driver_create(o->lone_session, &o->engine.options, &o->driver), 0);
    }
  }
  o->world.weights_first = function.in_exchange;
  if (function.in_exchange) o->world.begin_all();
  return o;
}

/// A last error that no other test can have left, message and hint too long for a short string.
void mark_last_error() {
  laconic_codec* none = nullptr;
  EXPECT_NE(laconic_codec_create("nonsense", 8, 0, &none), 0);
}

class Boundary : public testing::TestWithParam<std::tuple<Scene, Function>> {
 protected:
  const Scene scene_ = std::get<0>(GetParam());
  const Function function_ = std::get<1>(GetParam());

  /// Its pointers and structs, found out by calling it.
  Arguments arguments() {
    const auto o = objects_for(scene_, function_);
    Arguments a(true);
    const int32_t code = function_.call(*o, a);
    EXPECT_TRUE(code == function_.expected || function_.gives == Gives::value)
        << laconic_last_message();
    o->expect_usable();
    return a;
  }
  int32_t call(Objects& o, const std::string& argument, Change change) {
    Arguments a(argument, change);
    mark_last_error();
    const int32_t code = function_.call(o, a);
    a.expect_untouched();
    return code;
  }
};

TEST_P(Boundary, NullIsInvalidArgument) {
  for (const std::string& pointer : arguments().pointers) {
    SCOPED_TRACE(pointer + " is null");
    const auto o = objects_for(scene_, function_);

    const int32_t code = call(*o, pointer, Change::null);
    if (function_.gives == Gives::nothing) {
      EXPECT_NE(std::string(laconic_last_message()).find("nonsense"), std::string::npos);
    } else {
      EXPECT_EQ(code, function_.gives == Gives::code ? kInvalid : -1);
      EXPECT_NE(std::string(laconic_last_message()).find("must not be null"), std::string::npos);
    }
    o->expect_usable();
  }
}

/// The structs of the table whose last field is one that no caller can leave out.
bool last_field_is_required(const std::string& name) {
  return name == "source" || name == "out" || name == "bucket" || name == "values";
}

TEST_P(Boundary, StructMayBeShorterOrLonger) {
  for (const std::string& name : arguments().structs) {
    SCOPED_TRACE(name);
    for (const Change change : {Change::shorter, Change::longer}) {
      const auto o = objects_for(scene_, function_);
      int32_t expected = function_.expected;
      if (change == Change::shorter && last_field_is_required(name)) expected = kInvalid;
      if (change == Change::shorter &&
          name == "header")  // a header without a spec is of no session
        expected = static_cast<int32_t>(Errc::state_corrupt);
      if (function_.name == std::string("laconic_session_state_header")) expected = 0;
      EXPECT_EQ(call(*o, name, change), expected) << laconic_last_message();
      o->expect_usable();
    }
  }
}

TEST_P(Boundary, ShortageReturnsCodeAndLosesNothing) {
  const auto warm = objects_for(scene_, function_);  // what the thread and the process keep
  laconic_session_stats(warm->world.ranks[0].session);
  int64_t failures = 0;
  for (int64_t n = 1;; ++n) {
    mark_last_error();
    const int64_t before = live.load();
    {
      const auto o = objects_for(scene_, function_);
      Arguments a(false);
      mark_last_error();
      fired = false;
      fail_at = n;
      const int32_t code = function_.call(*o, a);
      fail_at = 0;
      const bool said = code == kNoMemory || laconic_last_message() == std::string("out of memory");
      EXPECT_TRUE(code == function_.expected || said || !fired)
          << "allocation " << n << ": " << code << ' ' << laconic_last_message();
      failures += said ? 1 : 0;
      o->expect_usable();
    }
    mark_last_error();
    if (!fired) break;
    EXPECT_EQ(live.load(), before) << "allocation " << n;
    if (HasFailure()) break;
  }
  EXPECT_TRUE(failures > 0 || !function_.allocates);
}

INSTANTIATE_TEST_SUITE_P(
    All, Boundary, testing::Combine(testing::ValuesIn(kScenes), testing::ValuesIn(all_functions())),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param).name;
    });

/// call() with the n-th allocation failing, for n = 1, 2, ... until none does; check(n, code).
template <class Call, class Check>
void with_each_allocation_failing(Call&& call, Check&& check) {
  int64_t n = 0;
  do {
    fired = false;
    fail_at = ++n;
    const int32_t code = call();
    fail_at = 0;
    check(n, code);
  } while (fired);
  EXPECT_GT(n, 1) << "nothing was allocated";
}

TEST(WithoutMemory, LocalFailureIsStillReported) {
  World world(kScenes[1].setup);
  world.begin_all();
  with_each_allocation_failing(
      [&] {
        return laconic_exchange_fail(world.ranks[1].exchange, 62,
                                     "a message that does not fit into a short string");
      },
      [&](int64_t n, int32_t code) {
        EXPECT_EQ(code, 0) << "allocation " << n;
        world.settle();
        for (const World::Rank& rank : world.ranks) EXPECT_NE(rank.code, 0) << "allocation " << n;
        world.begin_all();
      });
}

/// A peer's failure becomes a message: with too little memory for it the exchange ends all the
/// same, and the next one works.
TEST(WithoutMemory, ExchangeEndsIfMessageHasNoMemory) {
  for (const Scene& scene : kScenes) {
    SCOPED_TRACE(scene.name);
    const auto fail_and_advance = [](World& world, int rounds) {
      world.begin_all();
      EXPECT_EQ(laconic_exchange_fail(world.ranks[1].exchange, 62, "the cable is cut"), 0);
      int done = 0;
      while (done < rounds && world.advance()) ++done;
      return done;
    };
    World other(scene.setup), world(scene.setup);
    for (World* w : {&other, &world}) EXPECT_EQ(w->exchange(), 0);
    const int rounds = fail_and_advance(other, 100);  // until rank 0 receives the error
    fail_and_advance(world, rounds);
    with_each_allocation_failing([&] { return world.next(0); },
                                 [&](int64_t n, int32_t code) {
                                   EXPECT_NE(code, 0) << "allocation " << n;
                                   world.settle();
                                   EXPECT_EQ(world.exchange(), 0) << "allocation " << n;
                                   fail_and_advance(world, rounds);
                                 });
  }
}

/// Frames of two steps are decoded in two goes: the second must not find itself without memory.
TEST(WithoutMemory, DecodeLeavesTensorUnchanged) {
  for (const char* spec : {"3lc", "powersgd:rank=2"}) {
    SCOPED_TRACE(spec);
    Objects o(spec, kScenes[0].setup);
    o.place.step = 1;
    const std::vector<uint8_t> later = o.encode();
    const std::vector<float> before(Objects::kCount, 0.25F);
    const void* const frames[] = {o.frame.data(), later.data(), later.data(), later.data()};
    const uint64_t sizes[] = {o.frame.size(), later.size(), later.size(), later.size()};
    laconic_codec* codec = o.create_codec();  // one without a work space, every time
    with_each_allocation_failing(
        [&] {
          const laconic_tensor out = Objects::tensor(o.decoded = before);
          return laconic_decode_many(codec, frames, sizes, 4, 1.0F, 0, &out, nullptr);
        },
        [&](int64_t n, int32_t code) {
          EXPECT_TRUE(code == 0 || code == kNoMemory) << code;
          EXPECT_EQ(o.decoded == before, code != 0) << "allocation " << n;
          laconic_codec_destroy(std::exchange(codec, o.create_codec()));
        });
    laconic_codec_destroy(codec);
  }
}

TEST(BoundaryTable, TableListsEveryExportedFunction) {
  std::ifstream file(LACONIC_TEST_DATA "/install/exported_symbols.txt");
  const std::set<std::string> exported{std::istream_iterator<std::string>(file), {}};
  std::set<std::string> listed;
  for (const Function& function : all_functions()) listed.insert(function.name);
  EXPECT_EQ(listed, exported);
}

}  // namespace
}  // namespace laconic::test
