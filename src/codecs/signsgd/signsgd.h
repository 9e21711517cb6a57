// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Signs alone, and a majority vote over them: of gradients, or of their moving average.
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Shared by SignSgd and Signum: payload, decoder and vote.
struct SignVote {
  struct Params {};
  static constexpr std::array<Field, 0> fields{};

  static Plan plan(const Params&, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params&, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void finish(const Call<Params>& call, std::span<float> mean);
};

/// Bernstein et al. 2018: [x >= 0], decoded to ±1. The mean of several is the sign of their sum, a
/// tie is +1. Payload: docs/format/codecs/signsgd.md.
struct SignSgd : SignVote {
  static constexpr CodecInfo info{
      "signsgd", 12, 1, "signs, and the majority's vote",
      "Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD, ICML 2018, algorithm 2"};
  static Contract contract(const Params&);
  static const device::Codec twin;  ///< on GPUs
};

/// The same for the moving average of the gradients.
struct Signum : SignVote {
  static constexpr CodecInfo info{
      "signum", 13, 1, "signs of the gradients' moving average, and the majority's vote",
      "Bernstein, Zhao, Azizzadenesheli, Anandkumar: signSGD with Majority Vote, ICLR 2019"};
  static Contract contract(const Params&);
};

}  // namespace laconic::codecs
