// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/threshold/threshold.h"

#include <algorithm>

#include "codecs/sparse/counted_set.h"
#include "codecs/sparse/magnitude_sample.h"
#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

// The smallest key whose magnitude is above v: exact, though v is a double.
uint32_t floor_of(double v) {
  const auto near = static_cast<float>(v);
  const uint32_t key = kernels::magnitude_key(near);
  return static_cast<double>(near) > v ? key : key + 1;
}

constexpr uint64_t kSampled = 16384;  // below, a sample would cost as much as all

// The cap, and what a sample's bound lets through beyond it when more than the cap pass.
uint64_t capacity_of(uint64_t n, uint64_t most) { return std::min(n, most + most / 2 + 4096); }

}  // namespace

Contract Threshold::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::set_union;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::momentum);
  c.max_count = kMaxSparseCount;
  c.exact_size = false;
  c.checks_finite = true;
  return c;
}

// `expected` is the bound: the number of elements above the threshold depends on their unknown
// scale.
Plan Threshold::plan(const Params& p, const Unit& unit, uint32_t) {
  const uint64_t n = unit.count;
  const uint64_t most = kept_of(p.cap, n);
  Plan plan;
  plan.round[0].bytes = counted_bytes(most, n);
  plan.scratch_bytes = CandidateList::scratch_bytes(n, capacity_of(n, most));
  if (n > kSampled) plan.scratch_bytes += MagnitudeSample::size(n) * sizeof(uint32_t);
  return plan;
}

Encoded Threshold::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  const uint64_t most = kept_of(call.params->cap, n);
  const float* const x = source.values;
  if (n == 0) return write_counted(out, 0, 0, [](SparseWriter&) {});
  const uint32_t floor = floor_of(call.params->v);
  CandidateList list(call.work.scratch, n, capacity_of(n, most));
  if (list.collect(x, floor, call.work, Pass::forward) <= most) {
    return write_counted(out, list.count(), n,
                         [&](SparseWriter& writer) { write_whole(list, call.work, writer); });
  }
  if (!list.complete() && n > kSampled) {
    auto* keys = reinterpret_cast<uint32_t*>(call.work.scratch.data() +
                                             CandidateList::scratch_bytes(n, capacity_of(n, most)));
    const MagnitudeSample sample(x, n, call.work, keys);
    list.collect(x, std::max(floor, sample.bound(most)), call.work, Pass::backward);
  }
  return write_counted(out, most, n, [&](SparseWriter& writer) {
    if (list.complete() && list.count() >= most) {
      list.write(list.exact_cut(most), call.work, writer);
    } else {
      write_cut(x, n, exact_cut(x, n, most), call.work.isa, writer);
    }
  });
}

Errc Threshold::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  return check_counted(payload, kept_of(p.cap, unit.count), unit.count);
}

void Threshold::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  decode_counted(terms, call.unit.count, call.work, target);
}

void Threshold::erase(const Call<Params>& call, Bytes payload, float* values) {
  erase_counted(payload, call.unit.count, call.work, values);
}

}  // namespace laconic::codecs
