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
  static Encoded encode(const Params& params, std::span<const float> state, const Unit& unit,
                        const Place& place, uint32_t round, Source source, Work& work,
                        MutBytes out);
  static void accept(const Params& params, const Unit& unit, const Place& place, uint32_t round,
                     MutBytes merged, uint32_t contributors, Work& work);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Params& params, const Unit& unit, const Place& place,
                     std::span<const Term> terms, Work& work, Target target);
  static void commit(const Params& params, std::span<float> state, const Unit& unit,
                     const Place& place, Bytes sent, Bytes merged, uint32_t contributors,
                     Work& work);
};

}  // namespace laconic::codecs
