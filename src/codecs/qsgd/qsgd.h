// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

/// Buckets with a norm each; an element's share of it is rounded to one of `levels` at random.
struct Qsgd {
  enum class Norm : uint8_t { l2, max };
  static constexpr std::array<std::string_view, 2> kNormWords{"l2", "max"};

  struct Params {
    uint32_t levels = 127;
    uint32_t bucket = 512;
    Norm norm = Norm::l2;
  };

  static constexpr CodecInfo info{
      "qsgd",
      15,
      1,
      "random rounding to levels of a bucket's norm, no bias",
      "Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, section 3.1",
      Method::quantization};
  static constexpr std::array fields{
      integer_field<&Params::levels>("levels", 127, 1, 32767,
                                     "levels of either sign: 1 takes 2 bits, 7 4, 127 8")
          .controlled(Sends::more, Growth::log, 1, 127),
      integer_field<&Params::bucket>("bucket", 512, 16, 65536,
                                     "elements that share a norm; a multiple of 64 is fastest"),
      word_field<&Params::norm>("norm", 0, kNormWords,
                                "l2: 2-norm, the paper's; max: largest magnitude, less noise"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
