// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "bench_rank.h"
#include "json.h"
#include "laconic/bytes.h"
#include "laconic/random.h"
#include "laconic/session.h"
#include "wire.h"

namespace laconic::tools {
namespace {

constexpr uint64_t kParameter = uint64_t{1} << 18U;  // elements of a parameter: 1 MiB
constexpr uint64_t kCard = 1024;                     // bytes of a rank's options
constexpr uint32_t kMagnitudes = 1U << 15U;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Since the session began, on this rank.
double codec_seconds(const Session& session) {
  const auto stats = parse_json(session.stats());
  return stats ? (*stats)["encode_seconds"].number() + (*stats)["decode_seconds"].number() : 0;
}

/// A model of that many elements: parameters of at most kParameter, so that `part` and `window`
/// have something to cut.
std::vector<Parameter> parameters_of(uint64_t elements) {
  std::vector<Parameter> parameters;
  for (uint64_t at = 0; at < elements; at += kParameter) {
    const Unit unit = unit_of(std::min(kParameter, elements - at));
    parameters.push_back({fmt::format("p{}", parameters.size()), unit.rows, unit.cols});
  }
  return parameters;
}

/// "name value" for each option, in a fixed order.
std::string card_of(const AllReduceOptions& o) {
  return fmt::format(
      "--min {}\n--max {}\n--iterations {}\n--warmup {}\n--window {}\n--part {}\n--seed {}\n"
      "--plan {}\n--spec {}",
      o.min, o.max, o.iterations, o.warmup, o.window, o.part, o.seed, o.plan,
      fmt::join(o.specs, " --spec "));
}

/// The first lines that differ.
std::pair<std::string_view, std::string_view> difference(std::string_view a, std::string_view b) {
  for (;;) {
    const auto x = a.substr(0, a.find('\n')), y = b.substr(0, b.find('\n'));
    if (x != y || x.size() == a.size() || y.size() == b.size()) return {x, y};
    a.remove_prefix(x.size() + 1);
    b.remove_prefix(y.size() + 1);
  }
}

/// One rank. What the engine may still use after a failure is kept with it.
class Bench : public std::enable_shared_from_this<Bench> {
 public:
  Bench(Engine& engine, const AllReduceOptions& options, const AllReduceObserver& observer)
      : engine_(engine),
        recorded_(engine),
        options_(options),
        observer_(observer),
        gradients_(options.seed),
        counts_(engine.world()),
        zeros_(engine.world()),
        offsets_(engine.world()) {}

  std::optional<AllReduceFailure> run() {
    std::optional<AllReduceFailure> failure;
    try {
      if (const auto done = measure(); !done) failure = {done.error(), met()};
    } catch (const std::bad_alloc&) {
      failure = {{Errc::out_of_memory, "not enough memory for the measurement", {}}, false};
    }
    if (failure) engine_.keep_until_end(shared_from_this());
    return failure;
  }

 private:
  struct Line {
    std::vector<float> values;
    std::vector<double> seconds;
    double error = 0;
  };

  Result<void> measure();
  Result<void> agree();
  Result<void> allocate(uint64_t elements);
  template <class Take>
  Result<void> taken(const Take& take);
  Result<AllReducePoint> point(const std::string& spec);
  Result<void> once(Line& line, Session* session);
  Result<void> wire_alone();
  void check(Line& native, Line& compressed);
  Result<Measured> over_all_ranks(const Line& line);

