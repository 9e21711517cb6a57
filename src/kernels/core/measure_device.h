// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Largest magnitudes of gradients, residuals and their sums, of every unit of a batch.
#pragma once

#include "device/batch.h"

namespace laconic::kernels {

struct Measure {
  static constexpr const char* name = "laconic_Measure";
  struct Args {
    device::EncodeBatch batch;
    uint64_t tile = 0;  ///< elements
    /// Whether each tile's largest |x| and |x + e| become words of EncodeRow::scratch.
    bool per_tile = false;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kWarps> cells;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), args.tile);
    device::PerThread<B, uint32_t> values(b), residual(b), sum(b);
    b.alone([&](uint32_t t) {
      const device::Max max;
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
        const float x = device::gradient_at(b, row, i);
        values[t] = max(values[t], device::absolute_bits(x));
        if (row.residual == nullptr) continue;
        const float e = b.read(row.residual, i);
        residual[t] = max(residual[t], device::absolute_bits(e));
        sum[t] = max(sum[t], device::absolute_bits(x + e));
      }
    });
    const device::Measured most =
        device::raise_measured(b, row, values, residual, sum, shared.cells);
    if (!args.per_tile) return;
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      const uint64_t tile = b.index() - row.first_tile;
      b.write(reinterpret_cast<uint32_t*>(row.scratch), 2 * tile, most.values);
      b.write(reinterpret_cast<uint32_t*>(row.scratch), 2 * tile + 1, most.sum);
    });
  }
};

}  // namespace laconic::kernels
