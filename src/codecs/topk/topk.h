// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Top-k: the k = max(1, floor(ratio·n)) elements of largest magnitude, exactly; of equal magnitudes
// the one of lower index. With values=bf16 they are rounded. docs/format/codecs/topk.md.
#pragma once

#include <array>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

struct TopK {
  enum class Values : uint8_t { f32, bf16 };
  static constexpr std::array<std::string_view, 2> kValues{"f32", "bf16"};
  struct Params {
    double ratio = 0.01;
    Values values = Values::f32;
  };
  static constexpr CodecInfo info{"topk",
                                  4,
                                  1,
                                  "the k largest magnitudes, exactly",
                                  "Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018",
                                  Method::sparsification};
  static constexpr std::array fields{
      real_field<&Params::ratio>("ratio", 0.01, 1e-9, 1.0, "fraction of the elements sent")
          .controlled(Sends::more, Growth::log, 0.001, 0.25),
      word_field<&Params::values>("values", 0, kValues,
                                  "f32, or bf16: half their bytes, rounded; a residual keeps what "
                                  "rounding leaves")};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void erase(const Call<Params>& call, Bytes payload, float* values);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
