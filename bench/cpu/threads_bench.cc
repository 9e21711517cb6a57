// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The gain of a second thread: the same call with one thread and with two, in turn, by the clock
// on the wall. memcpy in two halves by the same pool says what the machine itself gives. Prints
// JSON.
//
//   threads_bench SECONDS_PER_POINT BYTES SPEC...
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench_rank.h"
#include "gradients.h"
#include "output.h"

namespace laconic::bench {
namespace {

using tools::Clock;
using tools::Json;
using tools::Rank;
using tools::Spread;

constexpr uint32_t kThreads = 2;
constexpr double kSampleSeconds = 4e-3;
constexpr uint32_t kMinSamples = 9;

/// Time with one thread over time with two; each pair within milliseconds.
template <class One, class Two>
Spread speedup(double seconds, One&& one, Two&& two) {
  const uint64_t ones = tools::repeats_for(Clock::wall, kSampleSeconds, one);
  const uint64_t twos = tools::repeats_for(Clock::wall, kSampleSeconds, two);
  std::vector<double> ratios;
  for (double total = 0; total < seconds || ratios.size() < kMinSamples;) {
    const double slow = tools::seconds_of(Clock::wall, ones, one) / static_cast<double>(ones);
    const double fast = tools::seconds_of(Clock::wall, twos, two) / static_cast<double>(twos);
    ratios.push_back(slow / fast);
    total += slow * static_cast<double>(ones) + fast * static_cast<double>(twos);
  }
  return tools::spread_of(std::move(ratios));
}

Json to_json(const Spread& s) { return {{"median", s.median}, {"low", s.low}, {"high", s.high}}; }

/// In slices of 256 KiB, as the codecs cut their work.
void copy_by(ThreadPool* pool, Arena& to, Arena& from, uint64_t bytes) {
  constexpr uint64_t kSlice = 256 << 10;
  parallel_for(pool, ceil_div(bytes, kSlice), [&](uint64_t i) {
    const uint64_t at = i * kSlice;
    std::memcpy(to.bytes().data() + at, from.bytes().data() + at, std::min(kSlice, bytes - at));
  });
}

Json measure_memcpy(uint64_t bytes, double seconds) {
  Arena from, to;
  if (!from.reserve(bytes) || !to.reserve(bytes)) return nullptr;
  std::memset(from.bytes().data(), 1, bytes);
  std::memset(to.bytes().data(), 1, bytes);
  ThreadPool pool(kThreads);
  const Spread s = speedup(
      seconds, [&] { copy_by(nullptr, to, from, bytes); },
      [&] { copy_by(&pool, to, from, bytes); });
  return {{"codec", "memcpy"}, {"bytes", bytes}, {"encode", to_json(s)}, {"decode", to_json(s)}};
}

std::unique_ptr<Rank> rank_of(const Spec& spec, std::span<const float> values, uint32_t threads) {
  tools::PointOptions options;
  options.isa = best_isa();
  options.threads = threads;
  auto rank = std::make_unique<Rank>(spec, values.size(), options);
  if (!rank->reserve()) return nullptr;
  rank->start(values);
  rank->encode();
  return rank;
}

Json measure(const Spec& spec, std::span<const float> values, double seconds) {
  const auto one = rank_of(spec, values, 1);
  const auto two = rank_of(spec, values, kThreads);
  if (one == nullptr || two == nullptr) return nullptr;
  const Spread encode = speedup(
      seconds, [&] { one->encode(); }, [&] { two->encode(); });
  const std::vector<uint8_t> payload(one->sent().begin(), one->sent().end());
  const Term term{payload, 1.0F};
  const bool add = one->sends_few();
  const Spread decode = speedup(
      seconds,
      [&] {
        one->decode({&term, 1}, add);
      },
      [&] {
        two->decode({&term, 1}, add);
      });
  return {{"codec", spec.canonical()},
          {"bytes", values.size_bytes()},
          {"encode", to_json(encode)},
          {"decode", to_json(decode)}};
}

int run(double seconds, uint64_t bytes, std::span<char*> specs) {
  std::vector<float> values(bytes / sizeof(float));
  tools::fill_gradient(tools::GradientKind::laplace, 1, values);
  Json points = Json::array({measure_memcpy(bytes, seconds)});
  for (const char* text : specs) {
    const auto spec = Spec::parse(text);
    if (!spec) return tools::fail(spec.error(), true, 1);
    points.push_back(measure(*spec, values, seconds));
  }
  tools::print_json({{"threads", kThreads}, {"points", points}});
  return 0;
}

}  // namespace
}  // namespace laconic::bench

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: threads_bench SECONDS_PER_POINT BYTES SPEC...\n");
    return 2;
  }
  return laconic::bench::run(std::strtod(words[1], nullptr), std::strtoull(words[2], nullptr, 10),
                             {words + 3, words + count});
}
