// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The NCCL engine over a recording NCCL: which calls its steps become, what they do, and what it
// says when something fails. Ranks are threads, each with a device of its own.
#include "laconic/engine/nccl.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engines/engine_table.h"
#include "engines/fake_nccl.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

using Bytes = std::vector<uint8_t>;
using std::chrono::milliseconds;
constexpr int kNew = 22703, kOld = 2708;
constexpr auto kSoon = milliseconds(150);       // for what will not come
constexpr auto kPatience = milliseconds(1000);  // the same, where ranks have to meet first

/// The fake beside this program, as it was loaded.
class Fake {
 public:
  explicit Fake(int version = kNew, int devices = 8)
      : path_(std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" /
              (version < 21400 ? "liblaconic_fake_nccl_old.so" : "liblaconic_fake_nccl.so")) {
    handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    controls_ = reinterpret_cast<const FakeNccl* (*)()>(dlsym(handle_, "fake_nccl"))();
    controls_->reset(version, devices);
    alive_before_ = controls_->alive();
  }
  const FakeNccl* operator->() const { return controls_; }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] NcclLibraries libraries() const { return {path(), path()}; }
  /// Since the last time.
  [[nodiscard]] std::string calls(int device) const {
    std::string text(1 << 16, '\0');
    text.resize(controls_->calls(device, text.data(), text.size()));
    return text;
  }
  /// What has been made since, and not freed.
  [[nodiscard]] uint64_t alive() const { return controls_->alive() - alive_before_; }
  /// As soon as threads that were left behind have ended.
  [[nodiscard]] bool becomes(uint64_t alive_then) const {
    for (int turn = 0; turn < 2000 && alive() != alive_then; ++turn)
      std::this_thread::sleep_for(milliseconds(5));
    return alive() == alive_then;
  }
  /// Whether this thread has no context left.
  [[nodiscard]] bool no_context() const {
    return reinterpret_cast<int (*)(void**)>(dlsym(handle_, "cuCtxPopCurrent_v2"))(nullptr) == 201;
  }

 private:
  std::filesystem::path path_;
  void* handle_ = nullptr;
  const FakeNccl* controls_ = nullptr;
  uint64_t alive_before_ = 0;
};

void on_all(uint32_t world, const std::function<void(uint32_t)>& body) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world; ++r) threads.emplace_back([&, r] { body(r); });
}

/// Rank 0's id for all others.
class Board {
 public:
  NcclShare share(uint32_t rank) {
    return [this, rank](std::span<uint8_t> id) -> Result<void> {
      if (rank == 0) {
        written_.set_value(Bytes(id.begin(), id.end()));
      } else {
        if (shared_.wait_for(std::chrono::seconds(20)) != std::future_status::ready)
          return Error{Errc::timed_out, "rank 0 has shared nothing", {}};
        const Bytes& from_0 = shared_.get();
        std::copy(from_0.begin(), from_0.end(), id.begin());
      }
      return {};
    };
  }

 private:
  std::promise<Bytes> written_;
  std::shared_future<Bytes> shared_ = written_.get_future().share();
};

using Created = Result<std::unique_ptr<NcclEngine>>;
std::vector<Created> none_yet(uint32_t world) {
  std::vector<Created> created;
  for (uint32_t r = 0; r < world; ++r) created.emplace_back(Errc::internal);
  return created;
}

