// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

/// Natural compression: sign and exponent of a power of two, rounded to at random. One byte per
/// element; docs/format/codecs/natural.md.
struct Natural {
  struct Params {};

  static constexpr CodecInfo info{
      "natural",
      17,
      1,
      "powers of two, rounded at random: a sign and seven bits of exponent",
      "Horvath et al., Natural Compression for Distributed Deep Learning, arXiv 1905.10988",
      Method::quantization};
  static constexpr std::array<Field, 0> fields{};

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
