// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/topk/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/sparse/magnitude_sample.h"
#include "codecs/sparse/sparse_erase.h"
#include "codecs/sparse/sparse_payload.h"
#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

// Three ways to a lower bound of the k-th magnitude, from which one pass collects slightly more
// than k candidates. The result is the exact top-k whatever the bound was.

constexpr uint64_t kGroupUnits = uint64_t{1} << 16;  // up to here: maxima of groups
constexpr uint64_t kSparse = 16;                     // of more than n/16 there are too many groups
constexpr uint64_t kSampled = uint64_t{1} << 13;     // from here on a sample is worth its cost
constexpr uint32_t kTries = 3;

uint32_t group_count(uint64_t k) {
  return static_cast<uint32_t>(round_up(3 * k, kernels::kGroupColumns));
}

bool uses_groups(uint64_t n, uint64_t k) { return n <= kGroupUnits && k * kSparse <= n; }

// Up to a half: of more, selecting among the candidates is selecting among all.
bool uses_sample(uint64_t n, uint64_t k) { return n >= kSampled && k <= n / 2; }

uint64_t key_count(uint64_t n, uint64_t k) {
  if (uses_groups(n, k)) return group_count(k);
  return uses_sample(n, k) ? MagnitudeSample::size(n) : 0;
}

// Expected candidates per wanted element are 1.1 to 1.7, 4 when the sample holds few of them.
uint64_t capacity_of(uint64_t n, uint64_t k) { return std::min(n, 4 * k + 16384); }

struct Finder {
  Source from;
  uint64_t n;
  uint64_t k;
  const Work& work;
  uint32_t* keys;
  CandidateList list;

  // k groups have a maximum of at least the k-th of the maxima, so k elements have.
  uint32_t bound_of_groups() {
    const uint32_t groups = group_count(k);
    kernels::select_kernels(work.isa).group_max(from.values, n, groups, keys);
    return bound_of_kth(keys, groups, k);
  }

  bool collect_from(uint32_t bound) {
    // Floor 1 leaves out the zeros, of which there may be any number (embeddings).
    list.collect(from, std::max(bound, 1U), work, Pass::forward);
    return list.complete();
  }

  // True when the list holds the top-k, or all non-zero elements and these are fewer than k.
  bool find() {
    if (uses_groups(n, k)) return collect_from(bound_of_groups());
    return find_by_sample();
  }

  bool find_by_sample() {
    if (!uses_sample(n, k)) return false;
    const MagnitudeSample sample(from, n, work, keys);
    for (uint32_t attempt = 0; attempt < kTries; ++attempt) {
      const uint32_t bound = sample.bound(k, attempt);
      if (!collect_from(bound)) return false;
      if (list.count() >= k || bound <= 1) return true;
    }
    return false;
  }
};

DType type_of(const TopK::Params& p) {
  return p.values == TopK::Values::f32 ? DType::f32 : DType::bf16;
}

// Half a step above the largest bfloat16 it is infinity.
constexpr float kLargestToBf16 = 0x1.FEFFFEp127F;

float largest_of(DType type) {
  return type == DType::f32 ? std::numeric_limits<float>::max() : kLargestToBf16;
}

// As integers, NaN and infinity are the largest magnitudes: any of them was selected.
Encoded finished(SparseWriter& writer, const SparseView& sent, uint64_t n) {
  writer.finish();
  return {sparse_bytes(sent.count, n, sent.type), values_finite(sent)};
}

Encoded encode_values(Finder& finder, Work& work, DType type, MutBytes out) {
  const uint64_t n = finder.n, k = finder.k;
  const float* const x = finder.from.values;
  SparseWriter writer(out.data(), k, n, type);
  if (!finder.find()) {
    write_cut(x, n, exact_cut(x, n, k), work.isa, writer);
  } else if (finder.list.count() >= k) {
    finder.list.write(finder.list.exact_cut(k), work, writer);
  } else {
    write_cut(x, n, {0, k - finder.list.count()}, work.isa, writer);  // zeros fill up
  }
  return finished(writer, sparse_view(out, k, n, type), n);
}

