// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The cost of an aggregation server's arithmetic, without I/O. Prints JSON.
//
//   sum:    tables of 4 bits into 8-bit lanes, 8 workers, beside float32: worker by worker, one
//           datagram after the other on both sides; the same for float32 while codes stay where
//           they were received until all workers' have come, as in the server; and all at once on
//           both sides
//   server: processor time for a million elements of 4 workers, and the error of their mean:
//           adding codes beside decoding, adding and encoding again, as an owner of two_shot does,
//           all payloads in hand; and adding codes as the server does, as datagrams come
//
//   server_cpu_bench ROUNDS
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/server/add.h"
#include "base/arena.h"
#include "bench_rank.h"
#include "gradients.h"
#include "kernels/core/basic.h"
#include "kernels/rotate/grid.h"
#include "laconic/loopback.h"
#include "laconic/session.h"
#include "machine.h"
#include "output.h"
#include "samples.h"

namespace laconic::bench {

namespace protocol = aggregation::protocol;
namespace {

using tools::Clock;
using tools::Json;

constexpr uint32_t kGranule = 1024;
constexpr std::size_t kMostWorkers = 8;

protocol::JobSettings job_settings() {
  protocol::JobSettings s;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.lanes = kGranule;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  return s;
}

Json to_json(const tools::Spread& s) {
  return {{"median", s.median}, {"low", s.low}, {"high", s.high}};
}
Json spread(std::vector<double> values) { return to_json(tools::spread_of(std::move(values))); }

constexpr uint64_t kWindow = 64 * kGranule;

/// A window of granules from every worker in turn: the order of segmented datagrams.
template <class Take>
void by_window(uint64_t elements, std::size_t workers, Take&& take) {
  for (uint64_t from = 0; from < elements; from += kWindow) {
    for (std::size_t w = 0; w < workers; ++w) {
      for (uint64_t i = 0; i < kWindow; i += kGranule) take(w, from + i);
    }
  }
}

/// Granules of one worker as its messages bring them, or of sums as a ring holds them: each after a
/// header.
template <uint64_t kHeader, uint64_t kBytes>
class Granules {
 public:
  explicit Granules(uint64_t elements) {
    const uint64_t size = elements / kGranule * (kHeader + kBytes);
    if (!arena_.reserve(size)) std::abort();
    std::memset(arena_.bytes().data(), 0, size);
  }
  /// The granule that begins with an element.
  uint8_t* at(uint64_t element) noexcept {
    return arena_.bytes().data() + element / kGranule * (kHeader + kBytes) + kHeader;
  }

 private:
  Arena arena_;
};

/// Codes of `workers`, and lanes for their sum: what a server holds.
class Codes {
 public:
  Codes(uint32_t workers, uint64_t elements) : elements_(elements), lanes_(elements) {
    for (uint32_t w = 0; w < workers; ++w) {
      codes_.emplace_back(elements);
      for (uint64_t at = 0; at < elements; at += kGranule) {
        for (uint64_t i = 0; i < kGranule / 2; ++i) {
          codes_[w].at(at)[i] = static_cast<uint8_t>(((at / 2 + i) * 2654435761U + w) >> 7U);
        }
      }
    }
  }
  void by_worker() {
    by_window(elements_, codes_.size(), [&](std::size_t w, uint64_t at) {
      w == 0 ? adder_.set_codes(codes_[w].at(at), lanes_.at(at))
             : adder_.add_codes(codes_[w].at(at), lanes_.at(at));
    });
  }
  /// The slot machine with payloads that stay: it notes where they are, and adds with the last
  /// worker's.
  void as_server() {
    std::array<std::array<const uint8_t*, kMostWorkers>, kWindow / kGranule> promised{};
    const std::size_t last = codes_.size() - 1;
    by_window(elements_, codes_.size(), [&](std::size_t w, uint64_t at) {
      auto& of = promised[at / kGranule % promised.size()];
      of[w] = codes_[w].at(at);
      if (w == last) adder_.add_all({of.data(), last + 1}, true, lanes_.at(at));
    });
  }
  void at_once() {
    std::array<const uint8_t*, kMostWorkers> of{};
    const auto count = static_cast<uint32_t>(codes_.size());
    for (uint64_t at = 0; at < elements_; at += kGranule) {
      for (std::size_t w = 0; w < count; ++w) of[w] = codes_[w].at(at);
      grid_.sum8(of.data(), count, kGranule, 4, table_, lanes_.at(at));
    }
  }

