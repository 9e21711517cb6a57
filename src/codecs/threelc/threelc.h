// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// 3LC: ternary values with error accumulation, five per byte, runs of zeros shortened. Payload:
/// docs/format/codecs/3lc.md.
///
/// With a = values + residual, M = s · max|a|: q = +1 where a > M/2, −1 where a < −M/2, else 0. The
/// residual becomes a − M·q, so that M·q + residual == a bit for bit. Deterministic; never divides.
struct ThreeLc {
  enum class Scale : uint8_t { unit, chunk };

  struct Params {
    float s = 1.0F;             ///< sparsity multiplier, [1, 2)
    Scale scale = Scale::unit;  ///< one M for the unit, or one per chunk of 40 960 elements
    bool zre = true;            ///< zero-run coding
    bool pad_one = false;       ///< pad digits look like q = 0 instead of the paper's q = −1
  };

  static constexpr CodecInfo info{"3lc",
                                  6,
                                  1,
                                  "ternary values, five per byte, zero runs",
                                  "Lim, Andersen, Kaminsky: 3LC, arXiv 1802.07389, section 3",
                                  Method::hybrid};
  static constexpr std::array<std::string_view, 2> kScales{"unit", "chunk"};
  static constexpr std::array fields{
      real_field<&Params::s>("s", 1, 1, 2, "sparsity multiplier: larger sends less", true)
          .controlled(Sends::less, Growth::log, 1, 1.9),
      word_field<&Params::scale>("scale", 0, kScales,
                                 "unit: one scale (ratio); chunk: one per 40960 elements (speed)"),
      flag_field<&Params::zre>("zre", true, "shorten runs of zero bytes"),
      flag_field<&Params::pad_one>("pad_one", false,
                                   "pad with q = 0, never longer; the paper pads with q = -1"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
