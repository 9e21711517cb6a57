// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/sparse_select.h"

#include <algorithm>
#include <array>
#include <bit>

namespace laconic::codecs {
namespace {

using kernels::kSelectBlock;
using kernels::kSelectSlack;
using kernels::magnitude_key;

constexpr uint64_t kBlocksPerTask = 8;  // 128 KiB of floats
constexpr uint64_t kBlocksPerShare = 32;
constexpr uint64_t kPackedAtOnce = 4096;  // a multiple of 8
constexpr uint32_t kDigitBits = 12;
constexpr uint32_t kFewDigitBits = 10;  // of at most kFewKeys, for which a table is cleared, too
constexpr uint64_t kFewKeys = 4096;
constexpr uint32_t kDigitsAtOnce = 16;
constexpr uint64_t kAllOutside = ~uint64_t{0};
constexpr uint64_t kFew = 512;  // copied out and partitioned

// Keys seen as [lowest, lowest + 2^bits): one level of radix selection.
struct KeyRange {
  uint32_t lowest = 0;
  uint32_t bits = 31;

  // One comparison, as keys below wrap round: in loops over random keys a branch is a guess.
  [[nodiscard]] bool contains(uint32_t key) const { return key - lowest < (1U << bits); }
};

// Keys may lie there as keys or as the floats that they are the keys of.
uint32_t key_of(uint32_t key) { return key; }
uint32_t key_of(float x) { return magnitude_key(x); }

template <class T>
KeyRange range_of_all(const T* keys, uint64_t m) {
  int32_t low = 0x7FFFFFFF;  // keys are below 2^31; signed comparisons are the ones SSE2 has
  int32_t high = 0;
  for (uint64_t j = 0; j < m; ++j) {
    const auto key = static_cast<int32_t>(key_of(keys[j]));
    low = std::min(low, key);
    high = std::max(high, key);
  }
  return {static_cast<uint32_t>(low),
          static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(high - low)))};
}

// The digit of the range in which the k-th largest lies; k becomes its rank among that digit's
// keys, `inside` their number. Keys outside the range share a bucket: `above` of them lie above it.
// False, with nothing changed, when the k-th lies above, too.
template <class T>
bool narrow(const T* keys, uint64_t m, uint64_t above, KeyRange* range, uint64_t* k,
            uint64_t* inside) {
  const uint32_t most_bits = m <= kFewKeys ? kFewDigitBits : kDigitBits;
  const uint32_t shift = range->bits > most_bits ? range->bits - most_bits : 0;
  const uint32_t digits = 1U << (range->bits - shift);
  std::array<uint32_t, (1U << kDigitBits) + 1> histogram;
  std::fill_n(histogram.begin(), digits + 1, 0U);
  for (uint64_t j = 0; j < m; ++j) {
    const uint32_t digit = (key_of(keys[j]) - range->lowest) >> shift;  // huge when below
    ++histogram[std::min(digit, digits)];
  }
  if (above == kAllOutside) above = histogram[digits];
  if (above >= *k) return false;
  *k -= above;
  uint32_t digit = digits - 1;
  while (digit >= kDigitsAtOnce) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kDigitsAtOnce; ++i) sum += histogram[digit - i];
    if (sum >= *k) break;
    *k -= sum;
    digit -= kDigitsAtOnce;
  }
  while (histogram[digit] < *k) *k -= histogram[digit--];
  *inside = histogram[digit];
  *range = {range->lowest + (digit << shift), shift};
  return true;
}

// The keys inside the range, at most kFew; returns how many.
template <class T>
uint64_t take_few(const T* keys, uint64_t m, KeyRange range, uint32_t* few) {
  uint64_t found = 0;
  for (uint64_t j = 0; j < m; ++j) {
    const uint32_t key = key_of(keys[j]);
    few[found] = key;
    found += range.contains(key) ? 1U : 0U;
  }
  return found;
}

// `floor`: no key lies below. Of candidates the k-th is nearly always within a factor of two of it,
// which saves looking for the largest.
template <class T>
Cut cut_of(const T* keys, uint64_t m, uint64_t k, uint32_t floor) {
  KeyRange range{floor, floor == 0 ? 31U : 23U};
  uint64_t inside = m;
  if (m > kFew && !narrow(keys, m, kAllOutside, &range, &k, &inside)) {
    range = range_of_all(keys, m);
    narrow(keys, m, 0, &range, &k, &inside);
  }
  if (m <= kFew) range = {};
  while (inside > kFew && range.bits > 0) narrow(keys, m, 0, &range, &k, &inside);
  if (range.bits == 0) return {range.lowest, k};
  std::array<uint32_t, kFew + 1> few{};
  const uint64_t found = take_few(keys, m, range, few.data());
  uint32_t* const nth = few.data() + (k - 1);
  std::nth_element(few.data(), nth, few.data() + found, std::greater<>());
  const uint32_t key = *nth;
  const auto larger = std::count_if(few.data(), nth, [key](uint32_t x) { return x > key; });
  return {key, k - static_cast<uint64_t>(larger)};
}