class Group {
 public:
  Group(const Fake& fake, uint32_t world, milliseconds timeout = std::chrono::seconds(60))
      : created_(none_yet(world)) {
    Board board;
    on_all(world, [&](uint32_t r) {
      NcclOptions options{fake.libraries(), r, world, r, timeout, std::chrono::seconds(20)};
      created_[r] = NcclEngine::create(options, board.share(r));
    });
  }
  ~Group() {
    on_all(static_cast<uint32_t>(created_.size()),
           [&](uint32_t r) { created_[r] = Errc::internal; });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Created& created(uint32_t rank) { return created_[rank]; }
  NcclEngine& operator[](uint32_t rank) { return **created_[rank]; }
  [[nodiscard]] bool all() const {
    return std::all_of(created_.begin(), created_.end(), [](const Created& c) { return c.ok(); });
  }

 private:
  std::vector<Created> created_;
};

Step sum_of(std::vector<float>& lanes) {
  auto* const at = reinterpret_cast<uint8_t*>(lanes.data());
  return {.dtype = DType::f32, .count = lanes.size(), .send = at, .recv = at};
}

/// All buffers of a step that moves bytes: `bytes(from, to)` of them.
struct Moves {
  Moves(uint32_t rank, uint32_t world, const std::function<uint64_t(uint32_t, uint32_t)>& bytes)
      : zeros(world, 0) {
    uint64_t sent = 0, received = 0;
    for (uint32_t r = 0; r < world; ++r) {
      send_counts.push_back(bytes(rank, r));
      send_offsets.push_back(std::exchange(sent, sent + send_counts.back() + 5));
      recv_counts.push_back(bytes(r, rank));
      recv_offsets.push_back(std::exchange(received, received + recv_counts.back() + 3));
    }
    send.resize(sent);
    recv.resize(received);
  }
  Step all_to_all() {
    return {.kind = StepKind::all_to_all,
            .send = send.data(),
            .recv = recv.data(),
            .send_counts = send_counts,
            .send_offsets = send_offsets,
            .recv_counts = recv_counts,
            .recv_offsets = recv_offsets};
  }
  Step all_gather() {
    Step step = all_to_all();
    step.kind = StepKind::all_gather;
    step.send_offsets = zeros;
    return step;
  }
  Bytes send, recv;
  std::vector<uint64_t> send_counts, send_offsets, recv_counts, recv_offsets, zeros;
};

/// What rank 1 of three calls for a step of all ranks, after one that has made the memory.
std::string calls_of(const std::function<void(NcclEngine&)>& run) {
  const Fake fake;
  Group group(fake, 3);
  EXPECT_TRUE(group.all());
  on_all(3, [&](uint32_t r) {
    std::vector<float> lanes(1000);
    const Step first = sum_of(lanes);
    EXPECT_TRUE(group[r].run({&first, 1}));
  });
  EXPECT_NE(fake.calls(1), "");
  on_all(3, [&](uint32_t r) { run(group[r]); });
  return fake.calls(1);
}

// ---- steps as calls ----

TEST(NcclCallsOf, ASum) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> lanes(100);
              const Step step = sum_of(lanes);
              EXPECT_TRUE(engine.run({&step, 1}));
            }),
            "cuMemcpyHtoDAsync 512\n"
            "ncclGroupStart\n"
            "ncclAllReduce 100 float32 in place\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 512\n");
}

TEST(NcclCallsOf, AGatherOfEqualLengths) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3, [](uint32_t, uint32_t) { return 20; });
              const Step step = moves.all_gather();
              EXPECT_TRUE(engine.run({&step, 1}));
            }),
            "cuMemcpyHtoDAsync 256\n"
            "ncclGroupStart\n"
            "ncclAllGather 20\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 256\n");
}

TEST(NcclCallsOf, ARaggedGatherWhereOneRankHasNothing) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3, [](uint32_t from, uint32_t) { return 10 * from; });
              const Step step = moves.all_gather();
              EXPECT_TRUE(engine.run({&step, 1}));
            }),
            "cuMemcpyHtoDAsync 256\n"
            "ncclGroupStart\n"
            "ncclSend 10 to 0\n"
            "ncclSend 10 to 2\n"
            "ncclRecv 20 from 2\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 256\n");
}

TEST(NcclCallsOf, AnAllToAll) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3,
                          [](uint32_t from, uint32_t to) { return 1 + 10 * from + to; });
              const Step step = moves.all_to_all();
              EXPECT_TRUE(engine.run({&step, 1}));
            }),
            "cuMemcpyHtoDAsync 512\n"
            "ncclGroupStart\n"
            "ncclSend 11 to 0\n"
            "ncclRecv 2 from 0\n"
            "ncclSend 13 to 2\n"
            "ncclRecv 22 from 2\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 512\n");
}

