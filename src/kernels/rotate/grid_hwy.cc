// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include "kernels/rotate/grid.h"
#include "kernels/rotate/grid_elements.h"

#define HWY_WANT_AVX3_DL  // a table look-up by the low 6 bits
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotate/grid_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/philox-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

using U8 = hn::Repartition<uint8_t, F32>;
using U16 = hn::Repartition<uint16_t, F32>;
using I16 = hn::Repartition<int16_t, F32>;
using VB = hn::Vec<U8>;
using VH = hn::Vec<U16>;

inline constexpr uint32_t kWidth = hn::MaxLanes(F32());
inline constexpr uint32_t kCodes = 4 * kWidth;  ///< in a vector of bytes

/// 16 bytes in every block.
HWY_INLINE VB dup128(const uint8_t* bytes) { return hn::LoadDup128(U8(), bytes); }

// ---- packing ----

/// Packs a vector of indices.
template <uint32_t kBits>
HWY_INLINE void pack_vector(VB codes, uint8_t* out) {
  // pairs, then fours, each in the low bits of its lane
  const VH x = hn::BitCast(U16(), codes);
  const VH pairs = hn::Or(hn::And(hn::ShiftLeft<kBits>(x), hn::Set(U16(), (1U << 2 * kBits) - 1)),
                          hn::ShiftRight<8>(x));
  if constexpr (kBits == 4) {
    const hn::Rebind<uint8_t, U16> half;
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(I16(), pairs)), half, out);
  } else {
    const VU y = hn::BitCast(U32(), pairs);
    const VU fours =
        hn::Or(hn::And(hn::ShiftLeft<2 * kBits>(y), hn::Set(U32(), (1U << 4 * kBits) - 1)),
               hn::ShiftRight<16>(y));
    if constexpr (kBits == 2) {
      const hn::Rebind<uint8_t, U32> quarter;
#if LACONIC_AVX512  // Highway 1.0.3 takes words for bytes here, on AVX3_DL
      hn::StoreU(hn::Vec<decltype(quarter)>{_mm512_cvtepi32_epi8(fours.raw)}, quarter, out);
#else
      hn::StoreU(hn::TruncateTo(quarter, fours), quarter, out);
#endif
    } else {
      const auto z = hn::BitCast(U64(), fours);
      const auto eights =
          hn::Or(hn::And(hn::ShiftLeft<12>(z), hn::Set(U64(), 0xFFFFFF)), hn::ShiftRight<32>(z));
      alignas(16) static constexpr uint8_t kOrder[16] = {
          2, 1, 0, 10, 9, 8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
      alignas(64) uint8_t bytes[kCodes];
      hn::Store(hn::TableLookupBytesOr0(hn::BitCast(U8(), eights), dup128(kOrder)), U8(), bytes);
      for (uint32_t b = 0; b < kCodes / 16; ++b) std::memcpy(out + 6 * b, bytes + 16 * b, 6);
    }
  }
}

