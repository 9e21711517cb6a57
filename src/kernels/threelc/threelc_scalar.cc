// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/threelc/threelc.h"

namespace laconic::kernels {
namespace {

uint32_t max_abs_bits(const float* x, const float* e, uint64_t n, bool /*prefetch*/) {
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const float a = e == nullptr ? x[i] : x[i] + e[i];
    const uint32_t bits = std::bit_cast<uint32_t>(a) & 0x7FFFFFFFU;
    most = bits > most ? bits : most;
  }
  return most;
}

void pack(const float* x, float* e, uint64_t stride, uint64_t columns, ThreeLcScale scale,
          bool /*fetch_next*/, uint8_t* bytes) {
  for (uint64_t j = 0; j < columns; ++j) {
    int32_t byte = kZeroByte;
    for (uint32_t i = 0; i < kDigits; ++i) {
      const uint64_t at = i * stride + j;
      const Quantized r = quantize(e == nullptr ? x[at] : x[at] + e[at], scale);
      byte += r.q * static_cast<int32_t>(kDigitWeight[i]);
      if (e != nullptr) e[at] = r.rest;
    }
    bytes[j] = static_cast<uint8_t>(byte);
  }
}

void unpack(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns, float* out,
            uint64_t stride, bool add) {
  for (uint64_t j = 0; j < columns; ++j) {
    for (uint32_t i = 0; i < kDigits; ++i) {
      float* const to = out + i * stride + j;
      float sum = add ? *to : 0.0F;
      for (uint32_t t = 0; t < term_count; ++t) {
        sum += terms[t].value[digit_of(terms[t].bytes[j], kDigitWeight[i])];
      }
      *to = sum;
    }
  }
}

void unpack_stream(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns,
                   uint64_t /*follow*/, bool /*first*/, float* out, uint64_t stride) {
  unpack(terms, term_count, columns, out, stride, false);
}

}  // namespace

constinit const ThreeLcKernels kThreeLcScalar{&max_abs_bits, &pack, &unpack, &unpack_stream};

}  // namespace laconic::kernels
