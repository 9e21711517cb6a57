// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Products of a large matrix M (rows x cols, row by row) with skinny factors, for PowerSGD (Vogels
// et al., NeurIPS 2019, Algorithm 1). A factor is `rank` vectors, each contiguous, `stride` apart:
// P has vectors of length rows, Q of length cols. Spans may have any alignment of a float.
//
// Every sum has one association, so that the bits depend neither on the instruction set nor on how
// a caller cuts the work into panels (as long as it keeps to kColumnPanel and kRowPanel):
//
//   project       16 virtual lanes: lane l adds the columns l, l + 16, … to +0; then the lanes are
//                 folded by 8, 4, 2, 1
//   back_project  adds the rows in order to +0
//   reconstruct   adds the rank's products in order, starting with the first product
//
// Products and sums are rounded separately (no fused multiply-add).
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint64_t kDotLanes = 16;
/// Sums longer than a panel are cut: panel sums are added in order, in double, by the caller.
inline constexpr uint64_t kColumnPanel = 16384;
inline constexpr uint64_t kRowPanel = 1024;

/// A rectangle inside a matrix whose rows are `pitch` floats apart.
struct Panel {
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t pitch = 0;
};

/// `rank` vectors, `stride` floats apart.
struct Factor {
  const float* values = nullptr;
  uint64_t stride = 0;
  uint64_t rank = 0;
};

struct LowRankKernels {
  /// out[k·stride + i] = Σ_j m_ij · q_kj over the panel's columns.
  void (*project)(const float* m, Panel panel, Factor q, float* out, uint64_t stride);
  /// out[k·stride + j] = Σ_i m_ij · p_ki over the panel's rows.
  void (*back_project)(const float* m, Panel panel, Factor p, float* out, uint64_t stride);
  /// d_ij = Σ_k p_ki · q_kj; out_ij = base_ij + weight · d_ij. p.rank == q.rank >= 1.
  void (*reconstruct)(float* out, Panel panel, Factor p, Factor q, float weight, Output output);

  // Gram–Schmidt's steps, computed in double: squares of tiny gradients must not vanish.
  /// Σ x_i · y_i with the 16 virtual lanes of `project`, in double.
  double (*dot)(const float* x, const float* y, uint64_t n);
  /// y = y − c·x
  void (*subtract)(float* y, double c, const float* x, uint64_t n);
  /// y = c·y
  void (*scale)(float* y, double c, uint64_t n);
};

const LowRankKernels& lowrank_kernels(Isa isa) noexcept;
extern const LowRankKernels kLowRankScalar;

}  // namespace laconic::kernels
