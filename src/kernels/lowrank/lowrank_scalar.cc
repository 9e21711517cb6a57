// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/lowrank/lowrank.h"

namespace laconic::kernels {
namespace {

template <class T>
T fold(std::array<T, kDotLanes>& lane) {
  for (uint64_t half = kDotLanes / 2; half != 0; half /= 2) {
    for (uint64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

// T is the type of products and sums.
template <class T>
T dot_lanes(const float* x, const float* y, uint64_t n) {
  std::array<T, kDotLanes> lane{};
  uint64_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes) {
    for (uint64_t l = 0; l < kDotLanes; ++l) {
      lane[l] += static_cast<T>(x[i + l]) * static_cast<T>(y[i + l]);
    }
  }
  for (uint64_t l = 0; i + l < n; ++l) {
    lane[l] += static_cast<T>(x[i + l]) * static_cast<T>(y[i + l]);
  }
  return fold(lane);
}

void project(const float* m, Panel panel, Factor q, float* out, uint64_t stride) {
  for (uint64_t i = 0; i < panel.rows; ++i) {
    for (uint64_t k = 0; k < q.rank; ++k) {
      out[k * stride + i] =
          dot_lanes<float>(m + i * panel.pitch, q.values + k * q.stride, panel.cols);
    }
  }
}

void back_project(const float* m, Panel panel, Factor p, float* out, uint64_t stride) {
  for (uint64_t k = 0; k < p.rank; ++k) {
    float* const sum = out + k * stride;
    for (uint64_t j = 0; j < panel.cols; ++j) sum[j] = 0;
    for (uint64_t i = 0; i < panel.rows; ++i) {
      const float* const row = m + i * panel.pitch;
      const float pi = p.values[k * p.stride + i];
      for (uint64_t j = 0; j < panel.cols; ++j) sum[j] += row[j] * pi;
    }
  }
}

float element(Factor p, Factor q, uint64_t i, uint64_t j) {
  float d = p.values[i] * q.values[j];
  for (uint64_t k = 1; k < p.rank; ++k) {
    d += p.values[k * p.stride + i] * q.values[k * q.stride + j];
  }
  return d;
}

void reconstruct(float* out, Panel panel, Factor p, Factor q, float weight, Output output) {
  for (uint64_t i = 0; i < panel.rows; ++i) {
    float* const row = out + i * panel.pitch;
    for (uint64_t j = 0; j < panel.cols; ++j) {
      const float base = output == Output::add ? row[j] : 0.0F;
      row[j] = base + weight * element(p, q, i, j);
    }
  }
}

double dot(const float* x, const float* y, uint64_t n) { return dot_lanes<double>(x, y, n); }

void subtract(float* y, double c, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(static_cast<double>(y[i]) - c * static_cast<double>(x[i]));
  }
}

void scale(float* y, double c, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) y[i] = static_cast<float>(c * static_cast<double>(y[i]));
}

}  // namespace

constinit const LowRankKernels kLowRankScalar{&project, &back_project, &reconstruct,
                                              &dot,     &subtract,     &scale};

}  // namespace laconic::kernels
