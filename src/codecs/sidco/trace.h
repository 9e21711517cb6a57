// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A trace of encode for one unit, stage by stage: for diagnosis (`laconic laws`) and tests.
#pragma once

#include <array>
#include <cstdint>

#include "codecs/sidco/exceedances.h"
#include "codecs/sidco/sidco.h"
#include "codecs/sidco/sidco_fit.h"

namespace laconic::codecs::sidco {

/// One stage of the fit.
struct Stage {
  Moments of;         ///< what was fitted: magnitudes or, from stage 2 on, distances from `low`
  double low = 0;     ///< smallest exceedance of the threshold before; this and `of` in Trace::unit
  Threshold eta{};    ///< the outcome
  double wanted = 0;  ///< elements that should exceed it
  uint64_t selected = 0;  ///< elements that do
};

struct Trace {
  double unit = 1;  ///< of the moments
  uint64_t nonzero = 0;
  uint64_t wanted = 0;
  std::array<Stage, kMostStages> stage{};
  uint32_t stages = 0;       ///< 0: there was nothing to fit, as all non-zero elements were sent
  uint64_t fitted = 0;       ///< elements above the fitted threshold
  uint32_t corrections = 0;  ///< thresholds that the guard tried
  Threshold eta{};           ///< the last one tried
  bool exact = false;        ///< it would not do: the `sent` largest were sent instead
  uint64_t sent = 0;
  uint32_t memory_passes = 0;  ///< how often all elements were read, the writing included

  void add(const Stage& s) { stage[stages++] = s; }
  Stage& last() { return stage[stages - 1]; }
};

/// Sidco::encode, with a report: `trace` has to be a new one.
Encoded encode_traced(const Call<Sidco::Params>& call, Source source, MutBytes out, Trace& trace);

}  // namespace laconic::codecs::sidco
