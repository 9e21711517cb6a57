// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "kernels/quantile/quantile.h"
#include "kernels/quantile/quantile_elements.h"

namespace laconic::kernels {
namespace {

constexpr uint32_t digit_of(uint32_t image, uint32_t pass) { return image >> 8 * pass & 0xFFU; }

uint32_t count_upper(const float* x, uint64_t n, uint32_t* counts) {
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    ++counts[quantile_image(x[i]) >> 16];
    most = std::max(most, float_bits(x[i]) & 0x7FFFFFFFU);
  }
  return most;
}

uint64_t collect(const float* x, uint64_t n, const uint16_t* groups, uint32_t* members) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t image = quantile_image(x[i]);
    members[found] = image;
    found += groups[image >> 16] != 0 ? 1U : 0U;
  }
  return found;
}

void encode(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed, double* sums) {
  QuantileSums lanes(bins.bins);
  for (uint64_t i = 0; i < n; i += 8) {
    uint8_t codes[8];
    const uint64_t group = std::min<uint64_t>(8, n - i);
    for (uint64_t j = 0; j < group; ++j) {
      codes[j] = static_cast<uint8_t>(quantile_code(quantile_image(x[i + j]), bins));
      lanes.add(j, codes[j], static_cast<double>(x[i + j]));
    }
    quantile_pack(codes, group, bins.width, packed + i / 8 * bins.width);
  }
  lanes.fold(bins.bins, sums);
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count,
            QuantileLayout layout, uint64_t begin, uint64_t end) {
  std::array<QuantileOperand, kQuantileTerms> operands;
  std::array<Weighted, kQuantileTerms> terms;
  for (uint32_t t = 0; t < count; ++t) {
    operands[t].open(payloads[t].data, layout);
    terms[t] = {&operands[t], payloads[t].weight};
  }
  weighted_sum_scalar(out, output, terms.data(), count, begin, end, &quantile_element);
}

}  // namespace

// Radix sort, by one byte after the other from the last one.
uint32_t quantile_sort(const float* x, uint64_t n, uint32_t* images, uint32_t* other) noexcept {
  std::array<std::array<uint32_t, 256>, 4> at{};
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    images[i] = quantile_image(x[i]);
    most = std::max(most, float_bits(x[i]) & 0x7FFFFFFFU);
    for (uint32_t pass = 0; pass < 4; ++pass) ++at[pass][digit_of(images[i], pass)];
  }
  for (uint32_t pass = 0; pass < 4; ++pass) {
    std::exclusive_scan(at[pass].begin(), at[pass].end(), at[pass].begin(), 0U);
    for (uint64_t i = 0; i < n; ++i) other[at[pass][digit_of(images[i], pass)]++] = images[i];
    std::swap(images, other);
  }
  return most;
}

constinit const QuantileKernels kQuantileScalar{&count_upper, &collect, &encode, &decode};

}  // namespace laconic::kernels
