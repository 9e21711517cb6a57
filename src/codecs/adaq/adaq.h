// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// AdaQ: the largest elements of each sign, all of a sign sent as one mean.
// docs/format/codecs/adaq.md.
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

struct AdaQ {
  struct Params {
    double ratio = 0.01;
  };
  static constexpr CodecInfo info{"adaq",
                                  21,
                                  1,
                                  "the largest of each sign, as one mean each",
                                  "Dryden et al., MLHPC 2016",
                                  Method::hybrid};
  static constexpr std::array fields{
      real_field<&Params::ratio>("ratio", 0.01, 1e-9, 1.0,
                                 "fraction of the elements of each sign sent")
          .controlled(Sends::more, Growth::log, 0.001, 0.25)};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
