// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Inputs and comparisons of the tests of dense kernels.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "laconic/isa.h"

namespace laconic::kernels {

inline std::vector<Isa> isas() { return {available_isas().begin(), available_isas().end()}; }
inline std::string isa_param_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

inline uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

/// Every tail of a turn of 4 vectors of 16 floats, and around a chunk of 16 Ki.
inline std::vector<uint64_t> sizes() {
  std::vector<uint64_t> n;
  for (uint64_t i = 0; i <= 200; ++i) n.push_back(i);
  for (const uint64_t i : {1023U, 1024U, 1025U, 16383U, 16384U, 16385U}) n.push_back(i);
  return n;
}

/// Drawn once per process: every instruction set asks for the same ones, and drawing them took
/// longer than what is done with them.
inline const std::vector<float>& normal_values(uint64_t n, uint64_t seed) {
  static std::map<std::pair<uint64_t, uint64_t>, std::vector<float>> drawn;
  const auto [at, is_new] = drawn.try_emplace({n, seed});
  if (is_new) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, 1e-2F);
    at->second.resize(n);
    for (float& v : at->second) v = normal(random);
  }
  return at->second;
}

/// Bit patterns of all kinds: normals of all exponents, denormals, zeros of both signs, infinities,
/// NaNs.
inline std::vector<float> special_values(uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    const auto word = static_cast<uint32_t>(random());
    switch (random() % 8) {
      case 0:
        v = std::bit_cast<float>(word);
        break;
      case 1:
        v = std::bit_cast<float>(word & 0x807FFFFFU);
        break;
      case 2:
        v = std::bit_cast<float>((word & 0x80000000U) | ((word & 1U) != 0 ? 0x7F800000U : 0U));
        break;
      case 3:  // around the range of half floats
        v = std::ldexp(static_cast<float>(static_cast<int32_t>(word)),
                       -31 + static_cast<int>(word % 44) - 26);
        break;
      default:
        v = static_cast<float>(static_cast<int32_t>(word)) * 0x1p-40F;
    }
  }
  return x;
}

/// The same with -0 for values that are not below `limit`.
inline std::vector<float> finite_specials(uint64_t n, uint64_t seed, float limit = INFINITY) {
  std::vector<float> x = special_values(n, seed);
  for (float& v : x) {
    if (!(std::fabs(v) < limit)) v = -0.0F;
  }
  return x;
}

/// Bit for bit, but any NaN equals any NaN: which operand's payload survives is the processor's
/// choice.
inline void expect_same(const std::vector<float>& a, const std::vector<float>& b, uint64_t what) {
  ASSERT_EQ(a.size(), b.size());
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(bits(a[i]), bits(b[i])) << "element " << i << ", size " << what;
  }
}

inline void expect_same(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b,
                        uint64_t what) {
  ASSERT_EQ(a.size(), b.size());
  if (a == b) return;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(static_cast<int>(a[i]), static_cast<int>(b[i])) << "byte " << i << ", size " << what;
  }
}

}  // namespace laconic::kernels
