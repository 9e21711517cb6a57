// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/adaq/adaq.h"

#include <algorithm>
#include <cmath>

#include "codecs/adaq/signed_list.h"
#include "codecs/sparse/index_packer.h"
#include "codecs/sparse/packed_range.h"
#include "codecs/sparse/random_sample.h"
#include "codecs/sparse/sparse_payload.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kSampled = 4096;  // up to here the sample is the unit
constexpr double kSample = 0.01;     // of the elements
constexpr uint32_t kTries = 3;
constexpr uint32_t kInfinityKey = 0x7F800000U;

// Payload: the two means, the two counts, the packed indices.
struct Header {
  PerSign<float> mean;
  PerSign<uint32_t> count;

  [[nodiscard]] uint64_t indices() const { return uint64_t{count[0]} + count[1]; }
};
constexpr uint64_t kHeader = sizeof(Header);
static_assert(kHeader == 16);

uint64_t payload_bytes(uint64_t indices, uint64_t n) { return kHeader + index_bytes(indices, n); }

kernels::PackedIndices indices_of(Bytes payload, uint64_t n) {
  return {payload.data() + kHeader, payload.size() - kHeader, index_width(n)};
}

// Elements to send of the m elements of one sign.
uint64_t wanted_of(double ratio, uint64_t m) {
  if (m == 0) return 0;
  const auto k = static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(m)));
  return std::clamp<uint64_t>(k, 1, m);
}

// The band of a sign: (1 ± 1/4)·k, in integers.
bool too_few(uint64_t count, uint64_t k) { return 4 * count < 3 * k; }
uint64_t most_of(uint64_t k) { return k + k / 4; }

// Maximum for both signs: each is rounded up.
uint64_t most_sent(double ratio, uint64_t n) {
  return n == 0 ? 0 : std::min(n, most_of(wanted_of(ratio, n) + 2));
}

uint64_t capacity_of(double ratio, uint64_t n) {
  const uint64_t k = wanted_of(ratio, n);
  return std::min(n, k + k / 2 + 16384);
}

uint64_t sample_size(uint64_t n) { return n > kSampled ? RandomSample::size(kSample, n) : n; }

