// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Contents of the golden frames. Inputs are made of integers and powers of two alone, so every
// machine has the same.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/frame.h"
#include "laconic/random.h"
#include "laconic/registry.h"
#include "laconic/spec.h"

namespace laconic::golden {

/// A heavy-tailed input: 16 bits of mantissa, scaled down by up to 2^9.
inline std::vector<float> input(uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t word = philox({2026, 1}, i / 4)[i % 4];
    const auto mantissa = static_cast<float>(static_cast<int32_t>(word >> 16) - 32768);
    values[i] = std::ldexp(mantissa, -20 - static_cast<int>(word & 7U));
  }
  return values;
}

struct CodecCase {
  std::string spec;
  uint64_t rows = 0;
  uint64_t cols = 1;
};

/// Settings beyond each codec's default; those that this build does not know are left out.
inline constexpr std::array<std::string_view, 36> kMoreSpecs{
    "int8:block=64",
    "int8:round=stochastic",
    "topk:ratio=0.1",
    "topk:ratio=0.5",
    "topk:ratio=0.1,values=bf16",
    "3lc:s=1.5",
    "3lc:s=1.9",
    "3lc:zre=off",
    "3lc:scale=chunk",
    "sidco:ratio=0.05",
    "sidco:ratio=0.05,law=gp",
    "sidco:ratio=0.05,law=exp,mode=signed",
    "powersgd:rank=1",
    "powersgd:rank=2",
    "randomk:ratio=0.1",
    "thc:bits=3,block=256",
    "thc:bits=2,block=512,table=uniform,scale=exact",
    "3lc:pad_one=on",
    "fp16:saturate=off",
    "randomk:rescale=on",
    "onebit:scale=chunk",
    "qsgd:levels=1,bucket=100",
    "qsgd:levels=7,bucket=64,norm=max",
    "qsgd:levels=1000",
    "qsgd:levels=32767,bucket=16",
    "terngrad:clip=0,pack=quartic",
    "inceptionn:bound=14",
    "sketchml:quantiles=5",
    "sketchml:quantiles=256",
    "threshold:v=0.001",
    "dgc:ratio=0.05,warmup=10000",
    "adaq:ratio=0.1",
    "blocktopk:values=f32",
    "blocktopk:block=256,keep=20",
    "blocktopk:block=256,keep=39,values=2bit",
    "blocktopk:block=256,keep=256,values=2bit",
};

/// Every codec with its defaults on four shapes, every further setting on one vector and one
/// matrix.
inline std::vector<CodecCase> codec_cases() {
  std::vector<CodecCase> cases;
  for (const CodecTable* codec : all_codecs()) {
    const std::string spec(codec->info.name);
    for (const uint64_t n : {0U, 1U, 257U}) cases.push_back({spec, n, 1});
    cases.push_back({spec, 12, 20});
  }
  for (const std::string_view text : kMoreSpecs) {
    const auto spec = Spec::parse(text);
    if (!spec) continue;
    cases.push_back({spec->canonical(), 257, 1});
    cases.push_back({spec->canonical(), 12, 20});
  }
  cases.push_back({"randomk", 2000, 1});  // above 1024 the indices are drawn in another way
  cases.push_back({"3lc:scale=chunk", 41000, 1});     // two chunks, the second a short one
  cases.push_back({"onebit:scale=chunk", 33000, 1});  // two chunks, too
  cases.push_back({"powersgd:rank=1", 16390, 2});     // norms of more than one piece
  return cases;
}

/// Header fields of a case; codec and payload are added by encode_frame.
inline FrameInfo header_of(const CodecCase& c) {
  FrameInfo info;
  info.rows = c.rows;
  info.cols = c.cols;
  info.count = c.rows * c.cols;
  info.step = 1000;
  info.seed = 42;
  info.parameter = 0x0123456789ABCDEFU;
  info.offset = c.spec.starts_with("thc") ? 8192 : 64;  // its blocks are not cut
  info.rank = 1;
  info.world = 4;
  return info;
}

/// The spec as a file name: "topk:ratio=0.1" and 12 x 20 give "topk-ratio_0.1-12x20".
inline std::string file_of(const CodecCase& c) {
  std::string name = c.spec + "-" + std::to_string(c.rows) + "x" + std::to_string(c.cols);
  for (char& letter : name) {
    if (letter == ':' || letter == ',') letter = '-';
    if (letter == '=') letter = '_';
  }
  return name;
}

}  // namespace laconic::golden
