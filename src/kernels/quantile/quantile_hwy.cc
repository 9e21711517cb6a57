// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <utility>

#include "kernels/core/packed_codes.h"
#include "kernels/quantile/quantile.h"
#include "kernels/quantile/quantile_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantile/quantile_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)

// Elements whose indices lie on the stack between the vector loop that computes them and the scalar
// one that counts.
constexpr uint64_t kBlock = 512;

// Bins whose thresholds have place in registers.
constexpr uint32_t kSearched = LACONIC_AVX512 || LACONIC_AVX2 ? 64 : 0;

/// body(i) for i in [0, n), eight a turn.
template <class Body>
HWY_INLINE void unrolled(uint64_t n, Body body) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (uint64_t j = 0; j < 8; ++j) body(i + j);
  }
  for (; i < n; ++i) body(i);
}

HWY_INLINE VU images(VI bits) {
  const VI sign = hn::ShiftRight<31>(bits);
  const VI magnitude = hn::And(bits, hn::Set(I32(), 0x7FFFFFFF));
  const VI image = hn::Sub(hn::Xor(magnitude, sign), sign);
  return hn::Xor(hn::BitCast(U32(), image), hn::Set(U32(), 0x80000000U));
}
HWY_INLINE VI load_bits(const float* x) { return hn::BitCast(I32(), hn::LoadU(F32(), x)); }

#if LACONIC_AVX512
/// 32 bits from every offset in bytes. Highway 1.0 gathers into something undefined, and so waits
/// for the last gather.
HWY_INLINE VU gather(const void* table, VU offset) {
  return VU{_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, offset.raw, table, 1)};
}

/// Elements of a table.
HWY_INLINE VU lookup(const uint8_t* table, VU index) {
  return hn::And(gather(table, index), hn::Set(U32(), 0xFF));
}
HWY_INLINE VU lookup(const uint16_t* table, VU index) {
  return hn::And(gather(table, hn::ShiftLeft<1>(index)), hn::Set(U32(), 0xFFFF));
}
HWY_INLINE VU lookup(const uint32_t* table, VU index) {
  return gather(table, hn::ShiftLeft<2>(index));
}
#else
/// The images of x[0, n).
HWY_INLINE void store_images(const float* x, uint64_t n, uint32_t* HWY_RESTRICT image) {
  uint64_t i = 0;
  for (; i + lanes32() <= n; i += lanes32()) {
    prefetch_span(x + i, lanes32() * sizeof(float));
    hn::Store(images(load_bits(x + i)), U32(), image + i);
  }
  for (; i < n; ++i) image[i] = quantile_image(x[i]);
}
#endif

// ---- a sort ----
//
// A network of minima and maxima, so its time does not depend on the data. Every lane of the rows
// is a column: columns are sorted, then merged, two halves of a group of lanes at a time. A merge
// begins with a comparison of every element with its mirror image, and halves the distance from
// then on.

constexpr size_t kSortLanes = HWY_MAX_BYTES / sizeof(uint32_t);

HWY_INLINE VU load_row(const uint32_t* rows, uint64_t r) {
  return hn::Load(U32(), rows + r * kSortLanes);
}
HWY_INLINE void store_row(VU v, uint32_t* rows, uint64_t r) {
  hn::Store(v, U32(), rows + r * kSortLanes);
}

HWY_INLINE void put_in_order(VU& a, VU& b) {
  const VU low = hn::Min(a, b);
  b = hn::Max(a, b);
  a = low;
}

/// M. W. Green's comparisons, which sort sixteen.
constexpr uint8_t kGreen[60][2] = {
    {0, 1},   {2, 3},   {4, 5},   {6, 7},   {8, 9},  {10, 11}, {12, 13}, {14, 15}, {0, 2},  {4, 6},
    {8, 10},  {12, 14}, {1, 3},   {5, 7},   {9, 11}, {13, 15}, {0, 4},   {8, 12},  {1, 5},  {9, 13},
    {2, 6},   {10, 14}, {3, 7},   {11, 15}, {0, 8},  {1, 9},   {2, 10},  {3, 11},  {4, 12}, {5, 13},
    {6, 14},  {7, 15},  {5, 10},  {6, 9},   {3, 12}, {13, 14}, {4, 8},   {7, 11},  {1, 2},  {1, 4},
    {7, 13},  {2, 8},   {11, 14}, {2, 4},   {5, 6},  {9, 10},  {11, 13}, {3, 8},   {7, 12}, {6, 8},
    {10, 12}, {3, 5},   {7, 9},   {3, 4},   {5, 6},  {7, 8},   {9, 10},  {11, 12}, {6, 7},  {8, 9}};