// For large units the top-k of values + residual is found without writing the sums; these are
// written once all are known to be finite.
Encoded encode_sums(Finder& finder, Source source, Work& work, DType type, MutBytes out) {
  const uint64_t n = finder.n, k = finder.k;
  const SparseView sent = sparse_view(out, k, n, type);
  Encoded encoded;
  if (!uses_groups(n, k) && finder.find_by_sample() && finder.list.count() >= k) {
    SparseWriter writer(out.data(), k, n, type);
    finder.list.write(finder.list.exact_cut(k), work, writer);
    encoded = finished(writer, sent, n);
    if (encoded.finite) leave_rest(source, n, sent, work);
    return encoded;
  }
  if (!sums_within(source, n, largest_of(type), work)) return {0, false};
  leave_rest(source, n, {}, work);
  finder.from = {source.residual, nullptr};
  encoded = encode_values(finder, work, type, out);
  take_out_sparse(sent, n, work, source.residual);
  return encoded;
}

}  // namespace

Contract TopK::contract(const Params& p) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::set_union;
  c.feedback = Feedback::own;
  c.max_count = kMaxSparseCount;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::momentum);
  c.fused = true;
  c.checks_finite = true;
  c.exact_values = p.values == Values::f32;
  // k/n of the energy at least, less what rounding leaves of it, 2^-16 of each square;
  // max(1, floor(r·n))/n is above r/2 for every n.
  const double left = c.exact_values ? 0 : 0x1p-16;
  c.contraction = static_cast<float>(p.ratio / 2 * (1 - left));
  return c;
}

Plan TopK::plan(const Params& p, const Unit& unit, uint32_t) {
  const uint64_t n = unit.count;
  const uint64_t k = kept_of(p.ratio, n);
  Plan plan;
  plan.largest_input = largest_of(type_of(p));
  plan.round[0].bytes = sparse_bytes(k, n, type_of(p));
  plan.scratch_bytes =
      CandidateList::scratch_bytes(n, capacity_of(n, k)) + key_count(n, k) * sizeof(uint32_t);
  return plan;
}

Encoded TopK::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  const uint64_t k = kept_of(call.params->ratio, n);
  if (n == 0) return {};
  const uint64_t list_bytes = CandidateList::scratch_bytes(n, capacity_of(n, k));
  auto* keys = reinterpret_cast<uint32_t*>(call.work.scratch.data() + list_bytes);
  Finder finder{source,    n,    k,
                call.work, keys, CandidateList(call.work.scratch, n, capacity_of(n, k))};
  return source.residual == nullptr
             ? encode_values(finder, call.work, type_of(*call.params), out)
             : encode_sums(finder, source, call.work, type_of(*call.params), out);
}

Errc TopK::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  const uint64_t n = unit.count;
  if (n > kMaxSparseCount) return Errc::shape_unsupported;
  const uint64_t k = kept_of(p.ratio, n);
  const DType type = type_of(p);
  if (payload.size() != sparse_bytes(k, n, type)) return Errc::payload_malformed;
  return check_sparse(sparse_view(payload, k, n, type), n);
}

void TopK::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const uint64_t n = call.unit.count;
  const uint64_t k = kept_of(call.params->ratio, n);
  decode_sparse(terms, n, call.work, target,
                [&](Bytes payload) { return sparse_view(payload, k, n, type_of(*call.params)); });
}

void TopK::erase(const Call<Params>& call, Bytes payload, float* values) {
  const uint64_t n = call.unit.count;
  erase_sparse(sparse_view(payload, kept_of(call.params->ratio, n), n, type_of(*call.params)), n,
               call.work, values);
}

}  // namespace laconic::codecs
