// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What one core of this machine can do with floats at all: reading, writing, both. A codec is
// bounded by the passes that it makes. Prints JSON.
//
//   roofline_bench SECONDS_PER_POINT BYTES...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/arena.h"
#include "machine.h"
#include "output.h"
#include "samples.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

// Plain loops, compiled for every width: the compiler vectorises them, the loader chooses.
#if defined(__x86_64__) && defined(__GLIBC__)
#define LACONIC_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LACONIC_EVERY_WIDTH
#endif

namespace laconic::bench {
namespace {

using tools::Clock;
using tools::Json;

constexpr uint64_t kLanes = 64;  // independent sums, else the additions' latency is what is timed
// One stream gains by prefetch, in floats; several do not.
constexpr uint64_t kAhead = 1024;
constexpr uint64_t kLine = 16;

float folded(const float* lanes) {
  float sum = 0;
  for (uint64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

// n is a multiple of kLanes in all loops.

LACONIC_EVERY_WIDTH float read_one(const float* x, uint64_t n) {
  float lanes[kLanes]{};
  for (uint64_t i = 0; i < n; i += kLanes) {
    for (uint64_t j = 0; j < kLanes; j += kLine) __builtin_prefetch(x + i + kAhead + j);
    for (uint64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j];
  }
  return folded(lanes);
}

LACONIC_EVERY_WIDTH float read_two(const float* x, const float* y, uint64_t n) {
  float lanes[kLanes]{};
  for (uint64_t i = 0; i < n; i += kLanes) {
    for (uint64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] + y[i + j];
  }
  return folded(lanes);
}

LACONIC_EVERY_WIDTH void add_to(float* y, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) y[i] += x[i];
}

/// One element of a hundred, at places that no prefetcher foretells, each line fetched 32 ahead.
void add_to_few(float* y, float value, uint64_t n) {
  constexpr uint64_t kStride = 100;
  constexpr uint64_t kFetched = 32;
  const auto place = [](uint64_t i) {
    return i * kStride + (uint64_t{static_cast<uint32_t>(i) * 0x9E3779B1U} * kStride >> 32);
  };
  for (uint64_t i = 0; (i + 1) * kStride <= n; ++i) {
    __builtin_prefetch(y + std::min(place(i + kFetched), n - 1), 1);
    y[place(i)] += value;
  }
}

void write_streaming(float* out, float value, uint64_t n) {
#ifdef __SSE2__
  const __m128 v = _mm_set1_ps(value);
  for (uint64_t i = 0; i < n; i += 4) _mm_stream_ps(out + i, v);
  _mm_sfence();
#else
  for (uint64_t i = 0; i < n; ++i) out[i] = value;
#endif
}

/// Keeps a result that nobody needs.
void use(float value) { [[maybe_unused]] volatile float sink = value; }

struct Buffers {
  Arena x, y;
  uint64_t bytes;

  float* in() { return reinterpret_cast<float*>(x.bytes().data()); }
  float* out() { return reinterpret_cast<float*>(y.bytes().data()); }
  [[nodiscard]] uint64_t floats() const { return bytes / sizeof(float); }
};

template <class Call>
Json point(Buffers& b, const char* operation, double seconds, Call&& call) {
  const auto copy = [&] { std::memcpy(b.out(), b.in(), b.bytes); };
  const tools::Timing t = tools::timing_of(tools::samples_of(
                                               Clock::thread, seconds, copy, [] {}, call),
                                           1);
  return {{"operation", operation},
          {"bytes", b.bytes},
          {"x_memcpy", t.x_memcpy.median},
          {"spread", {{"low", t.x_memcpy.low}, {"high", t.x_memcpy.high}}},
          {"gb_per_s", static_cast<double>(b.bytes) / 1e9 / t.seconds.median},
          {"rejected", t.rejected}};
}

void measure(uint64_t bytes, double seconds, Json& points) {
  Buffers b{{}, {}, bytes};
  if (!b.x.reserve(bytes) || !b.y.reserve(bytes)) return;
  std::memset(b.in(), 0, bytes);
  std::memset(b.out(), 0, bytes);
  const uint64_t n = b.floats();
  points.push_back(point(b, "memcpy", seconds, [&] { std::memcpy(b.out(), b.in(), b.bytes); }));
  points.push_back(point(b, "read", seconds, [&] { use(read_one(b.in(), n)); }));
  points.push_back(point(b, "read two", seconds, [&] { use(read_two(b.in(), b.out(), n)); }));
  points.push_back(point(b, "r += g", seconds, [&] { add_to(b.out(), b.in(), n); }));
  points.push_back(point(b, "add 1 of 100", seconds, [&] { add_to_few(b.out(), 1.0F, n); }));
  points.push_back(point(b, "write", seconds, [&] { std::memset(b.out(), 1, b.bytes); }));
  points.push_back(
      point(b, "write past the caches", seconds, [&] { write_streaming(b.out(), 1.0F, n); }));
}

}  // namespace
}  // namespace laconic::bench

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: roofline_bench SECONDS_PER_POINT BYTES...\n");
    return 2;
  }
  const laconic::tools::PinnedToCore pinned;
  laconic::tools::Json points = laconic::tools::Json::array();
  for (int i = 2; i < count; ++i) {
    const uint64_t bytes = std::strtoull(words[i], nullptr, 10) / 256 * 256;
    laconic::bench::measure(bytes, std::strtod(words[1], nullptr), points);
  }
  laconic::tools::print_json({{"clock_ghz", laconic::tools::clock_ghz()}, {"points", points}});
  return 0;
}
