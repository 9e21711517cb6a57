// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The cost of a call that does next to nothing: encode and decode of 4 KiB through
// liblaconic.so, whole frames with their checksums. Prints JSON.
//
//   c_abi_bench SECONDS_PER_POINT SPEC...
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/json_text.h"
#include "json.h"
#include "laconic/laconic.h"
#include "samples.h"

namespace laconic::bench {
namespace {

using tools::Clock;
using tools::Json;
using tools::Timing;

constexpr uint64_t kRows = 32, kCols = 32;  // a matrix, so that low-rank codecs have one
/// Gradients in turn, as in `laconic bench`: of one alone feedback would pile up what is not sent.
constexpr uint64_t kTurns = 8;
constexpr uint64_t kMoved = 16;  // elements between their beginnings

/// Both sides of the law of Laplace, in an order that is no order. Each gradient is the one before,
/// moved on.
std::vector<float> gradients() {
  std::vector<float> values(kRows * kCols + (kTurns - 1) * kMoved);
  uint32_t state = 1;
  for (float& x : values) {
    state = state * 1664525U + 1013904223U;
    const double u = (static_cast<double>(state) + 0.5) * 0x1p-31 - 1;
    x = static_cast<float>(std::copysign(-1e-3 * std::log1p(-std::fabs(u)), u));
  }
  return values;
}

/// A codec with one tensor's memory, as a caller in C would hold it.
class Caller {
 public:
  explicit Caller(const std::string& spec) : values_(gradients()), decoded_(kRows * kCols) {
    code_ = laconic_codec_create(spec.data(), spec.size(), 1, &codec_);
    uint64_t bound = 0;
    if (code_ == 0) code_ = laconic_codec_max_frame_bytes(codec_, kRows, kCols, &bound);
    if (code_ == 0) frame_.resize(bound);
    if (code_ == 0 && feedback()) code_ = laconic_residual_create(decoded_.size(), &residual_);
    encode();
    decode();
  }
  ~Caller() {
    laconic_residual_destroy(residual_);
    laconic_codec_destroy(codec_);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void encode() {
    if (code_ != 0) return;
    place_.step += 1;
    const laconic_tensor source = tensor(values_.data() + place_.step % kTurns * kMoved);
    code_ = laconic_encode(codec_, &source, &place_, residual_, frame_.data(), frame_.size(),
                           &written_, nullptr);
  }
  void decode() {
    if (code_ != 0) return;
    const laconic_tensor out = tensor(decoded_.data());
    code_ = laconic_decode(codec_, frame_.data(), written_, 1.0F, 0, &out, nullptr);
  }
  void copy() {
    std::memcpy(decoded_.data(), values_.data(), decoded_.size() * sizeof(float));
    asm volatile("" ::"r"(decoded_.data()) : "memory");  // or the copies become one
  }

  [[nodiscard]] bool ok() const { return code_ == 0; }
  [[nodiscard]] uint64_t written() const { return written_; }
  [[nodiscard]] bool feedback() const {
    const auto said = tools::parse_json(laconic_codec_json(codec_));
    return said && (*said)["feedback"].flag();
  }

 private:
  static laconic_tensor tensor(float* values) {
    return {sizeof(laconic_tensor), LACONIC_F32, kRows, kCols, values, LACONIC_MEMORY_HOST, 0};
  }

  std::vector<float> values_, decoded_;
  std::vector<uint8_t> frame_;
  laconic_codec* codec_ = nullptr;
  laconic_residual* residual_ = nullptr;
  laconic_place place_{sizeof(laconic_place), 0, 1, 0, 1, 0, 0};
  uint64_t written_ = 0;
  int32_t code_ = 0;
};

Json to_json(const Timing& t) {
  return {{"microseconds", 1e6 * t.seconds.median},
          {"low", 1e6 * t.seconds.low},
          {"high", 1e6 * t.seconds.high},
          {"rejected", t.rejected}};
}

template <class Call>
Timing timed(Caller& caller, double seconds, Call&& call) {
  return tools::timing_of(tools::samples_of(
                              Clock::thread, seconds, [&] { caller.copy(); }, [] {}, call),
                          1);
}

Json measure(const std::string& spec, double seconds) {
  Caller caller(spec);
  const Timing encode = timed(caller, seconds, [&] { caller.encode(); });
  const Timing decode = timed(caller, seconds, [&] { caller.decode(); });
  if (!caller.ok()) return {{"codec", spec}, {"error", laconic_last_message()}};
  return {{"codec", spec},
          {"feedback", caller.feedback()},
          {"bytes", kRows * kCols * sizeof(float)},
          {"frame_bytes", caller.written()},
          {"memcpy_microseconds", 1e6 * encode.memcpy_seconds.median},
          {"encode", to_json(encode)},
          {"decode", to_json(decode)}};
}

}  // namespace
}  // namespace laconic::bench

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: c_abi_bench SECONDS_PER_POINT SPEC...\n");
    return 2;
  }
  using laconic::tools::Json;
  Json points = Json::array();
  for (int i = 2; i < count; ++i) {
    points.push_back(laconic::bench::measure(words[i], std::strtod(words[1], nullptr)));
  }
  std::printf("%s\n", Json{{"points", points}}.dump(laconic::kJsonIndented).c_str());
  return 0;
}