// Eight lanes in double, lane l adds elements l, l + 8, …; folded 4, 2, 1.
float mean_of(const float* value, uint64_t count) {
  if (count == 0) return 0.0F;
  std::array<double, 8> lane{};
  uint64_t j = 0;
  for (; j + 8 <= count; j += 8) {
    for (uint64_t l = 0; l < 8; ++l) lane[l] += static_cast<double>(value[j + l]);
  }
  for (uint64_t l = 0; j + l < count; ++l) lane[l] += static_cast<double>(value[j + l]);
  for (uint64_t half = 4; half != 0; half /= 2) {
    for (uint64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return static_cast<float>(lane[0] / static_cast<double>(count));
}

// Finds what to keep of each sign, in one pass unless the sample misleads.
struct Finder {
  const float* x;
  uint64_t n;
  double ratio;
  const Work& work;
  SignedList list;
  PerSign<const float*> sample{};
  PerSign<uint64_t> sampled{};

  // Parts what was taken: positives from the front, negatives from the back; zeros are dropped.
  void part(const float* taken, uint64_t size, float* parted) {
    uint64_t positive = 0;
    uint64_t negative = 0;
    for (uint64_t j = 0; j < size; ++j) {  // no branch: a sign is a toss
      const float v = taken[j];
      parted[positive] = v;
      positive += v > 0.0F ? 1U : 0U;
      parted[size - 1 - negative] = v;
      negative += v < 0.0F ? 1U : 0U;
    }
    sampled = {positive, negative};
    sample = {parted, parted + size - negative};
  }

  // A small unit is known completely: each side gets zeros for the elements of the other.
  void part_all(float* positives, float* negatives) {
    for (uint64_t j = 0; j < n; ++j) {
      positives[j] = std::max(x[j], 0.0F);
      negatives[j] = std::min(x[j], 0.0F);
    }
    const kernels::SignCounts counts = kernels::select_kernels(work.isa).count_signs(x, n);
    sampled = {counts.positive, counts.negative};
    sample = {positives, negatives};
  }

  [[nodiscard]] uint32_t bound(Sign s, uint64_t size, uint32_t attempt) const {
    if (sampled[s] == 0) return 1;
    if (n <= kSampled) {
      const uint64_t k = wanted_of(ratio, sampled[s]);
      return std::max(1U, RandomSample::bound_of_rank(sample[s], n, k, work.isa));
    }
    const double of_sign =
        static_cast<double>(sampled[s]) / static_cast<double>(size) * static_cast<double>(n);
    return RandomSample::bound(sample[s], sampled[s], size, ratio * of_sign, n, attempt, work.isa);
  }

  [[nodiscard]] uint64_t wanted(Sign s) const { return wanted_of(ratio, list.total(s)); }
  [[nodiscard]] bool enough(Sign s) const { return !too_few(list.count(s), wanted(s)); }

  void find(uint64_t size) {
    PerSign<uint32_t> floor{1, 1};
    for (uint32_t attempt = 0; attempt < kTries; ++attempt) {
      for (const Sign s : kSigns) {
        if (attempt == 0 || !enough(s)) floor[s] = bound(s, size, attempt);
      }
      list.collect(x, floor, work);
      if (enough(kPositive) && enough(kNegative)) return;
    }
  }

  uint64_t keep(Sign s, uint32_t* index, float* value) const {
    const uint64_t k = wanted(s);
    if (k == 0) return 0;
    if (!list.complete(s) || !enough(s)) {
      return keep_of(s, x, n, exact_cut_of(s, x, n, k), index, value);
    }
    const bool cuts = list.count(s) > most_of(k);
    return list.keep(s, cuts ? list.cut(s, k) : Cut{list.floor(s) - 1, 0}, index, value);
  }
};

bool finite(const float* value, uint64_t count) {
  uint32_t largest = 0;
  for (uint64_t j = 0; j < count; ++j) {
    largest = std::max(largest, kernels::magnitude_key(value[j]));
  }
  return largest < kInfinityKey;
}

// +0 without elements; else finite and of its own sign.
bool valid_mean(float mean, uint32_t count, Sign s) {
  const uint32_t bits = float_bits(mean);
  if (count == 0) return bits == 0;
  const uint32_t key = kernels::magnitude_key(mean);
  return key != 0 && key < kInfinityKey && sign_of(mean) == s;
}

bool indices_increase(const kernels::PackedIndices& packed, uint64_t first, uint64_t last,
                      uint64_t n) {
  bool good = true;
  int64_t before = -1;
  for_indices(packed, first, last, best_isa(), [&](const uint32_t* index, uint32_t m) {
    for (uint32_t j = 0; j < m; ++j) {
      good = good && int64_t{index[j]} > before;
      before = index[j];
    }
  });
  return good && before < static_cast<int64_t>(n);
}

// No index stands on both sides: one walk along both.
bool indices_differ(const kernels::PackedIndices& packed, uint64_t positive, uint64_t all) {
  uint64_t p = 0;
  bool good = true;
  for_indices(packed, positive, all, best_isa(), [&](const uint32_t* index, uint32_t m) {
    for (uint32_t j = 0; j < m; ++j) {
      while (p < positive && kernels::packed_index(packed, p) < index[j]) ++p;
      good = good && (p == positive || kernels::packed_index(packed, p) != index[j]);
    }
  });
  return good;
}

void add_constant(const kernels::PackedIndices& packed, uint64_t first, uint64_t last, Isa isa,
                  float product, float* target) {
  for_indices(packed, first, last, isa, [=](const uint32_t* index, uint32_t m) {
    constexpr uint32_t kAhead = 32;
    for (uint32_t j = 0; j < m; ++j) {
      if (j + kAhead < m) __builtin_prefetch(target + index[j + kAhead], 1);
      target[index[j]] += product;
    }
  });
}

}  // namespace

Contract AdaQ::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.max_count = kMaxSparseCount;
  c.exact_size = false;
  c.checks_finite = true;
  return c;
}

