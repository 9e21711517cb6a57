// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
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
#include "kernels/core/codes-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// Elements whose images lie on the stack between the vector loop that computes them and the scalar
/// one that looks them up.
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

/// each(begin, count, images) for every block of x[0, n).
template <class Each>
HWY_INLINE void for_images(const float* x, uint64_t n, Each each) {
  HWY_ALIGN uint32_t image[kBlock];
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const uint64_t m = HWY_MIN(kBlock, n - begin);
    const float* const from = x + begin;
    uint64_t i = 0;
    for (; i + lanes32() <= m; i += lanes32()) {
      prefetch_span(from + i, lanes32() * sizeof(float));
      hn::Store(images(hn::BitCast(I32(), load_f32(from, i))), U32(), image + i);
    }
    for (; i < m; ++i) image[i] = quantile_image(from[i]);
    each(begin, m, image);
  }
}

uint32_t count_upper(const float* x, uint64_t n, uint32_t* HWY_RESTRICT counts) {
  uint32_t most = 0;
  for_images(x, n, [&](uint64_t begin, uint64_t m, const uint32_t* image) LACONIC_LAMBDA {
    unrolled(m, [&](uint64_t i) LACONIC_LAMBDA { ++counts[image[i] >> 16]; });
    const uint32_t bits = max_bits(x + begin, m);
    most = HWY_MAX(most, bits);
  });
  return most;
}

uint64_t collect(const float* x, uint64_t n, const uint16_t* groups,
                 uint32_t* HWY_RESTRICT members) {
  uint64_t found = 0;
  for_images(x, n, [&](uint64_t, uint64_t m, const uint32_t* image) LACONIC_LAMBDA {
    unrolled(m, [&](uint64_t i) LACONIC_LAMBDA {
      members[found] = image[i];
      found += groups[image[i] >> 16] != 0 ? 1U : 0U;
    });
  });
  return found;
}

void encode(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed, double* sums) {
  QuantileSums lane_sums(bins.bins);
  HWY_ALIGN uint8_t codes[kBlock];
  const uint8_t* const base = bins.base;
  const uint32_t* const thresholds = bins.thresholds;
  for_images(x, n, [&](uint64_t begin, uint64_t m, const uint32_t* image) LACONIC_LAMBDA {
    if (bins.steps > 1) {
      for (uint64_t i = 0; i < m; ++i) {
        codes[i] = static_cast<uint8_t>(quantile_code(image[i], bins));
      }
    } else {  // one threshold at most lies in a bucket, and the next one of all decides
      unrolled(m, [&](uint64_t i) LACONIC_LAMBDA {
        const uint32_t at = image[i], code = base[at >> 16];
        codes[i] = static_cast<uint8_t>(code + (thresholds[code] <= at ? 1U : 0U));
      });
    }
    unrolled(m, [&](uint64_t i) LACONIC_LAMBDA {
      lane_sums.add(i, codes[i], static_cast<double>(x[begin + i]));
    });
    pack_codes(reinterpret_cast<int8_t*>(codes), m, bins.width,
               packed + begin / kPackedTogether * bins.width);
  });
  lane_sums.fold(bins.bins, sums);
}

/// Takes the codes of a vector of elements out of the sixteen bytes from where the first of their
/// eight begins. Lane j of the vector at i shows the two bytes with bits from (i%8 + j)·width on.
class Unpacking {
 public:
  HWY_INLINE explicit Unpacking(uint32_t width) : mask_(hn::Set(I32(), (1 << width) - 1)) {
    for (uint32_t k = 0; k < kKinds; ++k) {
      HWY_ALIGN uint32_t bytes[kLanes], shifts[kLanes];
      for (uint32_t j = 0; j < kLanes; ++j) {
        const uint32_t bit = (k * kLanes + j) * width;
        bytes[j] = bit / 8 | (bit / 8 + 1) << 8;
        shifts[j] = bit % 8;
      }
      bytes_[k] = hn::Load(U32(), bytes);
      shifts_[k] = hn::Load(U32(), shifts);
    }
  }
  HWY_INLINE VI codes(const uint8_t* packed, uint64_t i, uint32_t width) const {
    const uint64_t k = i / kLanes % kKinds;
    const hn::Repartition<uint8_t, U32> d8;
    const auto bytes = hn::LoadDup128(d8, packed + i / 8 * width);
    const VU pairs = hn::TableLookupBytes(hn::BitCast(U32(), bytes), bytes_[k]);
    return hn::And(hn::BitCast(I32(), hn::Shr(pairs, shifts_[k])), mask_);
  }

 private:
  static constexpr uint32_t kLanes = hn::MaxLanes(F32());
  static constexpr uint32_t kKinds = kLanes < 8 ? 8 / kLanes : 1;
  VI mask_;
  VU bytes_[kKinds], shifts_[kKinds];
};

template <Output kOutput, uint32_t kTableSize>
HWY_INLINE void decode_as(float* out, const Weighted* terms, uint32_t count, uint32_t width,
                          uint64_t begin, uint64_t middle, uint64_t end) {
  const Unpacking unpacking(width);
  weighted_sum_loop<kOutput>(
      out, terms, count, begin, middle,
      [&](const void* operand, uint64_t i) LACONIC_LAMBDA {
        const auto& o = *static_cast<const QuantileOperand*>(operand);
        return look_up<kTableSize>(o.values.data(), unpacking.codes(o.codes, i, width));
      },
      [&](const void* operand, uint64_t i, uint64_t n) LACONIC_LAMBDA {
        const auto& o = *static_cast<const QuantileOperand*>(operand);
        prefetch_span(o.codes + i / 8 * width, n / 8 * width);
      },
      &quantile_element);
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
  // from here on sixteen bytes might reach beyond the payload
  const uint64_t eights = layout.code_bytes >= 16 ? (layout.code_bytes - 16) / layout.width : 0;
  const uint64_t middle = HWY_MAX(begin, HWY_MIN(end, eights * 8 / 16 * 16));
  by_output(out + begin, output, [&](auto as) LACONIC_LAMBDA {
    constexpr Output kOutput = decltype(as)::value;
    if (layout.bins <= 64) {
      decode_as<kOutput, 64>(out, terms, count, layout.width, begin, middle, end);
    } else {
      decode_as<kOutput, kQuantileBins>(out, terms, count, layout.width, begin, middle, end);
    }
  });
}

constexpr QuantileKernels kTable{&count_upper, &collect, &encode, &decode};

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
