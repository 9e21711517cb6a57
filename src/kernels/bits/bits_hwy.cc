// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>

#include "kernels/bits/bits.h"

#define HWY_WANT_AVX3_DL  // tables of bytes
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bits/bits_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/bits/bits_gather-inl.h"
#include "kernels/core/byte_table-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

constexpr bool kMaskRegisters = HWY_TARGET <= HWY_AVX3;  // targets count down as they grow

using Mask = hn::Mask<F32>;

constexpr size_t kLanes = HWY_MAX_BYTES / sizeof(float);
constexpr size_t kRowVectors = kBitsLanes / kLanes;

// ---- floats to bits ----

/// Bits of the elements of a row of 32: those of the masks, or the others where kInverted.
template <bool kInverted>
HWY_INLINE void store_row(const Mask* masks, uint8_t* bits) {
  uint8_t bytes[8];  // StoreMaskBits needs 8 bytes
  const auto byte_of = [&](const Mask& mask) LACONIC_LAMBDA {
    hn::StoreMaskBits(F32(), mask, bytes);
    return static_cast<uint32_t>(bytes[0]);
  };
  if constexpr (kLanes == 16) {
    static_assert(!kInverted);
    for (size_t v = 0; v < kRowVectors; ++v) {
      hn::StoreMaskBits(F32(), masks[v], bytes);
      std::memcpy(bits + 2 * v, bytes, 2);
    }
  } else {
    for (size_t i = 0; i < kBitsLanes / 8; ++i) {
      const uint32_t byte =
          kLanes == 8 ? byte_of(masks[i]) : byte_of(masks[2 * i]) | byte_of(masks[2 * i + 1]) << 4;
      bits[i] = static_cast<uint8_t>(kInverted ? ~byte : byte);
    }
  }
}

/// A row padded with zeros, for what does not fill one.
struct PaddedRow {
  float x[kBitsLanes] = {};
  HWY_INLINE PaddedRow(const float* from, uint64_t n) { std::memcpy(x, from, n * sizeof(float)); }
};

/// Fetches the row 2 KiB ahead: where little is computed, a fifth faster from memory than the usual
/// 4 KiB, the same from caches.
HWY_INLINE void fetch_row(const float* x) {
  const auto at = reinterpret_cast<uintptr_t>(x) + 2048;
  __builtin_prefetch(reinterpret_cast<const void*>(at));
  __builtin_prefetch(reinterpret_cast<const void*>(at + 64));
}

/// Bits of `n` <= 32 elements of a padded row, whose other bits become zero.
template <bool kInverted>
HWY_INLINE void store_partial(const Mask* masks, uint64_t n, uint8_t* bits) {
  uint8_t row[4];
  store_row<kInverted>(masks, row);
  uint32_t word;
  std::memcpy(&word, row, 4);
  word &= static_cast<uint32_t>((uint64_t{1} << n) - 1);
  std::memcpy(bits, &word, (n + 7) / 8);
}

bool pack(const float* x, uint64_t n, uint8_t* bits) {
  const F32 f;
  const VF zero = hn::Zero(f);
  constexpr size_t kRows = kLanes == 16 ? 2 : 1;  // sums enough to hide an addition's latency
  VF not_finite[kRows * kRowVectors];             // stay 0 until an x is not finite
  for (VF& v : not_finite) v = zero;
  const auto row = [&](const float* from, size_t r, Mask* masks) LACONIC_LAMBDA {
    for (size_t v = 0; v < kRowVectors; ++v) {
      const VF a = hn::LoadU(f, from + v * kLanes);
      masks[v] = hn::Ge(a, zero);
      VF& sum = not_finite[r * kRowVectors + v];
      sum = hn::MulAdd(a, zero, sum);
    }
  };
  uint64_t i = 0;
  Mask masks[kRowVectors];
  for (; i + kRows * kBitsLanes <= n; i += kRows * kBitsLanes) {
    for (size_t r = 0; r < kRows; ++r) {
      fetch_row(x + i + r * kBitsLanes);
      row(x + i + r * kBitsLanes, r, masks);
      store_row<false>(masks, bits + i / 8 + r * (kBitsLanes / 8));
    }
  }
  for (; i < n; i += kBitsLanes) {
    const uint64_t m = HWY_MIN(kBitsLanes, n - i);
    row(PaddedRow(x + i, m).x, 0, masks);
    store_partial<false>(masks, m, bits + i / 8);
  }
  VF sum = not_finite[0];
  for (size_t v = 1; v < kRows * kRowVectors; ++v) sum = hn::Add(sum, not_finite[v]);
  return hn::AllTrue(f, hn::Eq(sum, zero));
}

