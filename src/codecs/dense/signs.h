// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by codecs with one bit per element: kernels/bits/bits.h over whole units, cut for threads.
#pragma once

#include <cmath>

#include "codecs/dense/dense_decode.h"
#include "kernels/bits/bits.h"
#include "kernels/bits/means.h"
#include "laconic/bytes.h"

namespace laconic::codecs {

/// Up to this magnitude of gradient and residual the sums of a chunk are finite.
inline constexpr float kLargestForSums = 0x1p112F;

[[nodiscard]] constexpr uint64_t bit_bytes(uint64_t count) noexcept { return ceil_div(count, 8); }

/// True if the bits after the last element are zero. `bits` holds bit_bytes(count).
[[nodiscard]] inline bool clean_padding(const uint8_t* bits, uint64_t count) noexcept {
  return count % 8 == 0 || bits[count / 8] >> (count % 8) == 0;
}

using kernels::SignSums;

/// False if some a = values + residual is not finite.
[[nodiscard]] inline bool finite(const SignSums& sums) noexcept {
  return std::isfinite(sums.negative) && std::isfinite(sums.positive);
}

/// Bytes of Work::scratch that pack_signs needs.
[[nodiscard]] constexpr uint64_t sign_scratch(uint64_t count) noexcept {
  return ceil_div(count, kernels::kBitsChunk) * sizeof(kernels::BitsSums);
}

/// Bits and sums of a unit's a.
SignSums pack_signs(uint64_t count, Source source, Work& work, uint8_t* bits);
/// The same of [begin, end) on the calling thread; `begin` is a multiple of kBitsChunk, `bits` the
/// unit's.
SignSums pack_signs(const kernels::BitsKernels& kernel, uint64_t begin, uint64_t end, Source source,
                    uint8_t* bits);
/// residual = a − value, over a unit.
void keep_rest(uint64_t count, Source source, kernels::BitsValues values, Work& work);

/// target = base + Σ weight·value. `values_of(payload, element)` returns an element's two values,
/// which apply to all elements up to the next multiple of `share`, a divisor of kDenseChunk. The
/// bits follow the first `bits_at` bytes.
template <class ValuesOf>
void decode_signs(std::span<const Term> terms, Work& work, Target target, uint64_t count,
                  uint64_t bits_at, uint64_t share, ValuesOf&& values_of) {
  static_assert(kDenseTerms <= kernels::kBitsTerms);
  const auto& kernel = kernels::bits_kernels(work.isa);
  decode_dense(
      terms, target, count, kDenseChunk, work.pool,
      [&](float* out, kernels::Output output, const kernels::Weighted* operands,
          uint32_t operand_count, uint64_t begin, uint64_t end) {
        std::array<kernels::BitsTerm, kDenseTerms> bits;
        for (uint64_t at = begin; at < end; at += share) {
          for (uint32_t t = 0; t < operand_count; ++t) {
            const auto* payload = static_cast<const uint8_t*>(operands[t].data);
            const kernels::BitsValues values = values_of(payload, at);
            bits[t] = {payload + bits_at + at / 8,
                       {operands[t].weight * values.zero, operands[t].weight * values.one}};
          }
          kernel.decode(out + at, output, bits.data(), operand_count, std::min(share, end - at));
        }
      });
}

}  // namespace laconic::codecs
