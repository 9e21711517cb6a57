// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/lowrank/lowrank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lowrank/lowrank_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr uint64_t kLanes = HWY_MAX_BYTES / sizeof(float);
constexpr uint64_t kVecs = kDotLanes / kLanes;  // vectors that hold the virtual lanes of one sum
static_assert(kVecs >= 1 && kVecs * kLanes == kDotLanes);

// ---- pieces of vectors ----

// The first n < kLanes floats, followed by zeros. Nothing is read beyond p + n.
HWY_INLINE V load_part(const float* p, uint64_t n) {
  const D d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(float));
  return hn::Load(d, buffer);
#else
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#endif
}

HWY_INLINE void store_part(V v, float* p, uint64_t n) {
  const D d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float buffer[kLanes];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, n * sizeof(float));
#else
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#endif
}

// Calls body(j, load, store) for every vector of [0, cols): whole ones, then the rest.
template <class Body>
HWY_INLINE void for_columns(uint64_t cols, const Body& body) {
  const D d;
  uint64_t j = 0;
  for (; j + kLanes <= cols; j += kLanes) {
    body(
        j, [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); },
        [&](V v, float* p) HWY_ATTR { hn::StoreU(v, d, p); });
  }
  if (j < cols) {
    const uint64_t n = cols - j;
    body(
        j, [&](const float* p) HWY_ATTR { return load_part(p, n); },
        [&](V v, float* p) HWY_ATTR { store_part(v, p, n); });
  }
}

// Calls body with N as a compile-time constant, for 1 <= n <= kMost.
template <uint64_t kMost, class Body>
HWY_INLINE void with_constant(uint64_t n, const Body& body) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_constant<kMost - 1>(n, body);
  }
  body(std::integral_constant<uint64_t, kMost>());
}

HWY_INLINE void prefetch(const float* p) { __builtin_prefetch(p); }

// ---- P = M·Q ----
//
// Blocks of kRowBlock rows and kTile columns, so that the tile of Q stays in the first-level cache;
// inside, kRows rows times kRanks vectors of Q have their sums in registers. Between tiles the
// virtual lanes wait in `lanes`.

constexpr uint64_t kRowBlock = 16;
constexpr uint64_t kTile = 1024;
constexpr uint64_t kRows = HWY_MAX_BYTES == 64 ? 4 : 1;
constexpr uint64_t kRanks = HWY_MAX_BYTES >= 32 || HWY_ARCH_ARM_A64 ? 4 : 2;

template <uint64_t R, uint64_t K>
struct Sums {
  V v[R][K][kVecs];
};

// sums += products of R rows with K vectors of Q, at 16 columns. L loads vector number u of 16
// columns.
template <uint64_t R, uint64_t K, class L>
HWY_INLINE void add_products(Sums<R, K>& sums, const float* m, uint64_t pitch, const float* q,
                             uint64_t q_stride, const L& load) {
  for (uint64_t u = 0; u < kVecs; ++u) {
    V qv[K];
    for (uint64_t k = 0; k < K; ++k) qv[k] = load(q + k * q_stride, u);
    for (uint64_t i = 0; i < R; ++i) {
      const V mv = load(m + i * pitch, u);
      for (uint64_t k = 0; k < K; ++k) {
        sums.v[i][k][u] = hn::Add(sums.v[i][k][u], hn::Mul(mv, qv[k]));
      }
    }
  }
}