/// Ones among whole bytes.
HWY_INLINE uint64_t count_ones(const uint8_t* bits, uint64_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  const size_t step = hn::Lanes(d) * sizeof(uint64_t);
  auto ones = hn::Zero(d);
  uint64_t i = 0;
  for (; i + step <= bytes; i += step) {
    const auto words = hn::LoadU(B(), bits + i);
    ones = hn::Add(ones, hn::SumsOf8(hn::PopulationCount(words)));
  }
  uint64_t count = hn::GetLane(hn::SumOfLanes(d, ones));
  for (; i < bytes; ++i) count += static_cast<uint64_t>(std::popcount(bits[i]));
  return count;
}

HWY_INLINE float fold_lanes(const VF* sums) {
  float lane[kBitsLanes];
  for (size_t v = 0; v < kRowVectors; ++v) hn::StoreU(sums[v], F32(), lane + v * kLanes);
  for (size_t half = kBitsLanes / 2; half != 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

/// x86 gives the second operand of a minimum or maximum where one is NaN or both are zeros. So
/// min(a, 0) has the sign of a, but for -0 and NaN, and max(0, a), as min(0, a), is NaN where a is.
constexpr bool kSecondOperand = HWY_ARCH_X86 && !kMaskRegisters;

template <bool kFeedback>
HWY_INLINE BitsSums pack_sums_as(const float* HWY_RESTRICT x, const float* HWY_RESTRICT e,
                                 uint64_t n, uint8_t* HWY_RESTRICT bits) {
  const F32 f;
  const VF zero = hn::Zero(f);
  VF negative[kRowVectors], positive[kRowVectors];
  for (size_t v = 0; v < kRowVectors; ++v) negative[v] = positive[v] = zero;
  Mask masks[kRowVectors];
  const auto row = [&](const float* from, const float* rest) LACONIC_LAMBDA {
    for (size_t v = 0; v < kRowVectors; ++v) {
      VF a = hn::LoadU(f, from + v * kLanes);
      if constexpr (kFeedback) a = hn::Add(a, hn::LoadU(f, rest + v * kLanes));
      if constexpr (kMaskRegisters) {
        masks[v] = hn::Ge(a, zero);
        positive[v] = hn::IfThenElse(masks[v], hn::Add(positive[v], a), positive[v]);
        negative[v] = hn::Add(negative[v], hn::Min(zero, a));
      } else if constexpr (kSecondOperand) {
        const VF below = hn::Min(a, zero);
        masks[v] = hn::MaskFromVec(below);
        positive[v] = hn::Add(positive[v], hn::Max(zero, a));
        negative[v] = hn::Add(negative[v], below);
      } else {
        masks[v] = hn::Ge(a, zero);
        positive[v] = hn::Add(positive[v], hn::IfThenElseZero(masks[v], a));
        negative[v] = hn::Add(negative[v], hn::IfThenZeroElse(masks[v], a));
      }
    }
  };
  uint64_t i = 0;
  for (; i + kBitsLanes <= n; i += kBitsLanes) {
    fetch_row(x + i);
    if constexpr (kFeedback) fetch_row(e + i);
    row(x + i, e + (kFeedback ? i : 0));
    store_row<kSecondOperand>(masks, bits + i / 8);
  }
  if (i < n) {
    const PaddedRow from(x + i, n - i), rest(kFeedback ? e + i : x + i, n - i);
    row(from.x, rest.x);
    store_partial<kSecondOperand>(masks, n - i, bits + i / 8);
  }
  return {fold_lanes(negative), fold_lanes(positive), count_ones(bits, (n + 7) / 8)};
}

BitsSums pack_sums(const float* x, const float* e, uint64_t n, uint8_t* bits) {
  return e == nullptr ? pack_sums_as<false>(x, x, n, bits) : pack_sums_as<true>(x, e, n, bits);
}

void keep_rest(const float* x, float* e, uint64_t n, BitsValues values) {
  const F32 f;
  const VF zero = hn::Zero(f);
  const VF one = hn::Set(f, values.one), other = hn::Set(f, values.zero);
  const VF difference = hn::Xor(one, other);
  const auto vector = [&](uint64_t i) LACONIC_LAMBDA {
    const VF a = hn::Add(hn::LoadU(f, x + i), hn::LoadU(f, e + i));
    const Mask mask = hn::Ge(a, zero);
    const VF value = kMaskRegisters ? hn::IfThenElse(mask, one, other)
                                    : hn::Xor(other, hn::IfThenElseZero(mask, difference));
    hn::StoreU(hn::Sub(a, value), f, e + i);
  };
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        vector(i);
        vector(i + kLanes);
        vector(i + 2 * kLanes);
        vector(i + 3 * kLanes);
      },
      vector,
      [&](uint64_t i) LACONIC_LAMBDA {
        const float a = x[i] + e[i];
        e[i] = a - (a >= 0 ? values.one : values.zero);
      });
}

