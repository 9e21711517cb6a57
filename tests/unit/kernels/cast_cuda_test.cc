// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The casts on a GPU give the bits of the reference. Needs liblaconic_cuda.so beside the tests'
// libraries and a GPU; device memory comes from the driver, so that this program links no CUDA.
#include "kernels/cast_cuda.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cast.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

/// The few driver functions that memory needs.
struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  bool ready = false;

  template <class F>
  [[nodiscard]] F* find(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library, name));
  }
  Driver() {
    if (library == nullptr) return;
    int device = 0;
    void* context = nullptr;
    ready = find<int(unsigned)>("cuInit")(0) == 0 &&
            find<int(int*, int)>("cuDeviceGet")(&device, 0) == 0 &&
            find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device) == 0 &&
            find<int(void*)>("cuCtxSetCurrent")(context) == 0;
  }
};

/// Device memory with the bytes of a vector.
template <class T>
class OnDevice {
 public:
  OnDevice(const Driver& driver, const std::vector<T>& host) : driver_(driver), size_(host.size()) {
    driver_.find<int(uint64_t*, size_t)>("cuMemAlloc_v2")(&address_, size_ * sizeof(T));
    driver_.find<int(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2")(address_, host.data(),
                                                                        size_ * sizeof(T));
  }
  ~OnDevice() { driver_.find<int(uint64_t)>("cuMemFree_v2")(address_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(address_); }
  [[nodiscard]] std::vector<T> back() const {
    std::vector<T> host(size_);
    driver_.find<int()>("cuCtxSynchronize")();
    driver_.find<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(host.data(), address_,
                                                                  size_ * sizeof(T));
    return host;
  }

 private:
  const Driver& driver_;
  uint64_t size_ = 0;
  uint64_t address_ = 0;
};

class CastCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!driver_.ready) GTEST_SKIP() << "no NVIDIA driver or no GPU here";
    const char* path = std::getenv("LACONIC_CUDA_LIBRARY");
    library_ = dlopen(path != nullptr ? path : "liblaconic_cuda.so", RTLD_NOW);
    if (library_ == nullptr)
      GTEST_SKIP() << "set LACONIC_CUDA_LIBRARY to liblaconic_cuda.so: " << dlerror();
  }
  template <class F>
  F* find(const char* name, F*) const {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }

  Driver driver_;
  void* library_ = nullptr;
  std::vector<float> x_ = special_values(1'000'003, 17);
};

TEST_F(CastCuda, NarrowingEqualsTheReference) {
  const uint64_t n = x_.size();
  const OnDevice<float> x(driver_, x_);
  const OnDevice<uint16_t> out(driver_, std::vector<uint16_t>(n));
  std::vector<uint16_t> expected(n);
  for (const bool saturate : {false, true}) {
    ASSERT_EQ(find("laconic_cuda_narrow_f16", &laconic_cuda_narrow_f16)(out.data(), 0.3F, x.data(),
                                                                        n, saturate, nullptr),
              0);
    kCastScalar.narrow_f16(expected.data(), 0.3F, x_.data(), n, saturate);
    for (uint64_t i = 0; const uint16_t h : out.back()) {
      // A product's NaN has the sign that the processor gives it.
      ASSERT_EQ(std::isnan(x_[i]) ? h & 0x7FFF : h,
                std::isnan(x_[i]) ? expected[i] & 0x7FFF : expected[i])
          << i;
      ++i;
    }
  }
  ASSERT_EQ(find("laconic_cuda_narrow_bf16", &laconic_cuda_narrow_bf16)(out.data(), 0.3F, x.data(),
                                                                        n, nullptr),
            0);
  kCastScalar.narrow_bf16(expected.data(), 0.3F, x_.data(), n);
  for (uint64_t i = 0; const uint16_t h : out.back()) {
    if (!std::isnan(x_[i])) {
      ASSERT_EQ(h, expected[i]) << i;
    }
    ++i;
  }
}

TEST_F(CastCuda, WideningEqualsTheReference) {
  std::vector<uint16_t> h(65536);
  for (uint32_t i = 0; i < 65536; ++i) h[i] = static_cast<uint16_t>(i);
  const OnDevice<uint16_t> in(driver_, h);
  const Weighted term{h.data(), 0.3F};
  for (const int32_t add : {0, 1}) {
    const std::vector<float> base = normal_values(h.size(), 1);
    const Output output = add != 0 ? Output::add : Output::set;
    std::vector<float> expected = base;
    const OnDevice<float> half(driver_, base);
    ASSERT_EQ(find("laconic_cuda_widen_f16", &laconic_cuda_widen_f16)(half.data(), 0.3F, in.data(),
                                                                      h.size(), add, nullptr),
              0);
    kCastScalar.weighted_sum_f16(expected.data(), output, &term, 1, 0, h.size());
    expect_same(expected, half.back(), 16);
    expected = base;
    const OnDevice<float> brain(driver_, base);
    ASSERT_EQ(find("laconic_cuda_widen_bf16", &laconic_cuda_widen_bf16)(
                  brain.data(), 0.3F, in.data(), h.size(), add, nullptr),
              0);
    kCastScalar.weighted_sum_bf16(expected.data(), output, &term, 1, 0, h.size());
    expect_same(expected, brain.back(), 17);
  }
}

TEST(CastNoCuda, SaysSo) {
  EXPECT_EQ(laconic_cuda_narrow_f16(nullptr, 1.0F, nullptr, 0, 1, nullptr), kCastNoCuda);
  EXPECT_EQ(laconic_cuda_narrow_bf16(nullptr, 1.0F, nullptr, 0, nullptr), kCastNoCuda);
  EXPECT_EQ(laconic_cuda_widen_f16(nullptr, 1.0F, nullptr, 0, 0, nullptr), kCastNoCuda);
  EXPECT_EQ(laconic_cuda_widen_bf16(nullptr, 1.0F, nullptr, 0, 0, nullptr), kCastNoCuda);
}

}  // namespace
}  // namespace laconic::kernels