TEST(NcclCallsOf, MessagesOfWhichSomeGoOneWay) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {  // a ring
              Bytes out(300), in(300);
              const uint32_t next = (engine.rank() + 1) % 3, before = (engine.rank() + 2) % 3;
              const std::vector<Message> messages{{next, out.data(), 300, nullptr, 0},
                                                  {before, nullptr, 0, in.data(), 300}};
              const Step step{.kind = StepKind::messages, .messages = messages};
              EXPECT_TRUE(engine.run({&step, 1}));
            }),
            "cuMemcpyHtoDAsync 512\n"
            "ncclGroupStart\n"
            "ncclSend 300 to 2\n"
            "ncclRecv 300 from 0\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 512\n");
}

TEST(NcclCallsOf, ABatchAreOneGroupAndOneCopyEachWay) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> lanes(3);
              std::vector<uint16_t> halves(7);
              auto* const half = reinterpret_cast<uint8_t*>(halves.data());
              Moves gather(engine.rank(), 3, [](uint32_t, uint32_t) { return 20; });
              Moves all(engine.rank(), 3, [](uint32_t, uint32_t) { return 8; });
              const std::array<Step, 4> batch{
                  gather.all_gather(), sum_of(lanes), all.all_to_all(),
                  Step{.dtype = DType::bf16, .count = 7, .send = half, .recv = half}};
              EXPECT_TRUE(engine.run(batch));
            }),
            "cuMemcpyHtoDAsync 1280\n"  // three things sent, two sums
            "ncclGroupStart\n"
            "ncclAllGather 20\n"
            "ncclAllReduce 3 float32 in place\n"
            "ncclSend 8 to 0\n"
            "ncclRecv 8 from 0\n"
            "ncclSend 8 to 2\n"
            "ncclRecv 8 from 2\n"
            "ncclAllReduce 7 bfloat16 in place\n"
            "ncclGroupEnd\n"
            "cuMemcpyDtoHAsync 1280\n");
}

TEST(NcclCallsOf, NothingIsNothing) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> none;
              Moves empty(engine.rank(), 3, [](uint32_t, uint32_t) { return 0; });
              const std::array<Step, 4> batch{sum_of(none), empty.all_gather(), empty.all_to_all(),
                                              Step{.kind = StepKind::messages}};
              EXPECT_TRUE(engine.run(batch));
              EXPECT_TRUE(engine.run({}));
            }),
            "");
}

TEST(NcclCallsOf, AnEngineFromItsBeginningToItsEnd) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    EXPECT_EQ(fake.calls(1), "ncclCommInitRankConfig 1 of 2 nonblocking\n");
    EXPECT_EQ(fake.calls(-1), "ncclGetUniqueId\n");
    for (const size_t lanes : {10U, 1U << 18U, (1U << 18U) + 1, 10U}) {
      on_all(2, [&](uint32_t r) {
        std::vector<float> x(lanes);
        const Step step = sum_of(x);
        EXPECT_TRUE(group[r].run({&step, 1}));
        EXPECT_TRUE(fake.no_context());
      });
    }
    const std::string calls = fake.calls(1);
    std::string memory;
    for (size_t at = 0; at < calls.size(); at = calls.find('\n', at) + 1) {
      const std::string line = calls.substr(at, calls.find('\n', at) - at);
      if (line.find("Alloc") != std::string::npos || line.find("Free") != std::string::npos)
        memory += line + "\n";
    }
    EXPECT_EQ(memory,
              "cuMemAlloc 1048576\ncuMemHostAlloc 1048576\n"
              "cuMemFree\ncuMemFreeHost\ncuMemAlloc 2097152\ncuMemHostAlloc 2097152\n");
  }
  EXPECT_EQ(fake.calls(1), "ncclCommFinalize\nncclCommDestroy\ncuMemFree\ncuMemFreeHost\n");
  EXPECT_EQ(fake.alive(), 0U);
}