// The elements of one piece that the cut keeps.
struct KeptEntries {
  std::array<uint32_t, kSelectBlock + 1> index;
  std::array<float, kSelectBlock + 1> value;

  uint64_t take(const uint32_t* indices, const float* values, uint64_t m, Cut* cut) {
    const uint32_t key_of_cut = cut->key;
    uint64_t ties = cut->ties;
    uint64_t kept = 0;
    for (uint64_t j = 0; j < m; ++j) {
      const uint32_t key = magnitude_key(values[j]);
      index[kept] = indices[j];
      value[kept] = values[j];
      // No branch, not even a compiler's: whether a candidate is kept is a toss.
      const uint64_t tie = uint64_t{key == key_of_cut} & uint64_t{ties != 0};
      kept += uint64_t{key > key_of_cut} + tie;
      ties -= tie;
    }
    cut->ties = ties;
    return kept;
  }
};

void write_piece(const uint32_t* index, const float* value, uint64_t m, Cut* cut,
                 SparseWriter& writer) {
  KeptEntries kept;
  const uint64_t count = kept.take(index, value, m, cut);
  writer.append(kept.index.data(), kept.value.data(), count);
}

}  // namespace

uint32_t kth_largest(const uint32_t* keys, uint64_t m, uint64_t k) noexcept {
  return cut_of(keys, m, k, 0).key;
}

uint32_t bound_of_kth(const uint32_t* keys, uint64_t m, uint64_t k) noexcept {
  KeyRange range = range_of_all(keys, m);
  uint64_t rank = k;
  uint64_t inside = m;
  narrow(keys, m, 0, &range, &rank, &inside);
  return inside <= k / 8 + 8 ? range.lowest : kth_largest(keys, m, k);
}

Cut exact_cut(const float* values, uint64_t m, uint64_t k, uint32_t floor) noexcept {
  return cut_of(values, m, k, floor);
}

Cut CandidateList::exact_cut(uint64_t k) const noexcept {
  return cut_of(value_, count_, k, floor_);
}

uint64_t CandidateList::entries(uint64_t capacity) noexcept {
  return round_up(capacity + kSelectBlock + kSelectSlack, 16);
}

uint64_t CandidateList::scratch_bytes(uint64_t n, uint64_t capacity) noexcept {
  const uint64_t blocks = ceil_div(n, kSelectBlock);
  return round_up(blocks * sizeof(BlockEntries), 64) +
         round_up(ceil_div(blocks, kBlocksPerShare) * sizeof(Share), 64) + entries(capacity) * 16;
}

CandidateList::CandidateList(MutBytes scratch, uint64_t n, uint64_t capacity) noexcept
    : n_(n), blocks_(ceil_div(n, kSelectBlock)), capacity_(capacity) {
  uint8_t* p = scratch.data();
  piece_ = reinterpret_cast<BlockEntries*>(p);
  p += round_up(blocks_ * sizeof(BlockEntries), 64);
  share_ = reinterpret_cast<Share*>(p);
  p += round_up(ceil_div(blocks_, kBlocksPerShare) * sizeof(Share), 64);
  const uint64_t room = entries(capacity);
  index_ = reinterpret_cast<uint32_t*>(p);
  value_ = reinterpret_cast<float*>(index_ + room);
  kept_index_ = reinterpret_cast<uint32_t*>(value_ + room);
  kept_value_ = reinterpret_cast<float*>(kept_index_ + room);
}

uint64_t CandidateList::select_block(Source from, uint64_t block, Isa isa, uint32_t* index,
                                     float* value) const noexcept {
  const kernels::SelectKernels& k = kernels::select_kernels(isa);
  const uint64_t begin = block * kSelectBlock;
  const auto base = static_cast<uint32_t>(begin);
  const float* const x = from.values + begin;
  const uint32_t m = block_size(block);
  const uint64_t behind = n_ - begin - m;
  if (from.residual == nullptr) return k.select(x, m, behind, base, floor_, index, value);
  return k.select_sum(x, from.residual + begin, m, behind, base, floor_, index, value);
}

// A thread of several first selects into memory of its own, then takes room for what it found.
void CandidateList::collect_block(Source from, uint64_t block, Isa isa,
                                  std::atomic<uint64_t>& taken) noexcept {
  alignas(64) uint32_t index[kSelectBlock + kSelectSlack];
  alignas(64) float value[kSelectBlock + kSelectSlack];
  const uint64_t found = select_block(from, block, isa, index, value);
  const uint64_t at = taken.fetch_add(found, std::memory_order_relaxed);
  piece_[block] = {at, found};
  if (at + found <= capacity_) {
    std::copy_n(index, found, index_ + at);
    std::copy_n(value, found, value_ + at);
  }
}

