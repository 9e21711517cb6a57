// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "laconic/codec.h"

namespace laconic::codecs {

/// Float32 as it is: the yardstick of every other codec, and what small parameters travel as.
struct None {
  struct Params {};

  static constexpr CodecInfo info{"none", 1, 1, "float32, uncompressed", "", Method::none};
  static constexpr std::array<Field, 0> fields{};

  static Contract contract(const Params&);
  static Plan plan(const Params&, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params&, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
};

}  // namespace laconic::codecs