// ---- results ----

class NcclTable : public testing::TestWithParam<std::tuple<int, uint32_t>> {};

TEST_P(NcclTable, HoldsOverTheFakeLibrary) {
  const auto [version, world] = GetParam();
  const Fake fake(version);
  {
    Group group(fake, world);
    ASSERT_TRUE(group.all()) << group.created(0).error().message;
    std::vector<TableOutcome> outcomes(world);
    const TableOptions options{.stride = kOneWorld ? 5U : version == kOld || world != 3 ? 3U : 1U};
    on_all(world, [&](uint32_t r) { outcomes[r] = run_engine_table(group[r], options); });
    for (const TableOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.passed())
          << outcome.failures << " of " << outcome.cases << " cases; " << outcome.first_failure;
      EXPECT_GT(outcome.cases, 30U);
    }
  }
  EXPECT_EQ(fake.alive(), 0U);
}
INSTANTIATE_TEST_SUITE_P(All, NcclTable,
                         testing::Values(std::tuple(kNew, 1U), std::tuple(kNew, 2U),
                                         std::tuple(kNew, 3U), std::tuple(kNew, 4U),
                                         std::tuple(kOld, 3U)));

TEST(NcclEngine, AddsBfloat16FromItsTenthVersionOn) {
  for (const auto& [version, sums] :
       {std::pair(kOld, 0b011U), {20999, 0b011U}, {21003, kAllSums}, {kNew, kAllSums}}) {
    const Fake fake(version);
    Group group(fake, 2);
    ASSERT_TRUE(group.all()) << group.created(0).error().message;
    EXPECT_EQ(group[0].caps().sums, sums) << version;
    EXPECT_FALSE(group[0].caps().short_sends);
    on_all(2, [&](uint32_t r) {
      std::array<uint16_t, 3> lanes{};
      auto* const at = reinterpret_cast<uint8_t*>(lanes.data());
      const Step step{.dtype = DType::bf16, .count = 3, .send = at, .recv = at};
      const auto result = group[r].run({&step, 1});
      EXPECT_EQ(result.ok(), sums == kAllSums);
      EXPECT_EQ(result.error().code == Errc::unsupported, sums != kAllSums);
    });
  }
}

// ---- what is not here ----

TEST(NcclFind, SaysTheVersionAndWhetherAnEngineCanRun) {
  const Fake fake;
  const auto found = find_nccl(fake.libraries());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version_code, kNew);
  EXPECT_EQ(found->version, "2.27.3");
  EXPECT_EQ(found->gpus, 8U);
  EXPECT_EQ(found->why_not, "");
  const Fake old(kOld);
  EXPECT_EQ(find_nccl(old.libraries())->version, "2.7.8");
}

TEST(NcclFind, SaysWhyNot) {
  const Fake fake(kNew, 0);
  EXPECT_EQ(find_nccl(fake.libraries())->why_not,
            "no GPU: cuInit failed: no CUDA-capable device is detected");
  const auto without_driver = find_nccl({fake.path(), "/nonexistent/libcuda.so.1"});
  ASSERT_TRUE(without_driver);
  EXPECT_EQ(without_driver->version, "2.27.3");
  EXPECT_NE(
      without_driver->why_not.find("no NVIDIA driver: /nonexistent/libcuda.so.1: cannot open"),
      std::string::npos)
      << without_driver->why_not;
  const Fake broken;
  broken->fail(-1, "cuDeviceGetCount", 999);
  EXPECT_EQ(find_nccl(broken.libraries())->why_not, "cuDeviceGetCount failed: CUDA error 999");
}