/// A vector of indices; with 3 bits up to kOverread bytes after theirs are read.
inline constexpr uint64_t kOverread = 4;
template <uint32_t kBits>
HWY_INLINE VB unpack_vector(const uint8_t* codes) {
  if constexpr (kBits == 4) {
    const hn::Rebind<uint8_t, U16> half;
    const VH x = hn::PromoteTo(U16(), hn::LoadU(half, codes));
    return hn::BitCast(
        U8(), hn::And(hn::Or(hn::ShiftRight<4>(x), hn::ShiftLeft<8>(x)), hn::Set(U16(), 0x0F0F)));
  } else if constexpr (kBits == 2) {
    const hn::Rebind<uint8_t, U32> quarter;
    const VU x = hn::PromoteTo(U32(), hn::LoadU(quarter, codes));
    const VU low = hn::Or(hn::ShiftRight<6>(x), hn::ShiftLeft<4>(x));
    const VU high = hn::Or(hn::ShiftLeft<14>(x), hn::ShiftLeft<24>(x));
    return hn::BitCast(U8(), hn::Or(hn::And(low, hn::Set(U32(), 0x0303)),
                                    hn::And(high, hn::Set(U32(), 0x03030000))));
  } else {
    // Lane m gets the two bytes where index 2m, and those where index 2m + 1 begins. What is above
    // is shifted out, then what is below.
    alignas(64) static constexpr uint8_t kEven[32] = {1, 0, 1,  0, 2,  1, 3,  2,  4,  3, 4,
                                                      3, 5, 4,  6, 5,  7, 6,  7,  6,  8, 7,
                                                      9, 8, 10, 9, 10, 9, 11, 10, 12, 11};
    alignas(64) static constexpr uint8_t kOdd[32] = {1, 0, 2,  1, 2,  1,  3,  2,  4,  3, 5,
                                                     4, 5, 4,  6, 5,  7,  6,  8,  7,  8, 7,
                                                     9, 8, 10, 9, 11, 10, 11, 10, 12, 11};
    alignas(16) static constexpr uint16_t kEvenUp[8] = {1, 64, 16, 4, 1, 64, 16, 4};
    alignas(16) static constexpr uint16_t kOddUp[8] = {8, 2, 128, 32, 8, 2, 128, 32};
#if LACONIC_AVX512
    const auto load = [](const uint8_t* p) LACONIC_LAMBDA {
      return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    const VB bytes{_mm512_inserti64x4(_mm512_castsi256_si512(load(codes)), load(codes + 12), 1)};
    const auto order = [](const uint8_t* p) LACONIC_LAMBDA {
      return VB{_mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)))};
    };
#elif LACONIC_AVX2
    const VB bytes = dup128(codes);
    const auto order = [](const uint8_t* p) LACONIC_LAMBDA { return hn::Load(U8(), p); };
#else
    const hn::Half<U8> half;
    const VB bytes = hn::ZeroExtendVector(U8(), hn::LoadU(half, codes));
    const auto order = [](const uint8_t* p) LACONIC_LAMBDA { return hn::Load(U8(), p); };
#endif
    const VH even = hn::BitCast(U16(), hn::TableLookupBytes(bytes, order(kEven)));
    const VH odd = hn::BitCast(U16(), hn::TableLookupBytes(bytes, order(kOdd)));
    const VH low = hn::ShiftRight<13>(hn::Mul(even, hn::LoadDup128(U16(), kEvenUp)));
    const VH high = hn::ShiftRight<13>(hn::Mul(odd, hn::LoadDup128(U16(), kOddUp)));
    return hn::BitCast(U8(), hn::Or(low, hn::ShiftLeft<8>(high)));
  }
}

/// body(i, indices from i on) for the whole vectors of n packed indices; returns their number.
template <uint32_t kBits, class Body>
HWY_INLINE uint64_t for_codes(const uint8_t* codes, uint64_t n, Body body) {
  constexpr uint64_t kBytes = kCodes * kBits / 8;
  constexpr uint64_t kBeyond = kBits == 3 ? kOverread : 0;
  const uint64_t bytes = grid_bytes(n, kBits);
  uint64_t i = 0, at = 0;
  for (; i + kCodes <= n && at + kBytes + kBeyond <= bytes; i += kCodes, at += kBytes) {
    prefetch_ahead(codes + at);
    body(i, unpack_vector<kBits>(codes + at));
  }
  if (kBeyond != 0 && i + kCodes <= n) {
    uint8_t copy[kBytes + kBeyond] = {};
    std::memcpy(copy, codes + at, kBytes);
    body(i, unpack_vector<kBits>(copy));
    i += kCodes;
  }
  return i;
}