// ---- bits to floats ----

/// Elements whose bits are gathered, from all payloads, before floats are made of them.
constexpr uint64_t kBlock = 1024;
/// In whole words of bits.
constexpr uint64_t kStep = 64;

#if LACONIC_AVX512
/// index[i] = the bits of element at + i: bit t is that of term t.
HWY_INLINE void gather_bits(const BitsTerm* terms, uint32_t count, uint64_t at, uint64_t n,
                            uint8_t* HWY_RESTRICT index) {
  const B b;
  const size_t lanes = hn::Lanes(b);
  for (uint64_t i = 0; i < n; i += lanes) {
    VB gathered = hn::Zero(b);
    for (uint32_t t = 0; t < count; ++t) {
      const auto mask = load_bits(terms[t].bits, at + i);
      const VB bit = hn::Set(b, static_cast<uint8_t>(1U << t));
      gathered = VB{_mm512_mask_add_epi8(gathered.raw, mask.raw, gathered.raw, bit.raw)};
    }
    hn::Store(gathered, b, index + i);
  }
}

/// Values of one term in lanes, bit 0 in the even ones.
struct Pair {
  alignas(64) float value[16];
};

/// The value of bit 0 of an index, of which four bits are seen.
HWY_INLINE VF pick(const Pair& pair, VU index) {
  return VF{_mm512_permutexvar_ps(index.raw, _mm512_load_ps(pair.value))};
}

/// Up to this number of terms their sums are looked up at once.
constexpr uint32_t kTogether = 5;

struct Together {
  alignas(64) float sum[32];
};

/// The sum of the first terms, by five bits of an index.
HWY_INLINE VF pick_sum(const Together& table, VU index) {
  return VF{
      _mm512_permutex2var_ps(_mm512_load_ps(table.sum), index.raw, _mm512_load_ps(table.sum + 16))};
}

struct Tables {
  Together together;
  Pair pairs[kBitsTerms];
};

HWY_INLINE void fill_tables(const BitsTerm* terms, uint32_t count, Tables& tables) {
  const auto value = [&](uint32_t t, uint32_t index) LACONIC_LAMBDA {
    return (index >> t & 1U) != 0 ? terms[t].values.one : terms[t].values.zero;
  };
  for (uint32_t i = 0; i < 32; ++i) {
    float sum = value(0, i);
    for (uint32_t t = 1; t < HWY_MIN(count, kTogether); ++t) sum += value(t, i);
    tables.together.sum[i] = sum;
  }
  for (uint32_t t = 0; t < count; ++t) {
    for (uint32_t i = 0; i < 16; ++i) {
      tables.pairs[t].value[i] = i % 2 != 0 ? terms[t].values.one : terms[t].values.zero;
    }
  }
}

/// sum += values of the terms [first, count), first < 8, whose bits are index[0] and index[1] of
/// each element.
template <uint32_t kVectors>
HWY_INLINE void add_terms(VF* sum, const Tables& tables, const uint8_t (*index)[kBlock], uint64_t i,
                          uint32_t first, uint32_t count) {
  const hn::Rebind<uint8_t, F32> b;
  for (uint32_t group = 0; group * kGroup < count; ++group) {
    const uint32_t end = HWY_MIN(count, (group + 1) * kGroup);
    uint32_t t = group == 0 ? first : kGroup;
    if (t >= end) continue;
    VU bits[kVectors];
    for (uint32_t v = 0; v < kVectors; ++v) {
      bits[v] = hn::PromoteTo(U32(), hn::Load(b, index[group] + i + v * kLanes));
    }
    if (group == 0 && first == kTogether) {
      for (VU& w : bits) w = hn::ShiftRight<kTogether>(w);
    }
    for (; t < end; ++t) {
      for (uint32_t v = 0; v < kVectors; ++v) {
        sum[v] = hn::Add(sum[v], pick(tables.pairs[t], bits[v]));
        bits[v] = hn::ShiftRight<1>(bits[v]);
      }
    }
  }
}

