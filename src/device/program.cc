// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "device/program.h"

#include <algorithm>

#include "base/concat.h"
#include "device/phases.h"

namespace laconic::device {
namespace {

constexpr uint64_t kMostBlocks = 0x7FFFFFFF;  // of a grid's first dimension

/// Codes of cuModuleLoadData for an image that this driver does not take; another one may do.
bool refused(int code) {
  constexpr int kCodes[] = {kCudaInvalidImage,  kCudaNoBinary, kCudaInvalidPtx,
                            kCudaNoPtxCompiler, kCudaNewPtx,   kCudaPtxDisabled};
  return std::find(std::begin(kCodes), std::end(kCodes), code) != std::end(kCodes);
}

}  // namespace

std::string Image::name() const {
  return concat({ptx ? "PTX of compute_" : "sm_", std::to_string(architecture)});
}

std::vector<Image> choose_images(std::span<const Image> images, uint32_t capability) {
  std::vector<Image> chosen;
  for (const Image& image : images) {
    const bool runs = image.ptx || image.architecture / 10 == capability / 10;
    if (runs && image.architecture <= capability) chosen.push_back(image);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const Image& a, const Image& b) {
    return a.ptx != b.ptx ? b.ptx : a.architecture > b.architecture;
  });
  return chosen;
}

Result<std::shared_ptr<const Program>> Program::load(const GpuRef& gpu,
                                                     std::span<const Image> images,
                                                     std::span<const std::string_view> kernels) {
  if (images.empty()) {
    return Error{Errc::unsupported, "this build has no kernels for GPUs",
                 "build where nvcc is: scripts/bootstrap --cuda"};
  }
  const std::vector<Image> chosen = choose_images(images, gpu->capability());
  if (chosen.empty()) {
    return Error{Errc::unsupported, concat({"no kernels for this GPU: ", gpu->card()}),
                 concat({"the oldest that they run on is ", images.front().name()})};
  }
  auto program = std::make_shared<Program>(gpu);
  int code = kCudaSuccess;
  Result<void> loaded;
  for (const Image& image : chosen) {
    code = kCudaSuccess;
    loaded = gpu->call("cuModuleLoadData", [&](const CudaCalls& cuda) {
      CudaModule module = nullptr;
      code = cuda.module.load(&module, image.bytes.data());
      if (code == kCudaSuccess) program->module_ = module;
      return code;
    });
    program->image_ = image.name();
    if (loaded || !refused(code)) break;
  }
  if (!loaded && refused(code)) {
    return Error{Errc::unsupported,
                 concat({"the driver, of CUDA ", gpu->driver(),
                         ", takes no kernels of this build: ", loaded.error().message}),
                 "update the NVIDIA driver"};
  }
  if (!loaded) return std::move(loaded).error();
  for (const std::string_view kernel : kernels) {
    const std::string name(kernel);
    auto found = gpu->call(concat({"cuModuleGetFunction of ", kernel}), [&](const CudaCalls& cuda) {
      CudaFunction function = nullptr;
      const int got = cuda.module.function(&function, program->module_, name.c_str());
      program->functions_[name] = function;
      return got;
    });
    if (!found) return std::move(found).error();
  }
  return std::shared_ptr<const Program>(std::move(program));
}

Program::~Program() {
  if (module_ == nullptr) return;
  (void)gpu_->call("cuModuleUnload",
                   [&](const CudaCalls& cuda) { return cuda.module.unload(module_); });
}

CudaFunction Program::find(std::string_view kernel) const {
  const auto at = functions_.find(kernel);
  return at == functions_.end() ? nullptr : at->second;
}

void LaunchQueue::enqueue(std::string_view kernel, uint64_t blocks, Bytes args) {
  if (result_) result_ = start(kernel, blocks, args);
}

Result<void> LaunchQueue::start(std::string_view kernel, uint64_t blocks, Bytes args) const {
  const CudaFunction function = program_.find(kernel);
  if (function == nullptr)
    return Error{Errc::internal, concat({"no kernel has the name ", kernel}), "report this"};
  if (blocks > kMostBlocks) {
    return Error{Errc::unsupported,
                 concat({"a launch of ", std::to_string(blocks), " blocks is too large"}),
                 "split the bucket"};
  }
  return program_.gpu()->call(concat({"cuLaunchKernel of ", kernel}), [&](const CudaCalls& cuda) {
    void* of_kernel[] = {const_cast<uint8_t*>(args.data())};  // copied before the call returns
    return cuda.module.launch(function, static_cast<unsigned int>(blocks), 1, 1, kThreads, 1, 1, 0,
                              stream_.handle(), of_kernel, nullptr);
  });
}

}  // namespace laconic::device
