// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The weighted sum of dense payloads, element by element, as weighted_sum_scalar.
#pragma once

#include "device/batch.h"

namespace laconic::kernels {

/// A thread's elements of a tile: `product(k, i)` is payload k's weight times its element i.
template <class B, class Product>
LACONIC_DEVICE void sum_products(B& b, const device::DecodeRow& row, device::Range own, uint32_t t,
                                 Product product) {
  for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
    float sum = row.add ? b.read(row.values, i) : 0.0F;
    for (uint32_t k = 0; k < device::kTerms; ++k) {  // unrolled: the row stays in registers
      if (k >= row.terms) break;
      const float term = product(k, i);
      sum = k == 0 && !row.add ? term : sum + term;  // a single -0 stays -0
    }
    b.write(row.values, i, sum);
  }
}

/// The same where `decode(payload, i)` gives element i of one.
template <class B, class Decode>
LACONIC_DEVICE void sum_terms(B& b, const device::DecodeRow& row, device::Range own, uint32_t t,
                              Decode decode) {
  sum_products(b, row, own, t,
               [&](uint32_t k, uint64_t i) { return row.weight[k] * decode(row.payload[k], i); });
}

}  // namespace laconic::kernels
