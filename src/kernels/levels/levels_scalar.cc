// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/levels/levels.h"
#include "kernels/levels/levels_elements.h"
#include "kernels/levels/tree.h"

namespace laconic::kernels {
namespace {

uint32_t max_bits(const float* x, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, float_bits(x[i]) & 0x7FFFFFFFU);
  return bits;
}

double fold(double* lanes) {
  for (uint32_t half = kMomentLanes / 2; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

LevelMoments moments(const float* x, uint64_t n) {
  double sums[kMomentLanes] = {}, squares[kMomentLanes] = {};
  for (uint64_t i = 0; i < n; ++i) {
    const double v = x[i];
    sums[i % kMomentLanes] += v;
    squares[i % kMomentLanes] += v * v;
  }
  return {fold(sums), fold(squares), max_bits(x, n)};
}

float norm_of(const float* x, uint64_t n, LevelNorm norm) {
  return norm == LevelNorm::max ? bits_float(max_bits(x, n)) : level_norm(moments(x, n).squares);
}

template <class Code>
void put_codes(Code* codes, uint64_t last, uint32_t bits, uint8_t* packed) {
  const uint64_t n = last % kPackedTogether + 1;
  uint8_t* const to = packed + last / kPackedTogether * bits;
  if (bits == 8 * sizeof(Code)) {
    std::memcpy(to, codes, n * sizeof(Code));
  } else {
    pack_codes(codes, n, bits, to);
  }
}

// Zeros for a bucket that is not finite: its factor is 0, but its values are not to be multiplied.
template <class Code>
bool encode(const float* x, uint64_t n, const BucketLayout& layout, void* steps, uint8_t* packed,
            RandomKey key, uint64_t first) {
  bool finite = true;
  LevelStep s;
  Code codes[kPackedTogether];
  for (uint64_t i = 0; i < n; ++i) {
    if (i % layout.bucket == 0) {
      const uint64_t count = std::min<uint64_t>(layout.bucket, n - i);
      s = level_step(norm_of(x + i, count, layout.norm), layout.levels);
      put<float>(steps, i / layout.bucket, s.step);
      finite = finite && s.finite;
    }
    const int32_t code = s.finite ? level_code(x[i], s.factor, level_random(key, first + i)) : 0;
    codes[i % kPackedTogether] = static_cast<Code>(code);
    if (i % kPackedTogether == kPackedTogether - 1 || i + 1 == n) {
      put_codes(codes, i, layout.bits, packed);
    }
  }
  return finite;
}

bool encode_buckets(const float* x, uint64_t n, BucketLayout layout, void* steps, void* codes,
                    RandomKey key, uint64_t first) {
  const auto run = layout.bits <= 8 ? &encode<int8_t> : &encode<int16_t>;
  return run(x, n, layout, steps, static_cast<uint8_t*>(codes), key, first);
}

// Code i of a packed span.
int32_t code_at(const uint8_t* packed, uint64_t n, uint32_t bits, uint64_t i) {
  const uint64_t from = i / kPackedTogether * kPackedTogether;
  const uint64_t count = std::min(kPackedTogether, n - from);
  if (bits <= 8) {
    int8_t codes[kPackedTogether];
    unpack_codes(packed + from / kPackedTogether * bits, count, bits, codes);
    return codes[i - from];
  }
  int16_t codes[kPackedTogether];
  unpack_codes(packed + from / kPackedTogether * bits, count, bits, codes);
  return codes[i - from];
}

void decode_buckets(float* out, Output output, const Weighted* payloads, uint32_t count,
                    BucketLayout layout, uint64_t begin, uint64_t end) {
  weighted_sum_scalar(out, output, payloads, count, begin, end,
                      [&](const void* payload, uint64_t i) {
                        const auto* codes = static_cast<const uint8_t*>(payload) + layout.codes_at;
                        return level_value(code_at(codes, end, layout.bits, i),
                                           at<float>(payload, i / layout.bucket));
                      });
}

bool codes_valid(const void* codes, uint64_t n, uint32_t bits, uint32_t levels) {
  for (uint64_t i = 0; i < n; ++i) {
    const int32_t code = code_at(static_cast<const uint8_t*>(codes), n, bits, i);
    if (static_cast<uint32_t>(code < 0 ? -code : code) > levels) return false;
  }
  return true;
}

int8_t ternary_at(const float* x, uint64_t i, const TernaryRounding& rounding, float factor) {
  const uint32_t r = ternary_random(rounding.key, rounding.first + i);
  return static_cast<int8_t>(ternary_code(x[i], factor, r));
}

void ternary(const float* x, uint64_t n, TernaryRounding rounding, void* codes) {
  const float factor = ternary_factor(rounding.step);
  for (uint64_t i = 0; i < n; ++i) put<int8_t>(codes, i, ternary_at(x, i, rounding, factor));
}

void ternary_pairs(const float* x, uint64_t n, TernaryRounding rounding, void* codes) {
  const float factor = ternary_factor(rounding.step);
  auto* bytes = static_cast<uint8_t*>(codes);
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t pair = static_cast<uint32_t>(ternary_at(x, i, rounding, factor)) & 3U;
    const uint32_t before = i % 4 == 0 ? 0U : bytes[i / 4];
    bytes[i / 4] = static_cast<uint8_t>(before | pair << (2 * (i % 4)));
  }
}

void pack_digits(const int8_t* rows, uint64_t stride, uint64_t columns, uint8_t* bytes) {
  for (uint64_t j = 0; j < columns; ++j) {
    int32_t byte = 0;
    for (uint64_t i = 0; i < 5; ++i) byte = 3 * byte + rows[i * stride + j];
    bytes[j] = static_cast<uint8_t>(byte + 121);
  }
}

void decode_pairs(float* out, Output output, const PairTerm* terms, uint32_t count, uint64_t begin,
                  uint64_t end) {
  if (count == 0) return weighted_sum_scalar(out, output, nullptr, 0, begin, end, &at<float>);
  for (uint64_t i = begin; i < end; ++i) {
    const float first = terms[0].value[pair_at(terms[0].codes, i)];
    float sum = output == Output::add ? out[i] + first : first;
    for (uint32_t t = 1; t < count; ++t) sum += terms[t].value[pair_at(terms[t].codes, i)];
    out[i] = sum;
  }
}

void tree_encode(const float* x, uint64_t n, float inverse, void* codes) {
  for (uint64_t i = 0; i < n; ++i) put<int8_t>(codes, i, tree_code(x[i], inverse));
}

void tree_decode(float* out, Output output, const TreeTerm* terms, uint32_t count, uint64_t begin,
                 uint64_t end) {
  if (count == 0) return weighted_sum_scalar(out, output, nullptr, 0, begin, end, &at<float>);
  for (uint64_t i = begin; i < end; ++i) {
    const float first = tree_value(terms[0], i);
    float sum = output == Output::add ? out[i] + first : first;
    for (uint32_t t = 1; t < count; ++t) sum += tree_value(terms[t], i);
    out[i] = sum;
  }
}

}  // namespace

constinit const LevelsKernels kLevelsScalar{
    &encode_buckets, &decode_buckets, &codes_valid,  &moments,     &ternary,
    &ternary_pairs,  &pack_digits,    &decode_pairs, &tree_encode, &tree_decode};

}  // namespace laconic::kernels