/// Whole steps of 64 elements.
template <Output kOutput>
HWY_INLINE void decode_one_by_one(float* HWY_RESTRICT out, const BitsTerm* terms, uint32_t count,
                                  uint64_t n) {
  const F32 f;
  const hn::Rebind<uint8_t, F32> b;
  constexpr uint32_t kVectors = 4;
  Tables tables;
  fill_tables(terms, count, tables);
  alignas(64) uint8_t index[(kBitsTerms + kGroup - 1) / kGroup][kBlock];
  for (uint64_t at = 0; at < n; at += kBlock) {
    const uint64_t block = HWY_MIN(kBlock, n - at);
    for (uint32_t t = 0; t < count; t += kGroup) {
      gather_bits(terms + t, HWY_MIN(kGroup, count - t), at, block, index[t / kGroup]);
    }
    for (uint64_t i = 0; i < block; i += kVectors * kLanes) {
      VF sum[kVectors];
      for (uint32_t v = 0; v < kVectors; ++v) {
        float* const to = out + at + i + v * kLanes;
        if constexpr (kOutput == Output::add) {
          sum[v] = hn::LoadU(f, to);
        } else {
          sum[v] = pick_sum(tables.together,
                            hn::PromoteTo(U32(), hn::Load(b, index[0] + i + v * kLanes)));
        }
      }
      add_terms<kVectors>(sum, tables, index, i, kOutput == Output::add ? 0 : kTogether, count);
      for (uint32_t v = 0; v < kVectors; ++v) {
        store_f32<kOutput>(sum[v], out + at + i + v * kLanes);
      }
    }
  }
}

#else
/// Whole steps of 64 elements. A word of bits goes to all lanes, and each shifts its own to where a
/// sign is.
template <Output kOutput>
HWY_INLINE void decode_words(float* HWY_RESTRICT out, const BitsTerm* terms, uint32_t count,
                             uint64_t n) {
  const F32 f;
  VU up[kRowVectors];
  for (size_t v = 0; v < kRowVectors; ++v) {
    const auto first = static_cast<uint32_t>(v * kLanes);
    up[v] = hn::Sub(hn::Set(U32(), 31), hn::Iota(U32(), first));
  }
  for (uint64_t i = 0; i < n; i += kBitsLanes) {
    VF sum[kRowVectors];
    if constexpr (kOutput == Output::add) {
      for (size_t v = 0; v < kRowVectors; ++v) sum[v] = hn::LoadU(f, out + i + v * kLanes);
    }
    for (uint32_t t = 0; t < count; ++t) {
      uint32_t word;
      std::memcpy(&word, terms[t].bits + i / 8, sizeof word);
      const VU bits = hn::Set(U32(), word);
      const VF one = hn::Set(f, terms[t].values.one), other = hn::Set(f, terms[t].values.zero);
      for (size_t v = 0; v < kRowVectors; ++v) {
        const VF own = hn::BitCast(f, hn::Shl(bits, up[v]));
        const VF value = hn::IfNegativeThenElse(own, one, other);
        sum[v] = kOutput != Output::add && t == 0 ? value : hn::Add(sum[v], value);
      }
    }
    for (size_t v = 0; v < kRowVectors; ++v) store_f32<kOutput>(sum[v], out + i + v * kLanes);
  }
}
#endif

#if LACONIC_BYTE_TABLE
/// Sums of the first (at most eight) terms, by their bits.
struct Sums {
  alignas(64) float of[256] = {};
  HWY_INLINE Sums(const BitsTerm* terms, uint32_t count) {
    of[0] = terms[0].values.zero;
    of[1] = terms[0].values.one;
    for (uint32_t t = 1; t < count; ++t) {
      const uint32_t half = 1U << t;
      for (uint32_t i = 0; i < half; ++i) {
        of[half + i] = of[i] + terms[t].values.one;
        of[i] += terms[t].values.zero;
      }
    }
  }
};

