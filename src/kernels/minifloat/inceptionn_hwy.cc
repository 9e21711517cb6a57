// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/minifloat/byte_masks.h"
#include "kernels/minifloat/inceptionn.h"
#include "kernels/minifloat/inceptionn_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/minifloat/inceptionn_hwy.cc"
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

/// Elements whose tags, or fields, lie on the stack between two loops.
constexpr uint64_t kBlock = 1024;

bool all_finite(const void* values, uint64_t n) { return max_bits(values, n) < 0x7F800000U; }

InceptionnCounts count(const uint8_t* tags, uint64_t n) {
  using U64 = hn::RepartitionToWide<U32>;
  const uint64_t at_once = 32 * hn::Lanes(U64());
  const auto ones = hn::Set(U64(), 0x5555555555555555U);
  auto full = hn::Zero(U64()), low = full, high = full;
  uint64_t i = 0;
  for (; i + at_once <= n; i += at_once) {
    const auto words = hn::BitCast(U64(), hn::LoadU(hn::Repartition<uint8_t, U64>(), tags + i / 4));
    const auto even = hn::And(words, ones), odd = hn::And(hn::ShiftRight<1>(words), ones);
    full = hn::Add(full, hn::PopulationCount(hn::And(even, odd)));
    low = hn::Add(low, hn::PopulationCount(even));
    high = hn::Add(high, hn::PopulationCount(odd));
  }
  const auto sum = [](auto v) LACONIC_LAMBDA { return hn::GetLane(hn::SumOfLanes(U64(), v)); };
  const InceptionnCounts rest = inceptionn_count(tags + i / 4, n - i);
  return {rest.full + sum(full), rest.half + sum(high) - sum(full),
          rest.byte + sum(low) - sum(full)};
}

/// Classes of lanes by the bits of their magnitudes.
struct Classes {
  VI byte, half, one;  // one less: comparisons are "greater"
  HWY_INLINE explicit Classes(const InceptionnForm& form)
      : byte(hn::Set(I32(), static_cast<int32_t>(form.byte_bits) - 1)),
        half(hn::Set(I32(), static_cast<int32_t>(form.half_bits) - 1)),
        one(hn::Set(I32(), static_cast<int32_t>(kInceptionnOne) - 1)) {}
};

bool classify(const float* x, uint64_t n, const InceptionnForm& form, uint8_t* tags,
              InceptionnCounts* counts) {
  const Classes above(form);
  VI most = hn::Zero(I32());
  uint32_t most_alone = 0;
  alignas(64) int8_t codes[kBlock];
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const float* const from = x + begin;
    const uint64_t m = HWY_MIN(kBlock, n - begin);
    const auto one = [&](uint64_t i) LACONIC_LAMBDA {
      const VI a = absolute_bits(load_f32(from, i));
      most = hn::Max(most, a);
      // a true comparison is -1
      const VI byte = hn::VecFromMask(I32(), hn::Gt(a, above.byte));
      const VI half = hn::VecFromMask(I32(), hn::Gt(a, above.half));
      const VI full = hn::VecFromMask(I32(), hn::Gt(a, above.one));
      store_codes(hn::Neg(hn::Add(hn::Add(byte, half), full)), codes + i);
    };
    in_turns(
        0, m,
        [&](uint64_t i) LACONIC_LAMBDA {
          prefetch_span(from + i, 4 * lanes32() * sizeof(float));
          for (uint64_t k = 0; k < 4; ++k) one(i + k * lanes32());
        },
        one,
        [&](uint64_t i) LACONIC_LAMBDA {
          most_alone = HWY_MAX(most_alone, float_bits(from[i]) & 0x7FFFFFFFU);
          codes[i] = static_cast<int8_t>(inceptionn_tag(form, from[i]));
        });
    pack_pairs(codes, m, tags + begin / 4);
  }
  const InceptionnCounts here = count(tags, n);
  counts->full += here.full;
  counts->half += here.half;
  counts->byte += here.byte;
  const uint32_t lanes_most = max_of_lanes(most);
  return HWY_MAX(lanes_most, most_alone) < 0x7F800000U;
}