void CandidateList::collect_alone(Source from, Isa isa, Pass pass) noexcept {
  for (uint64_t i = 0; i < blocks_; ++i) {
    const uint64_t block = pass == Pass::forward ? i : blocks_ - 1 - i;
    const uint64_t at = std::min(count_, capacity_);  // past it nothing is kept, only counted
    const uint64_t found = select_block(from, block, isa, index_ + at, value_ + at);
    piece_[block] = {at, found};
    count_ += found;
  }
}

uint64_t CandidateList::collect(Source from, uint32_t floor, const Work& work, Pass pass) noexcept {
  floor_ = floor;
  count_ = 0;
  if (work.pool == nullptr) {
    collect_alone(from, work.isa, pass);
    return count_;
  }
  std::atomic<uint64_t> taken{0};
  const auto collect_blocks = [&](uint64_t begin, uint64_t end) {
    for (uint64_t b = begin; b < end; ++b) collect_block(from, b, work.isa, taken);
  };
  for_slices(work.pool, blocks_, kBlocksPerTask, collect_blocks, pass);
  count_ = taken.load(std::memory_order_relaxed);
  return count_;
}

uint32_t CandidateList::block_size(uint64_t block) const noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(kSelectBlock, n_ - block * kSelectBlock));
}

uint64_t CandidateList::count_from(uint32_t key, Isa isa) const noexcept {
  return kernels::select_kernels(isa).count(value_, count_, key);
}

void CandidateList::write(Cut cut, const Work& work, SparseWriter& writer) noexcept {
  if (work.pool != nullptr) return write_shared(cut, work, writer);
  for_each_piece([&](const uint32_t* index, const float* value, uint64_t m) {
    write_piece(index, value, m, &cut, writer);
  });
}

// Gives every share its place among what is kept; ties go to the lowest indices. Returns how many
// are kept.
uint64_t CandidateList::place_shares(Cut cut, const Work& work) noexcept {
  const uint64_t shares = ceil_div(blocks_, kBlocksPerShare);
  for_slices(work.pool, blocks_, kBlocksPerShare, [&](uint64_t begin, uint64_t end) {
    Share share{0, 0};
    for_pieces(begin, end, [&](const uint32_t*, const float* value, uint64_t m) {
      for (uint64_t j = 0; j < m; ++j) {
        share.kept += magnitude_key(value[j]) > cut.key ? 1U : 0U;
        share.ties += magnitude_key(value[j]) == cut.key ? 1U : 0U;
      }
    });
    share_[begin / kBlocksPerShare] = share;
  });
  uint64_t place = 0;
  for (uint64_t s = 0; s < shares; ++s) {
    const uint64_t ties = std::min(cut.ties, share_[s].ties);
    const uint64_t kept = share_[s].kept + ties;
    share_[s] = {place, ties};
    cut.ties -= ties;
    place += kept;
  }
  return place;
}

// Counts, moves what is kept together, and packs it in parts that begin with a byte.
void CandidateList::write_shared(Cut cut, const Work& work, const SparseWriter& writer) noexcept {
  const uint64_t total = place_shares(cut, work);
  for_slices(work.pool, blocks_, kBlocksPerShare, [&](uint64_t begin, uint64_t end) {
    Cut own{cut.key, share_[begin / kBlocksPerShare].ties};
    uint64_t at = share_[begin / kBlocksPerShare].kept;
    for_pieces(begin, end, [&](const uint32_t* index, const float* value, uint64_t m) {
      KeptEntries kept;
      const uint64_t count = kept.take(index, value, m, &own);
      std::copy_n(kept.index.data(), count, kept_index_ + at);
      std::copy_n(kept.value.data(), count, kept_value_ + at);
      at += count;
    });
  });
  for_slices(work.pool, total, kPackedAtOnce, [&](uint64_t first, uint64_t end) {
    SparseWriter part = writer.part(first);
    part.append(kept_index_ + first, kept_value_ + first, end - first);
    part.finish();
  });
}

void write_cut(const float* x, uint64_t n, Cut cut, Isa isa, SparseWriter& writer) noexcept {
  alignas(64) uint32_t index[kSelectBlock + kSelectSlack];
  alignas(64) float value[kSelectBlock + kSelectSlack];
  for (uint64_t begin = 0; begin < n; begin += kSelectBlock) {
    const auto m = static_cast<uint32_t>(std::min<uint64_t>(kSelectBlock, n - begin));
    const uint32_t floor = cut.ties != 0 ? cut.key : cut.key + 1;
    const uint32_t found = kernels::select_kernels(isa).select(
        x + begin, m, n - begin - m, static_cast<uint32_t>(begin), floor, index, value);
    write_piece(index, value, found, &cut, writer);
  }
}

}  // namespace laconic::codecs
