// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "laconic/codec.h"

namespace laconic::codecs {

/// PowerSGD (Vogels et al., NeurIPS 2019, Algorithm 1): one step of power iteration towards the
/// best rank-r approximation of the summed gradient. Both products are linear in the gradient, so
/// that an engine's sum is a merge. Payload: docs/format/codecs/powersgd.md.
struct PowerSgd {
  struct Params {
    uint32_t rank = 4;
    bool warm = true;
  };

  static constexpr CodecInfo info{"powersgd",
                                  9,
                                  1,
                                  "low rank: two skinny factors that engines add",
                                  "Vogels et al., NeurIPS 2019, Algorithm 1",
                                  Method::low_rank};
  static constexpr std::array fields{
      integer_field<&Params::rank>("rank", 4, 1, 64, "columns of the factors")
          .controlled(Sends::more, Growth::step, 1, 16),
      flag_field<&Params::warm>("warm", true,
                                "start from the last step's factor; false: from a random one"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static void init(const Params& params, const Unit& unit, const Place& place,
                   std::span<float> state);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static void accept(const Call<Params>& call, MutBytes merged, uint32_t contributors);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void commit(const Call<Params>& call, std::span<float> state, Bytes sent, Bytes merged,
                     uint32_t contributors);
};

}  // namespace laconic::codecs
