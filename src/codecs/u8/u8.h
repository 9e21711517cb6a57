// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

/// A byte per element: the nearest value of a table that is finer at the top of six decades.
struct U8 {
  struct Params {};

  static constexpr CodecInfo info{
      "u8",
      10,
      1,
      "8-bit floats of a dynamic tree, one scale for the unit",
      "Dettmers: 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016, section 2",
      Method::quantization};
  static constexpr std::array<Field, 0> fields{};

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
