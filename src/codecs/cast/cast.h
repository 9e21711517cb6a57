// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The two 16-bit floats as codecs: lanes that any engine can add.
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

struct Fp16 {
  struct Params {
    bool saturate = true;
  };

  static constexpr CodecInfo info{
      "fp16",      2, 1, "IEEE half floats, added by the engine", "IEEE 754-2008, binary16",
      Method::cast};
  static constexpr std::array fields{
      flag_field<&Params::saturate>("saturate", true,
                                    "finite values beyond 65504 become 65504 instead of infinity"),
  };

  static Contract contract(const Params&);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params&, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

struct Bf16 {
  struct Params {};

  static constexpr CodecInfo info{
      "bf16", 3, 1, "bfloat16, added by the engine", "Kalamkar et al., 2019", Method::cast};
  static constexpr std::array<Field, 0> fields{};

  static Contract contract(const Params&);
  static Plan plan(const Params&, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params&, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
