// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Eight bits per element, one scale per block; rounding to nearest or stochastic.
struct Int8 {
  enum class Round : uint8_t { nearest, stochastic };
  static constexpr std::array<std::string_view, 2> kRoundWords{"nearest", "stochastic"};

  struct Params {
    uint32_t block = 256;
    Round round = Round::nearest;
  };

  static constexpr CodecInfo info{
      "int8", 8, 1, "8-bit integers with a scale per block",
      "Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016; "
      "stochastic: Alistarh et al., QSGD, NeurIPS 2017"};
  static constexpr std::array fields{
      integer_field<&Params::block>("block", 256, 16, 65536,
                                    "elements that share a scale; a multiple of 64 is fastest"),
      word_field<&Params::round>("round", 0, kRoundWords,
                                 "nearest: smallest error; stochastic: no bias"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
