// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// SIDCo: the elements above a threshold that is computed from a fit to the magnitudes, not
// searched. docs/format/codecs/sidco.md.
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

struct Sidco {
  struct Params {
    double ratio = 0.001;
    uint8_t law = 2;
    uint8_t mode = 2;
    uint8_t stages = 0;
    bool guard = true;
  };
  static constexpr std::array<std::string_view, 3> kLaws{"exp", "gp", "p"};
  static constexpr std::array<std::string_view, 3> kModes{"faithful", "signed", "fixed"};

  static constexpr CodecInfo info{"sidco",
                                  7,
                                  1,
                                  "elements above a fitted threshold",
                                  "Abdelmoniem et al., MLSys 2021, arXiv 2101.10761",
                                  Method::sparsification};
  static constexpr std::array fields{
      real_field<&Params::ratio>("ratio", 0.001, 1e-9, 1.0, "fraction of the elements aimed at")
          .controlled(Sends::more, Growth::log, 0.001, 0.25),
      word_field<&Params::law>(
          "law", 2, kLaws,
          "distribution of the magnitudes: exponential, gamma then generalised Pareto, "
          "generalised Pareto"),
      integer_field<&Params::stages>("stages", 0, 0, 10, "stages of the fit; 0: as mode says"),
      word_field<&Params::mode>(
          "mode", 2, kModes,
          "fixed: stages by the ratio; else adaptive, by the paper's rule -1 or its -3"),
      flag_field<&Params::guard>(
          "guard", true, "correct the threshold until the count is within 20 % of the aim")};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static void init(const Params& p, const Unit& unit, const Place& place, std::span<float> state);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void commit(const Call<Params>& call, std::span<float> state, Bytes sent, Bytes merged,
                     uint32_t contributors);
  static void erase(const Call<Params>& call, Bytes payload, float* values);
  static const device::Codec twin;  ///< on GPUs

  static constexpr uint32_t kHeader = 8;  ///< bytes: elements sent, elements above the fit
  static constexpr uint32_t kSpare = 5;   ///< up to 1/kSpare more than wanted may be sent
  /// Whether the number of stages is learnt.
  static bool adapts(const Params& p) { return p.stages == 0 && p.mode != 2; }
};

}  // namespace laconic::codecs
