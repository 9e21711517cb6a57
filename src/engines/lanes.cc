// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/lanes.h"

#include <cstring>

namespace laconic::engines {
namespace {

template <class Lane, class Widen, class Narrow>
void add(uint8_t* total, const uint8_t* x, uint64_t count, Widen widen, Narrow narrow) noexcept {
  for (uint64_t i = 0; i < count; ++i) {
    Lane a, b;
    std::memcpy(&a, total + i * sizeof(Lane), sizeof(Lane));
    std::memcpy(&b, x + i * sizeof(Lane), sizeof(Lane));
    const Lane sum = narrow(widen(a) + widen(b));
    std::memcpy(total + i * sizeof(Lane), &sum, sizeof(Lane));
  }
}

}  // namespace

void add_lanes(DType type, uint8_t* total, const uint8_t* x, uint64_t count) noexcept {
  const auto same = [](float value) { return value; };
  const auto whole = [](uint32_t value) { return value; };
  if (type == DType::f32) {
    add<float>(total, x, count, same, same);
  } else if (type == DType::f16) {
    add<uint16_t>(total, x, count, f16_to_float, float_to_f16);
  } else if (type == DType::i32) {  // modulo 2^32
    add<uint32_t>(total, x, count, whole, whole);
  } else {
    add<uint16_t>(total, x, count, bf16_to_float, float_to_bf16);
  }
}

void add_scaled_lanes(uint8_t* total, float of_total, const uint8_t* x, float of_x,
                      uint64_t count) noexcept {
  for (uint64_t i = 0; i < count; ++i) {
    float a, b;
    std::memcpy(&a, total + i * sizeof a, sizeof a);
    std::memcpy(&b, x + i * sizeof b, sizeof b);
    const float sum = a * of_total + b * of_x;
    std::memcpy(total + i * sizeof sum, &sum, sizeof sum);
  }
}

void scale_lanes(uint8_t* x, float factor, uint64_t count) noexcept {
  for (uint64_t i = 0; i < count; ++i) {
    float lane;
    std::memcpy(&lane, x + i * sizeof lane, sizeof lane);
    lane *= factor;
    std::memcpy(x + i * sizeof lane, &lane, sizeof lane);
  }
}

}  // namespace laconic::engines
