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
  for (; i < n; ++i) codes[i] = static_cast<uint8_t>(quantile_code(quantile_image(x[i]), bins));
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

/// Adds x[0, n) to the sums, element i to lane i mod 8.
HWY_INLINE void add_block(const float* x, uint64_t n, const uint8_t* codes, QuantileSums& sums) {
  using F64 = hn::ScalableTag<double>;
  const F64 d;
  const hn::Rebind<float, F64> half;
  HWY_ALIGN double wide[kBlock];
  uint64_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::Store(hn::PromoteTo(d, hn::LoadU(half, x + i)), d, wide + i);
  }
  for (; i < n; ++i) wide[i] = static_cast<double>(x[i]);
  double* const sum = sums.sum.data();
  for (i = 0; i + kQuantileLanes <= n; i += kQuantileLanes) {
    for (uint64_t l = 0; l < kQuantileLanes; ++l) {
      sum[codes[i + l] * kQuantileLanes + l] += wide[i + l];
    }
  }
  for (; i < n; ++i) sums.add(i, codes[i], wide[i]);
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

/// `codes_of(x, n, codes)` is called for every block.
template <class Codes>
HWY_INLINE void encode_all(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed,
                           double* sums, Codes codes_of) {
  QuantileSums lane_sums(bins.bins);
  uint64_t room = (n * bins.width + 7) / 8;
  HWY_ALIGN uint8_t codes[kBlock];
  for (uint64_t i = 0; i < n; i += kBlock) {
    const uint64_t m = HWY_MIN(kBlock, n - i);
    codes_of(x + i, m, codes);
    add_block(x + i, m, codes, lane_sums);
    pack(codes, m, bins.width, packed, room);
    packed += m / 8 * bins.width;
    room -= m / 8 * bins.width;
  }
  lane_sums.fold(bins.bins, sums);
}

void encode(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed, double* sums) {
#if LACONIC_AVX512
  if (bins.bins <= 64) {
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

constexpr QuantileKernels kTable{&count_upper, &sum_rows, &collect, &encode, &decode};

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
