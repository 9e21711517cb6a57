// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Inputs of the conformance suite: seeded, the same on every machine as far as tests care.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

namespace laconic::conformance {

/// SplitMix64 (Steele et al., 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

enum class Data : uint8_t {
  laplace,
  gaussian,
  constant,
  alternating,
  ramp,
  spike,
  sparse,
  ties,
  tiny,
  zeros,
};

inline constexpr std::array kFiniteData{
    Data::laplace, Data::gaussian, Data::constant, Data::alternating, Data::ramp,
    Data::spike,   Data::sparse,   Data::ties,     Data::tiny,        Data::zeros};

inline std::string_view data_name(Data data) {
  constexpr std::array<std::string_view, 10> kNames{
      "laplace", "gaussian", "constant", "alternating", "ramp",
      "spike",   "sparse",   "ties",     "tiny",        "zeros"};
  return kNames[static_cast<std::size_t>(data)];
}

inline float laplace(Random& random) {
  const double u = random.uniform() - 0.5;
  return static_cast<float>(-1e-3 * std::copysign(std::log1p(-2 * std::fabs(u)), u));
}

inline float gaussian(Random& random) {
  return static_cast<float>(1e-3 * std::sqrt(-2 * std::log(random.uniform())) *
                            std::cos(6.283185307179586 * random.uniform()));
}

inline float sample(Data data, Random& random, uint64_t i, uint64_t n) {
  switch (data) {
    case Data::laplace:
      return laplace(random);
    case Data::gaussian:
      return gaussian(random);
    case Data::constant:
      return 0.25F;
    case Data::alternating:
      return (i & 1) != 0 ? -3.0F : 3.0F;
    case Data::ramp:
      return static_cast<float>(i) - static_cast<float>(n) / 2;
    case Data::spike:
      return i == n / 2 ? 1000.0F : laplace(random);
    case Data::sparse:
      return random.below(100) == 0 ? laplace(random) : 0.0F;
    case Data::ties:
      return static_cast<float>(static_cast<int64_t>(random.below(5)) - 2);
    case Data::tiny:  // denormals, zeros of both signs, the smallest normals
      switch (random.below(4)) {
        case 0:
          return 0.0F;
        case 1:
          return -0.0F;
        case 2:
          return std::numeric_limits<float>::denorm_min() * static_cast<float>(random.below(1000));
        default:
          return -std::numeric_limits<float>::min();
      }
    case Data::zeros:
      return 0.0F;
  }
  return 0.0F;
}

/// Drawn once per process: every case asks for the same ones, and drawing them took longer than
/// what is done with them.
inline const std::vector<float>& make(Data data, uint64_t n, uint64_t seed = 1) {
  static std::map<std::tuple<Data, uint64_t, uint64_t>, std::vector<float>> drawn;
  const auto [at, is_new] = drawn.try_emplace({data, n, seed});
  if (is_new) {
    Random random(seed * 1000003 + static_cast<uint64_t>(data));
    at->second.resize(n);
    for (uint64_t i = 0; i < n; ++i) at->second[i] = sample(data, random, i, n);
  }
  return at->second;
}

}  // namespace laconic::conformance
