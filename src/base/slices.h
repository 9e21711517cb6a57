// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "laconic/bytes.h"
#include "laconic/thread_pool.h"

namespace laconic {

/// In which order slices are handed out. Of two passes over memory that fits no cache, the second
/// finds the end of the first still there when it runs backward.
enum class Pass : uint8_t { forward, backward };

/// body(begin, end) for [0, count) cut at the multiples of `slice`: in order on the caller when
/// pool is null, else spread over the pool. The cuts do not depend on the pool.
template <class Body>
void for_slices(ThreadPool* pool, uint64_t count, uint64_t slice, Body&& body,
                Pass pass = Pass::forward) {
  const uint64_t slices = ceil_div(count, slice);
  parallel_for(pool, slices, [&](uint64_t task) {
    const uint64_t begin = (pass == Pass::forward ? task : slices - 1 - task) * slice;
    body(begin, count - begin < slice ? count : begin + slice);
  });
}

}  // namespace laconic