// lanes[k][i] (kDotLanes floats each, k·kRowBlock rows apart) += the products over one tile.
template <uint64_t R, uint64_t K>
HWY_INLINE void project_tile(const float* m, uint64_t pitch, uint64_t cols, const float* q,
                             uint64_t q_stride, const float* next, bool first, float* lanes) {
  const D d;
  const auto at = [&](uint64_t i, uint64_t k, uint64_t u)
                      HWY_ATTR { return lanes + (k * kRowBlock + i) * kDotLanes + u * kLanes; };
  Sums<R, K> sums;
  for (uint64_t i = 0; i < R; ++i) {
    for (uint64_t k = 0; k < K; ++k) {
      for (uint64_t u = 0; u < kVecs; ++u) {
        sums.v[i][k][u] = first ? hn::Zero(d) : hn::Load(d, at(i, k, u));
      }
    }
  }
  uint64_t j = 0;
  for (; j + kDotLanes <= cols; j += kDotLanes) {
    for (uint64_t i = 0; i < R; ++i) prefetch(next + i * pitch + j);
    add_products<R, K>(sums, m + j, pitch, q + j, q_stride,
                       [&](const float* p, uint64_t u)
                           HWY_ATTR { return hn::LoadU(d, p + u * kLanes); });
  }
  if (j < cols) {
    const uint64_t rest = cols - j;
    add_products<R, K>(sums, m + j, pitch, q + j, q_stride,
                       [&](const float* p, uint64_t u) HWY_ATTR {
                         if (rest >= (u + 1) * kLanes) return hn::LoadU(d, p + u * kLanes);
                         if (rest <= u * kLanes) return hn::Zero(d);
                         return load_part(p + u * kLanes, rest - u * kLanes);
                       });
  }
  for (uint64_t i = 0; i < R; ++i) {
    for (uint64_t k = 0; k < K; ++k) {
      for (uint64_t u = 0; u < kVecs; ++u) hn::Store(sums.v[i][k][u], d, at(i, k, u));
    }
  }
}

// The fold 8, 4 of one row's 16 lanes: four lanes are left.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> fold_to_four(const float* lanes) {
  const hn::FixedTag<float, 4> d;
  const auto low = hn::Add(hn::Load(d, lanes), hn::Load(d, lanes + 8));
  const auto high = hn::Add(hn::Load(d, lanes + 4), hn::Load(d, lanes + 12));
  return hn::Add(low, high);
}

// Sums of four rows: the rest of the fold (2, 1), transposed on the way.
HWY_INLINE void fold_four_rows(const float* lanes, float* out) {
  const hn::FixedTag<float, 4> d;
  const auto a = fold_to_four(lanes), b = fold_to_four(lanes + kDotLanes);
  const auto c = fold_to_four(lanes + 2 * kDotLanes), e = fold_to_four(lanes + 3 * kDotLanes);
  const auto ab = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  const auto ce = hn::Add(hn::ConcatLowerLower(d, e, c), hn::ConcatUpperUpper(d, e, c));
  hn::StoreU(hn::Add(hn::ConcatEven(d, ce, ab), hn::ConcatOdd(d, ce, ab)), d, out);
}

HWY_INLINE void fold_rows(const float* lanes, uint64_t rows, float* out) {
  uint64_t i = 0;
  for (; i + 4 <= rows; i += 4) fold_four_rows(lanes + i * kDotLanes, out + i);
  if (i < rows) {  // lanes after the last row hold old sums: finite or not, they are not stored
    float four[4];
    fold_four_rows(lanes + i * kDotLanes, four);
    for (uint64_t k = 0; i + k < rows; ++k) out[i + k] = four[k];
  }
}

// A block of at most kRowBlock rows times K vectors of Q.
template <uint64_t K>
HWY_INLINE void project_block(const float* m, Panel panel, Factor q, float* out, uint64_t stride) {
  HWY_ALIGN float lanes[kRanks * kRowBlock * kDotLanes];
  uint64_t j = 0;
  do {  // once without columns, too: empty sums are 0
    const uint64_t cols = std::min(kTile, panel.cols - j);
    uint64_t i = 0;
    for (; i + kRows <= panel.rows; i += kRows) {
      const float* const here = m + i * panel.pitch + j;
      // Prefetched: the rows below, or the first rows at the next tile.
      const float* const next = i + 2 * kRows <= kRowBlock || cols == panel.cols
                                    ? here + kRows * panel.pitch
                                    : m + j + cols;
      project_tile<kRows, K>(here, panel.pitch, cols, q.values + j, q.stride, next, j == 0,
                             lanes + i * kDotLanes);
    }
    for (; i < panel.rows; ++i) {
      const float* const here = m + i * panel.pitch + j;
      project_tile<1, K>(here, panel.pitch, cols, q.values + j, q.stride, here, j == 0,
                         lanes + i * kDotLanes);
    }
    j += kTile;
  } while (j < panel.cols);
  for (uint64_t k = 0; k < K; ++k) {
    fold_rows(lanes + k * kRowBlock * kDotLanes, panel.rows, out + k * stride);
  }
}