/// call(std::integral_constant of the bits)
template <class Call>
HWY_INLINE void with_bits(uint32_t bits, Call call) {
  switch (bits) {
    case 2:
      return call(std::integral_constant<uint32_t, 2>());
    case 3:
      return call(std::integral_constant<uint32_t, 3>());
    default:
      return call(std::integral_constant<uint32_t, 4>());
  }
}

// ---- values ----

/// The values of vectors of indices in words. Bits above the low four are ignored.
class Values {
 public:
  HWY_INLINE Values(const Grid& grid, float range) {
#if LACONIC_AVX512
    const GridValues values(grid, range);
    table_ = hn::Load(F32(), values.of);
#else
    table_ = dup128(grid.value);
    g_ = hn::Set(I32(), static_cast<int32_t>(grid.last));
    scale_ = hn::Set(F32(), value_scale(range, grid.last));
#endif
  }
  HWY_INLINE VF of(VU codes) const {
#if LACONIC_AVX512
    return VF{_mm512_permutexvar_ps(codes.raw, table_.raw)};
#else
    const VU index = hn::Or(hn::And(codes, hn::Set(U32(), 15)), hn::Set(U32(), 0x80808000U));
    const VI t = hn::BitCast(I32(), hn::TableLookupBytesOr0(table_, hn::BitCast(U8(), index)));
    return hn::Mul(hn::ConvertTo(F32(), hn::Sub(hn::Add(t, t), g_)), scale_);
#endif
  }

 private:
#if LACONIC_AVX512
  VF table_;
#else
  VB table_;
  VI g_;
  VF scale_;
#endif
};

// ---- quantize ----

/// Positions of elements: 2^23 + U, as words.
class Positions {
 public:
  HWY_INLINE explicit Positions(const GridPosition& position)
      : factor_(hn::Set(F32(), position.factor)),
        most_(hn::Set(F32(), position.most)),
        magic_(hn::Set(F32(), position.magic())) {}

  HWY_INLINE VU of(VF y) const {
    const VF product = hn::Mul(y, factor_);
#if LACONIC_AVX512
    const VF clamped{_mm512_range_ps(product.raw, most_.raw, 0b0010)};  // the smaller magnitude
#else
    const VF clamped = hn::Min(hn::Max(product, hn::Neg(most_)), most_);
#endif
    return hn::BitCast(U32(), hn::Add(clamped, magic_));
  }

 private:
  VF factor_, most_, magic_;
};

/// Positions of the elements in one vector of words (even lanes) and of those 16 further (odd
/// lanes), as halves.
struct Halves {
  VH floor;     ///< in the low 6 bits
  VH fraction;  ///< 65536ths

  HWY_INLINE Halves(VU even, VU odd)
      : floor(hn::OddEven(hn::BitCast(U16(), odd), hn::BitCast(U16(), hn::ShiftRight<16>(even)))),
        fraction(
            hn::OddEven(hn::BitCast(U16(), hn::ShiftLeft<16>(odd)), hn::BitCast(U16(), even))) {}
};

/// Grid::cell, taken apart.
struct Cells {
  VH z, offset, gap;
};

/// z, or z + 1 where r·gap < offset·65536 + fraction.
HWY_INLINE VH round_up_some(const Cells& cell, VH fraction, VU random) {
  const VH one = hn::Set(U16(), 1);
  const VH r = hn::Or(hn::BitCast(U16(), random), one);
  const VH high = hn::MulHigh(r, cell.gap), low = hn::Mul(r, cell.gap);
#if LACONIC_AVX512
  const __mmask32 borrow = _mm512_cmplt_epu16_mask(low.raw, fraction.raw);
  const __m512i offset = _mm512_mask_add_epi16(cell.offset.raw, borrow, cell.offset.raw, one.raw);
  const __mmask32 up = _mm512_cmplt_epu16_mask(high.raw, offset);
  return VH{_mm512_mask_add_epi16(cell.z.raw, up, cell.z.raw, one.raw)};
#else
  const VH offset = hn::Add(cell.offset, hn::Min(hn::SaturatedSub(fraction, low), one));
  const auto up = hn::Lt(hn::BitCast(I16(), high), hn::BitCast(I16(), offset));
  return hn::Sub(cell.z, hn::BitCast(U16(), hn::VecFromMask(I16(), up)));
#endif
}