/// As decode_one_by_one(), of eight terms together, where there is nothing to add them to.
template <Output kOutput>
HWY_INLINE void decode_together(float* out, const BitsTerm* terms, uint32_t count, uint64_t n) {
  const hn::Rebind<uint8_t, F32> b;
  const uint32_t first = HWY_MIN(count, kGroup);
  const Sums sums(terms, first);
  const ByteTable low(sums.of), high(sums.of + 128);
  Tables tables;
  if (count > kGroup) fill_tables(terms, count, tables);
  const auto bits_of = [&](uint32_t t) LACONIC_LAMBDA { return terms[t].bits; };
  const auto others_of = [&](uint32_t t) LACONIC_LAMBDA { return terms[kGroup + t].bits; };
  for_gathered(bits_of, first, n, [&](uint64_t i, __m512i gathered) LACONIC_LAMBDA {
    __m512i words[4];
    low.find_with(high, turn_words(gathered), words);
    VF sum[4];
    for (uint32_t v = 0; v < 4; ++v) sum[v] = VF{_mm512_castsi512_ps(words[v])};
    if (count > kGroup) {
      alignas(64) uint8_t others[64];
      _mm512_store_si512(others, gather_64(others_of, count - kGroup, i));
      for (uint32_t v = 0; v < 4; ++v) {
        VU bits = hn::PromoteTo(U32(), hn::Load(b, others + 16 * v));
        for (uint32_t t = kGroup; t < count; ++t) {
          sum[v] = hn::Add(sum[v], pick(tables.pairs[t], bits));
          bits = hn::ShiftRight<1>(bits);
        }
      }
    }
    for (uint32_t v = 0; v < 4; ++v) store_f32<kOutput>(sum[v], out + i + 16 * v);
  });
}
#endif

template <Output kOutput>
HWY_INLINE void decode_steps(float* out, const BitsTerm* terms, uint32_t count, uint64_t n) {
#if LACONIC_BYTE_TABLE
  if (kOutput != Output::add && count > kTogether && n >= kByteTablePays) {
    return decode_together<kOutput>(out, terms, count, n);
  }
#endif
#if LACONIC_AVX512
  decode_one_by_one<kOutput>(out, terms, count, n);
#else
  decode_words<kOutput>(out, terms, count, n);
#endif
}

HWY_INLINE bool can_stream(const float* out) {
  return reinterpret_cast<uintptr_t>(out) % (kLanes * sizeof(float)) == 0;
}

void decode(float* out, Output output, const BitsTerm* terms, uint32_t count, uint64_t n) {
  if (count == 0) return kBitsScalar.decode(out, output, terms, count, n);
  const uint64_t whole = n / kStep * kStep;
  if (output == Output::add) {
    decode_steps<Output::add>(out, terms, count, whole);
  } else if (output == Output::stream && can_stream(out)) {
    decode_steps<Output::stream>(out, terms, count, whole);
    hwy::FlushStream();
  } else {
    decode_steps<Output::set>(out, terms, count, whole);
  }
  if (whole == n) return;
  BitsTerm rest[kBitsTerms];
  for (uint32_t t = 0; t < count; ++t) rest[t] = {terms[t].bits + whole / 8, terms[t].values};
  kBitsScalar.decode(out + whole, output, rest, count, n - whole);
}

// ---- votes ----

/// votes[i] = ones − zeros (int8) among the bits of element at + i.
HWY_INLINE void count_block(const uint8_t* const* bits, uint32_t count, uint64_t at, uint64_t n,
                            uint8_t* HWY_RESTRICT votes) {
  const B b;
  constexpr size_t kBytes = HWY_MAX_BYTES;
  constexpr size_t kVectors = HWY_MAX(kStep / kBytes, 1);  // sums that wait for each other less
  const VB total = hn::Set(b, static_cast<uint8_t>(count));
  for (uint64_t i = 0; i < n; i += kVectors * kBytes) {
    VB ones[kVectors];
    for (VB& v : ones) v = hn::Zero(b);
    for (uint32_t t = 0; t < count; ++t) {
      for (size_t v = 0; v < kVectors; ++v) {
        const auto mask = load_bits(bits[t], at + i + v * kBytes);
#if LACONIC_AVX512
        ones[v] =
            VB{_mm512_mask_sub_epi8(ones[v].raw, mask.raw, ones[v].raw, _mm512_set1_epi8(-1))};
#else
        ones[v] = hn::Sub(ones[v], hn::VecFromMask(b, mask));
#endif
      }
    }
    for (size_t v = 0; v < kVectors; ++v) {
      hn::Store(hn::Sub(hn::Add(ones[v], ones[v]), total), b, votes + i + v * kBytes);
    }
  }
}