TEST(NcclFind, IsAnErrorWithoutALibraryThatHasWhatItTakes) {
  const Fake fake;
  const auto none = find_nccl({"/nonexistent/libnccl.so.2", fake.path()});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::unsupported);
  EXPECT_NE(
      none.error().message.find("NCCL cannot be used: /nonexistent/libnccl.so.2: cannot open"),
      std::string::npos);
  EXPECT_EQ(find_nccl({"libm.so.6", fake.path()}).error().message,
            "NCCL cannot be used: libm.so.6 has no ncclGetVersion");
  EXPECT_EQ(find_nccl({fake.path(), "libm.so.6"})->why_not,
            "no NVIDIA driver: libm.so.6 has no cuInit");
  const Fake old(2604);
  EXPECT_EQ(find_nccl(old.libraries()).error().message,
            "NCCL 2.6.4 cannot send messages: " + old.path());
}

TEST(NcclCreate, WhatRankZeroLacksIsEveryRanksError) {
  const Fake fake;
  fake->fail(-1, "ncclGetUniqueId", 3);
  Group group(fake, 3);
  EXPECT_EQ(group.created(0).error().message,
            "rank 0: NCCL 2.27.3: ncclGetUniqueId failed: internal error");
  for (const uint32_t r : {1U, 2U}) {
    EXPECT_EQ(group.created(r).error().code, Errc::peer_failed);
    EXPECT_EQ(group.created(r).error().message, "rank 0 cannot use NCCL");
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclCreate, ADeviceThatIsNotThereIsNamed) {
  const Fake fake(kNew, 1);
  Group group(fake, 2, kPatience);
  EXPECT_EQ(group.created(1).error().message,
            "rank 1: NCCL 2.27.3: cuDeviceGet failed on GPU 1: invalid device ordinal");
  EXPECT_EQ(group.created(0).error().code, Errc::timed_out);
  EXPECT_EQ(group.created(0).error().message, "rank 0: NCCL 2.27.3: not all 2 ranks have come");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclCreate, ABroadcastThatFailsIsItsError) {
  const Fake fake;
  const auto created = NcclEngine::create({fake.libraries(), 1, 2, 1}, [](std::span<uint8_t>) {
    return Result<void>(Error{Errc::peer_failed, "the store is gone", {}});
  });
  EXPECT_EQ(created.error().message, "the store is gone");
  EXPECT_EQ(fake.alive(), 0U);
  EXPECT_EQ(NcclEngine::create({fake.libraries(), 2, 2, 0}, {}).error().code,
            Errc::invalid_argument);
}

/// The old one blocks: its thread stays behind, with what it uses.
TEST(NcclCreate, ARankThatDoesNotComeIsGivenUp) {
  for (const int version : {kNew, kOld}) {
    const Fake fake(version);
    Board board;
    const auto created =
        NcclEngine::create({fake.libraries(), 0, 2, 0, kSoon, milliseconds(500)}, board.share(0));
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().code, Errc::timed_out);
    EXPECT_NE(created.error().message.find("not all 2 ranks have come"), std::string::npos);
    EXPECT_EQ(fake.alive() == 0, version == kNew);
    fake->reset(version, 8);
    EXPECT_TRUE(fake.becomes(0)) << version;
  }
}

// ---- failures ----

struct Failing {
  const char* call;
  int code;
  Errc errc;
  const char* says;
};

class NcclFails : public testing::TestWithParam<Failing> {};

