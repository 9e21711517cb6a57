// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/powersgd/gram_schmidt.h"

#include <algorithm>
#include <cmath>

#include "base/slices.h"
#include "kernels/lowrank/lowrank.h"

namespace laconic::codecs {
namespace {

// Long vectors are cut for the threads; sums of pieces are added in order.
constexpr uint64_t kPiece = 16384;

class GramSchmidt {
 public:
  GramSchmidt(VectorSet vectors, Work& work, MutBytes scratch)
      : v_(vectors),
        pool_(work.pool),
        kernels_(kernels::lowrank_kernels(work.isa)),
        partial_(reinterpret_cast<double*>(scratch.data())) {}

  /// False: vector k was zero or depended on those before it; it holds rounding noise now.
  bool normalize(uint64_t k) {
    const double before = norm(k);
    double left = before;
    for (int pass = 0; pass < 2 && k != 0; ++pass) {
      const double start = left;
      for (uint64_t l = 0; l < k; ++l) take_out(l, k);
      left = norm(k);
      if (!(left < 0.5 * start)) break;
    }
    if (left == 0 || left < kDependent * before) return false;
    scale(k, 1.0 / left);
    return true;
  }

 private:
  template <class Body>
  void for_pieces(const Body& body) {
    for_slices(pool_, v_.length, kPiece,
               [&](uint64_t first, uint64_t end) { body(first, end - first); });
  }

  double dot(uint64_t k, uint64_t l) {
    for_pieces([&](uint64_t first, uint64_t n) {
      partial_[first / kPiece] = kernels_.dot(v_[k] + first, v_[l] + first, n);
    });
    double sum = 0;
    for (uint64_t i = 0; i < ceil_div(v_.length, kPiece); ++i) sum += partial_[i];
    return sum;
  }

  double norm(uint64_t k) { return std::sqrt(dot(k, k)); }

  // v_k ← v_k − (v_l · v_k) v_l
  void take_out(uint64_t l, uint64_t k) {
    const double c = dot(l, k);
    for_pieces(
        [&](uint64_t first, uint64_t n) { kernels_.subtract(v_[k] + first, c, v_[l] + first, n); });
  }

  void scale(uint64_t k, double c) {
    for_pieces([&](uint64_t first, uint64_t n) { kernels_.scale(v_[k] + first, c, n); });
  }

  VectorSet v_;
  ThreadPool* pool_;
  const kernels::LowRankKernels& kernels_;
  double* partial_;
};

}  // namespace

uint64_t gram_schmidt_scratch(uint64_t length) noexcept {
  return std::max<uint64_t>(1, ceil_div(length, kPiece)) * sizeof(double);
}

void orthonormalize(VectorSet vectors, Work& work, MutBytes scratch) {
  GramSchmidt process(vectors, work, scratch);
  for (uint64_t k = 0; k < vectors.count; ++k) {
    if (!process.normalize(k)) std::fill_n(vectors[k], vectors.length, 0.0F);
  }
}

void orthonormalize(VectorSet vectors, Work& work, MutBytes scratch,
                    void (*refill)(const void* context, uint64_t k, std::span<float> vector),
                    const void* context) {
  GramSchmidt process(vectors, work, scratch);
  for (uint64_t k = 0; k < vectors.count; ++k) {
    if (process.normalize(k)) continue;
    refill(context, k, {vectors[k], vectors.length});
    if (!process.normalize(k)) std::fill_n(vectors[k], vectors.length, 0.0F);
  }
}

}  // namespace laconic::codecs