template <size_t... kPair>
HWY_INLINE void sort_sixteen(VU* v, std::index_sequence<kPair...>) {
  (put_in_order(v[kGreen[kPair][0]], v[kGreen[kPair][1]]), ...);
}

/// Comparisons at the distances kRows / 2, …, 1.
template <size_t kRows>
HWY_INLINE void halve(VU* v) {
  if constexpr (kRows >= 2) {
    for (size_t i = 0; i < kRows / 2; ++i) put_in_order(v[i], v[i + kRows / 2]);
    halve<kRows / 2>(v);
    halve<kRows / 2>(v + kRows / 2);
  }
}

/// Steps of a merge in columns at the distances `distance`, distance / 2, …, as many as kRows
/// allow.
template <size_t kRows>
HWY_INLINE void merge_steps(uint32_t* at, uint64_t rows, uint64_t distance) {
  const uint64_t step = 2 * distance / kRows;
  for (uint64_t b = 0; b < rows; b += 2 * distance) {
    for (uint64_t r = b; r < b + step; ++r) {
      VU v[kRows];
      for (uint64_t i = 0; i < kRows; ++i) v[i] = load_row(at, r + i * step);
      halve<kRows>(v);
      for (uint64_t i = 0; i < kRows; ++i) store_row(v[i], at, r + i * step);
    }
  }
}

/// All steps from a distance on.
HWY_INLINE void merge_from(uint32_t* at, uint64_t rows, uint64_t distance) {
  for (; distance > 8; distance /= 8) merge_steps<8>(at, rows, distance);
  if (distance == 8) return merge_steps<16>(at, rows, distance);
  if (distance == 4) return merge_steps<8>(at, rows, distance);
  if (distance == 2) return merge_steps<4>(at, rows, distance);
  merge_steps<2>(at, rows, distance);
}

/// Columns sorted in stretches of `sorted` rows become so in stretches of twice as many.
HWY_INLINE void merge_columns(uint32_t* at, uint64_t rows, uint64_t sorted) {
  const uint64_t step = sorted / 4;
  for (uint64_t b = 0; b < rows; b += 2 * sorted) {
    for (uint64_t r = 0; r < step; ++r) {
      const uint64_t low = b + r, high = b + sorted + (step - 1 - r);
      VU v[8];
      for (uint64_t i = 0; i < 4; ++i) v[i] = load_row(at, low + i * step);
      for (uint64_t i = 0; i < 4; ++i) v[4 + i] = load_row(at, high + i * step);
      for (uint64_t i = 0; i < 4; ++i) put_in_order(v[i], v[7 - i]);
      halve<4>(v);
      halve<4>(v + 4);
      for (uint64_t i = 0; i < 4; ++i) store_row(v[i], at, low + i * step);
      for (uint64_t i = 0; i < 4; ++i) store_row(v[4 + i], at, high + i * step);
    }
  }
  merge_from(at, rows, sorted / 8);
}

/// Lanes l and l ^ kDistance change places.
template <size_t kDistance>
HWY_INLINE VU swap_lanes(VU v) {
  if constexpr (kDistance == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kDistance == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(U32(), v, v);
  }
}
/// Each group of so many lanes backwards.
template <size_t kGroup>
HWY_INLINE VU backwards(VU v) {
  if constexpr (kGroup == 2) {
    return hn::Shuffle2301(v);
  } else if constexpr (kGroup == 4) {
    return hn::Shuffle0123(v);
  } else if constexpr (kGroup == 8) {
    return hn::SwapAdjacentBlocks(hn::Shuffle0123(v));
  } else {
    return hn::Reverse(U32(), v);
  }
}
/// Lanes l with l & kDistance from `set`, the others from `clear`.
template <size_t kDistance>
HWY_INLINE VU choose(VU set, VU clear) {
  using U64 = hn::RepartitionToWide<U32>;
  if constexpr (kDistance == 1) {
    return hn::OddEven(set, clear);
  } else if constexpr (kDistance == 2) {
    return hn::BitCast(U32(), hn::OddEven(hn::BitCast(U64(), set), hn::BitCast(U64(), clear)));
  } else if constexpr (kDistance == 4) {
    return hn::OddEvenBlocks(set, clear);
  } else {
    return hn::ConcatUpperLower(U32(), set, clear);
  }
}

