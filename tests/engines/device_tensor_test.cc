// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The C ABI with tensors in the memory of a simulated GPU: frames, residuals, sums and errors are
// those of the same call with tensors on the host. LACONIC_ON_CARD: on the machine's GPU, and
// without what asks the simulated driver (scripts/gpu_check).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "conformance/codec_law.h"
#include "engines/fake_gpu.h"
#include "laconic/frame.h"
#include "laconic/laconic.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

using conformance::Data;
using conformance::make;

constexpr auto kUnsupported = static_cast<int32_t>(Errc::unsupported);
constexpr auto kInvalid = static_cast<int32_t>(Errc::invalid_argument);

laconic_codec* create(const std::string& spec) {
  laconic_codec* codec = nullptr;
  EXPECT_EQ(laconic_codec_create(spec.data(), spec.size(), 1, &codec), 0) << spec;
  return codec;
}
using CodecHandle = std::unique_ptr<laconic_codec, decltype(&laconic_codec_destroy)>;
CodecHandle codec_of(const std::string& spec) { return {create(spec), &laconic_codec_destroy}; }

laconic_tensor tensor(uint32_t dtype, uint64_t n, void* data, bool on_gpu) {
  return {sizeof(laconic_tensor),
          dtype,
          n,
          1,
          data,
          on_gpu ? LACONIC_MEMORY_CUDA : LACONIC_MEMORY_HOST,
          0};
}

using ResidualHandle = std::unique_ptr<laconic_residual, decltype(&laconic_residual_destroy)>;
ResidualHandle residual_over(uint64_t n, float* values, bool on_gpu) {
  laconic_residual* residual = nullptr;
  const laconic_tensor array = tensor(LACONIC_F32, n, values, on_gpu);
  EXPECT_EQ(laconic_residual_over(&array, &residual), 0) << laconic_last_message();
  return {residual, &laconic_residual_destroy};
}
std::vector<float> state_of(laconic_residual* residual) {
  uint64_t count = 0;
  const float* const state = laconic_residual_state(residual, &count);
  return {state, state + count};
}

/// Result of a call: its code and message, and the frame.
struct Answer {
  int32_t code = 0;
  std::string message;
  std::vector<uint8_t> frame;
  bool operator==(const Answer&) const = default;
};
void PrintTo(const Answer& a, std::ostream* out) {
  *out << a.code << ": " << a.message << ", " << a.frame.size() << " bytes";
}
Answer answer(int32_t code) { return {code, code == 0 ? "" : laconic_last_message(), {}}; }

