// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/threelc/zero_run.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/threelc/zero_run_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef LACONIC_ZERO_RUN_ONCE
#define LACONIC_ZERO_RUN_ONCE
namespace laconic::kernels {

/// Row k: the positions of the set bits of k, then zeros: a left-packing shuffle of eight bytes,
/// and at the same time the list of what it keeps.
struct LeftPack {
  alignas(64) uint8_t rows[256][8];
};
constexpr LeftPack make_left_pack() {
  LeftPack table{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint32_t kept = 0;
    for (uint32_t bit = 0; bit < 8; ++bit) {
      if ((mask >> bit & 1U) != 0) table.rows[mask][kept++] = static_cast<uint8_t>(bit);
    }
  }
  return table;
}
inline constexpr LeftPack kLeftPack = make_left_pack();

/// Bytes of digits that run_encode() turns into kept positions before it computes codes.
inline constexpr uint64_t kRunBlock = 1024;

}  // namespace laconic::kernels
#endif  // LACONIC_ZERO_RUN_ONCE

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using B = hn::ScalableTag<uint8_t>;
using B8 = hn::CappedTag<uint8_t, 8>;

// Bit i: compare(byte i), for 64 bytes.
template <class Compare>
HWY_INLINE uint64_t bits_of_64(const uint8_t* bytes, Compare compare) {
  const hn::CappedTag<uint8_t, 64> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  uint64_t all = 0;
  for (size_t k = 0; k < 64; k += kLanes) {
    uint8_t stored[8] = {};
    hn::StoreMaskBits(d, compare(d, hn::LoadU(d, bytes + k)), stored);
    uint64_t part = 0;
    std::memcpy(&part, stored, kLanes / 8);
    all |= part << k;
  }
  return all;
}

HWY_INLINE uint64_t zero_bits(const uint8_t* bytes) {
  return bits_of_64(bytes,
                    [](auto d, auto v) HWY_ATTR { return hn::Eq(v, hn::Set(d, kZeroByte)); });
}
HWY_INLINE uint64_t run_code_bits(const uint8_t* bytes) {
  return bits_of_64(bytes, [](auto d, auto v) HWY_ATTR {
    return hn::Eq(hn::Max(v, hn::Set(d, kFirstRunCode)), v);
  });
}

uint64_t leading_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const uint64_t others = ~zero_bits(bytes + i);
    if (others != 0) return i + static_cast<uint64_t>(__builtin_ctzll(others));
  }
  return i + kZeroRunScalar.leading_zeros(bytes + i, n - i);
}

uint64_t trailing_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t end = n;
  for (; end >= 64; end -= 64) {
    const uint64_t others = ~zero_bits(bytes + end - 64);
    if (others != 0) return n - end + static_cast<uint64_t>(__builtin_clzll(others));
  }
  return n - end + kZeroRunScalar.trailing_zeros(bytes, end);
}

// A kept byte is one that the code represents: every byte that is not zero, the last of a run, and
// every 14th of a run. Its code follows from its distance to the kept byte before it: 1 → the byte
// itself, d ≥ 2 → 241 + d. So the kept bytes and their positions (mod 256) are packed to the left,
// and codes are computed on full vectors.
struct KeptBytes {
  alignas(64) uint8_t byte[kRunBlock + 64];
  alignas(64) uint8_t position[64 + kRunBlock + 64];  // [63] is the last of the block before
};

// For 64 bytes with zeros at `zero`: the kept ones. `waiting`: number of dropped zeros right before
// them.
HWY_INLINE uint64_t kept_bits(uint64_t zero, bool zero_follows, uint32_t waiting) {
  const uint64_t next = zero >> 1 | static_cast<uint64_t>(zero_follows) << 63;
  const uint64_t last_of_run = zero & ~next;
  // Bit p of w: a run that fills [p − 13, p]. A 14th byte is one of them, 14 bytes after a run's
  // start or after another 14th.
  const uint64_t w2 = zero & zero << 1, w4 = w2 & w2 << 2, w8 = w4 & w4 << 4, w = w8 & w8 << 6;
  const uint64_t starts = zero & ~(zero << 1) & ~uint64_t{1};
  const uint32_t missing = kLongestRun - waiting;
  const uint64_t continued = (uint64_t{1} << missing) - 1;
  uint64_t fourteenth = starts << 13 & w;
  if ((zero & continued) == continued) fourteenth |= uint64_t{1} << (missing - 1);
  fourteenth |= fourteenth << 14 & w;
  fourteenth |= fourteenth << 28 & w << 14 & w;
  fourteenth |= fourteenth << 14 & w;
  return ~zero | last_of_run | fourteenth;
}