/// The lanes in which a mask is set, as bits.
HWY_INLINE uint32_t bits_of(hn::Mask<I32> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(I32(), mask, bytes);
  return at<uint16_t>(bytes, 0);
}

/// Appends the bytes of lanes with a bit in `wanted`, and up to eight more after them.
HWY_INLINE uint8_t* append(VI fields, uint32_t wanted, uint8_t* to) {
  const hn::Half<hn::Full128<uint8_t>> d;
  alignas(16) uint8_t bytes[16];
  store_codes(fields, bytes);
  for (uint64_t i = 0; i < lanes32(); i += 8, wanted >>= 8) {
    const uint32_t eight = wanted & 0xFFU;
    const auto places = hn::LoadU(d, reinterpret_cast<const uint8_t*>(&kByteMasks[eight]));
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, bytes + i), places), d, to);
    to += __builtin_popcount(eight);
  }
  return to;
}

void pack(const float* x, uint64_t n, const InceptionnForm& form, InceptionnOut to) {
  const Classes above(form);
  const VF scale = hn::Set(F32(), form.byte_scale);
  const VI sign = hn::Set(I32(), 0x80);
  const size_t lanes = lanes32();
  uint8_t staged[kBlock + 8];  // bytes after the end of the stream are not ours
  uint64_t i = 0;
  while (i + lanes <= n) {
    const uint64_t end = HWY_MIN(i + kBlock, n / lanes * lanes);
    uint8_t* last = staged;
    for (; i < end; i += lanes) {
      prefetch_span(x + i, lanes * sizeof(float));
      const VI bits = hn::BitCast(I32(), load_f32(x, i)), a = absolute_bits(load_f32(x, i));
      const auto larger = hn::Gt(a, above.half);
      const VI code = hn::ConvertTo(I32(), hn::Mul(hn::BitCast(F32(), a), scale));
      const VI field = hn::Or(code, hn::And(hn::ShiftRight<24>(bits), sign));
      last = append(field, bits_of(hn::AndNot(larger, hn::Gt(a, above.byte))), last);
      if (hn::AllFalse(I32(), larger)) continue;
      for (uint32_t rest = bits_of(larger); rest != 0; rest &= rest - 1) {
        inceptionn_pack_element(x[i + static_cast<uint32_t>(__builtin_ctz(rest))], form, &to);
      }
    }
    const auto bytes = static_cast<uint64_t>(last - staged);
    std::memcpy(to.byte, staged, bytes);
    to.byte += bytes;
  }
  inceptionn_pack(x + i, n - i, form, to);
}

/// The byte fields of sixteen elements, each at its place, and all ones where there is one.
struct Sixteen {
  alignas(16) uint8_t fields[16];
  alignas(16) uint8_t present[16];

  HWY_INLINE Sixteen(uint32_t tags, InceptionnIn& in) {
    const hn::Full128<uint8_t> d;
    const hn::Full128<uint32_t> d32;
    // of a tag's byte, once for each of its four elements: their bits, and those of a byte's tag
    const auto spread = hn::BitCast(d, hn::Mul(hn::Iota(d32, 0), hn::Set(d32, 0x01010101U)));
    const auto each = hn::TableLookupBytes(hn::BitCast(d, hn::Set(d32, tags)), spread);
    const auto tag = hn::And(each, hn::BitCast(d, hn::Set(d32, 0xC0300C03U)));
    const auto is_byte = hn::VecFromMask(d, hn::Eq(tag, hn::BitCast(d, hn::Set(d32, 0x40100401U))));
    // minus how many there are up to an element: the place of its field is one less than that
    auto upto = hn::Add(is_byte, hn::ShiftLeftBytes<1>(is_byte));
    upto = hn::Add(upto, hn::ShiftLeftBytes<2>(upto));
    upto = hn::Add(upto, hn::ShiftLeftBytes<4>(upto));
    upto = hn::Add(upto, hn::ShiftLeftBytes<8>(upto));
    const uint8_t* from = in.byte;
    const auto left = static_cast<uint64_t>(in.end - from);
    if (HWY_UNLIKELY(left < sizeof fields)) {
      std::memcpy(fields, from, left);
      from = fields;
    }
    hn::Store(hn::TableLookupBytes(hn::LoadU(d, from), hn::Not(upto)), d, fields);
    hn::Store(is_byte, d, present);
    in.byte += __builtin_popcount(tags & ~(tags >> 1) & 0x55555555U);
  }
};

