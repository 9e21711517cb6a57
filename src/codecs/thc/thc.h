// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Blocks are rotated at random and rounded to a table of integers that all ranks share, so that
/// sums of integers are sums of gradients: a server or switch adds and does not decode.
/// One range for a block of all ranks, from its largest norm. Payload: docs/format/codecs/thc.md.
struct Thc {
  enum class Table : uint8_t { optimal, uniform };
  enum class Lane : uint8_t { automatic, eight, sixteen };
  enum class Scale : uint8_t { last, exact };
  static constexpr std::array<std::string_view, 6> kBlockWords{"256",  "512",  "1024",
                                                               "2048", "4096", "8192"};
  static constexpr std::array<std::string_view, 2> kTableWords{"optimal", "uniform"};
  static constexpr std::array<std::string_view, 3> kLaneWords{"auto", "8", "16"};
  static constexpr std::array<std::string_view, 2> kScaleWords{"last", "exact"};

  struct Params {
    uint32_t bits = 4;
    float p = 0.03125F;
    uint8_t block = 2;  // 256 << block
    Table table = Table::optimal;
    Lane lane = Lane::automatic;
    Scale scale = Scale::last;
    // Derived by prepare:
    float reach = 0;  // t: P(|N(0, 1)| > t) = p
    std::array<uint8_t, 16> values{};
  };

  static constexpr CodecInfo info{
      "thc",
      23,
      1,
      "random rotation and shared integers, summed without decoding",
      "Li, Ben Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu: THC, NSDI 2024",
      Method::quantization};
  static constexpr std::array fields{
      integer_field<&Params::bits>("bits", 4, 2, 4, "of an element on its way up")
          .controlled(Sends::more, Growth::step, 2, 4),
      real_field<&Params::p>("p", 0.03125, 0.0009765625, 0.25, "share of elements that is clamped"),
      word_field<&Params::block>("block", 2, kBlockWords,
                                 "elements that are rotated together and share a range"),
      word_field<&Params::table>("table", 0, kTableWords,
                                 "optimal: least error for rotated elements; uniform: steps of 1"),
      word_field<&Params::lane>("lane", 0, kLaneWords,
                                "bits of an element's sum; auto: 8 where all ranks' fit"),
      word_field<&Params::scale>("scale", 0, kScaleWords,
                                 "range from the last exchange's norms, or from this one's, which "
                                 "takes a round of its own"),
  };

  static void prepare(Params& params, uint32_t world);
  static Contract contract(const Params& params);
  static Plan plan(const Params& params, const Unit& unit, uint32_t world);
  static uint32_t start(const Call<Params>& call);
  static Encoded encode(const Call<Params>& call, Source source, MutBytes out);
  static std::span<const uint8_t> table(const Params& params);
  static void accept(const Call<Params>& call, MutBytes merged, uint32_t contributors);
  static Errc check(const Params& params, const Unit& unit, uint32_t round, Bytes payload);
  static void decode(const Call<Params>& call, std::span<const Term> terms, Target target);
  static void commit(const Call<Params>& call, std::span<float> state, Bytes sent, Bytes merged,
                     uint32_t contributors);
  static const device::Codec twin;  ///< on GPUs
};

}  // namespace laconic::codecs
