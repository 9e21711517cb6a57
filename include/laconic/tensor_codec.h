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
struct UnitSlot;
}  // namespace pipeline

/// A contiguous tensor in memory, seen as rows × cols (first dimension, product of the others).
struct TensorRef {
  DType dtype = DType::f32;  ///< f32, f16 or bf16
  uint64_t rows = 0;
  uint64_t cols = 1;
  void* data = nullptr;
};

/// What a spec remembers of one tensor on one rank: its residual (or running mean) and its state,
/// that of the codec and, behind it, momentum. The first encode gives the state the size that the
/// spec asks for.
class Residual {
 public:
  /// `count` zeros. out_of_memory when there is none.
  static Result<std::unique_ptr<Residual>> create(uint64_t count);
  [[nodiscard]] std::span<float> values() noexcept { return values_; }
  [[nodiscard]] std::span<float> state() noexcept { return state_; }
  /// Replaces the codec state, as from a checkpoint; the next encode refuses a size that is not the
  /// codec's.
  void set_state(std::span<const float> state) { state_.assign(state.begin(), state.end()); }

 private:
  friend class TensorCodec;
  std::vector<float> values_;
  std::vector<float> state_;
};

/// A spec ready to encode and decode. Thread-safe; memory is kept and used again by later calls.
class TensorCodec {
 public:
  /// `threads` counts the caller; results never depend on it.
  static Result<std::unique_ptr<TensorCodec>> create(std::string_view spec, uint32_t threads = 1);
  ~TensorCodec();

  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  /// The largest frame of a rows × cols tensor. shape_unsupported when the codec cannot index it
  /// (Contract::max_count), here and in encode and decode.
  [[nodiscard]] Result<uint64_t> max_frame_bytes(uint64_t rows, uint64_t cols) const;

  /// Encodes `source` into `out` and gives the frame's size. `residual` null: no feedback, fresh
  /// codec state. An all-zero source sends nothing and leaves the residual. A source that is not
  /// finite, or whose sum with the residual is not or is more than the codec can take, is an error
  /// (non_finite, nothing changed); a residual that is itself not finite is set to zero first.
  /// Plain lanes without a residual carry zeros, NaN and infinity as they are.
  Result<uint64_t> encode(const TensorRef& source, const Place& place, uint64_t parameter,
                          Residual* residual, MutBytes out) const;
  /// out = base + weight · (d0 + …) over `frames` in their order, base = out when `add`, else 0.
  /// All frames are verified before the first element changes.
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
  Result<const Spec*> verify(std::span<const Bytes> frames, uint64_t count, Workspace& space,
                             std::optional<Spec>& other) const;

  Spec spec_;
  std::unique_ptr<ThreadPool> pool_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<std::unique_ptr<Workspace>> free_;
  mutable bool pool_busy_ = false;
};

}  // namespace laconic