void project(const float* m, Panel panel, Factor q, float* out, uint64_t stride) {
  for (uint64_t i = 0; i < panel.rows; i += kRowBlock) {
    const Panel block{std::min(kRowBlock, panel.rows - i), panel.cols, panel.pitch};
    for (uint64_t k = 0; k < q.rank; k += kRanks) {
      const Factor part{q.values + k * q.stride, q.stride, std::min(kRanks, q.rank - k)};
      with_constant<kRanks>(part.rank, [&](auto n) HWY_ATTR {
        project_block<n()>(m + i * panel.pitch, block, part, out + k * stride + i, stride);
      });
    }
  }
}

// ---- Q' = Mᵀ·P ----
//
// A tile of kBackTile columns of kGroup vectors keeps its sums in the first-level cache while a
// block of rows passes, kBackRows at a time, whose factors are held in registers. Further groups of
// vectors find the block in the second-level cache.

constexpr uint64_t kGroup = 4;
constexpr uint64_t kBackBlock = 64;
constexpr uint64_t kBackTile = 1024;
constexpr uint64_t kBackRows = HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64 ? 4 : 2;

template <uint64_t R, uint64_t K>
HWY_INLINE void back_rows(const float* m, Panel panel, const float* p, uint64_t p_stride,
                          const float* next, float* out, uint64_t stride) {
  const D d;
  V pv[R][K];
  for (uint64_t i = 0; i < R; ++i) {
    for (uint64_t k = 0; k < K; ++k) pv[i][k] = hn::Set(d, p[k * p_stride + i]);
  }
  for_columns(panel.cols, [&](uint64_t j, const auto& load, const auto& store) HWY_ATTR {
    V sum[K];
    for (uint64_t k = 0; k < K; ++k) sum[k] = load(out + k * stride + j);
    for (uint64_t i = 0; i < R; ++i) {
      prefetch(next + i * panel.pitch + j);
      const V mv = load(m + i * panel.pitch + j);
      for (uint64_t k = 0; k < K; ++k) sum[k] = hn::Add(sum[k], hn::Mul(mv, pv[i][k]));
    }
    for (uint64_t k = 0; k < K; ++k) store(sum[k], out + k * stride + j);
  });
}

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2

// Sixteen registers hold the factors of only two rows, and sums would be loaded and stored once per
// two products. So four rows pass while the sums of two vectors of columns stay in registers, and
// the factors come from the first-level cache. Four and not eight: with the sums, lines of eight
// rows a power of two apart would not fit one set of the cache.
constexpr uint64_t kQuadRows = 4;

