// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "kernels/minifloat/inceptionn.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// INCEPTIONN: 32, 16, 8 or no bits per element, by its magnitude, with an absolute bound on the
/// error. docs/format/codecs/inceptionn.md.
struct Inceptionn {
  struct Params {
    uint32_t bound = 10;  ///< the error of an element is at most 2^-bound
  };

  static constexpr CodecInfo info{"inceptionn",
                                  18,
                                  1,
                                  "32, 16, 8 or no bits per element, by its magnitude",
                                  "Li et al., A Network-Centric Hardware/Algorithm Co-Design to "
                                  "Accelerate Distributed Training "
                                  "of Deep Neural Networks, MICRO 2018",
                                  Method::quantization};
  static constexpr std::array fields{
      integer_field<&Params::bound>("bound", 10, 2, kernels::kInceptionnBound,
                                    "no element is off by more than 2^-bound")
          .controlled(Sends::more, Growth::step, 4, 10),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
