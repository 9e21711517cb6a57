// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The cost of averaging without a codec next to the library's own all-reduce of the same number of
// float32, in one process group and in turn, so that other work on the machine slows down both.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "laconic/engine.h"
#include "laconic/session.h"
#include "output.h"

namespace laconic::bench {

struct SumBench {
  std::string engine, library;
  Engine* ranks = nullptr;
  /// In two levels: the session's engines. Null: `ranks`.
  Engine *across = nullptr, *inside = nullptr;
  /// The library's all-reduce, in place; returns when it is complete.
  std::function<void(std::span<float>)> own;
  uint32_t iterations = 20;
  std::vector<uint64_t> sizes;  // bytes
};

namespace detail {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Seconds of the slowest rank in each turn.
inline Result<std::vector<double>> slowest(Engine& engine, std::vector<double> seconds) {
  const uint64_t bytes = seconds.size() * sizeof(double);
  std::vector<double> all(seconds.size() * engine.world());
  std::vector<uint64_t> counts(engine.world(), bytes), zeros(engine.world()), offsets;
  for (uint32_t r = 0; r < engine.world(); ++r) offsets.push_back(r * bytes);
  const Step step{.kind = StepKind::all_gather,
                  .send = reinterpret_cast<uint8_t*>(seconds.data()),
                  .recv = reinterpret_cast<uint8_t*>(all.data()),
                  .send_counts = counts,
                  .send_offsets = zeros,
                  .recv_counts = counts,
                  .recv_offsets = offsets};
  if (auto done = engine.run({&step, 1}); !done) return std::move(done).error();
  for (size_t i = 0; i < all.size(); ++i)
    seconds[i % seconds.size()] = std::max(seconds[i % seconds.size()], all[i]);
  return seconds;
}

/// Rank r has r + 1 everywhere.
inline Result<tools::Json> point(const SumBench& bench, uint64_t bytes) {
  Engine& engine = *bench.ranks;
  const uint64_t count = bytes / sizeof(float);
  std::vector<float> values(count);
  auto session = Session::create("none", {{"all", count, 1}}, bench.across ? *bench.across : engine,
                                 {.plan = "native_sum", .inside = bench.inside});
  if (!session) return std::move(session).error();
  const auto world = static_cast<float>(engine.world());
  Result<void> failed;
  const auto timed = [&](float expected, auto&& call) {
    std::fill(values.begin(), values.end(), static_cast<float>(engine.rank() + 1));
    float meet = 0;
    bench.own({&meet, 1});
    const auto begin = std::chrono::steady_clock::now();
    Result<void> done = call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    for (const float x : values) {
      if (done && std::fabs(x - expected) > 1e-5F * expected)
        done = Error{Errc::engine_failed, "the sum is wrong", {}};
    }
    if (failed) failed = std::move(done);
    return took.count();
  };
  std::vector<double> own, mean, laconic;
  for (uint32_t i = 0; i <= bench.iterations && failed; ++i) {
    own.push_back(timed(world * (world + 1) / 2, [&] {
      bench.own(values);
      return Result<void>();
    }));
    mean.push_back(timed((world + 1) / 2, [&] {
      bench.own(values);
      for (float& x : values) x /= world;
      return Result<void>();
    }));
    laconic.push_back(timed((world + 1) / 2, [&] { return (*session)->average(i, values); }));
  }
  if (!failed) return std::move(failed).error();
  tools::Json found{{"bytes", bytes}};
  for (auto& [name, seconds] :
       {std::pair{"own", &own}, std::pair{"mean", &mean}, std::pair{"laconic", &laconic}}) {
    seconds->erase(seconds->begin());  // memory and connections
    auto worst = slowest(engine, std::move(*seconds));
    if (!worst) return std::move(worst).error();
    found[name] = median(*std::move(worst));
  }
  found["ratio"] = found["laconic"].number() / found["own"].number();
  return found;
}

}  // namespace detail

/// Rank 0 prints {engine, library, ranks, points: [{bytes, own, mean, laconic, ratio}]}: medians of
/// the slowest rank's seconds. mean: the library's sum and a division of every element. Gives the
/// exit status.
inline int run(const SumBench& bench) {
  tools::Json points = tools::Json::array();
  for (const uint64_t bytes : bench.sizes) {
    auto found = detail::point(bench, bytes);
    if (!found) {
      std::fprintf(stderr, "rank %u: %s\n", bench.ranks->rank(), found.error().message.c_str());
      return 1;
    }
    points.push_back(*std::move(found));
  }
  if (bench.ranks->rank() == 0) {
    tools::print_json({{"engine", bench.engine},
                       {"library", bench.library},
                       {"ranks", bench.ranks->world()},
                       {"points", std::move(points)}});
  }
  return 0;
}

/// ITERATIONS MIB..., with 20 turns of 4, 16 and 64 MiB without them.
inline void read_sizes(SumBench& bench, std::span<char*> arguments) {
  if (!arguments.empty()) bench.iterations = static_cast<uint32_t>(std::stoul(arguments[0]));
  for (size_t i = 1; i < arguments.size(); ++i)
    bench.sizes.push_back(std::stoull(arguments[i]) << 20U);
  if (bench.sizes.empty()) bench.sizes = {4U << 20U, 16U << 20U, 64U << 20U};
}

}  // namespace laconic::bench