Answer encode(const CodecHandle& codec, const laconic_tensor& source, uint64_t step,
              laconic_residual* residual, void* stream = nullptr) {
  const laconic_place place{sizeof place, 1, 3, 0, 7, step, 5};
  std::vector<uint8_t> frame(20'000 + 4 * source.rows);
  constexpr uint64_t kUnwritten = 12345;
  uint64_t bytes = kUnwritten;
  Answer a = answer(laconic_encode(codec.get(), &source, &place, residual, frame.data(),
                                   frame.size(), &bytes, stream));
  if (a.code != 0) {
    EXPECT_EQ(bytes, kUnwritten);
    return a;
  }
  a.frame.assign(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(bytes));
  return a;
}

using Frames = std::vector<std::vector<uint8_t>>;
Answer decode(const CodecHandle& codec, const Frames& frames, bool add, const laconic_tensor& out,
              void* stream = nullptr) {
  std::vector<const void*> at;
  std::vector<uint64_t> bytes;
  for (const auto& frame : frames) {
    at.push_back(frame.data());
    bytes.push_back(frame.size());
  }
  return answer(laconic_decode_many(codec.get(), at.data(), bytes.data(),
                                    static_cast<uint32_t>(frames.size()), 1.0F / 3, add ? 1 : 0,
                                    &out, stream));
}

/// An array of that element type on the host, and the same on the GPU.
struct Array {
  Array(OnGpu& on, uint32_t type, const std::vector<float>& values)
      : gpu(on), dtype(type), count(values.size()) {
    for (const float x : values) {
      const uint16_t half = dtype == LACONIC_F16 ? float_to_f16(x) : float_to_bf16(x);
      const auto* const from = dtype == LACONIC_F32 ? reinterpret_cast<const uint8_t*>(&x)
                                                    : reinterpret_cast<const uint8_t*>(&half);
      here.insert(here.end(), from, from + (dtype == LACONIC_F32 ? 4 : 2));
    }
    there = gpu.put(here);
  }
  [[nodiscard]] laconic_tensor on_host() { return tensor(dtype, count, here.data(), false); }
  [[nodiscard]] laconic_tensor on_gpu() const { return tensor(dtype, count, there, true); }
  [[nodiscard]] float* floats() { return reinterpret_cast<float*>(here.data()); }
  [[nodiscard]] float* floats_there() const { return reinterpret_cast<float*>(there); }
  [[nodiscard]] std::vector<uint8_t> from_gpu() const { return gpu.get(there, here.size()); }
  void expect_same(const char* what) const {
    conformance::expect_same_bytes(from_gpu(), here, what);
  }

  OnGpu& gpu;
  uint32_t dtype;
  uint64_t count;
  std::vector<uint8_t> here;
  uint8_t* there = nullptr;
};

#ifdef LACONIC_ON_CARD
constexpr uint64_t kCounts[] = {1, 5003, 1'000'003};
#else
constexpr uint64_t kCounts[] = {1, 5003};
#endif

/// Gradients of some steps, bad and zero ones between them.
std::vector<std::vector<float>> gradients(uint64_t n) {
  std::vector<std::vector<float>> all;
  for (uint64_t step = 0; step < 3; ++step) all.push_back(make(Data::laplace, n, step));
  all.push_back(std::vector<float>(n, -0.0F));
  all.push_back(all[0]);
  all.back()[n / 2] = NAN;
  all.push_back(all[1]);
  all.back()[n - 1] = INFINITY;
  all.push_back(make(Data::tiny, n, 9));
  return all;
}

#ifdef LACONIC_ON_CARD
class DeviceTensorTest : public testing::Test {
 protected:
  std::optional<OnGpu> gpu_{*device::Gpu::open(device::kCudaLibrary, 0)};
};
#else
class DeviceTensorTest : public testing::Test {
 protected:
  /// Nothing raced, or was left behind.
  void TearDown() override {
    gpu_.reset();
    EXPECT_EQ(faults_of(fake_), "");
    EXPECT_EQ(fake_.alive(), not_freed_);
    EXPECT_TRUE(fake_->fail_after(-1, 0));
  }

  const Fake fake_;
  std::optional<OnGpu> gpu_{*open_gpu(fake_)};
  uint64_t not_freed_ = 0;  ///< because a call that frees failed
};
#endif
class DeviceTensor : public DeviceTensorTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Specs, DeviceTensor,
                         testing::Values("fp16", "bf16+ef", "bf16", "int8:round=stochastic+ef",
                                         "3lc", "topk", "sidco", "onebit", "signsgd", "efsignsgd"),
                         [](const auto& chosen) {
                           std::string name;
                           for (const char c : std::string(chosen.param))
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_P(DeviceTensor, FramesResidualsAndErrorsAreThoseOfCpu) {
  const CodecHandle codec = codec_of(GetParam());
  const bool remembers =
      std::string(laconic_codec_json(codec.get())).find("\"feedback\":true") != std::string::npos;
  constexpr uint32_t kTypes[] = {LACONIC_F32, LACONIC_F16, LACONIC_BF16};
#ifdef LACONIC_ON_CARD
  if (std::string(GetParam()) == "sidco")
    GTEST_SKIP() << "a threshold may differ in its last bit from another machine's";
#endif
  for (const uint64_t n : kCounts) {
    Array kept(*gpu_, LACONIC_F32, std::vector<float>(n));
    const ResidualHandle here = residual_over(n, kept.floats(), false);
    const ResidualHandle there = residual_over(n, kept.floats_there(), true);
    uint64_t step = 0;
    for (const std::vector<float>& gradient : gradients(n)) {
      SCOPED_TRACE(std::to_string(n) + " elements, step " + std::to_string(step));
      Array x(*gpu_, kTypes[step % 3], gradient);
      EXPECT_EQ(encode(codec, x.on_gpu(), step, there.get()),
                encode(codec, x.on_host(), step, here.get()));
      EXPECT_EQ(encode(codec, x.on_gpu(), step, nullptr),
                encode(codec, x.on_host(), step, nullptr));
      kept.expect_same("residual");
      x.expect_same("gradient");
      EXPECT_EQ(state_of(there.get()), state_of(here.get()));
      ++step;
      if (HasFailure()) return;
    }
    if (!remembers) continue;
    Array bad(*gpu_, LACONIC_F32, std::vector<float>(n, NAN));  // cannot be used, and is reset
    Array x(*gpu_, LACONIC_F32, gradients(n)[0]);
    EXPECT_EQ(encode(codec, x.on_gpu(), 9, residual_over(n, bad.floats_there(), true).get()),
              encode(codec, x.on_host(), 9, residual_over(n, bad.floats(), false).get()));
    bad.expect_same("residual");
  }
}

/// Frames of several ranks and steps, some of zeros.
Frames frames_of(const CodecHandle& codec, uint64_t n, uint64_t count) {
  Frames frames;
  for (uint64_t r = 0; r < count; ++r) {
    std::vector<float> x = r % 5 == 3 ? std::vector<float>(n) : make(Data::laplace, n, r);
    frames.push_back(encode(codec, tensor(LACONIC_F32, n, x.data(), false), r / 9, nullptr).frame);
  }
  return frames;
}

TEST_P(DeviceTensor, SumsAreThoseOfCpu) {
  const CodecHandle codec = codec_of(GetParam());
  constexpr uint64_t kCount = 5003;
  const Frames many = frames_of(codec, kCount, 12);  // more than a launch takes
  const Frames zeros{many[3]};
  for (const Frames& frames : {many, Frames{many[0]}, zeros, Frames{}}) {
    for (const uint32_t dtype : {LACONIC_F32, LACONIC_F16, LACONIC_BF16}) {
      if (kSanitized && dtype == LACONIC_BF16) continue;
      for (const bool add : {false, true}) {
        SCOPED_TRACE(std::to_string(frames.size()) + " frames, " + std::to_string(dtype));
        Array out(*gpu_, dtype, make(Data::gaussian, kCount, 99));
        EXPECT_EQ(decode(codec, frames, add, out.on_gpu()).message, "");
        EXPECT_EQ(decode(codec, frames, add, out.on_host()).message, "");
        out.expect_same("sum");
        if (HasFailure()) return;
      }
    }
  }
}

/// The frame with another payload, and a checksum that is right.
std::vector<uint8_t> with_payload(const std::vector<uint8_t>& frame, laconic::Bytes payload) {
  const FrameInfo info = parse_frame(frame)->info;
  std::vector<uint8_t> forged(frame.size() + payload.size());
  forged.resize(*write_frame(info, payload, forged));
  return forged;
}

TEST_P(DeviceTensor, DamagedFramesGetVerdictOfCpu) {
  const CodecHandle codec = codec_of(GetParam());
  constexpr uint64_t kCount = 1003;
  const std::vector<uint8_t> good = frames_of(codec, kCount, 1)[0];
  const auto payload = parse_frame(good)->payload;
  Frames damaged;
  for (const std::size_t at : {std::size_t{0}, std::size_t{50}, good.size() - 1}) {
    damaged.push_back(good);
    damaged.back()[at] ^= 0x40;  // its header or checksum
  }
  damaged.push_back({good.begin(), good.end() - 1});
  damaged.push_back(with_payload(good, payload.first(payload.size() - 1)));
  std::vector<uint8_t> bytes(payload.begin(), payload.end());
  for (const std::size_t at : {std::size_t{3}, payload.size() / 2, payload.size() - 1}) {
    for (const uint8_t value : {uint8_t{0x7F}, uint8_t{0xFF}}) {
      const uint8_t before = std::exchange(bytes[at], value);
      damaged.push_back(with_payload(good, bytes));
      bytes[at] = before;
    }
  }
  uint32_t refused = 0;
  for (const auto& frame : damaged) {
    Array out(*gpu_, LACONIC_F32, make(Data::gaussian, kCount, 99));
    const Answer cpu = decode(codec, {good, frame, frame}, true, out.on_host());
    EXPECT_EQ(decode(codec, {good, frame, frame}, true, out.on_gpu()), cpu);
    out.expect_same("sum");
    refused += cpu.code != 0 ? 1 : 0;
  }
  EXPECT_GE(refused, 5U);
}

TEST_F(DeviceTensorTest, FirstDamagedFrameIsReported) {
  const CodecHandle codec = codec_of("int8");
  const Frames good = frames_of(codec, 100, 2);
  std::vector<uint8_t> torn = good[1];
  torn[20] ^= 1;
  const Frames frames{with_payload(good[0], laconic::Bytes(torn).first(3)), torn};
  Array out(*gpu_, LACONIC_F32, std::vector<float>(100));
  EXPECT_EQ(decode(codec, frames, false, out.on_gpu()),
            decode(codec, frames, false, out.on_host()));
}

TEST_F(DeviceTensorTest, FramesOfOtherParametersAreDecoded) {
  const CodecHandle codec = codec_of("int8");
  for (const char* spec : {"int8:block=64", "int8:block=64+ef+decay=0.5"}) {
    const Frames frames = frames_of(codec_of(spec), 700, 2);
    Array out(*gpu_, LACONIC_F32, std::vector<float>(700));
    EXPECT_EQ(decode(codec, frames, false, out.on_gpu()).message, "");
    EXPECT_EQ(decode(codec, frames, false, out.on_host()).code, 0);
    out.expect_same("sum");
  }
}

TEST_F(DeviceTensorTest, ThreadsShareOneCodec) {
  const CodecHandle codec = codec_of("3lc");
  std::vector<Array> arrays;
  std::vector<Answer> given(4), expected;
  for (uint64_t t = 0; t < given.size(); ++t) {
    arrays.emplace_back(*gpu_, LACONIC_F32, make(Data::laplace, 500, t));
    expected.push_back(encode(codec, arrays[t].on_host(), t, nullptr));
  }
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < given.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) given[t] = encode(codec, arrays[t].on_gpu(), t, nullptr);
    });
  }
  threads.clear();
  EXPECT_EQ(given, expected);
}