  Result<void> execute(const Step& step);
  Result<void> sum(std::span<float> values);
  Result<void> gather(std::span<const uint8_t> own);
  bool met() {
    const uint8_t here = 1;
    return gather({&here, 1}).ok();
  }
  Engine& engine_;
  RecordedEngine recorded_;
  const AllReduceOptions options_;
  const AllReduceObserver& observer_;
  RankGradients gradients_;
  std::vector<float> own_;  // this rank's gradient
  Line native_, compressed_, wire_;
  uint64_t elements_ = 0, step_ = 0;
  std::vector<uint8_t> sent_, all_;  // of gather()
  std::vector<uint64_t> counts_, zeros_, offsets_;
};

// ---- steps of our own ----

Result<void> Bench::execute(const Step& step) {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  auto ticket = engine_.start({&step, 1});
  if (!ticket) return std::move(ticket).error();
  return engine_.wait(*ticket, deadline);
}

Result<void> Bench::sum(std::span<float> values) {
  auto* const data = reinterpret_cast<uint8_t*>(values.data());
  return execute({.kind = StepKind::all_reduce,
                  .dtype = DType::f32,
                  .count = values.size(),
                  .send = data,
                  .recv = data});
}

/// Gathers all ranks' bytes, of one length, into all_.
Result<void> Bench::gather(std::span<const uint8_t> own) {
  sent_.assign(own.begin(), own.end());
  all_.resize(own.size() * engine_.world());
  for (uint32_t r = 0; r < engine_.world(); ++r) {
    counts_[r] = own.size();
    offsets_[r] = r * own.size();
  }
  return execute({.kind = StepKind::all_gather,
                  .send = sent_.data(),
                  .recv = all_.data(),
                  .send_counts = counts_,
                  .send_offsets = zeros_,
                  .recv_counts = counts_,
                  .recv_offsets = offsets_});
}

// ---- the run ----

/// Ranks that were started by hand may have been given different arguments.
Result<void> Bench::agree() {
  std::string card = card_of(options_);
  if (card.size() > kCard)
    return Error{Errc::invalid_argument, "there are too many specs for one run", "use fewer specs"};
  card.resize(kCard, '\n');
  if (auto done = gather({reinterpret_cast<const uint8_t*>(card.data()), kCard}); !done)
    return done;
  const auto card_at = [&](uint32_t r) {
    return std::string_view(reinterpret_cast<const char*>(all_.data()) + r * kCard, kCard);
  };
  for (uint32_t r = 1; r < engine_.world(); ++r) {
    if (card_at(r) == card_at(0)) continue;
    const auto [first, other] = difference(card_at(0), card_at(r));
    return Error{Errc::ranks_disagree,
                 fmt::format("rank {} was started with {}, rank 0 with {}", r, other, first),
                 "start all ranks with the same options"};
  }
  return {};
}

/// Allocates with `take`. A rank that fails reports it to the others; collective.
template <class Take>
Result<void> Bench::taken(const Take& take) {
  uint8_t failed = 0;
  try {
    take();
  } catch (const std::bad_alloc&) {
    failed = 1;
  }
  if (auto done = gather({&failed, 1}); !done) return done;
  const auto at = std::find(all_.begin(), all_.end(), uint8_t{1});
  if (at == all_.end()) return {};
  return Error{
      Errc::out_of_memory,
      fmt::format("rank {} has not enough memory for {} elements", at - all_.begin(), elements_),
      "use a smaller --max"};
}

Result<void> Bench::allocate(uint64_t elements) {
  elements_ = elements;
  return taken([&] {
    for (auto* values : {&own_, &native_.values, &compressed_.values}) values->resize(elements);
  });
}

Result<void> Bench::measure() {
  if (auto done = agree(); !done) return done;
  for (uint64_t size = options_.min; size <= options_.max; size *= 2) {
    if (auto done = allocate(size / sizeof(float)); !done) return done;
    gradients_.fill(engine_.rank(), 0, own_);
    for (const std::string& spec : options_.specs) {
      const auto measured = point(spec);
      if (!measured) return measured.error();
      if (engine_.rank() == 0) observer_(*measured);
    }
  }
  return {};
}

/// Both in turn, so that what else this machine does happens to both.
Result<AllReducePoint> Bench::point(const std::string& spec) {
  SessionOptions options;
  options.plan = options_.plan;
  options.rules = options_.rules;
  options.control = options_.control;
  options.seed = options_.seed;
  options.small_elements = 0;
  options.threads = options_.threads;
  options.window = options_.window;
  options.part = options_.part;
  options.timeout = options_.timeout;
  auto session = Session::create(spec, parameters_of(own_.size()), recorded_, options);
  if (!session) return std::move(session).error();
  step_ = 0;
  const uint64_t calls = uint64_t{1} + options_.warmup + options_.iterations;
  AllReducePoint point;
  point.bytes = own_.size() * sizeof(float);
  point.spec = spec;
  double codec_before = 0;
  for (uint64_t i = 0; i < calls; ++i) {
    if (auto done = once(native_, nullptr); !done) return done.error();
    if (auto done = once(compressed_, session->get()); !done) return done.error();
    point.sent_bytes = recorded_.sent_bytes();
    if (auto done = wire_alone(); !done) return done.error();
    if (i == 0) check(native_, compressed_);
    if (i == options_.warmup) {
      codec_before = codec_seconds(**session);
      for (Line* line : {&native_, &compressed_, &wire_}) line->seconds.clear();
    }
  }
  point.explained = (*session)->explain();
  const Line codec{{}, {(codec_seconds(**session) - codec_before) / options_.iterations}, 0};
  for (const auto& [line, into] :
       {std::pair{&native_, &point.native}, std::pair{&compressed_, &point.compressed}}) {
    const auto measured = over_all_ranks(*line);
    if (!measured) return measured.error();
    *into = *measured;
  }
  for (const auto& [line, into] : {std::pair{static_cast<const Line*>(&wire_), &point.wire_seconds},
                                   std::pair{&codec, &point.codec_seconds}}) {
    const auto measured = over_all_ranks(*line);
    if (!measured) return measured.error();
    *into = measured->seconds;
  }
  return point;
}

/// Measures the data that the last compressed call sent.
Result<void> Bench::wire_alone() {
  if (auto ready = taken([&] { recorded_.prepare(); }); !ready) return ready;
  const auto start = std::chrono::steady_clock::now();
  if (auto done = recorded_.replay(options_.timeout); !done) return done;
  wire_.seconds.push_back(seconds_since(start));
  return {};
}

/// One call, begun by all ranks together. Without a session: the engine's own.
Result<void> Bench::once(Line& line, Session* session) {
  std::copy(own_.begin(), own_.end(), line.values.begin());
  const uint8_t here = 1;
  if (auto met = gather({&here, 1}); !met) return met;
  recorded_.forget();
  const auto start = std::chrono::steady_clock::now();
  auto done = session == nullptr ? sum(line.values) : session->average(step_++, line.values);
  if (!done) return done;
  line.seconds.push_back(seconds_since(start));
  return {};
}

/// Against the exact mean, computed again from all ranks' gradients.
void Bench::check(Line& native, Line& compressed) {
  constexpr std::size_t kPiece = 4096;
  std::array<float, kPiece> piece{};
  std::array<double, kPiece> mean{};
  const uint32_t world = engine_.world();
  double largest = 0, off_native = 0, off_compressed = 0;
  const auto raise = [](double& worst, double off) {  // a NaN is no larger than anything
    worst = std::isfinite(off) ? std::max(worst, off) : std::numeric_limits<double>::infinity();
  };
  for (std::size_t at = 0; at < own_.size(); at += kPiece) {
    const std::size_t count = std::min(kPiece, own_.size() - at);
    mean.fill(0);
    for (uint32_t r = 0; r < world; ++r) {
      gradients_.fill(r, at, {piece.data(), count});
      for (std::size_t i = 0; i < count; ++i) mean[i] += double{piece[i]};
    }
    for (std::size_t i = 0; i < count; ++i) {
      const double exact = mean[i] / world;
      largest = std::max(largest, std::fabs(exact));
      raise(off_native, std::fabs(double{native.values[at + i]} / world - exact));
      raise(off_compressed, std::fabs(double{compressed.values[at + i]} - exact));
    }
  }
  const auto relative = [&](double off) { return off == 0 ? 0 : off / largest; };
  native.error = relative(off_native);
  compressed.error = relative(off_compressed);
}

Result<Measured> Bench::over_all_ranks(const Line& line) {
  std::vector<double> numbers = line.seconds;
  numbers.push_back(line.error);
  const auto* const own = reinterpret_cast<const uint8_t*>(numbers.data());
  if (auto done = gather({own, numbers.size() * sizeof(double)}); !done) return done.error();
  for (std::size_t at = 0; at < all_.size(); at += sizeof(double)) {
    double& worst = numbers[at / sizeof(double) % numbers.size()];
    worst = std::max(worst, load<double>(all_.data() + at));
  }
  const double error = numbers.back();
  numbers.pop_back();
  return Measured{median(std::move(numbers)), error};
}

}  // namespace

RankGradients::RankGradients(uint64_t seed) : seed_(seed), magnitudes_(kMagnitudes) {
  for (uint32_t i = 0; i < kMagnitudes; ++i) {
    const double quantile = -std::log((i + 0.5) / kMagnitudes);
    magnitudes_[i] = static_cast<float>(std::round(quantile * 0x1p12) * 0x1p-22);
  }
}

/// Sixteen bits an element: sign and magnitude.
void RankGradients::fill(uint32_t rank, uint64_t first, std::span<float> out) const {
  const RandomKey key = own_key(seed_, 0, 0, rank, 0);
  for (std::size_t at = 0; at < out.size(); at += 8) {
    const RandomBlock block = philox(key, (first + at) / 8);
    for (std::size_t i = 0; i < std::min<std::size_t>(8, out.size() - at); ++i) {
      const uint32_t word = block[i / 2] >> (i % 2 * 16);
      const float magnitude = magnitudes_[word % kMagnitudes];
      out[at + i] = (word & kMagnitudes) != 0 ? -magnitude : magnitude;
    }
  }
}

double algorithm_bandwidth(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

/// nccl-tests, doc/PERFORMANCE.md, "AllReduce".
double bus_bandwidth(uint64_t bytes, double seconds, uint32_t world) {
  return algorithm_bandwidth(bytes, seconds) * 2 * (world - 1) / world;
}

std::optional<AllReduceFailure> measure_all_reduce(Engine& engine, const AllReduceOptions& options,
                                                   const AllReduceObserver& observer) {
  return std::make_shared<Bench>(engine, options, observer)->run();
}

}  // namespace laconic::tools