// Appends the kept ones of 64 bytes whose first has position `base`.
HWY_INLINE uint64_t append_kept(const uint8_t* bytes, uint64_t keep, uint8_t base, KeptBytes& kept,
                                uint64_t count) {
  const B8 d;
  auto first = hn::Set(d, base);
  const auto eight = hn::Set(d, 8);
  for (uint32_t k = 0; k < 64; k += 8) {
    const auto row = hn::Load(d, kLeftPack.rows[keep >> k & 0xFFU]);
    const auto v = hn::TableLookupBytes(hn::LoadU(d, bytes + k), row);
    hn::StoreU(v, d, kept.byte + count);
    hn::StoreU(hn::Add(row, first), d, kept.position + 64 + count);
    first = hn::Add(first, eight);
    count += static_cast<uint64_t>(__builtin_popcountll(keep >> k & 0xFFU));
  }
  return count;
}

HWY_INLINE hn::Vec<B> codes_at(const KeptBytes& kept, uint64_t i) {
  const B d;
  const auto distance =
      hn::Sub(hn::LoadU(d, kept.position + 64 + i), hn::LoadU(d, kept.position + 63 + i));
  const auto literal = hn::LoadU(d, kept.byte + i);
  const auto run = hn::Add(distance, hn::Set(d, kRunBase));
  return hn::IfThenElse(hn::Eq(distance, hn::Set(d, 1)), literal, run);
}

HWY_INLINE void write_codes(const KeptBytes& kept, uint64_t count, uint8_t* coded) {
  const B d;
  const size_t lanes = hn::Lanes(d);
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(codes_at(kept, i), d, coded + i);
  if (i == count) return;
  alignas(64) uint8_t last[64];
  hn::Store(codes_at(kept, i), d, last);
  std::memcpy(coded + i, last, count - i);
}

uint64_t run_encode(const uint8_t* bytes, uint64_t n, uint8_t* coded) {
  KeptBytes kept;
  kept.position[63] = 255;  // the place before position 0
  uint64_t made = 0;
  uint32_t waiting = 0;
  uint64_t zero = n >= 64 ? zero_bits(bytes) : 0;
  uint64_t at = 0;
  while (at + 64 <= n) {
    uint64_t count = 0;
    const uint64_t block_end = HWY_MIN(n, at + kRunBlock);
    for (; at + 64 <= block_end; at += 64) {
      const bool more = at + 128 <= n;
      const uint64_t next = more ? zero_bits(bytes + at + 64) : 0;
      const bool zero_follows = at + 64 < n && bytes[at + 64] == kZeroByte;
      const uint64_t keep = kept_bits(zero, zero_follows, waiting);
      count = append_kept(bytes + at, keep, static_cast<uint8_t>(at), kept, count);
      waiting = static_cast<uint32_t>(__builtin_clzll(keep));
      zero = next;
    }
    write_codes(kept, count, coded + made);
    made += count;
    kept.position[63] = kept.position[63 + count];
  }
  if (at == n) return made;
  // Fewer than 64 are left; the byte after them is not zero.
  const uint64_t left = n - at;
  alignas(64) uint8_t last[64] = {};
  std::memcpy(last, bytes + at, left);
  const uint64_t mask = (uint64_t{1} << left) - 1;
  const uint64_t keep = kept_bits(zero_bits(last), false, waiting) & mask;
  const uint64_t count = append_kept(last, keep, static_cast<uint8_t>(at), kept, 0);
  write_codes(kept, count, coded + made);
  return made + count;
}

using Copy = hn::CappedTag<uint8_t, 32>;

