// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// One bit per element and one scale per block: d = m · sign(x), m the mean of |x| in the block.
/// Payload: docs/format/codecs/@NAME@.md.
struct @TYPE@ {
  struct Params {
    uint32_t block = 1024;  ///< elements that share a scale
  };

  static constexpr CodecInfo info{"@NAME@", @ID@, 1, "one bit per element, one scale per block",
                                  "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019"};
  static constexpr std::array fields{
      integer_field<&Params::block>("block", 1024, 8, 65536, "elements that share a scale"),
  };

  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
