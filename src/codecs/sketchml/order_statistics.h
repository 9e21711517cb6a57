// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/quantile/quantile.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// One order statistic: `rank` goes in, the rest comes out.
struct OrderStatistic {
  uint64_t rank = 0;   ///< from 0, the smallest
  uint32_t image = 0;  ///< of the element of this rank
  uint32_t group = 0;  ///< in the table of counters that was looked at last
  uint64_t below = 0;  ///< elements with a smaller image
  uint64_t equal = 0;  ///< with this one
};

/// Bytes that order_statistics, or sorted_images, needs for `wanted` ranks among `count` elements.
uint64_t order_statistics_scratch(uint64_t wanted, uint64_t count) noexcept;

/// The images of x[0, count) in ascending order, in `scratch`; null if an element is not finite.
/// For at most kQuantileSorted elements.
const uint32_t* sorted_images(const float* x, uint64_t count, MutBytes scratch);

/// Finds the elements of the given ranks, which ascend, among x[0, count), more than
/// kQuantileSorted, by counting. `scratch` is aligned to 64 bytes. `spare` is any memory; with room
/// for the images of what shares its upper 16 bits with a wanted element, one pass less is made.
/// False, and nothing found, if an element is not finite.
bool order_statistics(const kernels::QuantileKernels& kernels, const float* x, uint64_t count,
                      std::span<OrderStatistic> wanted, MutBytes scratch, MutBytes spare,
                      ThreadPool* pool);

}  // namespace laconic::codecs
