// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "device/codec.h"
#include "kernels/bits/means.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Signs times the mean magnitude, with error feedback. Payload: docs/format/codecs/efsignsgd.md.
struct EfSignSgd {
  struct Params {};

  static constexpr CodecInfo info{
      "efsignsgd", 14, 1, "signs times the mean magnitude",
      "Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD, ICML 2019, algorithm 1"};
  static constexpr std::array<Field, 0> fields{};

  /// The mean magnitude, then the bits.
  static constexpr kernels::MeansFormat kFormat{0, true};

  static Contract contract(const Params&);
  static Plan plan(const Params&, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params&, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
