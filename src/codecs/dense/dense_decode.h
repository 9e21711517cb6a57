// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by codecs with dense payloads: the size of a task's share, and the weighted sum of many
// payloads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/slices.h"
#include "kernels/core/output.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// A task's share: 256 KiB of floats, so that a second pass over it hits the L2 cache.
inline constexpr uint64_t kDenseChunk = uint64_t{1} << 16;

/// Operands that one kernel call takes; more are added in further calls, in order.
inline constexpr uint64_t kDenseTerms = 16;

/// target = base + Σ weight·payload, by `sum(out, output, operands, count, begin, end)` on chunks.
/// `chunk` elements are a task's share.
template <class Sum>
void decode_dense(std::span<const Term> terms, Target target, uint64_t count, uint64_t chunk,
                  ThreadPool* pool, Sum&& sum) {
  const bool one_call = terms.size() <= kDenseTerms;
  const auto output = kernels::choose_output(target.add, one_call ? count * sizeof(float) : 0);
  for_slices(pool, count, chunk, [&](uint64_t begin, uint64_t end) {
    std::array<kernels::Weighted, kDenseTerms> operands;
    uint64_t done = 0;
    do {
      const uint64_t batch = std::min(kDenseTerms, terms.size() - done);
      for (uint64_t t = 0; t < batch; ++t) {
        operands[t] = {terms[done + t].payload.data(), terms[done + t].weight};
      }
      sum(target.values, done == 0 ? output : kernels::Output::add, operands.data(),
          static_cast<uint32_t>(batch), begin, end);
      done += batch;
    } while (done < terms.size());
  });
}

/// For payloads in which only the length can be wrong.
[[nodiscard]] inline Errc check_length(Bytes payload, uint64_t bytes) noexcept {
  return payload.size() == bytes ? Errc::ok : Errc::payload_malformed;
}

/// Plan of one round of lanes.
[[nodiscard]] inline Plan plan_lanes(DType lane, uint64_t count) noexcept {
  Plan plan;
  plan.round[0] = {RoundKind::lanes, lane, count * dtype_size(lane)};
  return plan;
}

}  // namespace laconic::codecs