/// Rank 1's call fails; rank 0 waits for its time-out.
TEST_P(NcclFails, WithAMessageThatNamesTheCall) {
  const Failing& failing = GetParam();
  const Fake fake;
  const bool early = std::string(failing.call) == "ncclCommInitRankConfig" ||
                     std::string(failing.call) == "cuDevicePrimaryCtxRetain" ||
                     std::string(failing.call) == "cuStreamCreate";
  if (early) fake->fail(1, failing.call, failing.code);
  const bool behind = std::string(failing.call) == "cuMemcpyDtoHAsync" ||
                      std::string(failing.call) == "cuStreamQuery";  // rank 0 has all it needs
  {
    Group group(fake, 2, early ? milliseconds(kPatience) : std::chrono::seconds(60));
    std::vector<Result<void>> results(2);
    if (early) {
      results = {group.created(0).error(), group.created(1).error()};
    } else {
      ASSERT_TRUE(group.all());
      fake->fail(1, failing.call, failing.code);
      on_all(2, [&](uint32_t r) {
        std::vector<float> lanes(10);
        Moves gather(r, 2, [](uint32_t, uint32_t) { return 20; });
        Moves all(r, 2, [](uint32_t from, uint32_t to) { return 8 + from + to; });
        const std::array<Step, 3> batch{sum_of(lanes), gather.all_gather(), all.all_to_all()};
        if (r == 0) {
          const auto deadline = behind ? std::chrono::seconds(30) : milliseconds(kSoon);
          const auto ticket = group[0].start(batch);
          results[0] = group[0].wait(*ticket, std::chrono::steady_clock::now() + deadline);
          return;
        }
        results[r] = group[r].run(batch);
        EXPECT_TRUE(fake.no_context());
        const auto again = group[r].run(batch);
        EXPECT_EQ(again.error().message, results[r].error().message);
      });
    }
    ASSERT_FALSE(results[1]);
    EXPECT_EQ(results[1].error().code, failing.errc);
    EXPECT_EQ(results[1].error().message, std::string("rank 1: NCCL 2.27.3: ") + failing.says);
    EXPECT_EQ(results[0].ok(), behind);
    EXPECT_EQ(results[0].error().code == Errc::timed_out, !behind);
  }
  EXPECT_EQ(fake.alive(), 0U);
}
INSTANTIATE_TEST_SUITE_P(
    All, NcclFails,
    testing::Values(
        Failing{"cuDevicePrimaryCtxRetain", 2, Errc::out_of_memory,
                "cuDevicePrimaryCtxRetain failed on GPU 1: out of memory"},
        Failing{"cuStreamCreate", 999, Errc::engine_failed,
                "cuStreamCreate failed on GPU 1: CUDA error 999"},
        Failing{"ncclCommInitRankConfig", 1, Errc::engine_failed,
                "ncclCommInitRankConfig failed: unhandled cuda error"},
        Failing{"cuCtxPushCurrent", 999, Errc::engine_failed,
                "cuCtxPushCurrent failed on GPU 1: CUDA error 999"},
        Failing{"cuMemAlloc", 2, Errc::out_of_memory, "cuMemAlloc failed on GPU 1: out of memory"},
        Failing{"cuMemHostAlloc", 2, Errc::out_of_memory,
                "cuMemHostAlloc failed on GPU 1: out of memory"},
        Failing{"cuMemcpyHtoDAsync", 999, Errc::engine_failed,
                "cuMemcpyHtoDAsync failed on GPU 1: CUDA error 999"},
        Failing{"ncclGroupStart", 5, Errc::engine_failed, "ncclGroupStart failed: internal error"},
        Failing{"ncclAllReduce", 4, Errc::engine_failed, "ncclAllReduce failed: invalid argument"},
        Failing{"ncclAllGather", 4, Errc::engine_failed, "ncclAllGather failed: invalid argument"},
        Failing{"ncclSend", 6, Errc::peer_failed,
                "ncclSend failed: remote process exited or there was a network error"},
        Failing{"ncclRecv", 1, Errc::engine_failed, "ncclRecv failed: unhandled cuda error"},
        Failing{"ncclGroupEnd", 1, Errc::engine_failed,
                "ncclGroupEnd failed: unhandled cuda error"},
        Failing{"ncclCommGetAsyncError", 4, Errc::engine_failed,
                "ncclCommGetAsyncError failed: invalid argument"},
        Failing{"cuMemcpyDtoHAsync", 999, Errc::engine_failed,
                "cuMemcpyDtoHAsync failed on GPU 1: CUDA error 999"},
        Failing{"cuStreamQuery", 719, Errc::engine_failed,
                "cuStreamQuery failed on GPU 1: CUDA error 719"}),
    [](const auto& chosen) { return std::string(chosen.param.call); });