template <size_t kDistance>
HWY_INLINE void halve_lanes(VU& v) {
  if constexpr (kDistance >= 1) {
    const VU other = swap_lanes<kDistance>(v);
    v = choose<kDistance>(hn::Max(v, other), hn::Min(v, other));
    halve_lanes<kDistance / 2>(v);
  }
}

/// Groups of kGroup columns, each one sequence from lane to lane, become such groups of twice as
/// many.
template <size_t kGroup>
HWY_INLINE void merge_lanes(uint32_t* at, uint64_t rows) {
  if constexpr (kGroup < kSortLanes) {
    for (uint64_t r = 0; r < rows / 2; ++r) {
      VU a = load_row(at, r), b = backwards<2 * kGroup>(load_row(at, rows - 1 - r));
      const VU low = hn::Min(a, b), high = hn::Max(a, b);
      a = choose<kGroup>(high, low);
      b = backwards<2 * kGroup>(choose<kGroup>(low, high));
      halve_lanes<kGroup / 2>(a);
      halve_lanes<kGroup / 2>(b);
      store_row(a, at, r);
      store_row(b, at, rows - 1 - r);
    }
    merge_from(at, rows, rows / 2);
    merge_lanes<2 * kGroup>(at, rows);
  }
}

/// Block b of a vector to `to` + 4·b·stride.
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, uint32_t* to, uint64_t stride) {
  if constexpr (hn::MaxLanes(d) == 4) {
    hn::Store(v, d, to);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), to, stride);
    store_blocks(half, hn::UpperHalf(half, v), to + hn::MaxLanes(half) * stride, stride);
  }
}

/// Columns, one behind the other.
HWY_INLINE void join_columns(const uint32_t* HWY_RESTRICT at, uint64_t rows,
                             uint32_t* HWY_RESTRICT images) {
  using U64 = hn::RepartitionToWide<U32>;
  const auto wide = [](VU v) LACONIC_LAMBDA { return hn::BitCast(U64(), v); };
  for (uint64_t r = 0; r < rows; r += 4) {
    const VU a = load_row(at, r), b = load_row(at, r + 1), c = load_row(at, r + 2),
             d = load_row(at, r + 3);
    const auto low_ab = wide(hn::InterleaveLower(U32(), a, b));
    const auto low_cd = wide(hn::InterleaveLower(U32(), c, d));
    const auto high_ab = wide(hn::InterleaveUpper(U32(), a, b));
    const auto high_cd = wide(hn::InterleaveUpper(U32(), c, d));
    const auto put_four = [&](uint64_t lane, auto v) LACONIC_LAMBDA {
      store_blocks(U32(), hn::BitCast(U32(), v), images + lane * rows + r, rows);
    };
    put_four(0, hn::InterleaveLower(U64(), low_ab, low_cd));
    put_four(1, hn::InterleaveUpper(U64(), low_ab, low_cd));
    put_four(2, hn::InterleaveLower(U64(), high_ab, high_cd));
    put_four(3, hn::InterleaveUpper(U64(), high_ab, high_cd));
  }
}

/// The images of x[0, n), and behind them what is above all images; returns the largest absolute
/// bits.
HWY_INLINE uint32_t fill_rows(const float* x, uint64_t n, uint64_t rows,
                              uint32_t* HWY_RESTRICT to) {
  VI most = hn::Zero(I32());
  const auto take = [&](const float* from) LACONIC_LAMBDA {
    const VI bits = load_bits(from);
    most = hn::Max(most, hn::And(bits, hn::Set(I32(), 0x7FFFFFFF)));
    return images(bits);
  };
  const VU behind = hn::Set(U32(), ~0U);
  const uint64_t whole = n / kSortLanes, left = n % kSortLanes;
  for (uint64_t r = 0; r < whole; ++r) store_row(take(x + r * kSortLanes), to, r);
  for (uint64_t r = whole; r < rows; ++r) store_row(behind, to, r);
  if (left != 0) {
    HWY_ALIGN float rest[kSortLanes] = {};
    std::memcpy(rest, x + whole * kSortLanes, left * sizeof(float));
    store_row(hn::IfThenElse(hn::FirstN(U32(), left), take(rest), behind), to, whole);
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), most)));
}