Plan AdaQ::plan(const Params& p, const Unit& unit, uint32_t) {
  const uint64_t n = unit.count;
  const uint64_t most = most_sent(p.ratio, n);
  Plan plan;
  plan.round[0].bytes = payload_bytes(most, n);
  plan.round[0].expected = payload_bytes(std::min(most, 2 * wanted_of(p.ratio, ceil_div(n, 2))), n);
  plan.scratch_bytes = SignedList::scratch_bytes(n, capacity_of(p.ratio, n)) +
                       4 * round_up((most + 1) * sizeof(float), 64) +
                       2 * sample_size(n) * sizeof(float);
  return plan;
}

Encoded AdaQ::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  const uint64_t capacity = capacity_of(call.params->ratio, n);
  const uint64_t room = round_up((most_sent(call.params->ratio, n) + 1) * sizeof(float), 64);
  uint8_t* const memory = call.work.scratch.data() + SignedList::scratch_bytes(n, capacity);
  const auto index = [=](Sign s) { return reinterpret_cast<uint32_t*>(memory + s * room); };
  const auto value = [=](Sign s) { return reinterpret_cast<float*>(memory + (2 + s) * room); };
  auto* const taken = reinterpret_cast<float*>(memory + 4 * room);
  Finder finder{source.values, n, call.params->ratio, call.work,
                SignedList(call.work.scratch, n, capacity)};
  const uint64_t size = sample_size(n);
  if (n > kSampled) {
    RandomSample(call.unit, call.place).take(source.values, size, call.work, taken);
    finder.part(taken, size, taken + size);
  } else {
    finder.part_all(taken, taken + size);
  }
  finder.find(size);
  Header header{};
  PerSign<bool> good{};
  parallel_for(call.work.pool, kSigns.size(), [&](uint64_t side) {
    const Sign s = kSigns[side];
    header.count[s] = static_cast<uint32_t>(finder.keep(s, index(s), value(s)));
    header.mean[s] = mean_of(value(s), header.count[s]);
    good[s] = finite(value(s), header.count[s]);
  });
  if (!good[kPositive] || !good[kNegative]) return {0, false};
  store(out.data(), header);
  IndexPacker packer(out.data() + kHeader, index_width(n));
  for (const Sign s : kSigns) packer.append(index(s), header.count[s]);
  packer.finish();
  return {payload_bytes(header.indices(), n)};
}

Errc AdaQ::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  const uint64_t n = unit.count;
  if (n > kMaxSparseCount) return Errc::shape_unsupported;
  if (payload.size() < kHeader) return Errc::payload_malformed;
  const auto header = load<Header>(payload.data());
  const uint64_t all = header.indices();
  if (all > most_sent(p.ratio, n)) return Errc::bound_exceeded;
  if (payload.size() != payload_bytes(all, n)) return Errc::payload_malformed;
  const kernels::PackedIndices packed = indices_of(payload, n);
  const uint64_t bits = all * packed.width;
  bool good = bits % 8 == 0 || (packed.bits[bits / 8] >> (bits % 8)) == 0;
  for (const Sign s : kSigns) good = good && valid_mean(header.mean[s], header.count[s], s);
  const uint64_t positive = header.count[kPositive];
  good = good && indices_increase(packed, 0, positive, n) &&
         indices_increase(packed, positive, all, n) && indices_differ(packed, positive, all);
  return good ? Errc::ok : Errc::payload_malformed;
}

void AdaQ::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const uint64_t n = call.unit.count;
  const bool streams = n * sizeof(float) >= kStreamingBytes;
  for_slices(call.work.pool, n, kScatterRange, [&](uint64_t begin, uint64_t end) {
    if (!target.add) clear_range(target.values, begin, end, streams, call.work.isa);
    for (const Term& term : terms) {
      const auto header = load<Header>(term.payload.data());
      const kernels::PackedIndices packed = indices_of(term.payload, n);
      uint64_t at = 0;
      for (const Sign s : kSigns) {
        const uint64_t last = at + header.count[s];
        const uint64_t first = first_not_below(packed, at, last, begin);
        add_constant(packed, first, first_not_below(packed, first, last, end), call.work.isa,
                     term.weight * header.mean[s], target.values);
        at = last;
      }
    }
  });
}

}  // namespace laconic::codecs