TEST_F(DeviceTensorTest, WrongMemoryIsInvalid) {
  const CodecHandle codec = codec_of("int8+ef");
  Array x(*gpu_, LACONIC_F32, make(Data::laplace, 300, 1));
  const laconic_tensor lies = tensor(LACONIC_F32, 300, x.here.data(), true);
  EXPECT_EQ(encode(codec, lies, 0, nullptr).code, kInvalid);
  EXPECT_EQ(decode(codec, {}, false, lies).code, kInvalid);
  std::vector<float> floats(300);
  const ResidualHandle host = residual_over(300, floats.data(), false);
  const ResidualHandle not_on_gpu = residual_over(300, floats.data(), true);
  EXPECT_EQ(encode(codec, x.on_gpu(), 0, host.get()).code, kInvalid);
  EXPECT_EQ(encode(codec, x.on_gpu(), 0, not_on_gpu.get()).code, kInvalid);
  EXPECT_EQ(encode(codec, x.on_host(), 0, not_on_gpu.get()).code, kInvalid);
  EXPECT_EQ(floats, std::vector<float>(300));
  laconic_residual* none = nullptr;
  const laconic_tensor halves = tensor(LACONIC_F16, 300, floats.data(), false);
  EXPECT_EQ(laconic_residual_over(&halves, &none), kInvalid);
}

