// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/randomk/randomk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/slices.h"
#include "codecs/randomk/shared_indices.h"
#include "codecs/sparse/sparse_payload.h"

namespace laconic::codecs {
namespace {

constexpr uint32_t kBlock = 512;  // indices made per block, on the stack
constexpr uint64_t kLanesPerTask = 4096;
constexpr float kLargest = std::numeric_limits<float>::max();

// body(first, m, indices) over blocks of lanes. Lanes name distinct elements, so blocks never meet.
template <class Body>
void for_each_block(const SharedIndices& indices, uint64_t k, const Work& work, Body&& body) {
  for_slices(work.pool, k, kLanesPerTask, [&](uint64_t begin, uint64_t end) {
    alignas(64) std::array<uint32_t, kBlock> index;
    for (uint64_t first = begin; first < end; first += kBlock) {
      const auto m = static_cast<uint32_t>(std::min<uint64_t>(kBlock, end - first));
      indices.get(first, m, work.isa, index.data());
      body(first, m, index.data());
    }
  });
}

float lane_scale(const RandomK::Params& p, uint64_t n, uint64_t k, float prescale) {
  const double rescale = p.rescale ? static_cast<double>(n) / static_cast<double>(k) : 1.0;
  return static_cast<float>(rescale * static_cast<double>(prescale));
}

void clear(float* x, uint64_t n, const Work& work) {
  const bool streaming = n * sizeof(float) >= kStreamingBytes;
  for_slices(work.pool, n, kScatterRange, [&](uint64_t begin, uint64_t end) {
    clear_range(x, begin, end, streaming, work.isa);
  });
}

// One lane of every term into the element at its index, in the order of the terms.
void add_block(std::span<const Term> terms, uint64_t first, uint32_t m, const uint32_t* index,
               float* target) {
  if (terms.size() == 1) {
    kernels::scatter_add(target, index, terms[0].payload.data() + 4 * first, m, terms[0].weight);
    return;
  }
  for (uint32_t j = 0; j < m; ++j) {
    float sum = target[index[j]];
    for (const Term& term : terms) {
      sum += term.weight * load<float>(term.payload.data() + 4 * (first + j));
    }
    target[index[j]] = sum;
  }
}

}  // namespace

Contract RandomK::contract(const Params& p) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::linear;
  // A sent element is multiplied by n/k: a residual would grow by that factor in every step.
  if (!p.rescale) {
    c.feedback = Feedback::own;
    c.memory_default = MemoryKind::residual;
    c.memories = memory_set(MemoryKind::residual);
  }
  c.max_count = kMaxSparseCount;
  c.unbiased = p.rescale;
  return c;
}

Plan RandomK::plan(const Params& p, const Unit& unit, uint32_t) {
  Plan plan;
  const uint64_t k = kept_of(p.ratio, unit.count);
  plan.round[0] = {RoundKind::lanes, DType::f32, k * sizeof(float)};
  if (p.rescale && k != 0) {
    plan.largest_input = std::nextafter(kLargest / lane_scale(p, unit.count, k, 1), 0.0F);
  }
  return plan;
}

Encoded RandomK::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t k = kept_of(call.params->ratio, call.unit.count);
  if (k == 0) return {};
  const float scale = lane_scale(*call.params, call.unit.count, k, call.place.prescale);
  const SharedIndices indices(call.unit, call.place, k);
  for_each_block(indices, k, call.work, [&](uint64_t first, uint32_t m, const uint32_t* index) {
    for (uint32_t j = 0; j < m; ++j) {
      store(out.data() + 4 * (first + j), source.values[index[j]] * scale);
    }
  });
  return {k * sizeof(float)};
}

Errc RandomK::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  if (unit.count > kMaxSparseCount) return Errc::shape_unsupported;
  const uint64_t bytes = kept_of(p.ratio, unit.count) * sizeof(float);
  return payload.size() == bytes ? Errc::ok : Errc::payload_malformed;
}

void RandomK::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (!target.add) clear(target.values, call.unit.count, call.work);
  const uint64_t k = kept_of(call.params->ratio, call.unit.count);
  if (k == 0 || terms.empty()) return;
  const SharedIndices indices(call.unit, call.place, k);
  for_each_block(indices, k, call.work, [&](uint64_t first, uint32_t m, const uint32_t* index) {
    add_block(terms, first, m, index, target.values);
  });
}

}  // namespace laconic::codecs
