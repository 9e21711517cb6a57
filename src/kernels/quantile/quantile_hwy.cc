// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
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

HWY_INLINE VU images(VI bits) {
  const VI sign = hn::ShiftRight<31>(bits);
  const VI magnitude = hn::And(bits, hn::Set(I32(), 0x7FFFFFFF));
  const VI image = hn::Sub(hn::Xor(magnitude, sign), sign);
  return hn::Xor(hn::BitCast(U32(), image), hn::Set(U32(), 0x80000000U));
}
HWY_INLINE VI load_bits(const float* x) { return hn::BitCast(I32(), hn::LoadU(F32(), x)); }

/// Elements of a table of narrower integers.
HWY_INLINE VU lookup(const uint8_t* table, VU index) {
  const VU words =
      hn::GatherOffset(U32(), reinterpret_cast<const uint32_t*>(table), hn::BitCast(I32(), index));
  return hn::And(words, hn::Set(U32(), 0xFF));
}
HWY_INLINE VU lookup(const uint16_t* table, VU index) {
  const VU words = hn::GatherOffset(U32(), reinterpret_cast<const uint32_t*>(table),
                                    hn::BitCast(I32(), hn::ShiftLeft<1>(index)));
  return hn::And(words, hn::Set(U32(), 0xFFFF));
}
HWY_INLINE VU lookup(const uint32_t* table, VU index) {
  return hn::GatherIndex(U32(), table, hn::BitCast(I32(), index));
}

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
    for (uint64_t j = 0; j < m; ++j) ++counts[index[j]];
    i += m;
  }
  auto largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), most)));
  for (; i < n; ++i) {
    ++counts[quantile_image(x[i]) >> 16];
    largest = HWY_MAX(largest, float_bits(x[i]) & 0x7FFFFFFFU);
  }
  return largest;
}

/// Counts what `index_of(images)` gives where it is at least kQuantileRow.
template <class Index>
HWY_INLINE uint64_t count_wanted(const float* x, uint64_t n, uint32_t* HWY_RESTRICT counts,
                                 Index index_of) {
  const size_t lanes = lanes32();
  HWY_ALIGN uint32_t index[kBlock + hn::MaxLanes(U32())];
  uint64_t i = 0;
  while (i + lanes <= n) {
    const uint64_t m = HWY_MIN(kBlock, (n - i) / lanes * lanes);
    uint64_t wanted = 0;
    for (uint64_t j = 0; j < m; j += lanes) {
      prefetch_span(x + i + j, lanes * sizeof(float));
      const VU at = index_of(images(load_bits(x + i + j)));
      const auto in = hn::Gt(hn::BitCast(I32(), at), hn::Set(I32(), kQuantileRow - 1));
      wanted += hn::CompressStore(at, hn::RebindMask(U32(), in), U32(), index + wanted);
    }
    for (uint64_t j = 0; j < wanted; ++j) ++counts[index[j]];
    i += m;
  }
  return i;
}

HWY_INLINE VU middle_index(const uint16_t* groups, VU image) {
  const VU group = lookup(groups, hn::ShiftRight<16>(image));
  const VU middle = hn::And(hn::ShiftRight<8>(image), hn::Set(U32(), 0xFF));
  return hn::Or(hn::ShiftLeft<8>(group), middle);
}

void count_middle(const float* x, uint64_t n, const uint16_t* groups, uint32_t* counts) {
  const uint64_t done = count_wanted(
      x, n, counts, [&](VU image) LACONIC_LAMBDA { return middle_index(groups, image); });
  kQuantileScalar.count_middle(x + done, n - done, groups, counts);
}

void count_lower(const float* x, uint64_t n, const uint16_t* groups, const uint16_t* subgroups,
                 uint32_t* counts) {
  const uint64_t done = count_wanted(x, n, counts, [&](VU image) LACONIC_LAMBDA {
    const VU subgroup = lookup(subgroups, middle_index(groups, image));
    return hn::Or(hn::ShiftLeft<8>(subgroup), hn::And(image, hn::Set(U32(), 0xFF)));
  });
  kQuantileScalar.count_lower(x + done, n - done, groups, subgroups, counts);
}