#ifndef LACONIC_ON_CARD

TEST_F(DeviceTensorTest, EmptyTensorNeedsNoGpu) {
  fake_->reset(kNew, 0);
  const CodecHandle codec = codec_of("3lc");
  const laconic_tensor empty = tensor(LACONIC_F32, 0, nullptr, true);
  const Answer a = encode(codec, empty, 0, nullptr);
  EXPECT_EQ(a, encode(codec, tensor(LACONIC_F32, 0, nullptr, false), 0, nullptr));
  EXPECT_EQ(decode(codec, {a.frame}, false, empty).message, "");
}

TEST_F(DeviceTensorTest, WorkOfCallersStreamComesFirst) {
  const CodecHandle codec = codec_of("int8");
  constexpr uint64_t kCount = 200;
  std::vector<float> x = make(Data::laplace, kCount, 1);
  const Answer cpu = encode(codec, tensor(LACONIC_F32, kCount, x.data(), false), 0, nullptr);
  const auto device = *open_gpu(fake_);
  const auto pinned = *device::Memory::allocate(device, device::Memory::Where::pinned, 800);
  std::memcpy(pinned.at(), x.data(), 800);
  const auto stream = *device::Stream::create(device);
  for (device::CudaStream queue : {stream.handle(), device::CudaStream{nullptr}}) {
    Array array(*gpu_, LACONIC_F32, std::vector<float>(kCount));
    const auto fill = [&] {  // after zeros that take longer than all of a call
      ASSERT_TRUE(device->call("copy", [&](const device::CudaCalls& cuda) {
        const auto to = reinterpret_cast<device::CudaAddress>(array.there);
        for (int i = 0; i < 20; ++i) (void)cuda.memory.set(to, 0, 800, queue);
        return cuda.memory.copy_to_device(to, pinned.at(), 800, queue);
      }));
    };
    fake_->late(2000);
    fill();
    EXPECT_EQ(encode(codec, array.on_gpu(), 0, nullptr, queue), cpu);
    fill();
    EXPECT_EQ(decode(codec, {cpu.frame}, true, array.on_gpu(), queue).message, "");
    fake_->late(0);
    std::vector<float> sum = x;
    EXPECT_EQ(decode(codec, {cpu.frame}, true, tensor(LACONIC_F32, kCount, sum.data(), false)).code,
              0);
    conformance::expect_same_bits(gpu_->get(array.floats_there(), kCount), sum, "sum");
  }
}