uint32_t sort(const float* x, uint64_t n, uint32_t* sorted_images, uint32_t* other) {
  const uint64_t rows = quantile_sorted_room(n) / kSortLanes;
  const uint32_t most = fill_rows(x, n, rows, other);
  for (uint64_t r = 0; r < rows; r += 16) {
    VU v[16];
    for (uint64_t i = 0; i < 16; ++i) v[i] = load_row(other, r + i);
    sort_sixteen(v, std::make_index_sequence<60>());
    for (uint64_t i = 0; i < 16; ++i) store_row(v[i], other, r + i);
  }
  for (uint64_t sorted = 16; sorted < rows; sorted *= 2) merge_columns(other, rows, sorted);
  merge_lanes<1>(other, rows);
  join_columns(other, rows, sorted_images);
  return most;
}

// ---- counts ----

uint32_t count_upper(const float* x, uint64_t n, uint32_t* HWY_RESTRICT counts) {
  const size_t lanes = lanes32();
  VI most = hn::Zero(I32());
  HWY_ALIGN uint32_t index[kBlock];
  uint64_t i = 0;
  while (i + lanes <= n) {
    const uint64_t m = HWY_MIN(kBlock, (n - i) / lanes * lanes);
    for (uint64_t j = 0; j < m; j += lanes) {
      prefetch_span(x + i + j, lanes * sizeof(float));
      const VI bits = load_bits(x + i + j);
      most = hn::Max(most, hn::And(bits, hn::Set(I32(), 0x7FFFFFFF)));
      hn::Store(hn::ShiftRight<16>(images(bits)), U32(), index + j);
    }
    unrolled(m, [&](uint64_t j) LACONIC_LAMBDA { ++counts[index[j]]; });
    i += m;
  }
  auto largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), most)));
  for (; i < n; ++i) {
    ++counts[quantile_image(x[i]) >> 16];
    largest = HWY_MAX(largest, float_bits(x[i]) & 0x7FFFFFFFU);
  }
  return largest;
}

void sum_rows(const uint32_t* counts, uint64_t rows, uint32_t* sums) {
  for (uint64_t r = 0; r < rows; ++r) {
    const uint32_t* const row = counts + r * kQuantileRow;
    VU a = hn::Zero(U32()), b = a;
    for (uint64_t i = 0; i < kQuantileRow; i += 2 * lanes32()) {
      a = hn::Add(a, hn::LoadU(U32(), row + i));
      b = hn::Add(b, hn::LoadU(U32(), row + i + lanes32()));
    }
    sums[r] = hn::GetLane(hn::SumOfLanes(U32(), hn::Add(a, b)));
  }
}

uint64_t collect(const float* x, uint64_t n, const uint16_t* groups,
                 uint32_t* HWY_RESTRICT members) {
  uint64_t found = 0, i = 0;
#if LACONIC_AVX512
  const size_t lanes = lanes32();
  for (; i + lanes <= n; i += lanes) {
    prefetch_span(x + i, lanes * sizeof(float));
    const VU image = images(load_bits(x + i));
    const __m512i group = lookup(groups, hn::ShiftRight<16>(image)).raw;
    const __mmask16 in = _mm512_test_epi32_mask(group, group);
    _mm512_storeu_si512(members + found, _mm512_maskz_compress_epi32(in, image.raw));
    found += static_cast<uint64_t>(__builtin_popcount(in));
  }
  for (; i < n; ++i) {
    members[found] = quantile_image(x[i]);
    found += groups[members[found] >> 16] != 0 ? 1U : 0U;
  }
#else
  HWY_ALIGN uint32_t image[kBlock];
  for (; i < n; i += kBlock) {
    const uint64_t m = HWY_MIN(kBlock, n - i);
    store_images(x + i, m, image);
    unrolled(m, [&](uint64_t j) LACONIC_LAMBDA {
      const uint32_t at = image[j];
      members[found] = at;
      found += groups[at >> 16] != 0 ? 1U : 0U;
    });
  }
#endif
  return found;
}

