// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/core/random_group.h"
#include "kernels/int8/int8.h"
#include "kernels/int8/int8_elements.h"

namespace laconic::kernels {
namespace {

uint32_t max_bits(const float* x, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, float_bits(x[i]) & 0x7FFFFFFFU);
  return bits;
}

/// code(i, inverse) is the code of x[i]; blocks that are not finite decode to zeros.
template <class Code>
bool encode(const float* x, uint64_t n, uint32_t block, void* scales, void* codes, Code code) {
  bool finite = true;
  for (uint64_t begin = 0; begin < n; begin += block) {
    const uint64_t end = std::min<uint64_t>(n, begin + block);
    const uint32_t bits = max_bits(x + begin, end - begin);
    const Int8Scale s = int8_scale(bits);
    put<float>(scales, begin / block, s.scale);
    const bool block_finite = bits < 0x7F800000U;
    finite = finite && block_finite;
    for (uint64_t i = begin; i < end; ++i) {
      put<int8_t>(codes, i, block_finite ? code(i, s.inverse) : int8_t{0});
    }
  }
  return finite;
}

bool encode_nearest(const float* x, uint64_t n, uint32_t block, void* scales, void* codes) {
  return encode(x, n, block, scales, codes,
                [&](uint64_t i, float inverse) { return int8_nearest(x[i], inverse); });
}

bool encode_stochastic(const float* x, uint64_t n, uint32_t block, void* scales, void* codes,
                       RandomKey key, uint64_t first) {
  return encode(x, n, block, scales, codes, [&](uint64_t i, float inverse) {
    const uint64_t e = first + i;
    return int8_stochastic(x[i], inverse, random_fifteen(random_word(key, e), e));
  });
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count, Int8Layout layout,
            uint64_t begin, uint64_t end) {
  weighted_sum_scalar(
      out, output, payloads, count, begin, end, [&](const void* payload, uint64_t i) {
        const auto code = at<int8_t>(static_cast<const char*>(payload) + layout.codes_at, i);
        return int8_value(code, at<float>(payload, i / layout.block));
      });
}

bool any_minus_128(const void* codes, uint64_t n) {
  const auto* c = static_cast<const int8_t*>(codes);
  return std::any_of(c, c + n, [](int8_t code) { return code == -128; });
}

}  // namespace

constinit const Int8Kernels kInt8Scalar{&encode_nearest, &encode_stochastic, &decode,
                                        &any_minus_128};

}  // namespace laconic::kernels
