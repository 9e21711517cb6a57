// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

/// Every element becomes −s, 0 or s at random, s being the unit's largest magnitude after clipping.
struct TernGrad {
  enum class Pack : uint8_t { two_bits, quartic };
  static constexpr std::array<std::string_view, 2> kPackWords{"2bit", "quartic"};

  struct Params {
    float clip = 2.5F;
    Pack pack = Pack::two_bits;
  };

  static constexpr CodecInfo info{
      "terngrad",
      16,
      1,
      "random rounding to -s, 0 and s, clipped at standard deviations",
      "Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad, NeurIPS 2017, sections 3.1 and 4",
      Method::quantization};
  static constexpr std::array fields{
      real_field<&Params::clip>(
          "clip", 2.5, 0, 100,
          "clip at this number of standard deviations; 0: no clipping, no bias"),
      word_field<&Params::pack>("pack", 0, kPackWords,
                                "2bit: four elements per byte; quartic: five"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
