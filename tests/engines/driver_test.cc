// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// CUDA's driver as Laconic uses it, over one that runs kernels late on streams' threads, whose
// memory the host cannot touch, and whose calls fail on request.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "conformance/codec_law.h"
#include "conformance/device_batch.h"
#include "engines/fake_gpu.h"
#include "kernels/device_images.h"
#include "laconic/laconic.h"
#include "pipeline/device_batch.h"

namespace laconic::test {
namespace {

using device::Event;
using device::Memory;
using device::Stream;
using pipeline::DeviceBatch;

constexpr int kSomeError = 999;

// ---- what is here ----

TEST(DriverGpu, CardAndDriverAreDescribed) {
  const Fake fake;
  fake->card(86, 12040);
  const auto gpu = open_gpu(fake);
  ASSERT_TRUE(gpu);
  EXPECT_EQ((*gpu)->card(), "Fake GPU, compute capability 8.6");
  EXPECT_EQ((*gpu)->capability(), 86U);
  EXPECT_EQ((*gpu)->driver(), "12.4");
}

TEST(DriverGpu, MissingDriverOrGpuIsUnsupported) {
  const Fake fake(kNew, 1);
  const auto none = device::Gpu::open("/nonexistent/libcuda.so.1", 0);
  EXPECT_EQ(none.error().code, Errc::unsupported);
  EXPECT_NE(none.error().message.find("no NVIDIA driver: /nonexistent/libcuda.so.1"),
            std::string::npos);
  const auto second = open_gpu(fake, 1);
  EXPECT_EQ(second.error().code, Errc::unsupported);
  EXPECT_EQ(second.error().message, "no GPU 1 of 1 that this process can use");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DriverProgram, FirstImageThatDriverTakesIsLoaded) {
  const Fake fake;
  const auto taken = [&](int capability, int driver, int refusal = 0) {
    fake->card(capability, driver);
    if (refusal != 0) fake->fail(0, "cuModuleLoadData", refusal);
    const auto program = load_program(*open_gpu(fake));
    return program ? (*program)->image() : program.error().message;
  };
  EXPECT_EQ(taken(90, 13000), "sm_90");
  EXPECT_EQ(taken(89, 13000), "sm_80");
  EXPECT_EQ(taken(110, 13000), "PTX of compute_80");
  for (const int refusal : {200, 209}) EXPECT_EQ(taken(90, 12040, refusal), "PTX of compute_80");
  EXPECT_EQ(taken(90, 10020, 200),
            "the driver, of CUDA 10.2, takes no kernels of this build: cuModuleLoadData failed on "
            "GPU 0: the provided PTX was compiled with an unsupported toolchain");
  EXPECT_EQ(taken(75, 13000), "no kernels for this GPU: Fake GPU, compute capability 7.5");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DriverProgram, BuildWithoutKernelsIsUnsupported) {
  const Fake fake;
  const auto program = device::Program::load(*open_gpu(fake), {}, kKernelNames);
  EXPECT_EQ(program.error().code, Errc::unsupported);
  EXPECT_EQ(program.error().message, "this build has no kernels for GPUs");
}

TEST(DriverProgram, FailureThatIsNoRefusalIsNotTriedAgain) {
  const Fake fake;
  fake->fail(0, "cuModuleLoadData", 2);
  const auto program = load_program(*open_gpu(fake));
  EXPECT_EQ(program.error().code, Errc::out_of_memory);
  EXPECT_EQ(program.error().message, "cuModuleLoadData failed on GPU 0: out of memory");
  EXPECT_EQ(fake.calls(0), "cuModuleLoadData\n");
}

TEST(DriverProgram, UnknownKernelIsNamed) {
  const Fake fake;
  constexpr std::string_view kNames[] = {"laconic_Measure", "laconic_Nothing"};
  const auto program = device::Program::load(*open_gpu(fake), fake_images(), kNames);
  EXPECT_EQ(program.error().message,
            "cuModuleGetFunction of laconic_Nothing failed on GPU 0: CUDA error 500");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DriverFind, ReasonForNoKernelsIsReported) {
  const Fake fake;
  kernels::DeviceFound found = kernels::find_device(fake.path());
  EXPECT_EQ(found.gpu, "Fake GPU, compute capability 9.0");
  EXPECT_EQ(found.driver, "13.0");
  EXPECT_EQ(found.image, "sm_90");
  EXPECT_EQ(found.why_not, "");
  fake->card(75, 12040);
  found = kernels::find_device(fake.path());
  EXPECT_EQ(found.why_not, "no kernels for this GPU: Fake GPU, compute capability 7.5");
  fake->reset(kNew, 0);
  found = kernels::find_device(fake.path());
  EXPECT_EQ(found.gpu, "");
  EXPECT_EQ(found.why_not, "no GPU: cuInit failed: no CUDA-capable device is detected");
  EXPECT_EQ(fake.alive(), 0U);
}

// ---- streams, events, launches ----

/// A piece of each memory, with `bytes` bytes of this value in the host's.
struct Pieces {
  Pieces(const device::GpuRef& gpu, uint64_t bytes, int value)
      : there(*Memory::allocate(gpu, Memory::Where::device, bytes)),
        here(*Memory::allocate(gpu, Memory::Where::pinned, bytes)) {
    std::memset(here.at(), value, bytes);
  }
  Memory there, here;
};

TEST(DriverStream, FollowerWaitsForRecordedWork) {
  const Fake fake;
  fake->late(2000);
  const auto gpu = *open_gpu(fake);
  const Pieces first(gpu, 64, 7), zeros(gpu, 64, 0);
  const Stream one = *Stream::create(gpu), other = *Stream::create(gpu);
  const Event event = *Event::create(gpu);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(one.clear(first.there.at(), 64));
  ASSERT_TRUE(one.copy_in(first.there.at(), first.here.at(), 64));
  ASSERT_TRUE(event.record(one.handle()));
  ASSERT_TRUE(other.follow(event));
  ASSERT_TRUE(other.copy(zeros.there.at(), first.there.at(), 64));
  ASSERT_TRUE(other.copy_out(zeros.here.at(), zeros.there.at(), 64));
  ASSERT_TRUE(other.wait());
  EXPECT_EQ(zeros.here.at()[63], 7);
}

TEST(DriverStream, EndWaitsForQueuedWork) {
  const Fake fake;
  fake->late(2000);
  const auto gpu = *open_gpu(fake);
  const Pieces pieces(gpu, 64, 7);
  {
    const Stream stream = *Stream::create(gpu);
    ASSERT_TRUE(stream.copy_in(pieces.there.at(), pieces.here.at(), 64));
    ASSERT_TRUE(stream.copy_out(pieces.here.at(), pieces.there.at(), 64));
  }
  EXPECT_EQ(fake.alive(), 3U);  // the stream has ended: two pieces, a context
  EXPECT_EQ(faults_of(fake), "");
}

TEST(DriverEvent, TimeBetweenTwoEventsIsMeasured) {
  const Fake fake;
  fake->late(3000);
  const auto gpu = *open_gpu(fake);
  const Pieces pieces(gpu, 64, 0);
  const Stream stream = *Stream::create(gpu);
  const Event begin = *Event::create(gpu), end = *Event::create(gpu);
  ASSERT_TRUE(begin.record(stream.handle()));
  ASSERT_TRUE(stream.clear(pieces.there.at(), 64));
  ASSERT_TRUE(end.record(stream.handle()));
  ASSERT_TRUE(stream.wait());
  EXPECT_GE(*end.seconds_since(begin), 0.006);
}

TEST(DriverMemory, EmptyPieceNeedsNoCall) {
  const Fake fake;
  const auto gpu = *open_gpu(fake);
  const Memory empty = *Memory::allocate(gpu, Memory::Where::device, 0);
  const Stream stream = *Stream::create(gpu);
  EXPECT_EQ(empty.at(), nullptr);
  EXPECT_TRUE(stream.copy_in(empty.at(), nullptr, 0));
  EXPECT_EQ(fake.calls(0), "");
}

TEST(DriverQueue, NothingIsLaunchedAfterFailure) {
  const Fake fake;
  const auto program = *load_program(*open_gpu(fake));
  const Stream stream = *Stream::create(program->gpu());
  ASSERT_NE(fake.calls(0), "");
  device::LaunchQueue queue(*program, stream);
  queue.launch<kernels::CastCheck>(1ULL << 31U, {});
  EXPECT_EQ(queue.result().error().code, Errc::unsupported);
  queue.launch<kernels::CastCheck>(1, {});
  EXPECT_EQ(queue.result().error().message, "a launch of 2147483648 blocks is too large");
  EXPECT_EQ(fake.calls(0), "");
}

TEST(DriverQueue, KernelOutsideProgramIsError) {
  const Fake fake;
  constexpr std::string_view kOne[] = {"laconic_Measure"};
  const auto program = *device::Program::load(*open_gpu(fake), fake_images(), kOne);
  const Stream stream = *Stream::create(program->gpu());
  device::LaunchQueue queue(*program, stream);
  queue.launch<kernels::CastCheck>(1, {});
  EXPECT_EQ(queue.result().error().code, Errc::internal);
}

// ---- codecs, end to end ----

using conformance::Coded;
using conformance::Data;
using conformance::Task;

Task task_of(Data data, uint64_t n, uint64_t seed, bool remembers) {
  Task task{
      conformance::vector_unit(n), {7, 3, 1, 3, 0, 1.0F}, conformance::make(data, n, seed), {}};
  task.unit.offset = 1000 * seed;
  if (remembers) task.residual = conformance::make(Data::gaussian, n, seed + 50);
  return task;
}

/// Gradient and residual on the device.
pipeline::DeviceUnit placed(OnGpu& gpu, const Task& task) {
  return {task.unit, task.place, gpu.put(task.gradient), DType::f32,
          task.residual.empty() ? nullptr : gpu.put(task.residual)};
}

class DriverBatch : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Codecs, DriverBatch,
                         testing::Values("int8", "int8:round=stochastic", "3lc", "3lc:s=1.9",
                                         "signsgd", "bf16"),
                         [](const auto& chosen) {
                           std::string name;
                           for (const char c : std::string(chosen.param))
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_P(DriverBatch, PayloadsAndResidualsAreThoseOfCpu) {
  const Spec spec = *Spec::parse(GetParam());
  const Fake fake;
  fake->late(100);
  {
    const auto program = *load_program(*open_gpu(fake));
    auto batch = *DeviceBatch::create(spec, program);
    OnGpu gpu(program->gpu());
    for (const bool remembers : {false, true}) {
      if (remembers && spec.contract().feedback == Feedback::never) continue;
      std::vector<Task> tasks;
      for (const uint64_t n : {1U, 0U, 5U, 257U, 9000U})
        tasks.push_back(task_of(Data::laplace, n, n + 1, remembers));
      tasks.push_back(task_of(Data::zeros, 300, 3, remembers));
      tasks.push_back(task_of(Data::laplace, 300, 4, remembers));
      tasks.back().gradient[271] = INFINITY;
      if (remembers) {
        tasks.push_back(task_of(Data::laplace, 300, 5, remembers));
        tasks.back().residual[7] = NAN;
      }
      std::vector<pipeline::DeviceUnit> units;
      for (const Task& task : tasks) units.push_back(placed(gpu, task));
      const auto payloads = batch.encode(units);
      ASSERT_TRUE(payloads) << payloads.error().message;
      for (std::size_t u = 0; u < tasks.size(); ++u) {
        const Coded cpu = encode_on_cpu(spec, tasks[u]);
        EXPECT_EQ((*payloads)[u].verdict, cpu.verdict) << u;
        if (device::gives_payload(cpu.verdict))
          conformance::expect_same_bytes((*payloads)[u].bytes, cpu.payload, "payload");
        if (remembers && tasks[u].unit.count != 0) {
          conformance::expect_same_bits(gpu.get(units[u].residual, tasks[u].unit.count),
                                        cpu.residual, "residual");
        }
      }
    }
  }
  EXPECT_EQ(faults_of(fake), "");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST_P(DriverBatch, SumsAndVerdictsAreThoseOfCpu) {
  const Spec spec = *Spec::parse(GetParam());
  const Fake fake;
  fake->late(100);
  {
    const auto program = *load_program(*open_gpu(fake));
    auto batch = *DeviceBatch::create(spec, program);
    OnGpu gpu(program->gpu());
    const Unit unit = conformance::vector_unit(5001);
    std::vector<Coded> coded;
    std::vector<Term> terms;
    for (uint32_t r = 0; r < 11; ++r) {  // more than a launch takes
      Task task = task_of(Data::laplace, unit.count, r + 1, false);
      task.unit = unit;
      coded.push_back(encode_on_cpu(spec, task));
    }
    for (const Coded& one : coded) terms.push_back({one.payload, 1.0F / 3});
    std::vector<laconic::Bytes> payloads{
        coded[0].payload, laconic::Bytes(coded[1].payload).first(9), {}};
    const auto good = batch.check(unit, payloads);
    ASSERT_TRUE(good) << good.error().message;
    EXPECT_EQ(*good, (std::vector<bool>{true, false, false}));
    for (const bool add : {false, true}) {
      const std::vector<float> base = conformance::make(Data::gaussian, unit.count, 99);
      float* const values = gpu.put(base);
      ASSERT_TRUE(batch.decode(unit, terms, values, add));
      conformance::expect_same_bits(
          gpu.get(values, unit.count),
          conformance::decode_on_cpu(spec, unit, terms, add ? base : std::vector<float>{}), "sum");
    }
    EXPECT_GT(batch.seconds(), 0);
  }
  EXPECT_EQ(faults_of(fake), "");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DriverBatchTest, WorkOfFollowedStreamComesFirst) {
  const Spec spec = *Spec::parse("int8");
  const Fake fake;
  fake->late(2000);
  const auto program = *load_program(*open_gpu(fake));
  auto batch = *DeviceBatch::create(spec, program);
  OnGpu gpu(program->gpu());
  const Task task = task_of(Data::laplace, 200, 1, false);
  const Pieces pieces(program->gpu(), 800, 0);
  std::memcpy(pieces.here.at(), task.gradient.data(), 800);
  const Stream stream = *Stream::create(program->gpu());
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(stream.clear(pieces.there.at(), 800));
  ASSERT_TRUE(stream.copy_in(pieces.there.at(), pieces.here.at(), 800));
  ASSERT_TRUE(batch.follow(stream.handle()));
  const pipeline::DeviceUnit unit{task.unit, task.place, pieces.there.at(), DType::f32, nullptr};
  const auto payloads = batch.encode({&unit, 1});
  ASSERT_TRUE(payloads);
  conformance::expect_same_bytes((*payloads)[0].bytes, encode_on_cpu(spec, task).payload,
                                 "payload");
  ASSERT_TRUE(stream.wait());
}

TEST(DriverBatchTest, SpecWithoutKernelsIsUnsupported) {
  const Fake fake;
  const auto program = *load_program(*open_gpu(fake));
  for (const char* spec : {"inceptionn", "thc"})
    EXPECT_EQ(DeviceBatch::create(*Spec::parse(spec), program).error().code, Errc::unsupported);
  for (const char* spec : {"int8+ef+decay=0.9", "topk+momentum"}) {
    auto batch = *DeviceBatch::create(*Spec::parse(spec), program);  // to decode
    EXPECT_FALSE(DeviceBatch::encodes(batch.spec()));
    EXPECT_EQ(batch.encode({}).error().code, Errc::unsupported) << spec;
  }
}

TEST(DriverBatchTest, VotesAreCountedAsOnCpu) {
  const Spec spec = *Spec::parse("signsgd");
  const Fake fake;
  const auto program = *load_program(*open_gpu(fake));
  auto batch = *DeviceBatch::create(spec, program);
  OnGpu gpu(program->gpu());
  const Unit unit = conformance::vector_unit(9001);
  std::vector<Coded> coded;
  std::vector<Term> terms;
  for (uint32_t r = 0; r < 4; ++r) {  // an even number: ties
    Task task = task_of(Data::laplace, unit.count, r + 1, false);
    task.unit = unit;
    coded.push_back(encode_on_cpu(spec, task));
  }
  for (const Coded& one : coded) terms.push_back({one.payload, 1.0F});
  std::vector<float> votes = conformance::decode_on_cpu(spec, unit, terms, {});
  float* const values = gpu.put(votes);
  ASSERT_TRUE(batch.finish(unit, values));
  Work work;
  const Place place;
  spec.codec().finish({spec.params(), {}, unit, place, 0, work}, votes);
  conformance::expect_same_bits(gpu.get(values, unit.count), votes, "votes");
}

// ---- the C ABI ----

/// Result of laconic_encode for a tensor of that size of the struct.
int32_t encode_by_c(void* data, uint32_t memory, std::size_t size = sizeof(laconic_tensor)) {
  laconic_codec* codec = nullptr;
  EXPECT_EQ(laconic_codec_create("int8", 4, 1, &codec), 0);
  laconic_tensor tensor{static_cast<uint32_t>(size), LACONIC_F32, 10, 1, data, memory, 0};
  laconic_place place{};
  place.struct_size = sizeof place;
  place.world = 1;
  std::vector<uint8_t> frame(1000);
  uint64_t bytes = 0;
  const int32_t code =
      laconic_encode(codec, &tensor, &place, nullptr, frame.data(), frame.size(), &bytes, nullptr);
  laconic_codec_destroy(codec);
  return code;
}

TEST(DriverTensor, DeviceAddressNeverReachesCpu) {
  const Fake fake;
  const auto gpu = *open_gpu(fake);
  const Pieces pieces(gpu, 64, 0);
  constexpr std::size_t kOld = offsetof(laconic_tensor, memory);
  constexpr auto kInvalid = static_cast<int32_t>(Errc::invalid_argument);
  EXPECT_EQ(encode_by_c(pieces.there.at(), LACONIC_MEMORY_HOST), kInvalid);
  EXPECT_EQ(encode_by_c(pieces.there.at() + 20, LACONIC_MEMORY_HOST), kInvalid);
  EXPECT_EQ(encode_by_c(pieces.there.at(), LACONIC_MEMORY_CUDA, kOld), kInvalid);
  EXPECT_STREQ(laconic_last_message(),
               "the tensor is in a GPU's memory, its field memory says host");
  EXPECT_EQ(encode_by_c(pieces.here.at(), LACONIC_MEMORY_HOST), 0);  // pinned
  std::vector<float> values(10, 1.0F);
  EXPECT_EQ(encode_by_c(values.data(), LACONIC_MEMORY_HOST), 0);
  EXPECT_EQ(encode_by_c(values.data(), 7, kOld), 0);
  EXPECT_EQ(encode_by_c(values.data(), 2), kInvalid);
}

// ---- failures ----

/// A batch with its card, up to the stage that fails.
struct Stages {
  explicit Stages(const Fake& from) : fake(from) {}

  Result<void> open() {
    auto opened = open_gpu(fake);
    if (!opened) return std::move(opened).error();
    gpu = *std::move(opened);
    return {};
  }
  Result<void> load() {
    auto loaded = load_program(gpu);
    if (!loaded) return std::move(loaded).error();
    program = *std::move(loaded);
    memory.emplace(gpu);
    task = task_of(Data::laplace, 5000, 1, true);
    unit = placed(*memory, task);
    return {};
  }
  Result<void> create() {
    auto created = DeviceBatch::create(*Spec::parse("3lc"), program);
    if (!created) return std::move(created).error();
    batch.emplace(*std::move(created));
    return {};
  }
  Result<void> encode() {
    auto encoded = batch->encode({&unit, 1});
    if (!encoded) return std::move(encoded).error();
    payload = (*encoded)[0].bytes;
    return {};
  }
  Result<void> check() {
    const laconic::Bytes bytes(payload);
    auto checked = batch->check(task.unit, {&bytes, 1});
    return checked ? Result<void>() : Result<void>(std::move(checked).error());
  }
  Result<void> decode() {
    const Term term{payload, 1.0F};
    return batch->decode(task.unit, {&term, 1}, unit.residual, true);
  }

  const Fake& fake;
  device::GpuRef gpu;
  std::shared_ptr<const device::Program> program;
  std::optional<OnGpu> memory;
  Task task;
  pipeline::DeviceUnit unit;
  std::optional<DeviceBatch> batch;
  std::vector<uint8_t> payload;
};

TEST(DriverFails, EveryFailureIsOneErrorAndNothingLeaks) {
  struct Stage {
    const char* name;
    Result<void> (Stages::*run)();
    std::vector<const char*> calls;
  };
  const Stage stages[] = {
      {"open",
       &Stages::open,
       {"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
        "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain"}},
      {"load", &Stages::load, {"cuCtxPushCurrent", "cuModuleLoadData", "cuModuleGetFunction"}},
      {"create", &Stages::create, {"cuStreamCreate", "cuEventCreate"}},
      {"encode",
       &Stages::encode,
       {"cuCtxPushCurrent", "cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuEventRecord",
        "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuEventElapsedTime"}},
      {"check", &Stages::check, {"cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize"}},
      {"decode", &Stages::decode, {"cuLaunchKernel", "cuStreamSynchronize"}},
  };
  for (std::size_t failing = 0; failing < std::size(stages); ++failing) {
    for (const char* const call : stages[failing].calls) {
      SCOPED_TRACE(std::string(stages[failing].name) + " " + call);
      const Fake fake;
      fake->late(200);
      {
        Stages all(fake);
        for (std::size_t s = 0; s < failing; ++s) ASSERT_TRUE((all.*stages[s].run)());
        const bool global =
            std::string(call) == "cuDriverGetVersion" || std::string(call) == "cuDeviceGetCount";
        fake->fail(global ? -1 : 0, call, kSomeError);
        const Result<void> r = (all.*stages[failing].run)();
        ASSERT_FALSE(r);
        EXPECT_EQ(r.error().message.rfind(call, 0), 0U) << r.error().message;
        EXPECT_NE(r.error().message.find("failed on GPU 0: CUDA error 999"), std::string::npos);
        EXPECT_EQ(r.error().code, Errc::engine_failed);
        EXPECT_TRUE(fake.no_context());
      }
      EXPECT_EQ(fake.alive(), 0U);
      EXPECT_EQ(faults_of(fake), "");
    }
  }
}

TEST(DriverFails, NothingRunsOnceFailureIsReported) {
  const Fake fake;
  {
    Stages all(fake);
    for (auto stage : {&Stages::open, &Stages::load, &Stages::create}) ASSERT_TRUE((all.*stage)());
    fake->late(2000);
    fake->fail(0, "cuMemcpyDtoHAsync", kSomeError);
    ASSERT_FALSE(all.encode());
    fake->late(0);
    all.memory.reset();  // what the kernels read
  }
  EXPECT_EQ(faults_of(fake), "");
  EXPECT_EQ(fake.alive(), 0U);
}

TEST(DriverFails, BatchWorksAgainAfterFailure) {
  const Fake fake;
  fake->late(200);
  {
    Stages all(fake);
    for (auto stage : {&Stages::open, &Stages::load, &Stages::create}) ASSERT_TRUE((all.*stage)());
    for (const char* const call : {"cuMemAlloc", "cuMemHostAlloc"}) {
      fake->fail(0, call, 2);
      const Result<void> r = all.encode();
      EXPECT_EQ(r.error().code, Errc::out_of_memory);
    }
    ASSERT_TRUE(all.encode());
    EXPECT_EQ(all.payload, encode_on_cpu(*Spec::parse("3lc"), all.task).payload);
  }
  EXPECT_EQ(faults_of(fake), "");
  EXPECT_EQ(fake.alive(), 0U);
}

}  // namespace
}  // namespace laconic::test
