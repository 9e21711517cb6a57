// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "kernels/quantile/quantile.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// SketchML's quantization: bins between exact quantiles, each element as the mean of its bin.
/// docs/format/codecs/sketchml.md.
struct SketchMl {
  struct Params {
    uint32_t quantiles = 64;  ///< bins
  };

  static constexpr CodecInfo info{
      "sketchml",
      22,
      1,
      "bins between exact quantiles, an element as the mean of its bin",
      "Jiang et al., SketchML: Accelerating Distributed Machine Learning with Data Sketches, "
      "SIGMOD 2018",
      Method::hybrid};
  static constexpr std::array fields{
      integer_field<&Params::quantiles>("quantiles", 64, 2, kernels::kQuantileBins,
                                        "bins; an element takes ceil(log2 of it) bits")
          .controlled(Sends::more, Growth::log, 4, 256),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
