// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/rotate/rotate.h"
#include "kernels/rotate/rotate_elements.h"

namespace laconic::kernels {
namespace {

float sum_at(const float* x, const float* add, uint64_t i) {
  return add == nullptr ? x[i] : x[i] + add[i];
}

double square_norm(const float* x, const float* add, uint64_t count) {
  double lanes[kNormLanes] = {};
  for (uint64_t i = 0; i < count; ++i) {
    lanes[i % kNormLanes] = with_square(lanes[i % kNormLanes], sum_at(x, add, i));
  }
  for (uint32_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

void flip_signs(float* y, uint32_t d, SignStream signs) {
  for (uint32_t begin = 0; begin < d; begin += 32) {
    const uint32_t word = sign_word(signs, begin / 32);
    for (uint32_t i = begin; i < begin + 32; ++i) y[i] = with_sign(y[i], word, i);
  }
}

/// y = H·y / √d
void transform(float* y, uint32_t d) {
  for (uint32_t distance = 1; distance < d; distance *= 2) {
    for (uint32_t i = 0; i < d; i += 2 * distance) {
      for (uint32_t j = i; j < i + distance; ++j) butterfly(y[j], y[j + distance]);
    }
  }
  for (uint32_t i = 0; i < d; ++i) y[i] *= rotation_scale(d);
}

void rotate(const float* x, const float* add, uint64_t count, uint32_t d, SignStream signs,
            float* y) {
  for (uint64_t i = 0; i < count; ++i) y[i] = sum_at(x, add, i);
  std::fill(y + count, y + d, 0.0F);
  flip_signs(y, d, signs);
  transform(y, d);
}

void unrotate(float* y, uint32_t d, SignStream signs, uint64_t count, float weight, bool add,
              float* out) {
  transform(y, d);
  flip_signs(y, d, signs);
  for (uint64_t i = 0; i < count; ++i) out[i] = add ? out[i] + weight * y[i] : weight * y[i];
}

void remainder(float* y, uint32_t d, SignStream signs, uint64_t count, const float* x,
               const float* add, float* residual) {
  transform(y, d);
  flip_signs(y, d, signs);
  for (uint64_t i = 0; i < count; ++i) residual[i] = sum_at(x, add, i) - y[i];
}

}  // namespace

constinit const RotateKernels kRotateScalar{&square_norm, &rotate, &unrotate, &remainder};

}  // namespace laconic::kernels
