// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/adaq/signed_list.h"

#include <algorithm>
#include <bit>

#include "base/slices.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

using kernels::kSelectBlock;
using kernels::kSelectSlack;
using kernels::magnitude_key;

constexpr uint64_t kBlocksPerTask = 8;

bool kept_by(Cut* cut, uint32_t key) {
  const bool tie = key == cut->key && cut->ties != 0;
  cut->ties -= tie ? 1U : 0U;
  return key > cut->key || tie;
}

}  // namespace

uint64_t SignedList::scratch_bytes(uint64_t n, uint64_t capacity) noexcept {
  return round_up(ceil_div(n, kSelectBlock) * sizeof(BlockEntries), 64) +
         4 * round_up(capacity * sizeof(float), 64);
}

SignedList::SignedList(MutBytes scratch, uint64_t n, uint64_t capacity) noexcept
    : n_(n), blocks_(ceil_div(n, kSelectBlock)), capacity_(capacity) {
  uint8_t* p = scratch.data();
  piece_ = reinterpret_cast<BlockEntries*>(p);
  p += round_up(blocks_ * sizeof(BlockEntries), 64);
  for (const Sign s : kSigns) {
    index_[s] = reinterpret_cast<uint32_t*>(p);
    p += round_up(capacity * sizeof(uint32_t), 64);
    value_[s] = reinterpret_cast<float*>(p);
    p += round_up(capacity * sizeof(float), 64);
  }
}

// Selects by the lower floor, parts the signs, then takes room for what it found.
void SignedList::collect_block(const float* x, uint64_t block, Isa isa, Counters& total,
                               Counters& taken) noexcept {
  alignas(64) PerSign<std::array<uint32_t, kSelectBlock + kSelectSlack>> index;
  alignas(64) PerSign<std::array<float, kSelectBlock + kSelectSlack>> value;
  const uint64_t begin = block * kSelectBlock;
  const auto m = static_cast<uint32_t>(std::min<uint64_t>(kSelectBlock, n_ - begin));
  const kernels::SelectKernels& k = kernels::select_kernels(isa);
  const uint32_t found =
      k.select(x + begin, m, n_ - begin - m, static_cast<uint32_t>(begin),
               std::min(floor_[0], floor_[1]), index[kPositive].data(), value[kPositive].data());
  const kernels::SignCounts signs = k.count_signs(x + begin, m);
  // No branch: a sign is a toss. As integers without their sign, keys below the floor wrap round.
  // The positives move down in place.
  const PerSign<uint32_t> room{0x80000000U - floor_[kPositive], 0x80000000U - floor_[kNegative]};
  PerSign<uint32_t> parted{};
  for (uint32_t j = 0; j < found; ++j) {
    const uint32_t i = index[kPositive][j];
    const float v = value[kPositive][j];
    const auto bits = std::bit_cast<uint32_t>(v);
    index[kPositive][parted[kPositive]] = i;
    value[kPositive][parted[kPositive]] = v;
    index[kNegative][parted[kNegative]] = i;
    value[kNegative][parted[kNegative]] = v;
    parted[kPositive] += bits - floor_[kPositive] < room[kPositive] ? 1U : 0U;
    parted[kNegative] += bits - 0x80000000U - floor_[kNegative] < room[kNegative] ? 1U : 0U;
  }
  total[kPositive].fetch_add(signs.positive, std::memory_order_relaxed);
  total[kNegative].fetch_add(signs.negative, std::memory_order_relaxed);
  for (const Sign s : kSigns) {
    const uint64_t at = taken[s].fetch_add(parted[s], std::memory_order_relaxed);
    piece_[block].at[s] = at;
    piece_[block].count[s] = parted[s];
    if (at + parted[s] > capacity_) continue;
    std::copy_n(index[s].data(), parted[s], index_[s] + at);
    std::copy_n(value[s].data(), parted[s], value_[s] + at);
  }
}

void SignedList::collect(const float* x, PerSign<uint32_t> floor, const Work& work) noexcept {
  floor_ = floor;
  Counters total{};
  Counters taken{};
  for_slices(work.pool, blocks_, kBlocksPerTask, [&](uint64_t begin, uint64_t end) {
    for (uint64_t b = begin; b < end; ++b) collect_block(x, b, work.isa, total, taken);
  });
  for (const Sign s : kSigns) {
    total_[s] = total[s].load(std::memory_order_relaxed);
    count_[s] = taken[s].load(std::memory_order_relaxed);
  }
}

Cut SignedList::cut(Sign s, uint64_t k) const noexcept {
  return codecs::exact_cut(value_[s], count_[s], k, floor_[s]);
}

uint64_t SignedList::keep(Sign s, Cut cut, uint32_t* index, float* value) const noexcept {
  uint64_t kept = 0;
  for (uint64_t b = 0; b < blocks_; ++b) {
    const uint64_t at = piece_[b].at[s];
    for (uint64_t j = at; j < at + piece_[b].count[s]; ++j) {
      index[kept] = index_[s][j];
      value[kept] = value_[s][j];
      kept += kept_by(&cut, magnitude_key(value_[s][j])) ? 1U : 0U;
    }
  }
  return kept;
}

// Radix selection, most significant bits first: 11, 10 and 10 of the 31.
Cut exact_cut_of(Sign s, const float* x, uint64_t n, uint64_t k) noexcept {
  uint32_t key = 0;
  uint32_t shift = 31;
  for (const uint32_t bits : {11U, 10U, 10U}) {
    std::array<uint64_t, 1U << 11> histogram{};
    const uint32_t above = shift;  // bits from here on are known
    shift -= bits;
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t m = magnitude_key(x[i]);
      const bool counts = sign_of(x[i]) == s && (uint64_t{m} >> above) == (uint64_t{key} >> above);
      histogram[(m >> shift) & ((1U << bits) - 1)] += counts ? 1U : 0U;
    }
    uint32_t digit = (1U << bits) - 1;
    while (histogram[digit] < k) k -= histogram[digit--];
    key |= digit << shift;
  }
  return {key, k};
}

uint64_t keep_of(Sign s, const float* x, uint64_t n, Cut cut, uint32_t* index,
                 float* value) noexcept {
  uint64_t kept = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (sign_of(x[i]) != s || !kept_by(&cut, magnitude_key(x[i]))) continue;
    index[kept] = static_cast<uint32_t>(i);
    value[kept++] = x[i];
  }
  return kept;
}

}  // namespace laconic::codecs
