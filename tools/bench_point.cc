// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "bench_point.h"

#include <algorithm>
#include <memory>

#include "bench_rank.h"
#include "machine.h"

namespace laconic::tools {
namespace {

template <class Call, class Prepare>
std::vector<Sample> sample(Rank& rank, const PointOptions& options, Prepare&& prepare,
                           Call&& call) {
  const Clock clock = options.threads == 1 ? Clock::thread : Clock::wall;
  const double seconds = options.seconds / 2;  // the other half is decode's
  return samples_of(
      clock, seconds, [&] { rank.copy(); }, prepare, call);
}

/// Payloads of `peers` ranks: the gradient, and rotations of it by a third of its length, a ninth,
/// ….
std::vector<std::vector<uint8_t>> peer_payloads(Rank& rank, std::span<const float> values,
                                                uint32_t peers) {
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<float> rotated(values.begin(), values.end());
  for (uint32_t r = 0; r < peers; ++r) {
    rank.start(rotated);
    rank.encode();
    payloads.emplace_back(rank.sent().begin(), rank.sent().end());
    const auto shift = static_cast<std::ptrdiff_t>(rotated.size() / (3 + 2 * r));
    std::rotate(rotated.begin(), rotated.begin() + shift, rotated.end());
  }
  return payloads;
}

std::vector<Term> terms_of(const std::vector<std::vector<uint8_t>>& payloads) {
  std::vector<Term> terms;
  for (const auto& payload : payloads)
    terms.push_back({payload, 1.0F / static_cast<float>(payloads.size())});
  return terms;
}

ErrorMetrics error_of_one_encoding(Rank& rank, std::span<const float> values) {
  rank.start(values);
  rank.encode();
  const Term own{rank.sent(), 1.0F};
  rank.decode({&own, 1}, false);
  return compare(values, rank.target());
}

}  // namespace

Cycles cycles_per_element(const Point& point) {
  const double cycles_per_second = 1e9 * point.clock_ghz / static_cast<double>(point.elements);
  return {point.encode.seconds.median * cycles_per_second,
          point.decode.seconds.median * cycles_per_second / point.options.peers};
}

Result<Point> measure(const Spec& spec, std::span<const float> values,
                      const PointOptions& options) {
  auto rank = std::make_unique<Rank>(spec, values.size(), options);
  if (!rank->reserve())
    return Error{Errc::out_of_memory, "not enough memory for " + spec.canonical(),
                 "use a smaller --size"};
  if (options.peers > 1 && rank->lanes()) {
    return Error{Errc::unsupported,
                 spec.canonical() + " is summed by the engine: peers are never decoded one by one",
                 "leave --peers out"};
  }
  const std::unique_ptr<PinnedToCore> pinned =
      options.threads == 1 ? std::make_unique<PinnedToCore>() : nullptr;
  Point point{spec.canonical(),
              values.size(),
              options,
              rank->feedback(),
              false,
              rank->scanned(),
              0,
              0,
              {},
              {},
              0,
              {}};
  point.error = error_of_one_encoding(*rank, values);
  point.payload_bytes = rank->payload_bytes();
  point.ratio = static_cast<double>(values.size_bytes()) / static_cast<double>(point.payload_bytes);

  point.adds = options.decode == DecodeMode::add ||
               (options.decode == DecodeMode::automatic && rank->sends_few());
  point.encode = timing_of(sample(
                               *rank, options, [&] { rank->restart(); }, [&] { rank->encode(); }),
                           1);
  point.clock_ghz = clock_ghz();
  const auto payloads = peer_payloads(*rank, values, options.peers);
  const auto terms = terms_of(payloads);
  point.decode = timing_of(sample(
                               *rank, options, [] {}, [&] { rank->decode(terms, point.adds); }),
                           options.peers);
  return point;
}

}  // namespace laconic::tools