/// A sum of two ranks of which rank 0 alone runs it; gives its result.
Result<void> run_alone(NcclEngine& engine) {
  std::vector<float> lanes(10);
  const Step step = sum_of(lanes);
  return engine.run({&step, 1});
}

TEST(NcclEngine, AnAsynchronousErrorAbortsAndIsSaidInNcclsWords) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    ASSERT_NE(fake.calls(0), "");
    fake->async_error(0, 6);
    const auto result = run_alone(group[0]);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::peer_failed);
    EXPECT_EQ(result.error().message,
              "rank 0: NCCL 2.27.3: the communicator failed: remote process exited or there was a "
              "network error: the cable is cut");
    const std::string calls = fake.calls(0);
    EXPECT_NE(calls.find("ncclCommAbort\n"), std::string::npos) << calls;
    EXPECT_EQ(run_alone(group[0]).error().message, result.error().message);
    EXPECT_EQ(fake.calls(0), "");  // nothing is executed behind it
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, ALateBatchIsAbortedAtTheDeadlineOfItsWait) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    std::vector<float> lanes(10, 1.0F);
    const Step step = sum_of(lanes);
    const auto ticket = group[0].start({&step, 1}), second = group[0].start({&step, 1});
    ASSERT_TRUE(ticket);
    const auto result = group[0].wait(*ticket, std::chrono::steady_clock::now() + kSoon);
    EXPECT_EQ(result.error().code, Errc::timed_out);
    EXPECT_EQ(result.error().message, "rank 0: NCCL 2.27.3: a batch was not complete in time");
    EXPECT_NE(fake.calls(0).find("ncclCommAbort\n"), std::string::npos);
    const auto after =
        group[0].wait(*second, std::chrono::steady_clock::now() + std::chrono::seconds(30));
    EXPECT_EQ(after.error().message, result.error().message);
    EXPECT_EQ(lanes, std::vector<float>(10, 1.0F));
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, AStreamThatHangsIsAbortedAfterTheTimeOut) {
  for (const int version : {kNew, kOld}) {
    const Fake fake(version);
    {
      Group group(fake, 2, kPatience);
      ASSERT_TRUE(group.all());
      fake->hang(1, false);
      on_all(2, [&](uint32_t r) {
        const auto result = run_alone(group[r]);
        EXPECT_EQ(result.ok(), r == 0) << version;
        EXPECT_EQ(result.error().code == Errc::timed_out, r == 1) << version;
      });
      EXPECT_NE(fake.calls(1).find("ncclCommAbort\n"), std::string::npos);
    }
    EXPECT_EQ(fake.alive(), 0U);
  }
}

/// Versions that block: a group that does not return is left behind, and aborted.
TEST(NcclEngine, AnOldGroupThatBlocksIsLeftBehind) {
  const Fake fake(kOld);
  {
    Group group(fake, 2, kPatience);
    ASSERT_TRUE(group.all());
    fake->block(0, "ncclGroupEnd");
    EXPECT_EQ(run_alone(group[0]).error().code, Errc::timed_out);
  }
  fake->reset(kOld, 8);
  EXPECT_TRUE(fake.becomes(0));
}

/// Two ranks with little patience.
std::vector<Created> impatient(const Fake& fake) {
  Board board;
  std::vector<Created> created = none_yet(2);
  on_all(2, [&](uint32_t r) {
    created[r] = NcclEngine::create({fake.libraries(), r, 2, r, kPatience, kSoon}, board.share(r));
  });
  return created;
}
constexpr uint64_t kOneRanks = 4;  // two pieces of memory, stream, context

/// Freeing memory waits for all that runs on the GPU.
TEST(NcclEngine, WhatAnAbortThatBlocksMayUseIsNotFreed) {
  const Fake fake;
  {
    auto created = impatient(fake);
    ASSERT_TRUE(created[0]);
    fake->fail(0, "ncclAllReduce", 1);  // with nothing on the stream
    fake->block(0, "ncclCommAbort");
    EXPECT_EQ(run_alone(**created[0]).error().code, Errc::engine_failed);
    on_all(2, [&](uint32_t r) { created[r] = Errc::internal; });
  }
  EXPECT_EQ(fake.calls(0).find("Free"), std::string::npos);
  fake->reset(kNew, 8);
  EXPECT_TRUE(fake.becomes(kOneRanks));
}