#if LACONIC_AVX512
class CellTable {
 public:
  HWY_INLINE explicit CellTable(const Grid& grid)
      : low_(hn::Load(U16(), grid.cell)), high_(hn::Load(U16(), grid.cell + kGridPositions / 2)) {}

  HWY_INLINE void of(const Halves* halves, Cells* out) const {
    const VH six = hn::Set(U16(), 63);
    for (uint32_t h = 0; h < 2; ++h) {
      const VH cell{_mm512_permutex2var_epi16(low_.raw, halves[h].floor.raw, high_.raw)};
      out[h] = {hn::ShiftRight<12>(cell), hn::And(hn::ShiftRight<6>(cell), six),
                hn::And(cell, six)};
    }
  }

 private:
  VH low_, high_;
};
#else
/// Both halves at once, as bytes: z in four tables of 16 positions, the rest by z.
class CellTable {
 public:
  HWY_INLINE explicit CellTable(const Grid& grid) {
    alignas(16) uint8_t z[kGridPositions], gap[kMaxTable] = {};
    for (uint32_t i = 0; i < kGridPositions; ++i) {
      z[i] = static_cast<uint8_t>(grid.cell[i] >> 12);
      gap[z[i]] = static_cast<uint8_t>(grid.cell[i] & 63U);
    }
    for (uint32_t t = 0; t < 4; ++t) z_[t] = dup128(z + 16 * t);
    value_ = dup128(grid.value);
    gap_ = dup128(gap);
  }

  HWY_INLINE void of(const Halves* halves, Cells* out) const {
    const VH low6 = hn::Set(U16(), 63);
    const VB floor = hn::BitCast(U8(), hn::Or(hn::And(halves[0].floor, low6),
                                              hn::ShiftLeft<8>(hn::And(halves[1].floor, low6))));
    // An index of the table's own 16 keeps its low 4 bits, any other one ends with its high bit.
    VB z = hn::Zero(U8());
    for (uint32_t t = 0; t < 4; ++t) {
      const VB from = hn::Sub(floor, hn::Set(U8(), static_cast<uint8_t>(16 * t)));
      const VB index = hn::And(hn::SaturatedAdd(from, hn::Set(U8(), 0x70)), hn::Set(U8(), 0x8F));
      z = hn::Or(z, hn::TableLookupBytesOr0(z_[t], index));
    }
    const VB offset = hn::Sub(floor, hn::TableLookupBytes(value_, z));
    const VB gap = hn::TableLookupBytes(gap_, z);
    out[0] = {low(z), low(offset), low(gap)};
    out[1] = {high(z), high(offset), high(gap)};
  }

 private:
  static HWY_INLINE VH low(VB bytes) {
    return hn::And(hn::BitCast(U16(), bytes), hn::Set(U16(), 0xFF));
  }
  static HWY_INLINE VH high(VB bytes) { return hn::ShiftRight<8>(hn::BitCast(U16(), bytes)); }

  VB z_[4], value_, gap_;
};
#endif

