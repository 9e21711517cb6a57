// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/bits/bits.h"

namespace laconic::kernels {
namespace {

// The byte of elements i to i + 7, as far as there are n.
template <class Value>
uint8_t byte_of(uint64_t i, uint64_t n, Value value) {
  uint32_t byte = 0;
  for (uint64_t k = 0; k < 8 && i + k < n; ++k) {
    byte |= static_cast<uint32_t>(bit_of(value(i + k))) << k;
  }
  return static_cast<uint8_t>(byte);
}

bool pack(const float* x, uint64_t n, uint8_t* bits) {
  for (uint64_t i = 0; i < n; i += 8) bits[i / 8] = byte_of(i, n, [&](uint64_t k) { return x[k]; });
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

float fold(float* lane) {
  for (uint32_t half = kBitsLanes / 2; half != 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

BitsSums pack_sums(const float* x, const float* e, uint64_t n, uint8_t* bits) {
  const auto value = [&](uint64_t i) { return e == nullptr ? x[i] : x[i] + e[i]; };
  for (uint64_t i = 0; i < n; i += 8) bits[i / 8] = byte_of(i, n, value);
  float negative[kBitsLanes] = {}, positive[kBitsLanes] = {};
  BitsSums sums;
  for (uint64_t i = 0; i < n; ++i) {
    const float a = value(i);
    float* const lane = bit_of(a) ? positive : negative;
    lane[i % kBitsLanes] += a;
    sums.positives += bit_of(a) ? 1U : 0U;
  }
  sums.negative = fold(negative);
  sums.positive = fold(positive);
  return sums;
}

void keep_rest(const float* x, float* e, uint64_t n, BitsValues values) {
  for (uint64_t i = 0; i < n; ++i) e[i] = rest_of(x[i] + e[i], values);
}

void decode(float* out, Output output, const BitsTerm* terms, uint32_t count, uint64_t n) {
  if (count == 0) {
    if (output != Output::add) std::fill_n(out, n, 0.0F);
    return;
  }
  const auto value = [&](uint32_t t, uint64_t i) {
    return value_of(bit_at(terms[t].bits, i), terms[t].values);
  };
  for (uint64_t i = 0; i < n; ++i) {
    float sum = output == Output::add ? out[i] + value(0, i) : value(0, i);
    for (uint32_t t = 1; t < count; ++t) sum += value(t, i);
    out[i] = sum;
  }
}

void vote(float* out, Output output, const uint8_t* const* bits, uint32_t count, float weight,
          uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    int32_t votes = 0;
    for (uint32_t t = 0; t < count; ++t) votes += bit_at(bits[t], i) ? 1 : -1;
    const float sum = weight * static_cast<float>(votes);
    out[i] = output == Output::add ? out[i] + sum : sum;
  }
}

void sign(float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) x[i] = x[i] >= 0 ? 1.0F : -1.0F;
}

}  // namespace

constinit const BitsKernels kBitsScalar{&pack, &pack_sums, &keep_rest, &decode, &vote, &sign};

}  // namespace laconic::kernels
