// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A registered codec, as a program in C would have it: "even" sends every second element. It can be
// made to misbehave.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "laconic/laconic.h"

namespace laconic::test {

struct Even {
  enum class Fault : uint8_t { none, encode, encode_301, silent, longer, decode, nan, rank_0 };
  Fault fault = Fault::none;
  uint64_t bytes = 0;  ///< that plan says; 0: what it takes
  uint32_t plans = 0;  ///< how often plan was asked

  static Even& of(void* context) { return *static_cast<Even*>(context); }

  static void plan(void* context, uint64_t rows, uint64_t cols, uint32_t, uint64_t* bytes,
                   uint64_t* state_floats) {
    Even& even = of(context);
    ++even.plans;
    *bytes = even.bytes != 0 ? even.bytes : (rows * cols + 1) / 2 * sizeof(float);
    *state_floats = 1;  // deliveries
  }
  static int32_t failed(char* why, uint64_t room, const char* text) {
    std::strncpy(why, text, room - 1);
    return 1;
  }
  static int32_t encode(void* context, const laconic_codec_call* call, const float* values,
                        void* out, uint64_t room, uint64_t* bytes, char* why, uint64_t why_room) {
    const Even& even = of(context);
    if (even.fault == Fault::encode || (even.fault == Fault::encode_301 && call->rows == 301))
      return failed(why, why_room, "even: no idea");
    if (even.fault == Fault::silent) return 7;
    const uint64_t n = (call->rows * call->cols + 1) / 2;
    *bytes = n * sizeof(float);
    if (even.fault == Fault::longer) *bytes = room + 1;
    if (*bytes > room) return 0;  // the library sees it
    for (uint64_t i = 0; i < n; ++i)
      std::memcpy(static_cast<char*>(out) + i * sizeof(float), values + 2 * i, sizeof(float));
    return 0;
  }
  static int32_t decode(void* context, const laconic_codec_call* call, const void* payload,
                        uint64_t bytes, float* out, char* why, uint64_t why_room) {
    const Even& even = of(context);
    const uint64_t n = (call->rows * call->cols + 1) / 2;
    if (even.fault == Fault::decode || (even.fault == Fault::rank_0 && call->rank == 0))
      return failed(why, why_room, "even: nor here");
    if (bytes != n * sizeof(float)) return failed(why, why_room, "even: another length");
    for (uint64_t i = 0; i < n; ++i)
      std::memcpy(out + 2 * i, static_cast<const char*>(payload) + i * sizeof(float),
                  sizeof(float));
    if (even.fault == Fault::nan) out[0] = std::numeric_limits<float>::quiet_NaN();
    return 0;
  }
  static void commit(void*, const laconic_codec_call*, float* state, const void*, uint64_t) {
    state[0] += 1;
  }

  [[nodiscard]] laconic_codec_table table() {
    laconic_codec_table table{};
    table.struct_size = sizeof table;
    table.feedback = LACONIC_FEEDBACK_ON;
    table.name = "even";
    table.context = this;
    table.plan = &plan;
    table.encode = &encode;
    table.decode = &decode;
    table.commit = &commit;
    return table;
  }
};

}  // namespace laconic::test
