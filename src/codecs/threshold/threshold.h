// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Threshold-v: the elements above a fixed magnitude, up to a cap.
// docs/format/codecs/threshold.md.
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

struct Threshold {
  struct Params {
    double v = 0.01;
    double cap = 0.1;
  };
  static constexpr CodecInfo info{"threshold",
                                  19,
                                  1,
                                  "elements above a fixed magnitude",
                                  "Dutta et al., AAAI 2020; Xu et al., GRACE, ICDCS 2021",
                                  Method::sparsification};
  static constexpr std::array fields{
      real_field<&Params::v>("v", 0.01, 0, 1e9, "magnitudes above it are sent"),
      real_field<&Params::cap>("cap", 0.1, 1e-9, 1.0,
                               "fraction of the elements sent at most: the largest")};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void erase(const Call<Params>& call, Bytes payload, float* values);
};

}  // namespace laconic::codecs
