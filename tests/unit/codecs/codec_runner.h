// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Calls a codec of one frame directly, with memory of the planned size.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "laconic/codec.h"

namespace laconic::codecs {

template <class C>
class CodecRunner {
 public:
  explicit CodecRunner(uint64_t count, typename C::Params p = {}) : params(p) {
    unit.count = unit.rows = count;
    unit.cols = 1;
    unit.parameter = 77;
    work.isa = best_isa();
  }

  typename C::Params params{};
  Unit unit;
  Place place;
  Work work;

  [[nodiscard]] Plan plan() const { return C::plan(params, unit, 1); }
  std::vector<uint8_t> encode(const std::vector<float>& x) {
    lend();
    const uint64_t bound = plan().round[0].bytes;
    std::vector<uint8_t> out(bound + 1, 0xA5);
    const Encoded e = C::encode({&params, {}, unit, place, 0, work}, {x.data(), nullptr},
                                MutBytes(out).first(bound));
    EXPECT_EQ(out.back(), 0xA5);
    EXPECT_LE(e.bytes, bound);
    finite = e.finite;
    out.resize(e.finite ? e.bytes : 0);
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
  [[nodiscard]] Errc check(const std::vector<uint8_t>& payload) const {
    return C::check(params, unit, 0, payload);
  }

  bool finite = true;  ///< what the last encode said

 private:
  void lend() {
    const uint64_t bytes = (plan().scratch_bytes + 63) / 64 * 64;
    scratch_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes + 64)));
    work.scratch = {scratch_.get(), plan().scratch_bytes};
  }
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t, Free> scratch_;
};

}  // namespace laconic::codecs
