// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Memory that a TensorCodec lends to one call and takes back.
#pragma once

#include <algorithm>
#include <vector>

#include "base/arena.h"
#include "kernels/cast/cast.h"
#include "laconic/tensor_codec.h"

namespace laconic {

struct TensorCodec::Workspace {
  Arena kept, scratch, wide, merged;
  std::vector<Term> terms;
  std::vector<FrameView> views;

  [[nodiscard]] bool reserve(const Plan& plan) {
    return kept.reserve(plan.kept_bytes + 1) && scratch.reserve(plan.scratch_bytes + 1);
  }
  [[nodiscard]] Work work(Isa isa, ThreadPool* pool) {
    return {kept.bytes(), scratch.bytes(), isa, pool};
  }

  /// The tensor as float32: itself, or widened into `wide`. Null without memory.
  [[nodiscard]] float* as_float(const TensorRef& t, uint64_t n, Isa isa) {
    if (t.dtype == DType::f32) return static_cast<float*>(t.data);
    if (!wide.reserve(std::max<uint64_t>(n, 1) * sizeof(float))) return nullptr;
    auto* out = reinterpret_cast<float*>(wide.bytes().data());
    kernels::widen(kernels::cast_kernels(isa), t.dtype, out, t.data, n);
    return out;
  }
  /// A copy that accept() may change.
  [[nodiscard]] Result<MutBytes> copy(Bytes lanes) {
    if (!merged.reserve(lanes.size() + 1)) return Errc::out_of_memory;
    const MutBytes at = merged.bytes().first(lanes.size());
    std::copy(lanes.begin(), lanes.end(), at.begin());
    return at;
  }
};

/// A workspace (and the pool, if free) for the length of one call.
class TensorCodec::Lease {
 public:
  explicit Lease(const TensorCodec& codec);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  [[nodiscard]] ThreadPool* pool() const { return has_pool_ ? codec_.pool_.get() : nullptr; }
  [[nodiscard]] Workspace& space() const { return *space_; }

 private:
  const TensorCodec& codec_;
  std::unique_ptr<Workspace> space_;
  bool has_pool_ = false;
};

namespace pipeline {

inline Error no_memory() {
  return {Errc::out_of_memory, "not enough memory for a codec's scratch memory",
          "encode smaller tensors"};
}
/// Type and pointer of a tensor are usable.
Result<void> check_tensor(const TensorRef& t);
/// The tensor as a unit of `spec`; shape_unsupported when it is too large for it.
Result<Unit> unit_of(const Spec& spec, const TensorRef& t, uint64_t parameter);

}  // namespace pipeline
}  // namespace laconic
