// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10 (Salmon et al., SC 2011) for a vector of counters, equal to laconic::philox word by
// word. The four words of a block live in 64-bit lanes with garbage above their 32 bits, so that a
// product's low half is the next word as it is and the high half costs one shuffle. Included by
// *_hwy.cc files after highway.h, once per target.
#if defined(LACONIC_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_PHILOX_INL_H_
#undef LACONIC_KERNELS_PHILOX_INL_H_
#else
#define LACONIC_KERNELS_PHILOX_INL_H_
#endif

#include "kernels/core/simd.h"
#include "kernels/core/stream-inl.h"
#include "laconic/random.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

using U64 = hn::RepartitionToWide<U32>;

/// Words of the blocks counter, counter + 1, …: lane j of `w01` is word j % 2 of block j / 2, lane
/// j of `w23` word 2 + j % 2 of it.
struct PhiloxWords {
  VU w01, w23;
};

/// Blocks that one vector of words holds.
HWY_INLINE uint64_t philox_blocks() { return hn::Lanes(U64()); }

/// A key with its ten round keys, ready for use; the stream is 0.
class Philox {
 public:
  HWY_INLINE explicit Philox(RandomKey key) : key_(key) {
    for (uint32_t r = 0; r < kRounds; ++r) {
      keys_[2 * r] = hn::Set(U32(), key.k0 + r * 0x9E3779B9U);
      keys_[2 * r + 1] = hn::Set(U32(), key.k1 + r * 0xBB67AE85U);
    }
    if constexpr (kPairedKeys) {
      // an even round's in the odd lanes, the next one's in the even lanes
      for (uint32_t r = 2; r < kRounds; r += 2) {
        keys_[2 * r] = hn::OddEven(keys_[2 * r], keys_[2 * r + 2]);
        keys_[2 * r + 1] = hn::OddEven(keys_[2 * r + 1], keys_[2 * r + 3]);
      }
    }
    // The second round's first product, the same for every counter below 2^32.
    const uint64_t product = uint64_t{key.k0} * kFactor0;
    second_low_ = hn::Set(U32(), static_cast<uint32_t>(product));
    second_high_ = hn::Set(U32(), static_cast<uint32_t>(product >> 32) ^ (key.k1 + 0xBB67AE85U));
    for (uint32_t w = 0; w < kMaxWays; ++w) {
      const auto counters = hn::Add(hn::Iota(U64(), 0), hn::Set(U64(), w * philox_blocks()));
      products_[w] = hn::MulEven(hn::BitCast(U32(), counters), hn::Set(U32(), kFactor0));
    }
  }

  /// kWays vectors of blocks from `counter` on, interleaved to hide the multiplier's latency.
  template <uint32_t kWays>
  HWY_INLINE void words(uint64_t counter, PhiloxWords* HWY_RESTRICT out) const {
    static_assert(kWays <= kMaxWays);
    if (HWY_UNLIKELY(counter + kWays * philox_blocks() > uint64_t{1} << 32)) {
      for (uint32_t w = 0; w < kWays; ++w) out[w] = far_words(counter + w * philox_blocks());
      return;
    }
    const VU m0 = hn::Set(U32(), kFactor0), m1 = hn::Set(U32(), kFactor1);
    VU c0[kWays], c1[kWays], c2[kWays], c3[kWays];
    // Three of the counter's four words are 0: of the first two rounds' four products one is zero,
    // one the same for all counters, and one grows by a constant from counter to counter.
    const auto first = hn::Set(U64(), counter * kFactor0);
    for (uint32_t w = 0; w < kWays; ++w) {
      const VU p0 = hn::BitCast(U32(), hn::Add(first, products_[w]));
      const VU p1 = hn::BitCast(U32(), hn::MulEven(hn::Xor(hn::Shuffle2301(p0), keys_[1]), m1));
      c0[w] = hn::Xor(hn::Shuffle2301(p1), keys_[2]);
      c1[w] = p1;
      c2[w] = hn::Xor(p0, second_high_);
      c3[w] = second_low_;
    }
    for (uint32_t r = 2; r + 1 < kRounds; ++r) {
      for (uint32_t w = 0; w < kWays; ++w) {
        VU p0 = hn::BitCast(U32(), hn::MulEven(c0[w], m0));
        VU p1 = hn::BitCast(U32(), hn::MulEven(c2[w], m1));
        if constexpr (kPairedKeys) {
          if (r % 2 == 0) {
            p0 = hn::Xor(p0, keys_[2 * r + 1]);
            p1 = hn::Xor(p1, keys_[2 * r]);
          }
          c0[w] = hn::Xor(hn::Shuffle2301(p1), c1[w]);
          c2[w] = hn::Xor(hn::Shuffle2301(p0), c3[w]);
        } else {
          c0[w] = hn::Xor3(hn::Shuffle2301(p1), c1[w], keys_[2 * r]);
          c2[w] = hn::Xor3(hn::Shuffle2301(p0), c3[w], keys_[2 * r + 1]);
        }
        c1[w] = p1;
        c3[w] = p0;
      }
    }
    // The last round leaves the words where they belong: a product's low half, the odd word, in the
    // odd lane as it is.
    const uint32_t last = 2 * (kRounds - 1);
    for (uint32_t w = 0; w < kWays; ++w) {
      const VU p0 = hn::BitCast(U32(), hn::MulEven(c0[w], m0));
      const VU p1 = hn::BitCast(U32(), hn::MulEven(c2[w], m1));
      out[w] = {xor_even(hn::Shuffle2301(p1), c1[w], keys_[last]),
                xor_even(hn::Shuffle2301(p0), c3[w], keys_[last + 1])};
    }
  }

 private:
  static constexpr uint32_t kRounds = 10;
  static constexpr uint32_t kFactor0 = 0xD2511F53U, kFactor1 = 0xCD9E8D57U;
  static constexpr uint32_t kMaxWays = 4;
  // If a xor has two operands, keys would take two of a round's eight operations. A product's high
  // half is used in its own round and its low half in the next, so one xor with both rounds' keys,
  // every other round, is enough for both.
  static constexpr bool kPairedKeys = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3;
  /// x ^ a ^ key in even lanes, x in odd ones; with paired keys they are already in `a`.
  static HWY_INLINE VU xor_even(VU x, VU a, VU key) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    return VU{_mm512_mask_ternarylogic_epi32(x.raw, 0x5555, a.raw, key.raw, 0x96)};
#else
    if constexpr (!kPairedKeys) a = hn::Xor(a, key);
    return hn::Xor(x, hn::And(a, hn::BitCast(U32(), hn::Set(U64(), 0xFFFFFFFFU))));
#endif
  }

  /// A vector of blocks, their counters of any size.
  HWY_NOINLINE PhiloxWords far_words(uint64_t counter) const {
    alignas(64) uint32_t w01[hn::MaxLanes(U32())], w23[hn::MaxLanes(U32())];
    for (uint64_t b = 0; b < philox_blocks(); ++b) {
      const RandomBlock block = philox(key_, counter + b);
      for (uint64_t word = 0; word < 2; ++word) {
        w01[2 * b + word] = block[word];
        w23[2 * b + word] = block[2 + word];
      }
    }
    return {hn::Load(U32(), w01), hn::Load(U32(), w23)};
  }

  RandomKey key_;
  VU keys_[2 * kRounds];
  VU second_low_, second_high_;
  hn::Vec<U64> products_[kMaxWays];  // of the counters 0, 1, …
};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#endif  // include guard
