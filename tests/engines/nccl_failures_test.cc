// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The NCCL engine over a recording NCCL: what it says where NCCL or a GPU is missing, a rank does
// not come, a call fails or does not return, and what it frees then.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engines/nccl_group.h"
#include "support/scarce_memory.h"

namespace laconic::test {
namespace {

/// A sum of two ranks, of which only this one runs it.
Result<void> run_alone(NcclEngine& engine) {
  std::vector<float> lanes(10);
  const Step step = sum_of(lanes);
  return engine.run({&step, 1});
}

/// The same, waited for in vain.
Result<void> run_until_late(NcclEngine& engine) {
  std::vector<float> lanes(10);
  const Step step = sum_of(lanes);
  return engine.wait(*engine.start({&step, 1}), std::chrono::steady_clock::now() + kSoon);
}

// ---- what is not here ----

TEST(NcclFind, VersionAndUsabilityAreReported) {
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

TEST(NcclFind, ReasonForNoEngineIsReported) {
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

TEST(NcclFind, UnsuitableLibraryIsError) {
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
            "NCCL 2.6.4 does not support point-to-point messages: " + old.path());
}

TEST(NcclCreate, LackOnRankZeroIsErrorOnAllRanks) {
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

TEST(NcclCreate, MissingDeviceIsNamed) {
  const Fake fake(kNew, 1);
  Group group(fake, 2, kTimeout);
  EXPECT_EQ(group.created(1).error().message,
            "rank 1: NCCL 2.27.3: cuDeviceGet failed on GPU 1: invalid device ordinal");
  EXPECT_EQ(group.created(0).error().code, Errc::timed_out);
  EXPECT_EQ(group.created(0).error().message, "rank 0: NCCL 2.27.3: not all 2 ranks have joined");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclCreate, FailedBroadcastReturnsItsError) {
  const Fake fake;
  const auto created = NcclEngine::create({fake.libraries(), 1, 2, 1}, [](std::span<uint8_t>) {
    return Result<void>(Error{Errc::peer_failed, "the store is gone", {}});
  });
  EXPECT_EQ(created.error().message, "the store is gone");
  EXPECT_EQ(fake.alive(), 0U);
  EXPECT_EQ(NcclEngine::create({fake.libraries(), 2, 2, 0}, {}).error().code,
            Errc::invalid_argument);
}

/// The old one blocks: its thread remains, with what it uses.
TEST(NcclCreate, MissingRankIsGivenUp) {
  for (const int version : {kNew, kOld}) {
    const Fake fake(version);
    Board board;
    const auto created =
        NcclEngine::create({fake.libraries(), 0, 2, 0, kSoon, milliseconds(500)}, board.share(0));
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().code, Errc::timed_out);
    EXPECT_NE(created.error().message.find("not all 2 ranks have joined"), std::string::npos);
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

/// Rank 1's call fails; rank 0 waits for its timeout.
TEST_P(NcclFails, FailureNamesCall) {
  const Failing& failing = GetParam();
  const Fake fake;
  const bool early = std::string(failing.call) == "ncclCommInitRankConfig" ||
                     std::string(failing.call) == "cuDevicePrimaryCtxRetain" ||
                     std::string(failing.call) == "cuStreamCreate";
  if (early) fake->fail(1, failing.call, failing.code);
  const bool behind = std::string(failing.call) == "cuMemcpyDtoHAsync" ||
                      std::string(failing.call) == "cuStreamQuery";  // rank 0 has all it needs
  {
    Group group(fake, 2, early ? kTimeout : milliseconds(kLong));
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
          const auto deadline = behind ? kLong : milliseconds(kSoon);
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

TEST(NcclEngine, AsynchronousErrorAbortsWithNcclMessage) {
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
    EXPECT_EQ(fake.calls(0), "");  // nothing is executed after it
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, LateBatchIsAbortedAtDeadlineOfItsWait) {
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
    EXPECT_EQ(result.error().message, "rank 0: NCCL 2.27.3: a batch did not complete in time");
    EXPECT_NE(fake.calls(0).find("ncclCommAbort\n"), std::string::npos);
    const auto after = group[0].wait(*second, std::chrono::steady_clock::now() + kLong);
    EXPECT_EQ(after.error().message, result.error().message);
    EXPECT_EQ(lanes, std::vector<float>(10, 1.0F));
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, HangingStreamIsAbortedAfterTimeout) {
  for (const int version : {kNew, kOld}) {
    const Fake fake(version);
    {
      std::optional<Group> group;
      do {  // ranks may connect too late for so short a timeout
        group.emplace(fake, 2, kTimeout);
      } while (!group->all());
      fake->hang(1, 20);  // some time after the abort
      on_all(2, [&](uint32_t r) {
        const auto result = run_alone((*group)[r]);
        EXPECT_EQ(result.ok(), r == 0) << version;
        EXPECT_EQ(result.error().code == Errc::timed_out, r == 1) << version;
      });
      EXPECT_NE(fake.calls(1).find("ncclCommAbort\n"), std::string::npos);
    }
    EXPECT_EQ(fake.alive(), 0U);
  }
}

/// Versions that block: a group that does not return is abandoned, and aborted.
TEST(NcclEngine, BlockingOldGroupIsAbandoned) {
  const Fake fake(kOld);
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    fake->block(0, "ncclGroupEnd");
    EXPECT_EQ(run_until_late(group[0]).error().code, Errc::timed_out);
  }
  fake->reset(kOld, 8);
  EXPECT_TRUE(fake.becomes(0));
}

/// Two ranks with a short timeout for what should end.
std::vector<Created> created_with_short_timeouts(const Fake& fake) {
  Board board;
  std::vector<Created> created = none_yet(2);
  on_all(2, [&](uint32_t r) {
    created[r] = NcclEngine::create({fake.libraries(), r, 2, r, kLong, kSoon}, board.share(r));
  });
  return created;
}
constexpr uint64_t kOneRanks = 4;  // two pieces of memory, stream, context

/// Freeing memory waits for all that runs on the GPU.
TEST(NcclEngine, MemoryOfBlockingAbortIsNotFreed) {
  const Fake fake;
  {
    auto created = created_with_short_timeouts(fake);
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

TEST(NcclEngine, MemoryOfStreamThatOutlivesAbortIsNotFreed) {
  const Fake fake;
  {
    auto created = created_with_short_timeouts(fake);
    ASSERT_TRUE(created[0]);
    fake->hang(0, -1);
    EXPECT_EQ(run_until_late(**created[0]).error().code, Errc::timed_out);
    on_all(2, [&](uint32_t r) { created[r] = Errc::internal; });
  }
  const std::string calls = fake.calls(0);
  EXPECT_NE(calls.find("ncclCommAbort\n"), std::string::npos);
  EXPECT_EQ(calls.find("Free"), std::string::npos);
  EXPECT_EQ(fake.alive(), kOneRanks);
  fake->reset(kNew, 8);
}

TEST(NcclEngine, AsynchronousErrorEndsWait) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    std::vector<float> lanes(10);
    const Step step = sum_of(lanes);
    const auto ticket = group[0].start({&step, 1});
    while (fake.calls(0).find("cuMemcpyDtoHAsync") == std::string::npos) std::this_thread::yield();
    fake->async_error(0, 6);  // all that is left is to wait for the stream
    const auto result = group[0].wait(*ticket, std::chrono::steady_clock::now() + kLong);
    EXPECT_EQ(result.error().code, Errc::peer_failed);
  }
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(NcclEngine, BlockingEndIsBounded) {
  for (const char* call : {"ncclCommFinalize", "ncclCommDestroy"}) {
    const Fake fake;
    Board board;
    auto engine = NcclEngine::create({fake.libraries(), 0, 1, 0, kLong, kSoon}, board.share(0));
    ASSERT_TRUE(engine);
    fake->block(0, call);
    engine = Errc::internal;
    fake->reset(kNew, 8);
    EXPECT_TRUE(fake.becomes(2));  // stream and context stay
  }
}

#if !defined(LACONIC_ASAN) && !defined(LACONIC_TSAN)
/// Without memory for a thread that ends it, the communicator stays.
TEST(NcclEngine, EndWithoutMemoryAbandonsGroup) {
  constexpr int64_t kTaken = 3;  // what is called then allocates in the fake
  for (int64_t failing = 0; failing < kTaken; ++failing) {
    const Fake fake;
    Board board;
    auto engine = NcclEngine::create({fake.libraries(), 0, 1, 0, kLong, kLong}, board.share(0));
    ASSERT_TRUE(engine);
    countdown = failing;
    engine = Errc::internal;
    EXPECT_EQ(std::exchange(countdown, -1), -1) << failing;
    EXPECT_NE(fake.alive(), 0U) << failing;
  }
}
#endif

TEST(NcclEngine, EngineMayEndWhileBatchWaits) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    std::vector<float> lanes(10);
    const Step step = sum_of(lanes);
    ASSERT_TRUE(group[0].start({&step, 1}));
    while (fake.calls(0).find("ncclGroupEnd") == std::string::npos) std::this_thread::yield();
    auto ended = std::async(std::launch::async, [&] { group.created(0) = Errc::internal; });
    EXPECT_EQ(ended.wait_for(kLong), std::future_status::ready);
    EXPECT_NE(fake.calls(0).find("ncclCommAbort\n"), std::string::npos);
  }
  EXPECT_EQ(fake.alive(), 0U);
}

}  // namespace
}  // namespace laconic::test