 private:
  uint64_t elements_;
  std::vector<Granules<protocol::kUpHeaderBytes, kGranule / 2>> codes_;
  Granules<protocol::kDownHeaderBytes, kGranule> lanes_;
  aggregation::Adder adder_{job_settings()};
  const kernels::GridKernels& grid_ = kernels::grid_kernels(best_isa());
  alignas(16) uint8_t table_[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

class Floats {
 public:
  Floats(uint32_t workers, uint64_t elements) : elements_(elements), sum_(elements) {
    for (uint32_t w = 0; w < workers; ++w) {
      values_.emplace_back(elements);
      for (uint64_t at = 0; at < elements; at += kGranule) {
        std::fill_n(reinterpret_cast<float*>(values_[w].at(at)), kGranule, 1.5F);
      }
    }
  }
  void by_worker() {
    by_window(elements_, values_.size(), [&](std::size_t w, uint64_t at) {
      const auto* x = reinterpret_cast<const float*>(values_[w].at(at));
      if (w == 0) {
        std::copy_n(x, kGranule, sum(at));
      } else {
        basic_.add(sum(at), x, kGranule);
      }
    });
  }
  void at_once() {
    std::array<const void*, kMostWorkers> of{};
    for (uint64_t at = 0; at < elements_; at += kGranule) {
      for (std::size_t w = 0; w < values_.size(); ++w) of[w] = values_[w].at(at);
      basic_.sum_rows(sum(at), of.data(), static_cast<uint32_t>(values_.size()), 1.0F, kGranule);
    }
  }

 private:
  float* sum(uint64_t at) { return reinterpret_cast<float*>(sum_.at(at)); }

  uint64_t elements_;
  std::vector<Granules<protocol::kUpHeaderBytes, kGranule * sizeof(float)>> values_;
  Granules<protocol::kDownHeaderBytes, kGranule * sizeof(float)> sum_;
  const kernels::BasicKernels& basic_ = kernels::basic_kernels(best_isa());
};

/// Alternating samples of two calls: seconds of each, and the ratio of a pair.
template <class First, class Second>
Json pairs(int rounds, First&& first, Second&& second) {
  constexpr double kSample = 4e-3;
  const uint64_t firsts = tools::repeats_for(Clock::thread, kSample, first);
  const uint64_t seconds = tools::repeats_for(Clock::thread, kSample, second);
  std::vector<double> of_first, of_second, ratios;
  for (int i = 0; i < rounds; ++i) {
    of_first.push_back(tools::seconds_of(Clock::thread, firsts, first) /
                       static_cast<double>(firsts));
    of_second.push_back(tools::seconds_of(Clock::thread, seconds, second) /
                        static_cast<double>(seconds));
    ratios.push_back(of_second.back() / of_first.back());
  }
  return {{"first", spread(of_first)}, {"second", spread(of_second)}, {"ratio", spread(ratios)}};
}

Json sums(uint64_t elements, int rounds) {
  constexpr uint32_t kWorkers = 8;
  Codes codes(kWorkers, elements);
  Floats floats(kWorkers, elements);
  Json found{{"workers", kWorkers}, {"elements", elements}};
  found["by_worker"] = pairs(
      rounds, [&] { codes.by_worker(); }, [&] { floats.by_worker(); });
  found["as_server"] = pairs(
      rounds, [&] { codes.as_server(); }, [&] { floats.by_worker(); });
  found["at_once"] = pairs(
      rounds, [&] { codes.at_once(); }, [&] { floats.at_once(); });
  return found;
}

// ---- what a server does with four workers' gradients ----

constexpr uint32_t kServed = 4;
constexpr uint64_t kElements = uint64_t{1} << 20U;
constexpr uint64_t kCached = uint64_t{1} << 18U;  // whose payloads a second-level cache holds

/// Half of each is everybody's, half its own.
std::vector<std::vector<float>> gradients(uint64_t elements) {
  std::vector<float> shared(elements);
  tools::fill_gradient(tools::GradientKind::laplace, 100, shared);
  std::vector<std::vector<float>> all(kServed, std::vector<float>(elements));
  for (uint32_t w = 0; w < kServed; ++w) {
    tools::fill_gradient(tools::GradientKind::laplace, w + 1, all[w]);
    for (uint64_t i = 0; i < elements; ++i) all[w][i] += shared[i];
  }
  return all;
}

std::vector<float> mean_of(const std::vector<std::vector<float>>& all) {
  std::vector<float> mean(all[0].size());
  for (uint64_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const auto& one : all) sum += one[i];
    mean[i] = static_cast<float>(sum / kServed);
  }
  return mean;
}

/// Error of the mean that a first step delivers: |found - mean|² / |mean|².
std::optional<double> error_of(const std::string& spec, const std::string& plan,
                               const std::vector<std::vector<float>>& all) {
  LoopbackHub hub(kServed);
  std::vector<std::vector<float>> found = all;
  std::vector<Result<void>> done(kServed);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kServed; ++rank) {
    threads.emplace_back([&, rank] {
      auto session = Session::create(spec, {{"all", kElements / 1024, 1024}}, hub.engine(rank),
                                     {.plan = plan});
      if (!session) {
        done[rank] = std::move(session).error();
      } else {
        done[rank] = (*session)->average(0, found[rank]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!done[0]) {
    fmt::print(stderr, "{}: {}\n", spec, done[0].error().message);
    return std::nullopt;
  }
  const std::vector<float> mean = mean_of(all);
  double wrong = 0, whole = 0;
  for (uint64_t i = 0; i < kElements; ++i) {
    const double d = double{found[0][i]} - double{mean[i]};
    wrong += d * d;
    whole += double{mean[i]} * double{mean[i]};
  }
  return wrong / whole;
}

/// An owner: payloads of four, and the mean in its own encoding.
class Owner {
 public:
  static std::unique_ptr<Owner> create(const std::string& text,
                                       const std::vector<std::vector<float>>& all) {
    const auto spec = Spec::parse(text);
    if (!spec) return nullptr;
    auto owner = std::make_unique<Owner>(*spec, all[0].size());
    if (!owner->rank_.reserve()) return nullptr;
    for (const auto& one : all) {
      owner->rank_.start(one);
      owner->rank_.encode();
      owner->payloads_.emplace_back(owner->rank_.sent().begin(), owner->rank_.sent().end());
    }
    for (const auto& payload : owner->payloads_) owner->terms_.push_back({payload, 1.0F / kServed});
    owner->rank_.start(mean_of(all));
    owner->rank_.encode();
    return owner;
  }
  Owner(const Spec& spec, uint64_t elements) : spec_(spec), rank_(spec_, elements, options()) {}
  void serve() {
    rank_.decode(terms_, false);
    rank_.encode();
  }
  [[nodiscard]] uint64_t up() const { return payloads_[0].size(); }
  [[nodiscard]] uint64_t down() const { return rank_.payload_bytes(); }

 private:
  static tools::PointOptions options() {
    tools::PointOptions o;
    o.isa = best_isa();
    return o;
  }
  Spec spec_;
  tools::Rank rank_;
  std::vector<std::vector<uint8_t>> payloads_;
  std::vector<Term> terms_;
};

Json servers(int rounds) {
  const auto all = gradients(kElements), few = gradients(kCached);
  Codes codes(kServed, kElements), few_codes(kServed, kCached);
  Json rows = Json::array();
  const auto thc_error = error_of("thc", "native_sum", all);
  // The codes, and 16 bits of norm with each block; lanes of 8 bits come back.
  const uint64_t norms = 2 * kElements / kGranule;
  Json thc{{"spec", "thc"}, {"up", kElements / 2 + norms}, {"down", kElements + norms}};
  if (thc_error) thc["nmse"] = *thc_error;
  rows.push_back(thc);
  for (const char* text : {"int8", "topk:ratio=0.1", "terngrad", "dgc"}) {
    const auto owner = Owner::create(text, all);
    const auto few_owner = Owner::create(text, few);
    if (owner == nullptr || few_owner == nullptr) continue;
    Json row = pairs(
        rounds, [&] { codes.at_once(); }, [&] { owner->serve(); });
    row["by_worker"] = pairs(
        rounds, [&] { codes.by_worker(); }, [&] { owner->serve(); })["ratio"];
    row["as_server"] = pairs(
        rounds, [&] { codes.as_server(); }, [&] { owner->serve(); })["ratio"];
    row["cached"] = pairs(
        rounds, [&] { few_codes.at_once(); }, [&] { few_owner->serve(); })["ratio"];
    row["spec"] = text;
    row["up"] = owner->up();
    row["down"] = owner->down();
    if (const auto error = error_of(text, "two_shot", all)) row["nmse"] = *error;
    rows.push_back(row);
  }
  return {
      {"workers", kServed}, {"elements", kElements}, {"cached_elements", kCached}, {"rows", rows}};
}

int run(int rounds) {
  const Json server = servers(rounds);
  const tools::PinnedToCore pinned;
  tools::print_json(
      {{"isa", isa_name(best_isa())},
       {"sum", Json::array({sums(uint64_t{64} << 10U, rounds), sums(uint64_t{4} << 20U, rounds)})},
       {"server", server}});
  return 0;
}

}  // namespace
}  // namespace laconic::bench

int main(int count, char** words) {
  if (count != 2) {
    fmt::print(stderr, "usage: server_cpu_bench ROUNDS\n");
    return 2;
  }
  return laconic::bench::run(std::atoi(words[1]));
}