TEST_F(DeviceTensorTest, WorkRunsOnGpuOfTensor) {
  const CodecHandle codec = codec_of("int8");
  OnGpu second(*open_gpu(fake_, 1));
  Array x(*gpu_, LACONIC_F32, make(Data::laplace, 300, 1));
  Array y(second, LACONIC_F32, make(Data::laplace, 300, 1));
  Array kept(*gpu_, LACONIC_F32, std::vector<float>(300));
  (void)fake_.calls(0);
  const Answer on_second = encode(codec, y.on_gpu(), 0, nullptr);
  EXPECT_EQ(fake_.calls(0), "");
  EXPECT_NE(fake_.calls(1).find("cuLaunchKernel"), std::string::npos);
  EXPECT_EQ(on_second, encode(codec, x.on_gpu(), 0, nullptr));
  const CodecHandle remembers = codec_of("int8+ef");
  const ResidualHandle residual = residual_over(300, kept.floats_there(), true);
  EXPECT_EQ(encode(remembers, y.on_gpu(), 0, residual.get()).message,
            "the residual is not in the memory of the tensor's GPU");
  EXPECT_EQ(encode(remembers, x.on_gpu(), 0, residual.get()).message, "");
}

TEST_F(DeviceTensorTest, MissingKernelsAreUnsupportedWithReason) {
  Array x(*gpu_, LACONIC_F32, make(Data::laplace, 300, 1));
  const auto expect = [&](const char* spec, const std::string& reason) {
    const CodecHandle codec = codec_of(spec);
    Array kept(*gpu_, LACONIC_F32, make(Data::gaussian, 300, 2));
    const ResidualHandle residual = residual_over(300, kept.floats_there(), true);
    const Answer a = encode(codec, x.on_gpu(), 0, residual.get());
    EXPECT_EQ(a.code, kUnsupported) << spec;
    EXPECT_EQ(a.message, reason);
    EXPECT_STRNE(laconic_last_hint(), "");
    EXPECT_TRUE(state_of(residual.get()).empty());
    kept.expect_same("residual");
  };
  for (const char* spec : {"thc", "qsgd", "topk+momentum=0.5", "int8+ef+decay=0.5"})
    expect(spec, std::string("no kernels for GPUs: ") + laconic_codec_spec(codec_of(spec).get()));
  EXPECT_EQ(decode(codec_of("thc"), {}, false, x.on_gpu()).code, kUnsupported);
  {
    const auto before = std::exchange(library_images(), {});
    expect("3lc", "this build has no kernels for GPUs");
    library_images() = before;
  }
  fake_->card(75, 12040);
  expect("3lc", "no kernels for this GPU: Fake GPU, compute capability 7.5");
  fake_->card(90, 10020);
  fake_->fail(0, "cuModuleLoadData", 200);
  expect("3lc",
         "the driver, of CUDA 10.2, takes no kernels of this build: cuModuleLoadData failed on "
         "GPU 0: the provided PTX was compiled with an unsupported toolchain");
  fake_->card(90, 13000);
  fake_->fail(-1, "cuInit", 100);
  expect("3lc", "no GPU: cuInit failed: no CUDA-capable device is detected");
}

