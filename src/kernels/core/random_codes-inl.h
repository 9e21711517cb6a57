// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Codes that are rounded at random, a word of Philox for two elements: random_group.h. Included by
// *_hwy.cc files after highway.h, once per target.
#if defined(LACONIC_KERNELS_RANDOM_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_RANDOM_CODES_INL_H_
#undef LACONIC_KERNELS_RANDOM_CODES_INL_H_
#else
#define LACONIC_KERNELS_RANDOM_CODES_INL_H_
#endif

#include "kernels/core/codes-inl.h"
#include "kernels/core/philox-inl.h"
#include "kernels/core/random_group.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// The random bits of a group, lane by lane what its vectors from k·16 + s on need, k = 0 .. 3.
struct GroupBits {
  VU r[4];
};

/// Rounds by a rule:
///
///   static GroupBits bits(const PhiloxWords&)   of the words at s
///   VI code(VF x, VU r)
///   int32_t code(float x, uint32_t r)
template <class Rule>
class RandomCodes {
 public:
  HWY_INLINE explicit RandomCodes(RandomKey key) : random_(key) {}

  /// Codes of x[0, n); `first` is the offset of x[0] in its parameter.
  template <class Code>
  HWY_INLINE void encode(Rule& rule, const float* x, uint64_t n, Code* codes, uint64_t first) {
    const uint64_t head = HWY_MIN(n, (kRandomGroup - first % kRandomGroup) % kRandomGroup);
    if (head > 0) part(rule, x, head, codes, first);
    uint64_t i = head;
    // Four chains of multiplications at once hide their latency.
    for (; i + 4 * kRandomGroup <= n; i += 4 * kRandomGroup) {
      groups<4>(rule, x + i, codes + i, first + i);
    }
    for (; i + kRandomGroup <= n; i += kRandomGroup) groups<1>(rule, x + i, codes + i, first + i);
    if (i < n) part(rule, x + i, n - i, codes + i, first + i);
  }

 private:
  static constexpr uint64_t kLanes = hn::MaxLanes(F32());

  /// Codes of whole groups.
  template <uint64_t kGroups, class Code>
  HWY_INLINE void groups(Rule& rule, const float* x, Code* codes, uint64_t first) const {
    constexpr uint64_t kVectors = kGroups * 16 / kLanes;
    constexpr uint64_t kWays = HWY_MIN(kVectors, kLanes >= 16 ? uint64_t{4} : uint64_t{2});
    // All words first: more of the multiplications' chains overlap than with codes in between.
    PhiloxWords words[kVectors];
    for (uint64_t v = 0; v < kVectors; v += kWays) {
      random_.template words<kWays>(random_group_counter(first) + v * philox_blocks(), words + v);
    }
    for (uint64_t v = 0; v < kVectors; ++v) {
      const GroupBits bits = Rule::bits(words[v]);
      const uint64_t lane = v * kLanes;  // counts 16 per group
      const uint64_t i = lane / 16 * kRandomGroup + lane % 16;
      if (lane % 16 == 0) prefetch_span<kRandomAhead>(x + i, kRandomGroup * sizeof(float));
      for (uint64_t k = 0; k < 4; ++k) {
        store_codes(rule.code(load_f32(x, i + k * 16), bits.r[k]), codes + i + k * 16);
      }
    }
  }

  /// Codes of x[0, n), which lies inside one group.
  template <class Code>
  HWY_INLINE void part(Rule& rule, const float* x, uint64_t n, Code* codes, uint64_t first) {
    fill(first / kRandomGroup * kRandomGroup);
    const uint32_t* const r = bits_ + first % kRandomGroup;
    uint64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      store_codes(rule.code(load_f32(x, i), hn::LoadU(U32(), r + i)), codes + i);
    }
    for (; i < n; ++i) {  // in the payload: at any alignment
      put<Code>(codes, i, static_cast<Code>(rule.code(x[i], r[i])));
    }
  }

  /// The bits of the group that begins at `start`, unless it was the last one.
  HWY_INLINE void fill(uint64_t start) {
    if (start_ == start) return;
    start_ = start;
    for (uint64_t s = 0; s < 16; s += kLanes) {
      PhiloxWords words;
      random_.template words<1>(random_group_counter(start + s), &words);
      const GroupBits bits = Rule::bits(words);
      for (uint64_t k = 0; k < 4; ++k) hn::StoreU(bits.r[k], U32(), bits_ + k * 16 + s);
    }
  }

  Philox random_;
  uint64_t start_ = ~uint64_t{0};
  uint32_t bits_[kRandomGroup];
};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#endif  // include guard
