// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Top-k of every block: the `keep` elements of largest magnitude of each `block`, exactly; of equal
// magnitudes the one of lower index. Indices count inside a block, so they are short.
// docs/format/codecs/blocktopk.md.
#pragma once

#include <array>

#include "codecs/blocktopk/block_select.h"
#include "laconic/codec.h"

namespace laconic::codecs {

struct BlockTopK {
  enum class Values : uint8_t { f32, bf16, two_bits };
  static constexpr std::array<std::string_view, 3> kValues{"f32", "bf16", "2bit"};
  static constexpr std::array<std::string_view, 5> kBlocks{"256", "512", "1024", "2048", "4096"};

  struct Params {
    uint8_t block = 4;  ///< 256 << block elements
    uint32_t keep = 64;
    Values values = Values::bf16;
  };
  static constexpr CodecInfo info{"blocktopk",
                                  24,
                                  1,
                                  "the largest magnitudes of every block, exactly",
                                  "Sarfi, Therien, Lidin, Belilovsky: Communication Efficient LLM "
                                  "Pre-training with SparseLoCo, arXiv 2508.15706, 2025",
                                  Method::sparsification};
  static constexpr std::array fields{
      word_field<&Params::block>("block", 4, kBlocks, "elements that are selected from together"),
      integer_field<&Params::keep>("keep", 64, 1, kMostKept,
                                   "elements of a block that are sent; of a shorter last one as "
                                   "large a share, rounded up")
          .controlled(Sends::more, Growth::log, 4, kMostKept),
      word_field<&Params::values>("values", 1, kValues,
                                  "f32; bf16: rounded; 2bit: a sign and one of two magnitudes of "
                                  "the block")};

  static Contract contract(const Params& p);
  static Plan plan(const Params& p, const Unit& unit, uint32_t world);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static Errc check(const Params& p, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void erase(const Call<Params>& call, Bytes payload, float* values);
};

}  // namespace laconic::codecs
