// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse_select.h"

#include <algorithm>
#include <array>
#include <bit>

namespace laconic::codecs {
namespace {

using kernels::kSelectBlock;
using kernels::kSelectSlack;
using kernels::magnitude_key;

constexpr uint64_t kBlocksPerTask = 8;  // 128 KiB of floats
constexpr uint32_t kDigitBits = 11;
constexpr uint64_t kFew = 256;  // sorted out directly

// Keys seen as [lowest, lowest + 2^bits): one level of radix selection.
struct KeyRange {
  uint32_t lowest = 0;
  uint32_t bits = 31;

  [[nodiscard]] uint64_t end() const { return uint64_t{lowest} + (uint64_t{1} << bits); }
  [[nodiscard]] bool contains(uint32_t key) const { return key >= lowest && key < end(); }
};

// Keys may lie there as keys or as the floats that they are the keys of.
uint32_t key_of(uint32_t key) { return key; }
uint32_t key_of(float x) { return magnitude_key(x); }

template <class T>
KeyRange range_of_all(const T* keys, uint64_t m) {
  uint32_t low = 0xFFFFFFFFU;
  uint32_t high = 0;
  for (uint64_t j = 0; j < m; ++j) {
    low = std::min(low, key_of(keys[j]));
    high = std::max(high, key_of(keys[j]));
  }
  return {low, static_cast<uint32_t>(std::bit_width(high - low))};
}

// The digit of the range in which the k-th largest lies; k becomes its rank among that digit's
// keys.
template <class T>
KeyRange narrow(const T* keys, uint64_t m, KeyRange range, uint64_t* k, uint64_t* inside) {
  const uint32_t shift = range.bits > kDigitBits ? range.bits - kDigitBits : 0;
  std::array<uint32_t, (1U << kDigitBits)> histogram{};
  for (uint64_t j = 0; j < m; ++j) {
    const uint32_t key = key_of(keys[j]);
    if (range.contains(key)) ++histogram[(key - range.lowest) >> shift];
  }
  uint32_t digit = (1U << (range.bits - shift)) - 1;
  while (histogram[digit] < *k) *k -= histogram[digit--];
  *inside = histogram[digit];
  return {range.lowest + (digit << shift), shift};
}

// Of the keys inside the range, at most kFew, the k-th largest; k becomes its rank among equals.
template <class T>
uint32_t kth_of_few(const T* keys, uint64_t m, KeyRange range, uint64_t* k) {
  std::array<uint32_t, kFew> few{};
  uint64_t found = 0;
  for (uint64_t j = 0; j < m; ++j) {
    if (range.contains(key_of(keys[j]))) few[found++] = key_of(keys[j]);
  }
  const auto nth = few.begin() + static_cast<std::ptrdiff_t>(*k - 1);
  const auto end = few.begin() + static_cast<std::ptrdiff_t>(found);
  std::nth_element(few.begin(), nth, end, std::greater<>());
  const uint32_t key = *nth;
  *k -= static_cast<uint64_t>(
      std::count_if(few.begin(), nth, [key](uint32_t other) { return other > key; }));
  return key;
}

template <class T>
Cut cut_of(const T* keys, uint64_t m, uint64_t k) {
  KeyRange range;
  uint64_t inside = m;
  if (m > kFew) range = range_of_all(keys, m);
  while (inside > kFew && range.bits > 0) range = narrow(keys, m, range, &k, &inside);
  if (range.bits == 0) return {range.lowest, k};
  const uint32_t key = kth_of_few(keys, m, range, &k);
  return {key, k};
}

// Elements that the cut keeps of one piece, through a buffer of a block.
void write_piece(const uint32_t* index, const float* value, uint64_t m, Cut* cut,
                 SparseWriter& writer) {
  std::array<uint32_t, kSelectBlock + 1> kept_index;
  std::array<float, kSelectBlock + 1> kept_value;
  uint64_t kept = 0;
  for (uint64_t j = 0; j < m; ++j) {
    const uint32_t key = magnitude_key(value[j]);
    const bool tie = key == cut->key && cut->ties != 0;
    kept_index[kept] = index[j];
    kept_value[kept] = value[j];
    kept += key > cut->key || tie ? 1U : 0U;
    cut->ties -= tie ? 1U : 0U;
  }
  writer.append(kept_index.data(), kept_value.data(), kept);
}

}  // namespace

uint32_t kth_largest(const uint32_t* keys, uint64_t m, uint64_t k) noexcept {
  return cut_of(keys, m, k).key;
}

Cut exact_cut(const float* values, uint64_t m, uint64_t k) noexcept { return cut_of(values, m, k); }

uint64_t CandidateList::scratch_bytes(uint64_t n, uint64_t capacity) noexcept {
  const uint64_t entries = round_up(capacity, 16);
  return round_up(ceil_div(n, kSelectBlock) * sizeof(Piece), 64) + entries * 8;
}

CandidateList::CandidateList(MutBytes scratch, uint64_t n, uint64_t capacity) noexcept
    : n_(n), blocks_(ceil_div(n, kSelectBlock)), capacity_(capacity) {
  uint8_t* p = scratch.data();
  piece_ = reinterpret_cast<Piece*>(p);
  p += round_up(blocks_ * sizeof(Piece), 64);
  index_ = reinterpret_cast<uint32_t*>(p);
  value_ = reinterpret_cast<float*>(p + round_up(capacity, 16) * sizeof(uint32_t));
}

uint64_t CandidateList::collect_block(const float* x, uint64_t block, Isa isa,
                                      std::atomic<uint64_t>& taken) noexcept {
  alignas(64) uint32_t index[kSelectBlock + kSelectSlack];
  alignas(64) float value[kSelectBlock + kSelectSlack];
  const uint64_t begin = block * kSelectBlock;
  const auto m = static_cast<uint32_t>(std::min<uint64_t>(kSelectBlock, n_ - begin));
  const uint64_t found = kernels::select_kernels(isa).select(
      x + begin, m, static_cast<uint32_t>(begin), floor_, index, value);
  const uint64_t at = taken.fetch_add(found, std::memory_order_relaxed);
  piece_[block] = {at, found};
  if (at + found <= capacity_) {
    std::copy_n(index, found, index_ + at);
    std::copy_n(value, found, value_ + at);
  }
  return found;
}

uint64_t CandidateList::collect(const float* x, uint32_t floor, const Work& work,
                                Pass pass) noexcept {
  floor_ = floor;
  std::atomic<uint64_t> taken{0};
  const uint64_t tasks = ceil_div(blocks_, kBlocksPerTask);
  parallel_for(work.pool, tasks, [&](uint64_t i) {
    const uint64_t task = pass == Pass::forward ? i : tasks - 1 - i;
    const uint64_t end = std::min(blocks_, (task + 1) * kBlocksPerTask);
    for (uint64_t b = task * kBlocksPerTask; b < end; ++b) collect_block(x, b, work.isa, taken);
  });
  count_ = taken.load(std::memory_order_relaxed);
  return count_;
}

uint64_t CandidateList::count_from(uint32_t key, Isa isa) const noexcept {
  return kernels::select_kernels(isa).count(value_, count_, key);
}

void CandidateList::write(Cut cut, SparseWriter& writer) const noexcept {
  for_each_piece([&](const uint32_t* index, const float* value, uint64_t m) {
    write_piece(index, value, m, &cut, writer);
  });
}

void write_cut(const float* x, uint64_t n, Cut cut, Isa isa, SparseWriter& writer) noexcept {
  alignas(64) uint32_t index[kSelectBlock + kSelectSlack];
  alignas(64) float value[kSelectBlock + kSelectSlack];
  for (uint64_t begin = 0; begin < n; begin += kSelectBlock) {
    const auto m = static_cast<uint32_t>(std::min<uint64_t>(kSelectBlock, n - begin));
    const uint32_t floor = cut.ties != 0 ? cut.key : cut.key + 1;
    const uint32_t found = kernels::select_kernels(isa).select(
        x + begin, m, static_cast<uint32_t>(begin), floor, index, value);
    write_piece(index, value, found, &cut, writer);
  }
}

}  // namespace laconic::codecs