template <uint64_t K>
HWY_INLINE void back_four_rows(const float* m, Panel panel, const float* p, uint64_t p_stride,
                               float* out, uint64_t stride) {
  const D d;
  HWY_ALIGN float pv[kQuadRows * K * kLanes];
  for (uint64_t i = 0; i < kQuadRows; ++i) {
    for (uint64_t k = 0; k < K; ++k) {
      hn::Store(hn::Set(d, p[k * p_stride + i]), d, pv + (i * K + k) * kLanes);
    }
  }
  const uint64_t whole = panel.cols - panel.cols % (2 * kLanes);
  for (uint64_t j = 0; j < whole; j += 2 * kLanes) {
    V sum[2][K];
    for (uint64_t k = 0; k < K; ++k) {
      sum[0][k] = hn::LoadU(d, out + k * stride + j);
      sum[1][k] = hn::LoadU(d, out + k * stride + j + kLanes);
    }
    for (uint64_t i = 0; i < kQuadRows; ++i) {
      const float* const row = m + i * panel.pitch + j;
      const V m0 = hn::LoadU(d, row), m1 = hn::LoadU(d, row + kLanes);
      for (uint64_t k = 0; k < K; ++k) {
        const V factor = hn::Load(d, pv + (i * K + k) * kLanes);
        sum[0][k] = hn::Add(sum[0][k], hn::Mul(m0, factor));
        sum[1][k] = hn::Add(sum[1][k], hn::Mul(m1, factor));
      }
    }
    for (uint64_t k = 0; k < K; ++k) {
      hn::StoreU(sum[0][k], d, out + k * stride + j);
      hn::StoreU(sum[1][k], d, out + k * stride + j + kLanes);
    }
  }
  if (whole == panel.cols) return;
  const Panel rest{kQuadRows, panel.cols - whole, panel.pitch};
  for (uint64_t i = 0; i < kQuadRows; i += kBackRows) {
    const float* const here = m + i * panel.pitch + whole;
    back_rows<kBackRows, K>(here, rest, p + i, p_stride, here, out + whole, stride);
  }
}

#endif

// All rows of a block times K vectors of P.
template <uint64_t K>
HWY_INLINE void back_block(const float* m, Panel block, Factor p, float* out, uint64_t stride) {
  uint64_t i = 0;
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
  for (; i + kQuadRows <= block.rows; i += kQuadRows) {
    back_four_rows<K>(m + i * block.pitch, block, p.values + i, p.stride, out, stride);
  }
#endif
  for (; i + kBackRows <= block.rows; i += kBackRows) {
    const float* const here = m + i * block.pitch;
    back_rows<kBackRows, K>(here, block, p.values + i, p.stride, here + kBackRows * block.pitch,
                            out, stride);
  }
  for (; i < block.rows; ++i) {
    const float* const here = m + i * block.pitch;
    back_rows<1, K>(here, block, p.values + i, p.stride, here, out, stride);
  }
}

// out = the sums of one tile of columns.
HWY_INLINE void back_tile(const float* m, Panel tile, Factor p, float* out, uint64_t stride) {
  for (uint64_t k = 0; k < p.rank; ++k) std::memset(out + k * stride, 0, tile.cols * sizeof(float));
  for (uint64_t i = 0; i < tile.rows; i += kBackBlock) {
    const Panel block{std::min(kBackBlock, tile.rows - i), tile.cols, tile.pitch};
    for (uint64_t k = 0; k < p.rank; k += kGroup) {
      const Factor part{p.values + k * p.stride + i, p.stride, std::min(kGroup, p.rank - k)};
      with_constant<kGroup>(part.rank, [&](auto n) HWY_ATTR {
        back_block<n()>(m + i * tile.pitch, block, part, out + k * stride, stride);
      });
    }
  }
}

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2

// Sums wait in memory of this call's own. At `out` another thread's sums begin where these end, and
// a processor that fetches ahead of these would take those away from it again and again; and sums a
// power of two apart would share cache sets with each other and with the rows of M.
HWY_INLINE void back_own_tile(const float* m, Panel tile, Factor p, float* out, uint64_t stride) {
  constexpr uint64_t kOwnStride = kBackTile + kDotLanes;
  HWY_ALIGN float own[kGroup * kOwnStride];
  back_tile(m, tile, p, own, kOwnStride);
  for (uint64_t k = 0; k < p.rank; ++k) {
    std::memcpy(out + k * stride, own + k * kOwnStride, tile.cols * sizeof(float));
  }
}

#endif

void back_project(const float* m, Panel panel, Factor p, float* out, uint64_t stride) {
  for (uint64_t j = 0; j < panel.cols; j += kBackTile) {
    const Panel tile{panel.rows, std::min(kBackTile, panel.cols - j), panel.pitch};
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
    if (p.rank <= kGroup) {
      back_own_tile(m + j, tile, p, out + j, stride);
      continue;
    }
#endif
    back_tile(m + j, tile, p, out + j, stride);
  }
}