template <Output kOutput>
HWY_INLINE void unpack_as(const uint8_t* tags, uint64_t n, const InceptionnForm& form,
                          InceptionnIn* from, float w, float* out) {
  constexpr size_t kLanes = hn::MaxLanes(F32()), kParts = 16 / kLanes;
  InceptionnIn in = *from;
  const hn::Rebind<int8_t, F32> d8;
  const VF weight = hn::Set(F32(), w);
  const VF step = hn::Set(F32(), form.byte_step), bias = hn::Set(F32(), 0.5F);
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto word = at<uint32_t>(tags + i / 4, 0);
    const Sixteen bytes(word, in);
    VF value[kParts];
    for (size_t p = 0; p < kParts; ++p) {
      const auto wide = [&](const uint8_t* all) LACONIC_LAMBDA {
        return hn::PromoteTo(I32(),
                             hn::LoadU(d8, reinterpret_cast<const int8_t*>(all) + p * kLanes));
      };
      const VI field = wide(bytes.fields);  // its sign bit is extended to bit 31
      const VF c = hn::ConvertTo(F32(), hn::And(field, hn::Set(I32(), 0x7F)));
      const VF sign = hn::And(hn::BitCast(F32(), field), hn::SignBit(F32()));
      const VF signed_value = hn::Or(hn::Mul(hn::Add(c, bias), step), sign);
      value[p] = hn::And(signed_value, hn::BitCast(F32(), wide(bytes.present)));
    }
    if ((word & 0xAAAAAAAAU) != 0) {
      alignas(64) float each[16];
      for (size_t p = 0; p < kParts; ++p) hn::Store(value[p], F32(), each + p * kLanes);
      for (uint32_t odd = word & 0xAAAAAAAAU; odd != 0; odd &= odd - 1) {
        const auto tag = static_cast<uint32_t>(__builtin_ctz(odd)) - 1;
        each[tag / 2] = inceptionn_unpack_element(word >> tag & 3U, form, &in);
      }
      for (size_t p = 0; p < kParts; ++p) value[p] = hn::Load(F32(), each + p * kLanes);
    }
    if constexpr (kOutput == Output::add) prefetch_span(out + i, 16 * sizeof(float));
    for (size_t p = 0; p < kParts; ++p) {
      float* const to = out + i + p * kLanes;
      VF sum = hn::Mul(weight, value[p]);
      if constexpr (kOutput == Output::add) sum = hn::Add(hn::LoadU(F32(), to), sum);
      store_f32<kOutput>(sum, to);
    }
  }
  inceptionn_unpack(tags + i / 4, n - i, form, &in, w, kOutput, out + i);
  *from = in;
}

void unpack(const uint8_t* tags, uint64_t n, const InceptionnForm& form, InceptionnIn* from,
            float w, Output output, float* out) {
  by_output(out, output, [&](auto as) LACONIC_LAMBDA {
    unpack_as<decltype(as)::value>(tags, n, form, from, w, out);
  });
}

constexpr InceptionnKernels kTable{&classify, &pack, &count, &unpack, &all_finite};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const InceptionnKernels& inceptionn_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kInceptionnScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