// ---- codes ----

#if LACONIC_AVX512
HWY_INLINE VU codes_of(VU image, const QuantileBins& bins) {
  VU code = lookup(bins.base, hn::ShiftRight<16>(image));
  for (uint32_t step = bins.steps; step > 0; --step) {
    const uint32_t half = 1U << (step - 1);
    const VU threshold = lookup(bins.thresholds + half - 1, code);
    const __mmask16 reached = _mm512_cmpge_epu32_mask(image.raw, threshold.raw);
    code = VU{_mm512_mask_add_epi32(code.raw, reached, code.raw,
                                    _mm512_set1_epi32(static_cast<int>(half)))};
  }
  return code;
}
#endif

#if LACONIC_AVX512
/// Thresholds of at most 64 bins in registers, as a search tree: node 1 is the middle one, the
/// children of node k are 2k and 2k + 1. Levels 1 to 4 in one vector, then one, then two.
class Tree {
 public:
  HWY_INLINE explicit Tree(const QuantileBins& bins) {
    uint32_t nodes[64];
    nodes[0] = 0;
    for (uint32_t level = 0, k = 1; level < 6; ++level) {
      for (uint32_t j = 0; j < 1U << level; ++j, ++k) {
        nodes[k] = bins.thresholds[((2 * j + 1) << (5 - level)) - 1];
      }
    }
    for (uint32_t v = 0; v < 4; ++v) nodes_[v] = _mm512_loadu_si512(nodes + 16 * v);
  }
  HWY_INLINE VU codes_of(VU images) const {
    const __m512i image = images.raw, one = _mm512_set1_epi32(1);
    __m512i node = one;
    const auto descend = [&](__m512i threshold) LACONIC_LAMBDA {
      const __mmask16 right = _mm512_cmpge_epu32_mask(image, threshold);
      node = _mm512_add_epi32(node, node);
      node = _mm512_mask_add_epi32(node, right, node, one);
    };
    // the first level's threshold is the same for all
    descend(_mm512_permutexvar_epi32(one, nodes_[0]));
    for (uint32_t level = 1; level < 4; ++level) {
      descend(_mm512_permutexvar_epi32(node, nodes_[0]));
    }
    descend(_mm512_permutexvar_epi32(node, nodes_[1]));
    descend(_mm512_permutex2var_epi32(nodes_[2], node, nodes_[3]));
    return VU{_mm512_sub_epi32(node, _mm512_set1_epi32(64))};
  }

 private:
  __m512i nodes_[4];
};
#endif

