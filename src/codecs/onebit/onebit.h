// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "device/codec.h"
#include "kernels/bits/means.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Signs, and what they stand for: the mean of the negative elements and the mean of the others.
/// Payload: docs/format/codecs/onebit.md.
struct OneBit {
  enum class Scale : uint8_t { unit, chunk };

  struct Params {
    Scale scale = Scale::unit;  ///< two means for the unit, or per chunk of 32 768 elements
  };

  static constexpr CodecInfo info{
      "onebit", 11, 1, "signs, and the means of both sides",
      "Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent, Interspeech 2014, section 3"};
  static constexpr std::array<std::string_view, 2> kScales{"unit", "chunk"};
  static constexpr std::array fields{
      word_field<&Params::scale>("scale", 0, kScales,
                                 "unit: two means in all; chunk: per 32768 elements (speed)"),
  };

  static constexpr uint64_t kChunk = uint64_t{1} << 15;
  /// For every chunk, or the unit, the means of the bits 0 and 1, then the bits of the unit.
  static constexpr kernels::MeansFormat format(const Params& params) {
    return {params.scale == Scale::chunk ? kChunk : 0, false};
  }

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