/// Indices of the elements s … s + kWidth - 1 of four rows of 16: halves of rows 0 and 1, and of
/// rows 2 and 3. As bytes into the rows' 64.
HWY_INLINE void store_rows(VH first, VH second, uint32_t s, uint8_t* rows_at) {
  alignas(16) static constexpr uint8_t kRows[16] = {0, 4, 8, 12, 2, 6, 10, 14,
                                                    1, 5, 9, 13, 3, 7, 11, 15};
  const VB mixed = hn::BitCast(U8(), hn::Or(first, hn::ShiftLeft<8>(second)));
  const VB rows = hn::TableLookupBytes(mixed, dup128(kRows));
#if LACONIC_AVX512
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  hn::StoreU(VB{_mm512_permutexvar_epi32(order, rows.raw)}, U8(), rows_at + s);
#else
  alignas(32) uint8_t row[kCodes];
#if LACONIC_AVX2
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  hn::Store(VB{_mm256_permutevar8x32_epi32(rows.raw, order)}, U8(), row);
#else
  hn::Store(rows, U8(), row);
#endif
  for (uint32_t r = 0; r < 4; ++r) std::memcpy(rows_at + 16 * r + s, row + r * kWidth, kWidth);
#endif
}

/// In every half.
HWY_INLINE VU swap_bytes(VU words) {
  alignas(16) static constexpr uint8_t kSwapped[16] = {1, 0, 3,  2,  5,  4,  7,  6,
                                                       9, 8, 11, 10, 13, 12, 15, 14};
  return hn::BitCast(U32(), hn::TableLookupBytes(hn::BitCast(U8(), words), dup128(kSwapped)));
}

struct Quantizer {
  const Positions positions;
  const CellTable cells;
  const Values values;
  const Philox random;

  /// Elements s … s + kWidth - 1 of the four rows of 16 that start at y.
  template <bool kValues>
  HWY_INLINE void run(const float* y, uint32_t s, VU random01, VU random23, uint8_t* codes,
                      float* out) const {
    const auto position = [&](uint32_t row) LACONIC_LAMBDA {
      return positions.of(hn::LoadU(F32(), y + 16 * row + s));
    };
    const Halves halves[2] = {{position(0), position(1)}, {position(2), position(3)}};
    Cells cell[2];
    cells.of(halves, cell);
    const VH z[2] = {round_up_some(cell[0], halves[0].fraction, random01),
                     round_up_some(cell[1], halves[1].fraction, random23)};
    if constexpr (kValues) {
      for (uint32_t h = 0; h < 2; ++h) {
        const VU both = hn::BitCast(U32(), z[h]);
        hn::StoreU(values.of(both), F32(), out + 32 * h + s);
        hn::StoreU(values.of(hn::ShiftRight<16>(both)), F32(), out + 32 * h + 16 + s);
      }
    }
    store_rows(z[0], z[1], s, codes);
  }
};

/// kGroups groups; `counter` is the first block of their random bits.
template <uint32_t kBits, bool kValues, uint32_t kGroups>
HWY_INLINE void quantize_chunk(const Quantizer& quantizer, const float* y, uint64_t counter,
                               uint8_t* codes, float* values) {
  constexpr uint32_t kWays = LACONIC_AVX512 ? kGroups : 2;
  constexpr uint32_t kParts = 16 / kWidth;  // vectors of random words that a group takes
  alignas(64) uint8_t bytes[kGroups * kGridGroup];
  for (uint32_t p = 0; p < kGroups * kParts; p += kWays) {
    PhiloxWords words[kWays];
    quantizer.random.words<kWays>(counter + p * philox_blocks(), words);
    for (uint32_t w = 0; w < kWays; ++w) {
      const PhiloxWords& r = words[w];
      const auto rows = [&](uint32_t at, VU random01, VU random23) LACONIC_LAMBDA {
        quantizer.run<kValues>(y + at, (p + w) % kParts * kWidth, random01, random23, bytes + at,
                               kValues ? values + at : nullptr);
      };
      const uint32_t group = (p + w) / kParts * kGridGroup;
      rows(group, r.w01, r.w23);
      rows(group + kGridGroup / 2, swap_bytes(r.w01), swap_bytes(r.w23));
    }
  }
  for (uint32_t v = 0; v < kGroups * kGridGroup; v += kCodes) {
    pack_vector<kBits>(hn::Load(U8(), bytes + v), codes + v / 8 * kBits);
  }
}

