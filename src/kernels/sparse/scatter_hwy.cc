// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "kernels/sparse/scatter.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/scatter_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U4 = hn::Simd<uint32_t, 4, 0>;
using B16 = hn::Simd<uint8_t, 16, 0>;

// An index must lie in the four bytes from its first one. True for every width to 26, and for the
// wider ones whose indices start at even places.
HWY_INLINE bool fits_four_bytes(uint32_t width) {
  return width <= 26 || width == 28 || width == 32;
}

// Four indices out of 16 bytes: which bytes go to which lane, and how far they are shifted.
struct Lanes4 {
  hn::Vec<B16> bytes;
  hn::Vec<U4> shift;
};

HWY_INLINE Lanes4 lanes_from(uint32_t first_bit, uint32_t width) {
  alignas(16) uint8_t bytes[16];
  alignas(16) uint32_t shift[4];
  for (uint32_t lane = 0; lane < 4; ++lane) {
    const uint32_t bit = first_bit + lane * width;
    for (uint32_t b = 0; b < 4; ++b) bytes[4 * lane + b] = static_cast<uint8_t>(bit / 8 + b);
    shift[lane] = bit % 8;
  }
  return {hn::Load(B16(), bytes), hn::Load(U4(), shift)};
}

HWY_INLINE void unpack4(const uint8_t* HWY_RESTRICT bits, const Lanes4& lanes, hn::Vec<U4> mask,
                        uint32_t* HWY_RESTRICT out) {
  const U4 d;
  const auto window = hn::BitCast(d, hn::TableLookupBytes(hn::LoadU(B16(), bits), lanes.bytes));
  hn::StoreU(hn::And(window >> lanes.shift, mask), d, out);
}

// Eight indices are `width` bytes: the second four start after half of them, on a byte or in the
// middle of one.
void unpack(const PackedIndices& packed, uint64_t first, uint32_t n, uint32_t* HWY_RESTRICT out) {
  const uint32_t width = packed.width;
  uint32_t j = 0;
  if (fits_four_bytes(width)) {
    const auto mask = hn::Set(U4(), static_cast<uint32_t>((uint64_t{1} << width) - 1));
    const uint32_t half = width / 2;
    const Lanes4 low = lanes_from(0, width);
    const Lanes4 high = lanes_from(4 * width % 8, width);
    uint64_t byte = first / 8 * width;
    for (; j + 8 <= n && byte + half + 16 <= packed.readable; j += 8, byte += width) {
      unpack4(packed.bits + byte, low, mask, out + j);
      unpack4(packed.bits + byte + half, high, mask, out + j + 4);
    }
  }
  for (; j < n; ++j) out[j] = packed_index(packed, first + j);
}

void clear_streaming(float* x, uint64_t n) {
  const hn::ScalableTag<float> f;
  const uint64_t lanes = hn::Lanes(f);
  uint64_t i = 0;
  while (i < n && reinterpret_cast<uintptr_t>(x + i) % (lanes * sizeof(float)) != 0) x[i++] = 0.0F;
  for (; i + lanes <= n; i += lanes) hn::Stream(hn::Zero(f), f, x + i);
  hwy::FlushStream();
  for (; i < n; ++i) x[i] = 0.0F;
}

constexpr ScatterKernels kTable{&unpack, &clear_streaming};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const ScatterKernels& scatter_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kScatterScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE
