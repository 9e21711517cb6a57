// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/dense/signs.h"

namespace laconic::codecs {
namespace {

float* at(float* residual, uint64_t i) { return residual == nullptr ? nullptr : residual + i; }

/// kernel.pack_sums of every chunk of [begin, end): take(chunk's number, sums).
template <class Take>
void pack_chunks(const kernels::BitsKernels& kernel, uint64_t begin, uint64_t end, Source source,
                 uint8_t* bits, Take&& take) {
  for (uint64_t i = begin; i < end; i += kernels::kBitsChunk) {
    take(i / kernels::kBitsChunk,
         kernel.pack_sums(source.values + i, at(source.residual, i),
                          std::min(kernels::kBitsChunk, end - i), bits + i / 8));
  }
}

}  // namespace

SignSums pack_signs(const kernels::BitsKernels& kernel, uint64_t begin, uint64_t end, Source source,
                    uint8_t* bits) {
  SignSums sums;
  pack_chunks(kernel, begin, end, source, bits,
              [&](uint64_t, const kernels::BitsSums& chunk) { sums.add(chunk); });
  return sums;
}

// Backward where a second pass follows, which begins with what the first looked at last.
SignSums pack_signs(uint64_t count, Source source, Work& work, uint8_t* bits) {
  const auto& kernel = kernels::bits_kernels(work.isa);
  auto* const chunks = reinterpret_cast<kernels::BitsSums*>(work.scratch.data());
  const auto pack = [&](uint64_t begin, uint64_t end) {
    pack_chunks(kernel, begin, end, source, bits,
                [&](uint64_t i, const kernels::BitsSums& chunk) { chunks[i] = chunk; });
  };
  for_slices(work.pool, count, kDenseChunk, pack,
             source.residual == nullptr ? Pass::forward : Pass::backward);
  SignSums sums;
  for (uint64_t i = 0; i < ceil_div(count, kernels::kBitsChunk); ++i) sums.add(chunks[i]);
  return sums;
}

void keep_rest(uint64_t count, Source source, kernels::BitsValues values, Work& work) {
  const auto& kernel = kernels::bits_kernels(work.isa);
  for_slices(work.pool, count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernel.keep_rest(source.values + begin, source.residual + begin, end - begin, values);
  });
}

}  // namespace laconic::codecs
