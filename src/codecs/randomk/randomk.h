// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Random-k: k elements at indices that all ranks share, so that what travels are k floats
// which an engine may add. docs/format/codecs/randomk.md.
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

struct RandomK {
  struct Params {
    double ratio = 0.01;
    bool rescale = false;
  };
  static constexpr CodecInfo info{"randomk",
                                  5,
                                  1,
                                  "the same k random elements on every rank",
                                  "Stich et al., NeurIPS 2018; Konecny et al., 2016",
                                  Method::sparsification};
  static constexpr std::array fields{
      real_field<&Params::ratio>("ratio", 0.01, 1e-9, 1.0, "fraction of the elements sent")
          .controlled(Sends::more, Growth::log, 0.001, 0.25),
      flag_field<&Params::rescale>("rescale", false,
                                   "multiply by n/k: unbiased, and takes no error feedback")};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