// Whole vectors, so up to 31 bytes more than n are read and written.
HWY_INLINE void copy_loosely(const uint8_t* from, uint64_t n, uint8_t* to) {
  const Copy d;
  const size_t lanes = hn::Lanes(d);
  hn::StoreU(hn::LoadU(d, from), d, to);
  for (uint64_t i = lanes; i < n; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
}

// Run codes among 64 bytes up to which literals are copied in stretches: one branch per run is then
// cheaper than one store per byte.
constexpr int kFewRuns = 8;

// 64 coded bytes, 96 readable, run codes at `runs`: literals in stretches, each followed by a run.
HWY_INLINE uint8_t* expand_stretches(const uint8_t* coded, uint64_t runs, uint8_t* to) {
  const Copy d;
  const auto zeros = hn::Set(d, kZeroByte);
  const uint8_t* from = coded;
  for (; runs != 0; runs &= runs - 1) {
    const uint8_t* const run = coded + __builtin_ctzll(runs);
    copy_loosely(from, static_cast<uint64_t>(run - from), to);
    to += run - from;
    hn::StoreU(zeros, d, to);
    to += *run - kRunBase;
    from = run + 1;
  }
  coded += 64;
  copy_loosely(from, static_cast<uint64_t>(coded - from), to);
  to += coded - from;
  hn::StoreU(zeros, d, to);  // what follows is zero bytes again
  return to;
}

// Expands eight coded bytes of any kind without a data-dependent branch. Zero bytes follow `to`, so
// that only the first byte of each has to be written.
HWY_INLINE uint8_t* expand_8(const uint8_t* coded, uint8_t* to) {
  const B8 d;
  const hn::Repartition<uint64_t, B8> d64;
  const auto v = hn::LoadU(d, coded);
  const auto over = hn::SaturatedSub(v, hn::Set(d, kRunBase));  // of a run: its length, at least 2
  const auto is_run = hn::Eq(hn::Max(over, hn::Set(d, 2)), over);
  const auto first = hn::IfThenElse(is_run, hn::Set(d, kZeroByte), v);
  uint64_t bytes = hn::GetLane(hn::BitCast(d64, first));
  uint64_t lengths = hn::GetLane(hn::BitCast(d64, hn::Max(over, hn::Set(d, 1))));
  for (uint32_t i = 0; i < 8; ++i) {
    *to = static_cast<uint8_t>(bytes);
    to += lengths & 0xFF;
    bytes >>= 8;
    lengths >>= 8;
  }
  return to;
}

Expanded expand(const uint8_t* coded, uint64_t n, uint64_t want, uint8_t* bytes) {
  const Copy d;
  const uint8_t* from = coded;
  const uint8_t* const last = coded + n;
  uint8_t* to = bytes;
  const uint8_t* const end = bytes + want;
  // A step that starts before `end` needs zero bytes for the longest that eight codes can be.
  for (uint64_t i = 0; i < want + 8 * kLongestRun; i += hn::Lanes(d)) {
    hn::StoreU(hn::Set(d, kZeroByte), d, bytes + i);
  }
  while (last - from >= 96 && to < end) {
    const uint64_t runs = run_code_bits(from);
    if (__builtin_popcountll(runs) <= kFewRuns) {
      to = expand_stretches(from, runs, to);
      from += 64;
      continue;
    }
    for (uint32_t i = 0; i < 64 && to < end; i += 8, from += 8) to = expand_8(from, to);
  }
  for (; last - from >= 8 && to < end; from += 8) to = expand_8(from, to);
  if (to < end) {
    const auto left = static_cast<uint64_t>(last - from);
    const auto done = kZeroRunScalar.expand(from, left, static_cast<uint64_t>(end - to), to);
    from += done.consumed;
    to += done.produced;
  }
  return {static_cast<uint64_t>(from - coded), static_cast<uint64_t>(to - bytes)};
}

uint64_t expanded_size(const uint8_t* coded, uint64_t n) {
  const B d;
  const hn::Repartition<uint64_t, B> d64;
  const size_t lanes = hn::Lanes(d);
  const auto base = hn::Set(d, kRunBase);
  const auto one = hn::Set(d, 1);
  const auto lengths = [&](const uint8_t* p) HWY_ATTR {
    return hn::SumsOf8(hn::Max(hn::SaturatedSub(hn::LoadU(d, p), base), one));
  };
  auto sums = hn::Zero(d64);
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) sums = hn::Add(sums, lengths(coded + i));
  alignas(64) uint8_t last[64] = {};
  if (i < n) std::memcpy(last, coded + i, n - i);
  sums = hn::Add(sums, lengths(last));
  alignas(64) uint64_t parts[8] = {};
  hn::Store(sums, d64, parts);
  uint64_t size = 0;
  for (const uint64_t part : parts) size += part;
  return size - (lanes - (n - i));  // bytes after the last one were counted as one each
}

bool no_run_codes(const uint8_t* bytes, uint64_t n) {
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    if (run_code_bits(bytes + i) != 0) return false;
  }
  return kZeroRunScalar.no_run_codes(bytes + i, n - i);
}

constexpr ZeroRunKernels kTable{&leading_zeros, &trailing_zeros, &run_encode,
                                &expand,        &expanded_size,  &no_run_codes};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const ZeroRunKernels& zero_run_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kZeroRunScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