template <uint32_t kBits, bool kValues>
HWY_INLINE void quantize_as(const Quantizer& quantizer, const float* y, uint32_t n, uint64_t first,
                            uint8_t* codes, float* values) {
  const auto chunk = [&](uint32_t i, auto groups) LACONIC_LAMBDA {
    quantize_chunk<kBits, kValues, groups>(quantizer, y + i, (first + i) / kGridGroup * 8,
                                           codes + i / 8 * kBits, kValues ? values + i : nullptr);
  };
  uint32_t i = 0;
  for (; i + 4 * kGridGroup <= n; i += 4 * kGridGroup) {
    chunk(i, std::integral_constant<uint32_t, 4>());
  }
  if (i < n) chunk(i, std::integral_constant<uint32_t, 2>());
}

void quantize(const float* y, uint32_t n, const Grid& grid, float range, RoundingStream random,
              uint8_t* codes, float* values) {
  const Quantizer quantizer{Positions(GridPosition(range, grid.last)), CellTable(grid),
                            Values(grid, range), Philox(random.key)};
  with_bits(grid.bits, [&](auto bits) LACONIC_LAMBDA {
    if (values == nullptr) {
      quantize_as<bits, false>(quantizer, y, n, random.first, codes, values);
    } else {
      quantize_as<bits, true>(quantizer, y, n, random.first, codes, values);
    }
  });
}

// ---- the way back ----

void dequantize(const uint8_t* codes, uint32_t n, const Grid& grid, float range, float* y) {
  const Values values(grid, range);
  uint64_t done = 0;
  with_bits(grid.bits, [&](auto bits) LACONIC_LAMBDA {
    done = for_codes<bits>(codes, n, [&](uint64_t i, VB indices) LACONIC_LAMBDA {
      alignas(64) uint8_t bytes[kCodes];
      hn::Store(indices, U8(), bytes);
      const hn::Rebind<uint8_t, F32> quarter;
      for (uint32_t q = 0; q < 4; ++q) {
        const VU words = hn::PromoteTo(U32(), hn::Load(quarter, bytes + q * kWidth));
        hn::StoreU(values.of(words), F32(), y + i + q * kWidth);
      }
    });
  });
  const GridValues rest(grid, range);
  for (uint64_t i = done; i < n; ++i) y[i] = rest.of[code_at(codes, grid.bits, i)];
}

template <class Lane>
void mean(const void* lanes, uint32_t n, uint32_t g, GridMean mean, float range, float* y) {
  const hn::Rebind<Lane, F32> narrow;
  const auto all = static_cast<int32_t>(mean.added * g);
  const float scale = mean_scale(range, g, mean.divisor);
  const VI all_lanes = hn::Set(I32(), all);
  const VF factor = hn::Set(F32(), scale);
  const auto* from = static_cast<const char*>(lanes);
  uint32_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    prefetch_ahead(from + i * sizeof(Lane));
    const VI s = hn::PromoteTo(
        I32(), hn::LoadU(narrow, reinterpret_cast<const Lane*>(from + i * sizeof(Lane))));
    const VI doubled = hn::Sub(hn::Add(s, s), all_lanes);
    hn::StoreU(hn::Mul(hn::ConvertTo(F32(), doubled), factor), F32(), y + i);
  }
  for (; i < n; ++i) {
    y[i] = grid_value(2 * static_cast<int32_t>(at<Lane>(lanes, i)) - all, scale);
  }
}

// ---- lanes ----

/// lanes[i …] = or += these values.
template <class Lane, bool kAdd>
HWY_INLINE void store_lanes(VB values, void* lanes, uint64_t i) {
  const auto put = [&](auto d, auto v, uint64_t at) LACONIC_LAMBDA {
    auto* to = reinterpret_cast<Lane*>(static_cast<char*>(lanes) + at * sizeof(Lane));
    if constexpr (kAdd) {
      hn::StoreU(hn::Add(hn::LoadU(d, to), v), d, to);
    } else {
      hn::StoreU(v, d, to);
    }
  };
  if constexpr (sizeof(Lane) == 1) {
    put(U8(), values, i);
  } else {
    const hn::Half<U8> half;
    put(U16(), hn::PromoteTo(U16(), hn::LowerHalf(half, values)), i);
    put(U16(), hn::PromoteTo(U16(), hn::UpperHalf(half, values)), i + kCodes / 2);
  }
}