/// Codes of x[0, n), n <= kBlock.
#if LACONIC_AVX512
template <class CodesOf>
HWY_INLINE void encode_block(const float* x, uint64_t n, const QuantileBins& bins,
                             uint8_t* HWY_RESTRICT codes, CodesOf codes_of) {
  const size_t lanes = lanes32();
  const hn::Rebind<uint8_t, U32> d8;
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    prefetch_span(x + i, lanes * sizeof(float));
    hn::StoreU(hn::TruncateTo(d8, codes_of(images(load_bits(x + i)))), d8, codes + i);
  }
  for (; i < n; ++i) {
    const uint32_t image = quantile_image(x[i]);
    codes[i] = static_cast<uint8_t>(bins.bins <= kSearched ? quantile_search(image, bins)
                                                           : quantile_code(image, bins));
  }
}
#else
HWY_INLINE void encode_block(const float* x, uint64_t n, const QuantileBins& bins,
                             uint8_t* HWY_RESTRICT codes) {
  HWY_ALIGN uint32_t image[kBlock];
  store_images(x, n, image);
  if (bins.steps > 1) {
    for (uint64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(quantile_code(image[i], bins));
    return;
  }
  // One threshold at most lies in a bucket, and the next one of all decides.
  const uint8_t* const base = bins.base;
  const uint32_t* const thresholds = bins.thresholds;
  unrolled(n, [&](uint64_t i) LACONIC_LAMBDA {
    const uint32_t at = image[i], code = base[at >> 16];
    codes[i] = static_cast<uint8_t>(code + (thresholds[code] <= at ? 1U : 0U));
  });
}
#endif

#if LACONIC_AVX2
/// The same with images and thresholds as signed integers. The second level's two thresholds
/// are chosen by
/// the first comparison, the third's four within half a register; eights need a whole one, and the
/// first comparisons choose among those.
class Tree {
 public:
  HWY_INLINE explicit Tree(const QuantileBins& bins) {
    // reached: image > threshold - 1
    const auto node = [&](uint32_t level, uint32_t j) LACONIC_LAMBDA {
      return static_cast<int>((bins.thresholds[((2 * j + 1) << (5 - level)) - 1] ^ 0x80000000U) -
                              1);
    };
    HWY_ALIGN int nodes[8 * 8];
    top_ = _mm256_set1_epi32(node(0, 0));
    left_ = _mm256_set1_epi32(node(1, 0));
    right_ = _mm256_set1_epi32(node(1, 1));
    for (uint32_t i = 0; i < 8; ++i) nodes[i] = node(2, i % 4);
    for (uint32_t i = 0; i < 8; ++i) nodes[8 + i] = node(3, i);
    for (uint32_t i = 0; i < 16; ++i) nodes[16 + i] = node(4, i);
    for (uint32_t i = 0; i < 32; ++i) nodes[32 + i] = node(5, i);
    for (uint32_t v = 0; v < 8; ++v) {
      eights_[v] = _mm256_load_si256(reinterpret_cast<const __m256i*>(nodes + 8 * v));
    }
  }
  /// 64 + code of eight.
  HWY_INLINE __m256i codes_of(VI bits) const {
    const __m256i sign = _mm256_srai_epi32(bits.raw, 31);
    const __m256i magnitude = _mm256_and_si256(bits.raw, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i image = _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign);
    const __m256i first = _mm256_cmpgt_epi32(image, top_);
    const __m256i second = _mm256_cmpgt_epi32(image, _mm256_blendv_epi8(left_, right_, first));
    __m256i node = _mm256_sub_epi32(_mm256_set1_epi32(2), first);
    node = _mm256_sub_epi32(_mm256_add_epi32(node, node), second);
    const auto descend = [&](__m256i threshold) LACONIC_LAMBDA {
      const __m256i reached = _mm256_cmpgt_epi32(image, threshold);
      node = _mm256_sub_epi32(_mm256_add_epi32(node, node), reached);
    };
    const auto eighth = [&](uint32_t v) LACONIC_LAMBDA {
      return _mm256_permutevar8x32_epi32(eights_[v], node);
    };
    descend(_mm256_castps_si256(
        _mm256_permutevar_ps(_mm256_castsi256_ps(eights_[0]), node)));  // sees two bits
    descend(eighth(1));
    descend(_mm256_blendv_epi8(eighth(2), eighth(3), first));
    descend(_mm256_blendv_epi8(_mm256_blendv_epi8(eighth(4), eighth(5), second),
                               _mm256_blendv_epi8(eighth(6), eighth(7), second), first));
    return node;
  }

 private:
  __m256i top_, left_, right_;
  __m256i eights_[8];
};

/// Codes of x[0, n), n <= kBlock.
HWY_INLINE void encode_block(const float* x, uint64_t n, const QuantileBins& bins, const Tree& tree,
                             uint8_t* HWY_RESTRICT codes) {
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    prefetch_span(x + i, 32 * sizeof(float));
    const auto eight = [&](uint64_t j)
                           LACONIC_LAMBDA { return tree.codes_of(load_bits(x + i + j)); };
    const __m256i low = _mm256_packs_epi32(eight(0), eight(8));
    const __m256i high = _mm256_packs_epi32(eight(16), eight(24));
    const __m256i nodes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                        _mm256_xor_si256(nodes, _mm256_set1_epi8(64)));
  }
  for (; i < n; ++i) codes[i] = static_cast<uint8_t>(quantile_search(quantile_image(x[i]), bins));
}
#endif

