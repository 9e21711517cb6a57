// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "kernels/threelc.h"

namespace laconic::kernels {
namespace {

uint32_t max_abs_bits(const float* x, const float* e, uint64_t n) {
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const float a = e == nullptr ? x[i] : x[i] + e[i];
    const uint32_t bits = std::bit_cast<uint32_t>(a) & 0x7FFFFFFFU;
    most = bits > most ? bits : most;
  }
  return most;
}

void pack(const float* x, float* e, uint64_t stride, uint64_t columns, ThreeLcScale scale,
          uint8_t* bytes) {
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

uint64_t leading_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t i = 0;
  while (i < n && bytes[i] == kZeroByte) ++i;
  return i;
}

uint64_t trailing_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t i = n;
  while (i > 0 && bytes[i - 1] == kZeroByte) --i;
  return n - i;
}

uint64_t run_encode(const uint8_t* bytes, uint64_t n, uint8_t* coded) {
  uint64_t made = 0;
  for (uint64_t i = 0; i < n;) {
    uint64_t run = 0;
    while (run < kLongestRun && i + run < n && bytes[i + run] == kZeroByte) ++run;
    coded[made++] = run < 2 ? bytes[i] : static_cast<uint8_t>(kRunBase + run);
    i += run < 2 ? 1 : run;
  }
  return made;
}

uint64_t run_length(uint8_t code) { return code < kFirstRunCode ? 1 : code - kRunBase; }

ThreeLcExpanded expand(const uint8_t* coded, uint64_t n, uint64_t want, uint8_t* bytes) {
  ThreeLcExpanded done;
  while (done.consumed < n && done.produced < want) {
    const uint8_t code = coded[done.consumed++];
    const uint64_t length = run_length(code);
    std::memset(bytes + done.produced, code < kFirstRunCode ? code : kZeroByte, length);
    done.produced += length;
  }
  return done;
}

uint64_t expanded_size(const uint8_t* coded, uint64_t n) {
  uint64_t size = 0;
  for (uint64_t i = 0; i < n; ++i) size += run_length(coded[i]);
  return size;
}

bool no_run_codes(const uint8_t* bytes, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    if (bytes[i] >= kFirstRunCode) return false;
  }
  return true;
}

}  // namespace

constinit const ThreeLcKernels kThreeLcScalar{
    &max_abs_bits,   &pack,       &unpack, &unpack_stream, &leading_zeros,
    &trailing_zeros, &run_encode, &expand, &expanded_size, &no_run_codes};

}  // namespace laconic::kernels