/// A vector whose halves of blocks are such that zipping two of them gives their bytes in order.
HWY_INLINE VB in_zip_order(VB bytes) {
#if LACONIC_AVX512
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  return VB{_mm512_permutexvar_epi64(order, bytes.raw)};
#elif LACONIC_AVX2
  return VB{_mm256_permute4x64_epi64(bytes.raw, _MM_SHUFFLE(3, 1, 2, 0))};
#else
  return bytes;
#endif
}

/// The values of bytes that hold two indices of 4 bits: of the first ones and of the second ones.
struct PairValues {
  VB first, second;

  HWY_INLINE PairValues(VB table, VB pairs) {
#if LACONIC_AVX512
    __asm__("" : "+v"(pairs.raw));  // else g++ loads it twice, across lines of the cache mostly
#endif
#if HWY_ARCH_X86 && !LACONIC_AVX512
    // A shift by 4 in the multiplier: table look-ups take the ports that shift.
    const VB high =
        hn::BitCast(U8(), hn::MulHigh(hn::BitCast(U16(), pairs), hn::Set(U16(), 1U << 12)));
#else
    const VB high = hn::BitCast(U8(), hn::ShiftRight<4>(hn::BitCast(U16(), pairs)));
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
    // The table is there four times: all but the low 4 bits of an index may be anything.
    first = VB{_mm512_permutexvar_epi8(high.raw, table.raw)};
    second = VB{_mm512_permutexvar_epi8(pairs.raw, table.raw)};
#else
    const VB low4 = hn::Set(U8(), 15);
    first = hn::TableLookupBytes(table, hn::And(high, low4));
    second = hn::TableLookupBytes(table, hn::And(pairs, low4));
#endif
  }
};

/// Contributions come as datagrams, sums lie in a ring, and no processor sees a pattern in either:
/// about as far as the next sum, and the next codes but one, of the usual 1,024 lanes.
inline constexpr uint64_t kNextSum = 1088;
inline constexpr uint64_t kNextCodes = 1088;

template <class Lane, bool kAdd, uint32_t kBits>
HWY_INLINE void to_lanes_of(const uint8_t* codes, uint64_t n, const uint8_t* table, void* lanes) {
  const VB values = dup128(table);
  uint64_t i = 0;
  if constexpr (kBits == 4) {
    for (; i + 2 * kCodes <= n; i += 2 * kCodes) {
      if constexpr (kAdd) {
        __builtin_prefetch(codes + i / 2 + kNextCodes);
        const char* sum = static_cast<char*>(lanes) + (i + kNextSum) * sizeof(Lane);
        for (uint64_t b = 0; b < 2 * kCodes * sizeof(Lane); b += 64) __builtin_prefetch(sum + b, 1);
      } else {
        prefetch_ahead(codes + i / 2);
      }
      const PairValues pairs(values, in_zip_order(hn::LoadU(U8(), codes + i / 2)));
      store_lanes<Lane, kAdd>(hn::InterleaveLower(U8(), pairs.first, pairs.second), lanes, i);
      store_lanes<Lane, kAdd>(hn::InterleaveUpper(U8(), pairs.first, pairs.second), lanes,
                              i + kCodes);
    }
  } else {
    i = for_codes<kBits>(codes, n, [&](uint64_t at, VB indices) LACONIC_LAMBDA {
      store_lanes<Lane, kAdd>(hn::TableLookupBytes(values, indices), lanes, at);
    });
  }
  for (; i < n; ++i) {
    const uint32_t before = kAdd ? at<Lane>(lanes, i) : 0U;
    put<Lane>(lanes, i, static_cast<Lane>(before + table[code_at(codes, kBits, i)]));
  }
}