/// QuantileSums in vectors: the same lanes, the same fold.
class LaneSums {
 public:
  HWY_INLINE explicit LaneSums(uint32_t bins) {
    const F64 d;
    for (uint64_t i = 0; i < bins * kQuantileLanes; i += hn::Lanes(d)) {
      hn::Store(hn::Zero(d), d, sum_ + i);
    }
  }
  /// x[0, n) with these codes, element i to lane i mod 8. Only the last call may bring a number
  /// that
  /// is no multiple of 8.
  HWY_INLINE void add(const float* x, uint64_t n, const uint8_t* codes) {
    const F64 d;
    const hn::Rebind<float, F64> narrow;
    uint64_t i = 0;
    for (; i + kQuantileLanes <= n; i += kQuantileLanes) {
      uint64_t eight = at<uint64_t>(codes + i, 0);
      HWY_ALIGN double wide[kQuantileLanes];
      for (uint64_t l = 0; l < kQuantileLanes; l += hn::Lanes(d)) {
        hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, x + i + l)), d, wide + l);
      }
      for (uint64_t l = 0; l < kQuantileLanes; ++l) {
        sum_[(eight & 0xFF) * kQuantileLanes + l] += wide[l];
        eight >>= 8;
      }
    }
    for (; i < n; ++i) {
      sum_[codes[i] * kQuantileLanes + i % kQuantileLanes] += static_cast<double>(x[i]);
    }
  }
  HWY_INLINE void fold(uint32_t bins, double* sums) const {
    const hn::Full128<double> d;
    for (uint32_t b = 0; b < bins; ++b) {
      const double* const s = sum_ + b * kQuantileLanes;
      const auto evens_and_odds = hn::Add(hn::Add(hn::Load(d, s), hn::Load(d, s + 4)),
                                          hn::Add(hn::Load(d, s + 2), hn::Load(d, s + 6)));
      sums[b] = hn::GetLane(hn::SumOfLanes(d, evens_and_odds));
    }
  }

 private:
  using F64 = hn::CappedTag<double, kQuantileLanes>;
  HWY_ALIGN double sum_[kQuantileBins * kQuantileLanes];
};

/// `codes_of(x, n, codes)` is called for every block.
template <class Codes>
HWY_INLINE void encode_all(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed,
                           double* sums, Codes codes_of) {
  LaneSums lane_sums(bins.bins);
  HWY_ALIGN uint8_t codes[kBlock];
  for (uint64_t i = 0; i < n; i += kBlock) {
    const uint64_t m = HWY_MIN(kBlock, n - i);
    codes_of(x + i, m, codes);
    lane_sums.add(x + i, m, codes);
    pack_codes(reinterpret_cast<int8_t*>(codes), m, bins.width, packed);
    packed += m / kPackedTogether * bins.width;
  }
  lane_sums.fold(bins.bins, sums);
}

void encode(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed, double* sums) {
#if LACONIC_AVX512
  if (bins.bins <= kSearched) {
    const Tree tree(bins);
    const auto of_images = [&](VU image) LACONIC_LAMBDA { return tree.codes_of(image); };
    encode_all(x, n, bins, packed, sums,
               [&](const float* from, uint64_t m, uint8_t* codes)
                   LACONIC_LAMBDA { encode_block(from, m, bins, codes, of_images); });
    return;
  }
  const auto of_images = [&](VU image) LACONIC_LAMBDA { return codes_of(image, bins); };
  encode_all(x, n, bins, packed, sums,
             [&](const float* from, uint64_t m, uint8_t* codes)
                 LACONIC_LAMBDA { encode_block(from, m, bins, codes, of_images); });
#else
#if LACONIC_AVX2
  if (bins.bins <= kSearched) {
    const Tree tree(bins);
    encode_all(x, n, bins, packed, sums,
               [&](const float* from, uint64_t m, uint8_t* codes)
                   LACONIC_LAMBDA { encode_block(from, m, bins, tree, codes); });
    return;
  }
#endif
  encode_all(x, n, bins, packed, sums,
             [&](const float* from, uint64_t m, uint8_t* codes)
                 LACONIC_LAMBDA { encode_block(from, m, bins, codes); });
#endif
}

// ---- values ----

