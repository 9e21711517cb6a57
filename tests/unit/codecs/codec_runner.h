// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Calls a codec of one frame directly, with memory of the planned size.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "laconic/codec.h"

namespace laconic::codecs {

template <class C>
class CodecRunner {
 public:
  explicit CodecRunner(uint64_t count, typename C::Params p = {}) : params(p) {
    unit = {count, count, 1, 77, 0};
    work.isa = best_isa();
  }

  typename C::Params params{};
  Unit unit;
  Place place;
  Work work;

  [[nodiscard]] Plan plan() const { return C::plan(params, unit, 1); }
  /// The payload of x, or of x + residual; empty where that is not finite.
  std::vector<uint8_t> encode(const std::vector<float>& x, std::vector<float>* residual = nullptr) {
    lend();
    const uint64_t bound = plan().round[0].bytes;
    std::vector<uint8_t> out(bound + 1, 0xA5);
    const Source source{x.data(), residual == nullptr ? nullptr : residual->data()};
    const Encoded e =
        C::encode({&params, {}, unit, place, 0, work}, source, MutBytes(out).first(bound));
    EXPECT_EQ(out.back(), 0xA5);
    EXPECT_LE(e.bytes, bound);
    finite = e.finite;
    out.resize(e.finite ? e.bytes : 0);
    if (finite) {
      EXPECT_EQ(check(out), Errc::ok);
    }
    return out;
  }
  std::vector<float> decode(std::span<const Term> terms, std::vector<float> base = {}) {
    lend();
    const bool add = !base.empty();
    if (!add) base.assign(unit.count, 7.0F);
    C::decode({&params, {}, unit, place, 0, work}, terms, {base.data(), add});
    return base;
  }
  std::vector<float> decode(const std::vector<uint8_t>& payload, float weight = 1.0F) {
    const Term term{payload, weight};
    return decode({&term, 1});
  }
  std::vector<float> round_trip(const std::vector<float>& x) { return decode(encode(x)); }
  [[nodiscard]] Errc check(const std::vector<uint8_t>& payload) const {
    return C::check(params, unit, 0, payload);
  }

  bool finite = true;  ///< what the last encode said

 private:
  struct alignas(64) Line {
    std::array<uint8_t, 64> bytes;
  };
  void lend() {
    const uint64_t bytes = plan().scratch_bytes;
    scratch_.assign(bytes / 64 + 1, {});
    for (Line& line : scratch_) line.bytes.fill(0xEE);
    work.scratch = {scratch_[0].bytes.data(), bytes};
  }
  std::vector<Line> scratch_;
};

inline std::vector<float> normal(uint64_t n, uint64_t seed, float mean = 0.0F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> law(mean, 1e-2F);
  std::vector<float> x(n);
  for (float& v : x) v = law(random);
  return x;
}

}  // namespace laconic::codecs