// ---- codes ----

HWY_INLINE VU codes_of(VU image, const QuantileBins& bins) {
  VU code = lookup(bins.base, hn::ShiftRight<16>(image));
  for (uint32_t step = bins.steps; step > 0; --step) {
    const uint32_t half = 1U << (step - 1);
    // a threshold is never below: compared as signed numbers, both with the upper bit turned
    const VU threshold = lookup(bins.thresholds + half - 1, code);
    const VU turn = hn::Set(U32(), 0x80000000U);
    const auto above = hn::Gt(hn::BitCast(I32(), hn::Xor(threshold, turn)),
                              hn::BitCast(I32(), hn::Xor(image, turn)));
    code = hn::Add(code, hn::IfThenZeroElse(hn::RebindMask(U32(), above), hn::Set(U32(), half)));
  }
  return code;
}

/// Packs n <= kBlock codes; only the last group of a call may be short of eight. `room`: bytes that
/// belong to the caller.
HWY_INLINE void pack(const uint8_t* codes, uint64_t n, uint32_t width, uint8_t* packed,
                     uint64_t room) {
  uint64_t i = 0;
#if LACONIC_AVX512 || LACONIC_AVX2
  const uint64_t mask = 0x0101010101010101U * ((1U << width) - 1);
  for (; i + 8 <= n && room >= sizeof(uint64_t); i += 8, packed += width, room -= width) {
    put<uint64_t>(packed, 0, _pext_u64(at<uint64_t>(codes + i, 0), mask));
  }
#else
  static_cast<void>(room);
#endif
  for (; i < n; i += 8, packed += width) {
    quantile_pack(codes + i, HWY_MIN(uint64_t{8}, n - i), width, packed);
  }
}

void encode(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed, double* sums) {
  const size_t lanes = lanes32();
  const hn::Rebind<uint8_t, U32> d8;
  QuantileSums lane_sums(bins.bins);
  uint64_t room = (n * bins.width + 7) / 8;
  HWY_ALIGN uint8_t codes[kBlock];
  for (uint64_t i = 0; i < n; i += kBlock) {
    const uint64_t m = HWY_MIN(kBlock, n - i);
    uint64_t j = 0;
    for (; j + lanes <= m; j += lanes) {
      prefetch_span(x + i + j, lanes * sizeof(float));
      hn::Store(hn::TruncateTo(d8, codes_of(images(load_bits(x + i + j)), bins)), d8, codes + j);
    }
    for (; j < m; ++j) {
      codes[j] = static_cast<uint8_t>(quantile_code(quantile_image(x[i + j]), bins));
    }
    uint64_t k = 0;
    for (; k + kQuantileLanes <= m; k += kQuantileLanes) {
      for (uint64_t l = 0; l < kQuantileLanes; ++l) {
        lane_sums.lane[l][codes[k + l]] += static_cast<double>(x[i + k + l]);
      }
    }
    for (; k < m; ++k) {
      lane_sums.lane[k % kQuantileLanes][codes[k]] += static_cast<double>(x[i + k]);
    }
    pack(codes, m, bins.width, packed, room);
    packed += m / 8 * bins.width;
    room -= m / 8 * bins.width;
  }
  lane_sums.fold(bins.bins, sums);
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
  const uint64_t mask = 0x0101010101010101U * ((1U << o.width) - 1);
  const uint64_t bytes = _pdep_u64(at<uint64_t>(o.codes + i / 8 * o.width, 0), mask);
  const __m256i index = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  return VF{_mm256_i32gather_ps(o.values.data(), index, 4)};
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

constexpr QuantileKernels kTable{&count_upper, &count_middle, &count_lower, &encode, &decode};

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