#if LACONIC_BYTE_TABLE
/// As vote_steps, of at most eight payloads, by a table of what a number of ones gives.
template <Output kOutput>
HWY_INLINE void vote_together(float* out, const uint8_t* const* bits, uint32_t count, float weight,
                              uint64_t n) {
  alignas(64) float result[128] = {};
  for (uint32_t ones = 0; ones <= count; ++ones) {
    result[ones] =
        static_cast<float>(2 * static_cast<int32_t>(ones) - static_cast<int32_t>(count)) * weight;
  }
  const ByteTable table(result);
  const auto bits_of = [&](uint32_t t) LACONIC_LAMBDA { return bits[t]; };
  for_gathered(bits_of, count, n, [&](uint64_t i, __m512i gathered) LACONIC_LAMBDA {
    __m512i words[4];
    table.find(turn_words(_mm512_popcnt_epi8(gathered)), words);
    for (uint32_t v = 0; v < 4; ++v) {
      float* const to = out + i + 16 * v;
      VF sum{_mm512_castsi512_ps(words[v])};
      if constexpr (kOutput == Output::add) sum = hn::Add(hn::LoadU(F32(), to), sum);
      store_f32<kOutput>(sum, to);
    }
  });
}
#endif

template <Output kOutput>
HWY_INLINE void vote_steps(float* HWY_RESTRICT out, const uint8_t* const* bits, uint32_t count,
                           float weight, uint64_t n) {
#if LACONIC_BYTE_TABLE
  if (count >= kGroup / 2 && count <= kGroup && n >= kByteTablePays) {
    return vote_together<kOutput>(out, bits, count, weight, n);
  }
#endif
  const F32 f;
  const hn::Rebind<int8_t, F32> b;
  const VF factor = hn::Set(f, weight);
  alignas(64) uint8_t votes[kBlock];
  for (uint64_t at = 0; at < n; at += kBlock) {
    const uint64_t block = HWY_MIN(kBlock, n - at);
    count_block(bits, count, at, block, votes);
    for (uint64_t i = 0; i < block; i += kLanes) {
      const auto* const from = reinterpret_cast<const int8_t*>(votes + i);
      const VI v = hn::PromoteTo(I32(), hn::Load(b, from));
      VF sum = hn::Mul(hn::ConvertTo(f, v), factor);
      if constexpr (kOutput == Output::add) sum = hn::Add(hn::LoadU(f, out + at + i), sum);
      store_f32<kOutput>(sum, out + at + i);
    }
  }
}

void vote(float* out, Output output, const uint8_t* const* bits, uint32_t count, float weight,
          uint64_t n) {
#if !LACONIC_AVX512
  if (count == 1) {
    const BitsTerm only{bits[0], {-weight, weight}};
    return decode(out, output, &only, 1, n);
  }
#endif
  const uint64_t whole = n / kStep * kStep;
  if (output == Output::add) {
    vote_steps<Output::add>(out, bits, count, weight, whole);
  } else if (output == Output::stream && can_stream(out)) {
    vote_steps<Output::stream>(out, bits, count, weight, whole);
    hwy::FlushStream();
  } else {
    vote_steps<Output::set>(out, bits, count, weight, whole);
  }
  if (whole == n) return;
  const uint8_t* rest[kVoteTerms];
  for (uint32_t t = 0; t < count; ++t) rest[t] = bits[t] + whole / 8;
  kBitsScalar.vote(out + whole, output, rest, count, weight, n - whole);
}

void sign(float* x, uint64_t n) {
  const F32 f;
  const VF one = hn::Set(f, 1.0F), other = hn::Set(f, -1.0F);
  const auto vector = [&](uint64_t i) LACONIC_LAMBDA {
    hn::StoreU(hn::IfThenElse(hn::Ge(hn::LoadU(f, x + i), hn::Zero(f)), one, other), f, x + i);
  };
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_span(x + i, 4 * kLanes * sizeof(float));
        vector(i);
        vector(i + kLanes);
        vector(i + 2 * kLanes);
        vector(i + 3 * kLanes);
      },
      vector, [&](uint64_t i) LACONIC_LAMBDA { x[i] = x[i] >= 0 ? 1.0F : -1.0F; });
}

constexpr BitsKernels kTable{&pack, &pack_sums, &keep_rest, &decode, &vote, &sign};

#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const BitsKernels& bits_kernels(Isa isa) noexcept { LACONIC_SIMD_SELECT(isa, kTable, kBitsScalar) }

}  // namespace laconic::kernels
#endif  // HWY_ONCE