TEST(NcclEngine, WhatAStreamThatOutlivesTheAbortUsesIsNotFreed) {
  const Fake fake;
  {
    auto created = impatient(fake);
    ASSERT_TRUE(created[0]);
    fake->hang(0, true);
    EXPECT_EQ(run_alone(**created[0]).error().code, Errc::timed_out);
    on_all(2, [&](uint32_t r) { created[r] = Errc::internal; });
  }
  const std::string calls = fake.calls(0);
  EXPECT_NE(calls.find("ncclCommAbort\n"), std::string::npos);
  EXPECT_EQ(calls.find("Free"), std::string::npos);
  EXPECT_EQ(fake.alive(), kOneRanks);
  fake->reset(kNew, 8);
}

TEST(NcclEngine, AnAsynchronousErrorEndsAWait) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    std::vector<float> lanes(10);
    const Step step = sum_of(lanes);
    const auto ticket = group[0].start({&step, 1});
    while (fake.calls(0).find("cuMemcpyDtoHAsync") == std::string::npos) std::this_thread::yield();
    fake->async_error(0, 6);  // all that is left is to wait for the stream
    const auto result =
        group[0].wait(*ticket, std::chrono::steady_clock::now() + std::chrono::seconds(30));
    EXPECT_EQ(result.error().code, Errc::peer_failed);
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, AnEndThatBlocksIsBounded) {
  for (const char* call : {"ncclCommFinalize", "ncclCommDestroy"}) {
    const Fake fake;
    Board board;
    auto engine = NcclEngine::create({fake.libraries(), 0, 1, 0, kPatience, kSoon}, board.share(0));
    ASSERT_TRUE(engine);
    fake->block(0, call);
    engine = Errc::internal;
    fake->reset(kNew, 8);
    EXPECT_TRUE(fake.becomes(2));  // stream and context stay
  }
}

TEST(NcclEngine, MayEndWhileABatchWaits) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    std::vector<float> lanes(10);
    const Step step = sum_of(lanes);
    ASSERT_TRUE(group[0].start({&step, 1}));
    while (fake.calls(0).find("ncclGroupEnd") == std::string::npos) std::this_thread::yield();
    auto ended = std::async(std::launch::async, [&] { group.created(0) = Errc::internal; });
    EXPECT_EQ(ended.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_NE(fake.calls(0).find("ncclCommAbort\n"), std::string::npos);
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, StepsThatNobodyCouldExecuteAreRefused) {
  uint8_t byte = 0;
  const std::vector<uint64_t> two(2, 1), one(1, 1), zeros(2, 0), more{2, 2};
  const std::vector<Message> to_itself{{0, &byte, 1, nullptr, 0}},
      to_nobody{{2, &byte, 1, nullptr, 0}};
  const std::vector<Step> wrong{
      {.kind = StepKind::all_gather,
       .send = &byte,
       .recv = &byte,
       .send_counts = one,
       .send_offsets = zeros,
       .recv_counts = two,
       .recv_offsets = zeros},
      {.kind = StepKind::all_to_all,
       .send = &byte,
       .recv = &byte,
       .send_counts = more,
       .send_offsets = zeros,
       .recv_counts = two,
       .recv_offsets = zeros},
      {.kind = StepKind::messages, .messages = to_itself},
      {.kind = StepKind::messages, .messages = to_nobody},
      {.kind = StepKind::messages, .short_sends = true},
  };
  for (const Step& step : wrong) {
    const Fake fake;
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    EXPECT_EQ(group[0].run({&step, 1}).error().code, Errc::exchange_order);
  }
}

}  // namespace
}  // namespace laconic::test