/// A first step's sum needs what checks have taken, a second one's more.
TEST_F(DeviceTensorTest, MemoryOfDecodeIsTakenBeforeSumChanges) {
  const CodecHandle codec = codec_of("topk");
  constexpr uint64_t kCount = 70'001;
  const Frames all = frames_of(codec, kCount, 10);
  const laconic::Bytes payload = parse_frame(all[1])->payload;
  const auto damaged = with_payload(all[1], payload.first(payload.size() - 1));
  Array out(*gpu_, LACONIC_F32, make(Data::gaussian, kCount, 99));
  EXPECT_NE(decode(codec, {all[0], damaged}, true, out.on_gpu()).code, 0);
  fake_->fail(0, "cuMemAlloc", 2);
  EXPECT_EQ(decode(codec, {all[9], all[0], all[1]}, true, out.on_gpu()).code,
            static_cast<int32_t>(Errc::out_of_memory));
  out.expect_same("sum");
}

TEST_F(DeviceTensorTest, EveryFailingCallIsOneErrorAndCallsGoOn) {
  constexpr uint64_t kCount = 700;
  const std::vector<float> x = make(Data::laplace, kCount, 1), e = make(Data::gaussian, kCount, 2);
  const Frames frames = frames_of(codec_of("sidco"), kCount, 10);  // of two steps
  Array source(*gpu_, LACONIC_F32, x), expected(*gpu_, LACONIC_F32, e);
  const CodecHandle on_host = codec_of("sidco");
  const ResidualHandle host = residual_over(kCount, expected.floats(), false);
  const Answer cpu = encode(on_host, source.on_host(), 0, host.get());
  for (const int code : {999, 2}) {
    const uint32_t dtype = code == 2 ? LACONIC_F32 : LACONIC_F16;
    Array sum(*gpu_, dtype, e);
    ASSERT_EQ(decode(on_host, frames, true, sum.on_host()).code, 0);
    for (int calls = 0;; calls += kFailureStride) {
      SCOPED_TRACE(std::to_string(code) + " after " + std::to_string(calls) + " calls");
      Array kept(*gpu_, LACONIC_F32, e), out(*gpu_, dtype, e);
      bool failed = false;
      {
        const CodecHandle codec = codec_of("sidco");
        const ResidualHandle residual = residual_over(kCount, kept.floats_there(), true);
        fake_->fail_after(calls, code);
        Answer a = encode(codec, source.on_gpu(), 0, residual.get());
        Answer b;
        if (a.code == 0) b = decode(codec, frames, true, out.on_gpu());
        failed = fake_->fail_after(-1, 0);
        const std::string why = a.message + b.message;
        const bool allocates = why.rfind("cuMem", 0) == 0 && why.find("Alloc") != std::string::npos;
        EXPECT_EQ(a.code != 0 || b.code != 0, !why.empty());
        if (allocates) {
          EXPECT_EQ(a.code + b.code,
                    static_cast<int32_t>(code == 2 ? Errc::out_of_memory : Errc::engine_failed));
        }
        if (a.code == 0) {
          EXPECT_EQ(a, cpu);
          conformance::expect_same_bytes(kept.from_gpu(), expected.here, "residual");
        } else if (allocates) {
          conformance::expect_same_bytes(kept.from_gpu(), kept.here, "residual before");
        }
        if (allocates) conformance::expect_same_bytes(out.from_gpu(), out.here, "out before");
        if (failed && why.empty()) ++not_freed_;
        if (a.code == 0 && b.code == 0)
          conformance::expect_same_bytes(out.from_gpu(), sum.here, "sum");
        EXPECT_TRUE(fake_->fail_after(-1, 0));
        // The codec can be used again.
        Array again(*gpu_, LACONIC_F32, e);
        const ResidualHandle fresh = residual_over(kCount, again.floats_there(), true);
        EXPECT_EQ(encode(codec, source.on_gpu(), 0, fresh.get()), cpu);
      }
      if (HasFailure()) return;
      if (!failed) {
        EXPECT_GT(calls, 60);
        break;
      }
    }
  }
}

#endif

}  // namespace
}  // namespace laconic::test