// ---- out = base + w·P·Qᵀ ----

// Rows per step. Four would be four streams of writes, which are slower than two; many products
// take longer than the writes, so that sharing the loads of Q helps.
constexpr uint64_t kOutRows = 2;
constexpr uint64_t kLongRows = HWY_MAX_BYTES == 64 || HWY_ARCH_ARM_A64 ? 4 : 2;

template <Output kOutput>
HWY_INLINE void write_vector(V value, float* out, const auto& load, const auto& store) {
  const D d;
  if constexpr (kOutput == Output::add) return store(hn::Add(load(out), value), out);
  const V sum = hn::Add(hn::Zero(d), value);
  if constexpr (kOutput == Output::stream) return hn::Stream(sum, d, out);
  store(sum, out);
}

// Calls sink(i, j, sum, load, store) with the sum of K products, on top of sums[i·kTile + j] unless
// these are the first products.
template <uint64_t R, uint64_t K, bool kFirst, class Sink>
HWY_INLINE void sum_products(uint64_t cols, Factor p, Factor q, const float* sums,
                             const Sink& sink) {
  const D d;
  V pv[R][K];
  for (uint64_t i = 0; i < R; ++i) {
    for (uint64_t k = 0; k < K; ++k) pv[i][k] = hn::Set(d, p.values[k * p.stride + i]);
  }
  for_columns(cols, [&](uint64_t j, const auto& load, const auto& store) HWY_ATTR {
    V qv[K];
    for (uint64_t k = 0; k < K; ++k) qv[k] = load(q.values + k * q.stride + j);
    for (uint64_t i = 0; i < R; ++i) {
      V sum = hn::Mul(pv[i][0], qv[0]);
      if (!kFirst) sum = hn::Add(hn::Load(d, sums + i * kTile + j), sum);
      for (uint64_t k = 1; k < K; ++k) sum = hn::Add(sum, hn::Mul(pv[i][k], qv[k]));
      sink(i, j, sum, load, store);
    }
  });
}

HWY_INLINE Factor vectors_from(Factor f, uint64_t first) {
  return {f.values + first * f.stride, f.stride, f.rank - first};
}

// A tile of R rows and at most kTile columns. Sums of more than kGroup products wait in `sums`.
template <uint64_t R, Output kOutput>
HWY_INLINE void write_rows(float* out, Panel panel, Factor p, Factor q, float weight) {
  const D d;
  const V w = hn::Set(d, weight);
  const auto finish = [&](uint64_t i, uint64_t j, V sum, const auto& load, const auto& store)
                          HWY_ATTR {
                            float* const at = out + i * panel.pitch + j;
                            if (kOutput == Output::add) prefetch(at + R * panel.pitch);
                            write_vector<kOutput>(hn::Mul(w, sum), at, load, store);
                          };
  if (p.rank <= kGroup) {
    with_constant<kGroup>(p.rank, [&](auto n) HWY_ATTR {
      sum_products<R, n(), true>(panel.cols, p, q, nullptr, finish);
    });
    return;
  }
  HWY_ALIGN float sums[R * kTile];
  const auto keep = [&](uint64_t i, uint64_t j, V sum, const auto&, const auto&)
                        HWY_ATTR { hn::Store(sum, d, sums + i * kTile + j); };
  sum_products<R, kGroup, true>(panel.cols, p, q, nullptr, keep);
  uint64_t k = kGroup;
  for (; k + kGroup < p.rank; k += kGroup) {
    sum_products<R, kGroup, false>(panel.cols, vectors_from(p, k), vectors_from(q, k), sums, keep);
  }
  with_constant<kGroup>(p.rank - k, [&](auto n) HWY_ATTR {
    sum_products<R, n(), false>(panel.cols, vectors_from(p, k), vectors_from(q, k), sums, finish);
  });
}

