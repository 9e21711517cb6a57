// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/norm_sample.h"

#include <algorithm>

namespace laconic::session {
namespace {

double element(const void* buffer, DType dtype, uint64_t at) noexcept {
  if (dtype == DType::f32) return static_cast<const float*>(buffer)[at];
  const uint16_t bits = static_cast<const uint16_t*>(buffer)[at];
  return dtype == DType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

}  // namespace

NormSample::NormSample(const collective::RankState& state) {
  const auto& parameters = state.model().parameters();
  uint64_t elements = 0;
  for (uint32_t p = 0; p < parameters.size(); ++p) {
    first_.push_back(elements);
    if (state.parameter(p).memory.residual() != nullptr) elements += parameters[p].count();
  }
  stride_ = std::max<uint64_t>(ceil_div(elements, kMost), 1);
  // From its place in the list to the next multiple of the stride.
  for (uint64_t& first : first_) first = round_up(first, stride_) - first;
}

NormSample::Sums NormSample::of(const collective::RankState& state,
                                const collective::LayoutView& layout, const void* buffer,
                                DType dtype) const noexcept {
  Sums sums;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const uint32_t p = layout.parameters[i];
    const float* residual = state.parameter(p).memory.residual();
    if (residual == nullptr) continue;
    for (uint64_t k = first_[p]; k < state.parameter(p).count; k += stride_) {
      const double g = element(buffer, dtype, layout.offsets[i] + k);
      sums.residual += double{residual[k]} * residual[k];
      sums.gradient += g * g;
      ++sums.elements;
    }
  }
  return sums;
}

}  // namespace laconic::session
