// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Bytes in, bytes out: one tensor to one self-describing frame and back. For programs that embed
// codecs, files, tests.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "laconic/codec.h"
#include "laconic/frame.h"
#include "laconic/spec.h"
#include "laconic/thread_pool.h"

namespace laconic {

namespace pipeline {
class UnitCodec;
class DeviceBatch;
class TensorDevices;
struct UnitSlot;
}  // namespace pipeline

enum class TensorMemory : uint8_t {
  host,
  cuda,  ///< of a GPU
};

/// A contiguous tensor in memory, seen as rows × cols (first dimension, product of the others).
struct TensorRef {
  DType dtype = DType::f32;  ///< f32, f16 or bf16
  uint64_t rows = 0;
  uint64_t cols = 1;
  void* data = nullptr;
  TensorMemory memory = TensorMemory::host;  ///< of data
  /// A CUstream on the GPU of `data`; its queued work runs first. Null: CUDA's default stream.
  void* stream = nullptr;
};

/// The memory of one tensor on one rank: its residual (or running mean), codec state, and after
/// that momentum. The first encode sets the size of the state.
class Residual {
 public:
  /// `count` zeros. Error: out_of_memory.
  static Result<std::unique_ptr<Residual>> create(uint64_t count);
  /// Over the caller's f32 array, which outlives it: of the host, or of the GPU whose tensors it
  /// serves.
  static Result<std::unique_ptr<Residual>> over(const TensorRef& values);
  Residual() = default;
  Residual(const Residual&) = delete;
  Residual& operator=(const Residual&) = delete;
  [[nodiscard]] std::span<float> values() noexcept { return values_; }
  [[nodiscard]] TensorMemory memory() const noexcept { return memory_; }
  [[nodiscard]] std::span<float> state() noexcept { return state_; }
  /// Replaces the codec state, e.g. from a checkpoint. The next encode fails if its size does not
  /// fit the codec.
  void set_state(std::span<const float> state) { state_.assign(state.begin(), state.end()); }

 private:
  friend class TensorCodec;
  std::vector<float> own_;
  std::span<float> values_;
  TensorMemory memory_ = TensorMemory::host;
  std::vector<float> state_;
};

/// A spec, ready to encode and decode. Thread-safe; later calls reuse its memory.
class TensorCodec {
 public:
  /// `threads` counts the caller; results never depend on it.
  static Result<std::unique_ptr<TensorCodec>> create(std::string_view spec, uint32_t threads = 1);
  ~TensorCodec();

  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  /// Maximum bytes of a frame for a rows × cols tensor. Error shape_unsupported, also in encode and
  /// decode: the tensor is larger than Contract::max_count.
  [[nodiscard]] Result<uint64_t> max_frame_bytes(uint64_t rows, uint64_t cols) const;

  /// Encodes `source` into `out` and returns the frame's bytes. `residual` null: no feedback, fresh
  /// codec state. An all-zero source sends nothing and keeps the residual. Error non_finite
  /// (nothing changed): the source, or its sum with the residual, is not finite or too large for
  /// the codec; a residual that is itself not finite is set to zero first. Cast codecs without a
  /// residual carry zeros, NaN and infinity as they are.
  ///
  /// A source in a GPU's memory gives the frame and the residual of one on the host, bit for bit,
  /// and waits until it is done. unsupported without a driver, kernels of this build for that GPU
  /// or for that codec: nothing changed. engine_failed: CUDA failed, and residual and `out` are
  /// undefined.
  Result<uint64_t> encode(const TensorRef& source, const Place& place, uint64_t parameter,
                          Residual* residual, MutBytes out) const;
  /// out = base + weight · (d0 + …) over `frames` in order; base = out if `add`, else 0. All frames
  /// are verified before `out` is changed. `out` may be in a GPU's memory: as encode.
  Result<void> decode(std::span<const Bytes> frames, float weight, bool add,
                      const TensorRef& out) const;

 private:
  struct Workspace;
  class Lease;

  static constexpr uint64_t kNothing = ~uint64_t{0};  ///< an all-zero tensor: no payload

  TensorCodec(Spec spec, uint32_t threads);
  static Result<uint64_t> encode_payload(const pipeline::UnitCodec& codec,
                                         const pipeline::UnitSlot& slot, const Place& place,
                                         const float* values, Workspace& space, ThreadPool* pool,
                                         MutBytes room);
  static Result<uint64_t> encode_on_device(const pipeline::UnitCodec& codec,
                                           const pipeline::UnitSlot& slot, const Place& place,
                                           const TensorRef& source, pipeline::DeviceBatch& batch,
                                           Workspace& space, MutBytes room);
  enum class Payloads : uint8_t { checked, unchecked };
  Result<const Spec*> verify(std::span<const Bytes> frames, uint64_t count, Payloads payloads,
                             Workspace& space, std::optional<Spec>& other) const;
  Result<void> decode_on_device(std::span<const Bytes> frames, float weight, bool add,
                                const TensorRef& out, Workspace& space) const;

  Spec spec_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<pipeline::TensorDevices> devices_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<std::unique_ptr<Workspace>> free_;
  mutable bool pool_busy_ = false;
};

}  // namespace laconic
