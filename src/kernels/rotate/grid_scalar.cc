// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/rotate/grid.h"
#include "kernels/rotate/grid_elements.h"

namespace laconic::kernels {
namespace {

void quantize(const float* y, uint32_t n, const Grid& grid, float range, RoundingStream random,
              uint8_t* codes, float* values) {
  const GridPosition position(range, grid.last);
  const GridValues value(grid, range);
  std::memset(codes, 0, grid_bytes(n, grid.bits));
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t r = grid_random(random.key, random.first + i);
    const uint32_t z = grid_index(grid, position.of(y[i]), r) & (kMaxTable - 1);
    for (uint32_t bit = 0; bit < grid.bits; ++bit) {
      const uint32_t at = i * grid.bits + bit;
      codes[at / 8] |= static_cast<uint8_t>((z >> (grid.bits - 1 - bit) & 1U) << (7 - at % 8));
    }
    if (values != nullptr) values[i] = value.of[z];
  }
}

void dequantize(const uint8_t* codes, uint32_t n, const Grid& grid, float range, float* y) {
  const GridValues value(grid, range);
  for (uint32_t i = 0; i < n; ++i) y[i] = value.of[code_at(codes, grid.bits, i)];
}

template <class Lane>
void mean(const void* lanes, uint32_t n, uint32_t g, GridMean mean, float range, float* y) {
  const float scale = mean_scale(range, g, mean.divisor);
  for (uint32_t i = 0; i < n; ++i) {
    y[i] = grid_value(doubled_sum(at<Lane>(lanes, i), g, mean.added), scale);
  }
}

template <class Lane, bool kAdd>
void to_lanes(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table, void* lanes) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t before = kAdd ? at<Lane>(lanes, i) : 0U;
    put<Lane>(lanes, i, static_cast<Lane>(before + table[code_at(codes, bits, i)]));
  }
}

void add_all8(const uint8_t* const* codes, uint32_t count, uint64_t n, uint32_t bits,
              const uint8_t* table, void* lanes) {
  for (uint32_t k = 0; k < count; ++k) to_lanes<uint8_t, true>(codes[k], n, bits, table, lanes);
}

void sum8(const uint8_t* const* codes, uint32_t count, uint64_t n, uint32_t bits,
          const uint8_t* table, void* lanes) {
  to_lanes<uint8_t, false>(codes[0], n, bits, table, lanes);
  add_all8(codes + 1, count - 1, n, bits, table, lanes);
}

}  // namespace

constinit const GridKernels kGridScalar{&quantize,
                                        &dequantize,
                                        &mean<uint8_t>,
                                        &mean<uint16_t>,
                                        &to_lanes<uint8_t, false>,
                                        &to_lanes<uint16_t, false>,
                                        &to_lanes<uint8_t, true>,
                                        &to_lanes<uint16_t, true>,
                                        &sum8,
                                        &add_all8};

}  // namespace laconic::kernels
