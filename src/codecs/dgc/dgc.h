// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// DGC's selection: about k of the largest elements, above a threshold that a random sample gives.
// docs/format/codecs/dgc.md.
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

struct Dgc {
  struct Params {
    double ratio = 0.001;
    double sample = 0.01;
    uint32_t warmup = 0;
  };
  static constexpr CodecInfo info{"dgc",
                                  20,
                                  1,
                                  "the largest, above a sampled threshold",
                                  "Lin et al., Deep Gradient Compression, ICLR 2018",
                                  Method::sparsification};
  static constexpr std::array fields{
      real_field<&Params::ratio>("ratio", 0.001, 1e-9, 1.0, "fraction of the elements sent")
          .controlled(Sends::more, Growth::log, 0.001, 0.25),
      real_field<&Params::sample>("sample", 0.01, 1e-6, 1.0,
                                  "fraction of the elements that the threshold is taken from"),
      integer_field<&Params::warmup>("warmup", 0, 0, 1e9,
                                     "steps over which the ratio falls from 1/4")};

  /// The ratio at `step`: in the fifths of the warm-up 1/4, 1/16, 1/64, 1/256, 1/1024, but no less
  /// than the final ratio.
  [[nodiscard]] static double ratio_at(const Params& p, uint64_t step) noexcept;

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void erase(const Call<Params>& call, Bytes payload, float* values);
};

}  // namespace laconic::codecs
