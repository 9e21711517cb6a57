// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/dgc/dgc.h"

#include <algorithm>
#include <cmath>

#include "codecs/sparse/counted_set.h"
#include "codecs/sparse/random_sample.h"
#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kSampled = 8192;  // up to here no sample: a bound from maxima of groups
constexpr uint64_t kSparse = 16;     // from n/16 on that bound would not help
constexpr uint32_t kTries = 3;

// The band: (1 ± 1/4)·k, in integers.
bool too_few(uint64_t count, uint64_t k) { return 4 * count < 3 * k; }
uint64_t most_of(uint64_t k) { return k + k / 4; }

double largest_ratio(const Dgc::Params& p) { return Dgc::ratio_at(p, 0); }

uint64_t most_sent(const Dgc::Params& p, uint64_t n) {
  return std::min(n, most_of(kept_of(largest_ratio(p), n)));
}

uint32_t group_count(uint64_t k) {
  return static_cast<uint32_t>(round_up(3 * k, kernels::kGroupColumns));
}

uint64_t key_count(const Dgc::Params& p, uint64_t n) {
  return n > kSampled ? RandomSample::size(p.sample, n) : kSampled;
}

// A sample's bound lets 1.0 to 1.3 times k through, more where k is so small that 16384 hold it.
uint64_t capacity_of(uint64_t n, uint64_t k) { return std::min(n, k + k / 2 + 16384); }

struct Finder {
  const float* x;
  uint64_t n;
  uint64_t k;
  const Work& work;
  CandidateList list;

  // Zeros are never sent: floor 1 leaves them out.
  bool collect_from(uint32_t bound) {
    list.collect(x, std::max(bound, 1U), work, Pass::forward);
    return list.complete();
  }

  // k groups have a maximum of at least the k-th of the maxima, so k elements have.
  bool find_small(uint32_t* keys) {
    if (k * kSparse > n) return collect_from(1);
    const uint32_t groups = group_count(k);
    kernels::select_kernels(work.isa).group_max(x, n, groups, keys);
    return collect_from(bound_of_kth(keys, groups, k));
  }

  bool find_sampled(const RandomSample& sample, uint64_t size, float* taken) {
    sample.take(x, size, work, taken);
    for (uint32_t attempt = 0; attempt < kTries; ++attempt) {
      const uint32_t bound =
          RandomSample::bound(taken, size, size, static_cast<double>(k), n, attempt, work.isa);
      if (!collect_from(bound)) return false;
      if (!too_few(list.count(), k) || bound <= 1) return true;
    }
    return false;
  }
};

// The k-th magnitude among all, without the zeros that fewer than k others would let in.
Encoded write_exact(const float* x, uint64_t n, uint64_t k, const Work& work, MutBytes out) {
  const uint64_t count = std::min(k, kernels::select_kernels(work.isa).count(x, n, 1));
  return write_counted(out, count, n, [&](SparseWriter& writer) {
    if (count != 0) write_cut(x, n, exact_cut(x, n, count), work.isa, writer);
  });
}

}  // namespace

double Dgc::ratio_at(const Params& p, uint64_t step) noexcept {
  if (step >= p.warmup) return p.ratio;
  const uint64_t fifth = 5 * step / p.warmup;
  return std::max(p.ratio, std::ldexp(0.25, -2 * static_cast<int>(fifth)));
}

Contract Dgc::contract(const Params& p) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::set_union;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::momentum;
  c.memory_factor = 0.9F;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::momentum);
  c.max_count = kMaxSparseCount;
  c.exact_size = false;
  c.checks_finite = true;
  // The largest 3k/4 at least; k/n is above ratio/2 for every n.
  c.contraction = static_cast<float>(p.ratio * 0.375);
  return c;
}

Plan Dgc::plan(const Params& p, const Unit& unit, uint32_t) {
  const uint64_t n = unit.count;
  Plan plan;
  plan.round[0].bytes = counted_bytes(most_sent(p, n), n);
  plan.round[0].expected = counted_bytes(kept_of(p.ratio, n), n);  // once the warm-up is over
  plan.scratch_bytes =
      CandidateList::scratch_bytes(n, capacity_of(n, kept_of(largest_ratio(p), n))) +
      key_count(p, n) * sizeof(float);
  return plan;
}

Encoded Dgc::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  const float* const x = source.values;
  if (n == 0) return write_counted(out, 0, 0, [](SparseWriter&) {});
  const uint64_t k = kept_of(ratio_at(*call.params, call.place.step), n);
  const uint64_t capacity = capacity_of(n, k);
  Finder finder{x, n, k, call.work, CandidateList(call.work.scratch, n, capacity)};
  uint8_t* const memory = call.work.scratch.data() + CandidateList::scratch_bytes(n, capacity);
  const bool found = n <= kSampled ? finder.find_small(reinterpret_cast<uint32_t*>(memory))
                                   : finder.find_sampled(RandomSample(call.unit, call.place),
                                                         RandomSample::size(call.params->sample, n),
                                                         reinterpret_cast<float*>(memory));
  if (!found) return write_exact(x, n, k, call.work, out);
  CandidateList& list = finder.list;
  const bool cuts = list.count() > most_of(k);
  return write_counted(out, cuts ? k : list.count(), n, [&](SparseWriter& writer) {
    if (!cuts) return write_whole(list, call.work, writer);
    list.write(list.exact_cut(k), call.work, writer);
  });
}

Errc Dgc::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  return check_counted(payload, most_sent(p, unit.count), unit.count);
}

void Dgc::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  decode_counted(terms, call.unit.count, call.work, target);
}

void Dgc::erase(const Call<Params>& call, Bytes payload, float* values) {
  erase_counted(payload, call.unit.count, call.work, values);
}

}  // namespace laconic::codecs
