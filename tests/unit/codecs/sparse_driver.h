// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Calls one codec type with memory of exactly the planned size.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "codecs/sparse/random_sample.h"
#include "laconic/codec.h"
#include "laconic/isa.h"

namespace laconic::codecs {

struct FreeDeleter {
  void operator()(uint8_t* p) const { std::free(p); }
};
struct LentMemory {
  explicit LentMemory(uint64_t bytes)
      : size(bytes), data(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64))) {}
  uint64_t size;
  std::unique_ptr<uint8_t, FreeDeleter> data;
};

inline Unit vector_unit(uint64_t n, uint64_t parameter = 42, uint64_t offset = 0) {
  return {n, n, 1, parameter, offset};
}

template <class C>
struct SparseDriver {
  typename C::Params params{};
  Isa isa = best_isa();
  ThreadPool* pool = nullptr;
  Place place{.seed = 1, .step = 2};
  std::vector<float> state{};

  [[nodiscard]] std::vector<uint8_t> encode(const std::vector<float>& x, Unit unit) const {
    const Plan plan = C::plan(params, unit, 1);
    const LentMemory scratch(plan.scratch_bytes);
    Work work{{}, {scratch.data.get(), scratch.size}, isa, pool};
    std::vector<uint8_t> out(plan.round[0].bytes);
    const Encoded e = C::encode({&params, state, unit, place, 0, work}, {x.data(), nullptr}, out);
    EXPECT_LE(e.bytes, out.size());
    out.resize(e.bytes);
    EXPECT_EQ(C::check(params, unit, 0, out), Errc::ok);
    return out;
  }
  [[nodiscard]] std::vector<uint8_t> encode(const std::vector<float>& x) const {
    return encode(x, vector_unit(x.size()));
  }
  /// A fused codec's: of values + residual. Empty when it refuses.
  [[nodiscard]] std::vector<uint8_t> encode_sum(const std::vector<float>& x,
                                                std::vector<float>* residual) const {
    const Unit unit = vector_unit(x.size());
    const Plan plan = C::plan(params, unit, 1);
    const LentMemory scratch(plan.scratch_bytes);
    Work work{{}, {scratch.data.get(), scratch.size}, isa, pool};
    std::vector<uint8_t> out(plan.round[0].bytes);
    const Source source{x.data(), residual->data()};
    const Encoded e = C::encode({&params, state, unit, place, 0, work}, source, out);
    out.resize(e.finite ? e.bytes : 0);
    return out;
  }
  void decode(std::span<const Term> terms, Unit unit, Target target) const {
    const Plan plan = C::plan(params, unit, 1);
    const LentMemory scratch(plan.scratch_bytes);
    Work work{{}, {scratch.data.get(), scratch.size}, isa, pool};
    C::decode({&params, {}, unit, place, 0, work}, terms, target);
  }
  [[nodiscard]] std::vector<float> decode(const std::vector<uint8_t>& payload, Unit unit) const {
    std::vector<float> y(unit.count, std::nanf(""));
    const Term term{payload, 1.0F};
    decode({&term, 1}, unit, {y.data(), false});
    return y;
  }
  [[nodiscard]] std::vector<float> round_trip(const std::vector<float>& x) const {
    return decode(encode(x), vector_unit(x.size()));
  }
};

inline uint64_t nonzeros(const std::vector<float>& x) {
  return static_cast<uint64_t>(std::count_if(x.begin(), x.end(), [](float v) { return v != 0; }));
}

// Laws of magnitudes, with random signs.
enum class Shape { laplace, gaussian, gamma_half, heavy, layered, pareto };

inline std::vector<float> draw(Shape shape, uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> exponential;
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<float> x(n);
  double layer = 1;
  for (uint64_t i = 0; i < n; ++i) {
    double a = exponential(random);
    const double g = normal(random);
    switch (shape) {
      case Shape::laplace:
        break;
      case Shape::gaussian:
        a = std::fabs(g);
        break;
      case Shape::gamma_half:
        a = g * g / 2;
        break;
      case Shape::heavy: {  // Student's t with 3 degrees of freedom: χ² = 2·exponential + normal²
        const double h = normal(random);
        a = std::fabs(g) / std::sqrt((2 * a + h * h) / 3);
        break;
      }
      case Shape::layered:
        if (i % (n / 20 + 1) == 0) layer = std::exp(6 * uniform(random));
        a *= layer;
        break;
      case Shape::pareto:  // generalised, ξ = 0.2
        a = std::expm1(0.2 * a) / 0.2;
        break;
    }
    x[i] = static_cast<float>((random() & 1U) != 0 ? a * 1e-3 : -a * 1e-3);
  }
  return x;
}

/// Elements that mislead a random sample of `size` of n: what is large was sampled, what was
/// sampled is small, or of n/200 large elements the smallest 64 were, so that a bound lets half
/// of a hundredth through.
enum class Lie { only_large, only_small, half };

inline std::vector<float> misleading(Lie lie, const RandomSample& sample, uint64_t n,
                                     uint64_t size) {
  std::vector<float> x = draw(Shape::laplace, n, 3);
  if (lie == Lie::only_small) {
    for (float& v : x) v += std::copysign(1.0F, v);
  }
  if (lie == Lie::half) {
    for (uint64_t i = 0; i < n; i += 200) x[i] = std::copysign(20.0F + static_cast<float>(i), x[i]);
  }
  for (uint64_t i = 0; i < size / 4; ++i) {
    for (const uint32_t at : sample.places(i)) {
      const float v = static_cast<float>(i) + 5.0F;
      if (lie == Lie::only_large) x[at] = std::copysign(v, x[at]);
      if (lie == Lie::only_small) x[at] = std::copysign(1e-9F, x[at]);
      if (lie == Lie::half && i < 16) x[at] = std::copysign(v, x[at]);
      if (lie == Lie::half && i >= 16) x[at] = std::copysign(1e-9F, x[at]);
    }
  }
  return x;
}

}  // namespace laconic::codecs