template <class Lane, bool kAdd>
void to_lanes(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table, void* lanes) {
  with_bits(bits, [&](auto kBits)
                      LACONIC_LAMBDA { to_lanes_of<Lane, kAdd, kBits>(codes, n, table, lanes); });
}

/// Indices of 4 bits: kTurns times 2·kCodes lanes from i on stay in registers. More than one turn
/// is for vectors of a whole line, whose operands are prefetched; with shorter ones the hardware
/// prefetcher handles this number of rows well.
template <uint32_t kTurns, bool kAdd>
HWY_INLINE void sum_pairs(const uint8_t* const* codes, uint32_t count, uint64_t i, VB values,
                          uint8_t* lanes) {
  VB first[kTurns], second[kTurns];
  for (uint32_t t = 0; t < kTurns; ++t) first[t] = second[t] = hn::Zero(U8());
  for (uint32_t k = 0; k < count; ++k) {
    const uint8_t* from = codes[k] + i / 2;
    for (uint32_t t = 0; t < kTurns; ++t) {
      if constexpr (kTurns > 1) __builtin_prefetch(from + t * kCodes + kNextCodes);
      const PairValues pairs(values, hn::LoadU(U8(), from + t * kCodes));
      first[t] = hn::Add(first[t], pairs.first);
      second[t] = hn::Add(second[t], pairs.second);
    }
  }
  for (uint32_t t = 0; t < kTurns; ++t) {
    const VB a = in_zip_order(first[t]), b = in_zip_order(second[t]);
    const uint64_t at = i + 2 * t * kCodes;
    store_lanes<uint8_t, kAdd>(hn::InterleaveLower(U8(), a, b), lanes, at);
    store_lanes<uint8_t, kAdd>(hn::InterleaveUpper(U8(), a, b), lanes, at + kCodes);
  }
}

template <bool kAdd>
void sum_all8(const uint8_t* const* codes, uint32_t count, uint64_t n, uint32_t bits,
              const uint8_t* table, void* lanes) {
  uint64_t i = 0;
  auto* out = static_cast<uint8_t*>(lanes);
  if (bits == 4) {
    const VB values = dup128(table);
    if constexpr (LACONIC_AVX512) {
      for (; i + 8 * kCodes <= n; i += 8 * kCodes) sum_pairs<4, kAdd>(codes, count, i, values, out);
    }
    for (; i + 2 * kCodes <= n; i += 2 * kCodes) sum_pairs<1, kAdd>(codes, count, i, values, out);
  }
  // the rest, and other bits: a part that stays in the cache
  constexpr uint64_t kPart = 4096;
  for (; i < n; i += kPart) {
    const uint64_t part = HWY_MIN(kPart, n - i);
    to_lanes<uint8_t, kAdd>(codes[0] + i / 8 * bits, part, bits, table, out + i);
    for (uint32_t k = 1; k < count; ++k) {
      to_lanes<uint8_t, true>(codes[k] + i / 8 * bits, part, bits, table, out + i);
    }
  }
}

constexpr GridKernels kTable{&quantize,
                             &dequantize,
                             &mean<uint8_t>,
                             &mean<uint16_t>,
                             &to_lanes<uint8_t, false>,
                             &to_lanes<uint16_t, false>,
                             &to_lanes<uint8_t, true>,
                             &to_lanes<uint16_t, true>,
                             &sum_all8<false>,
                             &sum_all8<true>};

#undef LACONIC_AVX2
#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const GridKernels& grid_kernels(Isa isa) noexcept { LACONIC_SIMD_SELECT(isa, kTable, kGridScalar) }

}  // namespace laconic::kernels
#endif  // HWY_ONCE