template <uint64_t R, Output kOutput>
HWY_INLINE void write_panel(float* out, Panel panel, Factor p, Factor q, float weight) {
  for (uint64_t j = 0; j < panel.cols; j += kTile) {
    const Panel tile{panel.rows, std::min(kTile, panel.cols - j), panel.pitch};
    const Factor qj{q.values + j, q.stride, q.rank};
    const auto factor = [&](uint64_t i) { return Factor{p.values + i, p.stride, p.rank}; };
    uint64_t i = 0;
    for (; i + R <= panel.rows; i += R) {
      write_rows<R, kOutput>(out + i * panel.pitch + j, tile, factor(i), qj, weight);
    }
    for (; i < panel.rows; ++i) {
      write_rows<1, kOutput>(out + i * panel.pitch + j, tile, factor(i), qj, weight);
    }
  }
}

template <Output kOutput>
void write_all(float* out, Panel panel, Factor p, Factor q, float weight) {
  if (p.rank <= kGroup) return write_panel<kOutRows, kOutput>(out, panel, p, q, weight);
  write_panel<kLongRows, kOutput>(out, panel, p, q, weight);
}

bool can_stream(const float* out, Panel panel) {
  return reinterpret_cast<uintptr_t>(out) % (kLanes * sizeof(float)) == 0 &&
         panel.pitch % kLanes == 0 && panel.cols % kLanes == 0;
}

void reconstruct(float* out, Panel panel, Factor p, Factor q, float weight, Output output) {
  if (output == Output::add) return write_all<Output::add>(out, panel, p, q, weight);
  if (output == Output::set || !can_stream(out, panel)) {
    return write_all<Output::set>(out, panel, p, q, weight);
  }
  write_all<Output::stream>(out, panel, p, q, weight);
  hwy::FlushStream();
}

// ---- Gram–Schmidt, in double ----

using DD = hn::ScalableTag<double>;
using DH = hn::Rebind<float, DD>;  // half a vector of floats
constexpr uint64_t kWide = kLanes / 2;
constexpr uint64_t kWideVecs = kDotLanes / kWide;

HWY_INLINE hn::Vec<DD> widen(const float* p) { return hn::PromoteTo(DD(), hn::LoadU(DH(), p)); }

double dot(const float* x, const float* y, uint64_t n) {
  const DD d;
  hn::Vec<DD> sum[kWideVecs];
  for (uint64_t u = 0; u < kWideVecs; ++u) sum[u] = hn::Zero(d);
  uint64_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes) {
    for (uint64_t u = 0; u < kWideVecs; ++u) {
      const uint64_t at = i + u * kWide;
      sum[u] = hn::Add(sum[u], hn::Mul(widen(x + at), widen(y + at)));
    }
  }
  HWY_ALIGN double lane[kDotLanes];
  for (uint64_t u = 0; u < kWideVecs; ++u) hn::Store(sum[u], d, lane + u * kWide);
  for (uint64_t l = 0; i + l < n; ++l) {
    lane[l] += static_cast<double>(x[i + l]) * static_cast<double>(y[i + l]);
  }
  for (uint64_t half = kDotLanes / 2; half != 0; half /= 2) {
    for (uint64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

void subtract(float* y, double c, const float* x, uint64_t n) {
  const auto cv = hn::Set(DD(), c);
  uint64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    const auto difference = hn::Sub(widen(y + i), hn::Mul(cv, widen(x + i)));
    hn::StoreU(hn::DemoteTo(DH(), difference), DH(), y + i);
  }
  for (; i < n; ++i) {
    y[i] = static_cast<float>(static_cast<double>(y[i]) - c * static_cast<double>(x[i]));
  }
}

void scale(float* y, double c, uint64_t n) {
  const auto cv = hn::Set(DD(), c);
  uint64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    hn::StoreU(hn::DemoteTo(DH(), hn::Mul(cv, widen(y + i))), DH(), y + i);
  }
  for (; i < n; ++i) y[i] = static_cast<float>(c * static_cast<double>(y[i]));
}

constexpr LowRankKernels kTable{&project, &back_project, &reconstruct, &dot, &subtract, &scale};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const LowRankKernels& lowrank_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kLowRankScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
