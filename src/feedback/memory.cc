// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "feedback/memory.h"

namespace laconic::feedback {
namespace {

/// a·values + b·g: what a kind without momentum encodes.
struct Blend {
  float a = 1.0F;
  float b = 1.0F;
};

Blend blend_of(const MemorySettings& settings) {
  if (settings.kind == MemoryKind::ema) return {settings.factor, 1.0F - settings.factor};
  return {settings.decay, 1.0F};
}

}  // namespace

float largest_corrected(const kernels::BasicKernels& k, const Memory& memory, const float* g,
                        uint64_t n) {
  if (memory.plain()) return k.max_abs_sum(memory.values, g, n);
  if (memory.settings.kind == MemoryKind::momentum)
    return k.max_abs_momentum(memory.values, memory.settings.factor, memory.momentum, g, n);
  const Blend blend = blend_of(memory.settings);
  return k.max_abs_blend(blend.a, memory.values, blend.b, g, n);
}

void correct(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n) {
  if (memory.plain()) return k.add(memory.values, g, n);
  if (memory.settings.kind == MemoryKind::momentum) {
    k.blend(memory.settings.factor, memory.momentum, 1.0F, g, n);
    return k.add(memory.values, memory.momentum, n);
  }
  const Blend blend = blend_of(memory.settings);
  k.blend(blend.a, memory.values, blend.b, g, n);
}

void take_back(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n) {
  if (memory.plain()) return k.axpy(memory.values, -1.0F, g, n);
  const auto back = [&](float* values, Blend blend) {
    k.blend(1.0F / blend.a, values, -(blend.b / blend.a), g, n);
  };
  if (memory.settings.kind == MemoryKind::momentum) {
    k.axpy(memory.values, -1.0F, memory.momentum, n);
    return back(memory.momentum, {memory.settings.factor, 1.0F});
  }
  back(memory.values, blend_of(memory.settings));
}

float largest_kept(const kernels::BasicKernels& k, const Memory& memory, const float* g,
                   uint64_t n) {
  if (memory.settings.kind == MemoryKind::residual) return k.max_abs_sum(memory.values, g, n);
  return largest_corrected(k, memory, g, n);
}

void keep(const kernels::BasicKernels& k, const Memory& memory, const float* g, uint64_t n) {
  if (memory.settings.kind == MemoryKind::residual) return k.add(memory.values, g, n);
  correct(k, memory, g, n);
}

}  // namespace laconic::feedback
