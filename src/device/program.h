// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Compiled kernels on a GPU, and a queue that launches them there.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/gpu.h"
#include "device/queue.h"
#include "laconic/bytes.h"

namespace laconic::device {

/// The same kernels, compiled for one architecture: a cubin, or PTX, a text with a zero byte at its
/// end.
struct Image {
  uint32_t architecture = 0;  ///< 90: sm_90, or compute_90
  bool ptx = false;
  Bytes bytes;

  [[nodiscard]] std::string name() const;  ///< "sm_90", "PTX of compute_80"
};

/// The images that a GPU of this capability runs, best first: cubins of its major version that are
/// not newer, then PTX, which the driver compiles.
[[nodiscard]] std::vector<Image> choose_images(std::span<const Image> images, uint32_t capability);

/// The kernels of one image, loaded. May be shared by threads.
class Program {
 public:
  /// The best image that the driver takes. unsupported if there is none, with the reason.
  static Result<std::shared_ptr<const Program>> load(const GpuRef& gpu,
                                                     std::span<const Image> images,
                                                     std::span<const std::string_view> kernels);
  explicit Program(GpuRef gpu) : gpu_(std::move(gpu)) {}
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] const GpuRef& gpu() const noexcept { return gpu_; }
  [[nodiscard]] const std::string& image() const noexcept { return image_; }  ///< Image::name()
  /// Null: it is not one of the kernels.
  [[nodiscard]] CudaFunction find(std::string_view kernel) const;

 private:
  GpuRef gpu_;
  CudaModule module_ = nullptr;
  std::string image_;
  std::map<std::string, CudaFunction, std::less<>> functions_;
};

/// Launches on a stream. After a failure nothing more is launched.
class LaunchQueue final : public Queue {
 public:
  LaunchQueue(const Program& program, const Stream& stream) : program_(program), stream_(stream) {}
  /// The first failure.
  [[nodiscard]] const Result<void>& result() const noexcept { return result_; }

 protected:
  void enqueue(std::string_view kernel, uint64_t blocks, Bytes args) override;

 private:
  Result<void> start(std::string_view kernel, uint64_t blocks, Bytes args) const;

  const Program& program_;
  const Stream& stream_;
  Result<void> result_;
};

}  // namespace laconic::device