/// The values of a vector of elements from i on, a multiple of the lanes; eight bytes are read from
/// where every eighth code begins.
HWY_INLINE VF load_values(const void* operand, uint64_t i) {
  const auto& o = *static_cast<const QuantileOperand*>(operand);
#if LACONIC_AVX512
  const uint8_t* from = o.codes + i / 8 * o.width;
  const uint64_t mask = 0x0101010101010101U * ((1U << o.width) - 1);
  const uint64_t low = _pdep_u64(at<uint64_t>(from, 0), mask);
  const uint64_t high = _pdep_u64(at<uint64_t>(from + o.width, 0), mask);
  const __m512i index =
      _mm512_cvtepu8_epi32(_mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low)));
  const auto table = [&](uint64_t k) LACONIC_LAMBDA { return _mm512_load_ps(&o.values[16 * k]); };
  if (o.bins <= 64) {
    const __m512 lower = _mm512_permutex2var_ps(table(0), index, table(1));
    if (o.bins <= 32) return VF{lower};
    const __m512 upper = _mm512_permutex2var_ps(table(2), index, table(3));
    const __mmask16 which = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
    return VF{_mm512_mask_blend_ps(which, lower, upper)};
  }
  return VF{_mm512_i32gather_ps(index, o.values.data(), 4)};
#elif LACONIC_AVX2
  const __m256i eight = _mm256_set1_epi64x(at<int64_t>(o.codes + i / 8 * o.width, 0));
  const __m256i width = _mm256_set1_epi64x(o.width);
  const __m256i mask = _mm256_set1_epi64x((1 << o.width) - 1);
  const auto four = [&](__m256i codes) LACONIC_LAMBDA {
    const __m256i index = _mm256_srlv_epi64(eight, _mm256_mul_epu32(codes, width));
    return _mm256_i64gather_ps(o.values.data(), _mm256_and_si256(index, mask), 4);
  };
  return VF{
      _mm256_set_m128(four(_mm256_setr_epi64x(4, 5, 6, 7)), four(_mm256_setr_epi64x(0, 1, 2, 3)))};
#else
  HWY_ALIGN float values[hn::MaxLanes(F32())];
  for (uint64_t l = 0; l < lanes32(); ++l) values[l] = quantile_element(operand, i + l);
  return hn::Load(F32(), values);
#endif
}

template <Output kOutput>
HWY_INLINE void decode_as(float* out, const Weighted* terms, uint32_t count, uint64_t begin,
                          uint64_t middle, uint64_t end) {
  const auto prefetch = [](const void* operand, uint64_t i, uint64_t n) LACONIC_LAMBDA {
    const auto& o = *static_cast<const QuantileOperand*>(operand);
    prefetch_span(o.codes + i / 8 * o.width, n / 8 * o.width);
  };
  weighted_sum_loop<kOutput>(
      out, terms, count, begin, middle,
      [](const void* operand, uint64_t i) LACONIC_LAMBDA { return load_values(operand, i); },
      prefetch, &quantile_element);
  weighted_sum_scalar(out, kOutput, terms, count, middle, end, &quantile_element);
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count,
            QuantileLayout layout, uint64_t begin, uint64_t end) {
  QuantileOperand operands[kQuantileTerms];
  Weighted terms[kQuantileTerms];
  for (uint32_t t = 0; t < count; ++t) {
    operands[t].open(payloads[t].data, layout);
    terms[t] = {&operands[t], payloads[t].weight};
  }
  // from here on eight bytes might reach beyond the payload
  const uint64_t groups = layout.code_bytes >= 8 ? (layout.code_bytes - 8) / layout.width : 0;
  const uint64_t middle = HWY_MAX(begin, HWY_MIN(end, groups * 8 / 16 * 16));
  const bool aligned = reinterpret_cast<uintptr_t>(out + begin) % (lanes32() * sizeof(float)) == 0;
  if (output == Output::add) {
    decode_as<Output::add>(out, terms, count, begin, middle, end);
  } else if (output == Output::stream && aligned) {
    decode_as<Output::stream>(out, terms, count, begin, middle, end);
    hwy::FlushStream();
  } else {
    decode_as<Output::set>(out, terms, count, begin, middle, end);
  }
}

constexpr QuantileKernels kTable{kSearched, &sort,   &count_upper, &sum_rows,
                                 &collect,  &encode, &decode};

#undef LACONIC_AVX512
#undef LACONIC_AVX2

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const QuantileKernels& quantile_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kQuantileScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
