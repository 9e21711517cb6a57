// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "bench_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "all_reduce.h"
#include "engines.h"
#include "machine.h"
#include "output.h"
#include "rules_file.h"

namespace laconic::tools {
namespace {

// ---- arguments ----

Error wrong(std::string message, std::string hint) {
  return {Errc::invalid_argument, std::move(message), std::move(hint)};
}

/// K, M and G as nccl-tests has them, and as the lab does: powers of 1024.
Result<uint64_t> parse_size(std::string_view option, std::string_view text, uint64_t least) {
  constexpr std::pair<std::string_view, uint32_t> kSuffixes[] = {
      {"", 0}, {"K", 10}, {"M", 20}, {"G", 30}, {"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
  constexpr uint64_t kMost = uint64_t{1} << 40U;
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [name, shift] : kSuffixes) {
    if (status != std::errc{} || suffix != name || value > kMost >> shift) continue;
    if (value << shift >= least) return value << shift;
  }
  return wrong(fmt::format("{} '{}' is not a size{}", option, text,
                           least == 0 ? "" : fmt::format(" of at least {} bytes", least)),
               "bytes, with K, M or G, which are powers of 1024: 4K, 64M");
}

/// Options that belong to one engine, and those that it cannot do without.
Result<void> check_engine(const Command& command, const EngineBench& options) {
  struct Owned {
    const char *name, *engine;
    bool needed;
  };
  constexpr Owned kOwned[] = {{"--ranks", "loopback", false},
                              {"--rank", "gloo", true},
                              {"--world", "gloo", true},
                              {"--rendezvous", "gloo", true},
                              {"--interface", "gloo", false}};
  for (const auto& [name, engine, needed] : kOwned) {
    const bool given = command.count(name) != 0;
    if (given && options.engine != engine) {
      return wrong(fmt::format("{} is for --engine {}", name, engine),
                   options.engine == "mpi" ? "its launcher sets the number of ranks: mpirun -n"
                                           : "leave it out");
    }
    if (!given && needed && options.engine == engine) {
      return wrong(fmt::format("--engine {} needs {}", engine, name),
                   "--rank 0 --world 2 --rendezvous file:FOLDER, or tcp:HOST:PORT of rank 0");
    }
  }
  if (options.engine == "gloo" && options.rank >= options.world) {
    return wrong(fmt::format("--rank {} of --world {}", options.rank, options.world),
                 "ranks count from 0");
  }
  return {};
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

Result<AllReduceOptions> parse(const Command& command, const EngineBench& options,
                               const std::vector<Spec>& specs, uint32_t threads) {
  if (auto ok = check_engine(command, options); !ok) return std::move(ok).error();
  const auto min = parse_size("--min", options.min, sizeof(float));
  if (!min) return min.error();
  const auto max = parse_size("--max", options.max, sizeof(float));
  if (!max) return max.error();
  const auto part = parse_size("--part", options.part, 0);
  if (!part) return part.error();
  if (*min > *max) {
    return wrong(fmt::format("--min {} is more than --max {}", options.min, options.max),
                 "sizes double from --min to --max");
  }
  AllReduceOptions parsed{.specs = {},
                          .min = *min,
                          .max = *max,
                          .iterations = options.iterations,
                          .warmup = options.warmup,
                          .window = options.window,
                          .part = *part,
                          .threads = threads,
                          .seed = options.seed,
                          .plan = options.plan,
                          .rules = {},
                          .control = options.control,
                          .timeout = milliseconds(options.timeout)};
  for (const Spec& spec : specs) parsed.specs.push_back(spec.canonical());
  return parsed;
}

// ---- results ----

std::string error_text(double error) { return error == 0 ? "0" : fmt::format("{:.1e}", error); }

Json measured_json(const Measured& m, uint64_t bytes, uint32_t world) {
  return {{"time", m.seconds * 1e6},
          {"algbw", algorithm_bandwidth(bytes, m.seconds)},
          {"busbw", bus_bandwidth(bytes, m.seconds, world)},
          {"error", m.error}};
}

/// The settings at the end, by rule, the call's last.
Json settings_json(const std::string& explained) {
  const auto all = parse_json(explained);
  Json settings = Json::array();
  if (!all) return settings;
  for (const auto& [_, setting] : (*all)["settings"].members()) {
    Json taken;
    for (const char* key : {"rule", "parameters", "elements", "spec", "strategy", "control"})
      taken[key] = setting[key];
    settings.push_back(std::move(taken));
  }
  return settings;
}

/// Rows as they come, or one JSON document at the end.
class Report {
 public:
  Report(const EngineBench& options, const AllReduceOptions& parsed, std::string library,
         uint32_t world, bool json)
      : options_(options),
        parsed_(parsed),
        library_(std::move(library)),
        world_(world),
        json_(json) {
    for (const std::string& spec : parsed.specs) width_ = std::max(width_, spec.size());
  }

  void add(const AllReducePoint& point) {
    const double speedup = point.native.seconds / point.compressed.seconds;
    const uint64_t count = point.bytes / sizeof(float);
    if (!json_) {
      if (!begun_) print_headings();
      begun_ = true;
      fmt::print("{:>12} {:>12} {:>7} {}  {:<{}} {} {:>8.2f} {:>10.1f} {:>10.1f}\n", point.bytes,
                 count, "float", cells(point.native, point.bytes), point.spec, width_,
                 cells(point.compressed, point.bytes), speedup, point.wire_seconds * 1e6,
                 point.codec_seconds * 1e6);
      std::fflush(stdout);
      return;
    }
    Json row{{"size", point.bytes}, {"count", count}, {"type", "float"}, {"codec", point.spec}};
    row.update(measured_json(point.compressed, point.bytes, world_));
    row["native"] = measured_json(point.native, point.bytes, world_);
    row["speedup"] = speedup;
    row["wire"] = point.wire_seconds * 1e6;
    row["coding"] = point.codec_seconds * 1e6;
    row["sent"] = point.sent_bytes;
    row["settings"] = settings_json(point.explained);
    results_.push_back(std::move(row));
  }

  void end() const {
    if (!json_) return;
    print_json({{"machine", machine_json()},
                {"engine", {{"name", options_.engine}, {"library", library_}, {"ranks", world_}}},
                {"options",
                 {{"iterations", parsed_.iterations},
                  {"warmup", parsed_.warmup},
                  {"window", parsed_.window},
                  {"part", parsed_.part},
                  {"threads", parsed_.threads},
                  {"plan", parsed_.plan},
                  {"rules", options_.rules},
                  {"control", parsed_.control},
                  {"seed", parsed_.seed}}},
                {"results", results_}});
  }

 private:
  void print_headings() const {
    fmt::print("# {}, {} rank{}; {} iterations after {}{}{}\n", library_, world_,
               world_ == 1 ? "" : "s", parsed_.iterations, 1 + parsed_.warmup,
               options_.rules.empty() ? "" : "; rules " + options_.rules,
               parsed_.control.empty() ? "" : "; control " + parsed_.control);
    const std::string columns =
        fmt::format("{:>10} {:>7} {:>7} {:>8}", "time", "algbw", "busbw", "error");
    const std::string units = fmt::format("{:>10} {:>7} {:>7}", "(us)", "(GB/s)", "(GB/s)");
    fmt::print("#{:34}{:<{}}{}\n", "", "native all-reduce", 38 + width_, "averaged by laconic");
    fmt::print("#{:>11} {:>12} {:>7} {}  {:<{}} {} {:>8} {:>10} {:>10}\n", "size", "count", "type",
               columns, "codec", width_, columns, "speed-up", "wire", "coding");
    fmt::print("#{:>11} {:>12} {:>7} {} {:>{}} {} {:>28} {:>10}\n", "(B)", "(elements)", "", units,
               "", 10 + width_, units, "(us)", "(us)");
  }
  [[nodiscard]] std::string cells(const Measured& m, uint64_t bytes) const {
    return fmt::format("{:>10.1f} {:>7.2f} {:>7.2f} {:>8}", m.seconds * 1e6,
                       algorithm_bandwidth(bytes, m.seconds),
                       bus_bandwidth(bytes, m.seconds, world_), error_text(m.error));
  }

  const EngineBench& options_;
  const AllReduceOptions& parsed_;
  const std::string library_;
  const uint32_t world_;
  const bool json_;
  std::size_t width_ = 5;
  bool begun_ = false;
  Json results_ = Json::array();
};

// ---- failures: one message ----

int status_of(const Error& error) {
  return error.code == Errc::invalid_argument ? kUsage : kBadAnswer;
}

Error of_rank(uint32_t rank, const Error& error) {
  const std::string text =
      error.message.empty() ? std::string(errc_name(error.code)) : error.message;
  return {error.code, fmt::format("rank {}: {}", rank, text), error.hint};
}

/// Under a launcher rank 0 speaks for all, and its end is that of the job. Ranks that live on have
/// something to say that rank 0 has not.
int fail_alone(const Error& error, bool json) {
  const auto launched = launch();
  if (!launched || launched->rank == 0) return fail(error, json, status_of(error));
  const uint32_t place = std::min(launched->rank, 16U);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000 + 250 * place));
  return fail(of_rank(launched->rank, error), json, status_of(error));
}

/// All processes of a host lack the same file of rules or plug-in: one of them reports it. Not
/// every launcher ends a job when processes end that have not opened MPI.
int fail_to_open(const Error& error, bool json) {
  const auto launched = launch();
  const bool speaks = error.code == Errc::timed_out || !launched || launched->local_rank == 0;
  return speaks ? fail_alone(error, json) : status_of(error);
}

/// Without the end of the engine, in which ranks wait for each other.
[[noreturn]] void leave(int status) {
  std::fflush(nullptr);
  std::_Exit(status);
}

int run_threads(const EngineOptions& engine, const AllReduceOptions& options, Report report,
                bool json) {
  const auto failure = run_loopback(engine, [&](Engine& rank) -> std::optional<Error> {
    const auto failed = measure_all_reduce(rank, options, [&](const auto& p) { report.add(p); });
    return failed ? std::optional(failed->error) : std::nullopt;
  });
  if (failure) return fail(failure->error, json, status_of(failure->error));
  report.end();
  return kFine;
}

int run_process(Engine& engine, const AllReduceOptions& options, Report report, bool json) {
  const auto failure = measure_all_reduce(engine, options, [&](const auto& p) { report.add(p); });
  const bool first = engine.rank() == 0;
  if (failure && !failure->everywhere) leave(fail_alone(failure->error, json));
  if (failure)
    return first ? fail(failure->error, json, status_of(failure->error))
                 : status_of(failure->error);
  if (first) report.end();
  return kFine;
}

}  // namespace

Option add_engine_options(const Command& command, EngineBench& options) {
  const Option engine =
      command
          .add_option("--engine", options.engine,
                      "measure averaging over it, next to its own all-reduce: mpi (started by "
                      "mpirun), gloo (--rank --world --rendezvous), loopback (threads)")
          .one_of({"mpi", "gloo", "loopback"});
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)
        .needs(engine)
        .group("Over an engine")
        .capture_default_str();
  };
  add("--min", options.min, "first size, bytes of float32; K, M, G are powers of 1024");
  add("--max", options.max, "last size; they double");
  add("--iterations", options.iterations, "measured, of which the median counts")
      .range(1U, 1000000U);
  add("--warmup", options.warmup, "not measured, after the first, which is checked")
      .range(0U, 1000000U);
  add("--plan", options.plan, "strategy, as SessionOptions::plan");
  add("--rules", options.rules, "TOML file with [[rule]] tables; parameters are p0, p1 and so on");
  add("--control", options.control, "control policy, as SessionOptions::control");
  add("--window", options.window, "exchanges in flight at a time").range(1U, 8U);
  add("--part", options.part, "bytes of float32 in one exchange, 0: all in one");
  add("--seed", options.seed, "seed for gradients and codecs");
  add("--timeout", options.timeout, "timeout in seconds").range(0.001, 1e7);
  add("--ranks", options.ranks, "loopback: threads").range(1U, 256U);
  add("--rank", options.rank, "gloo: this process, from 0").capture_default_str();
  add("--world", options.world, "gloo: processes").range(1U, 65536U);
  add("--rendezvous", options.rendezvous, "gloo: file:FOLDER or tcp:HOST:PORT");
  add("--interface", options.interface, "gloo: network, by its name");
  return engine;
}

int bench_engine(const Command& command, const EngineBench& options, const std::vector<Spec>& specs,
                 uint32_t threads, bool json) {
  auto parsed = parse(command, options, specs, threads);
  if (!parsed) return fail_everywhere(parsed.error(), json, kUsage);
  if (!options.rules.empty()) {
    auto rules = read_rules(options.rules);
    if (!rules) return fail_to_open(rules.error(), json);
    parsed->rules = *std::move(rules);
  }
  const EngineOptions engine{.name = options.engine,
                             .timeout = milliseconds(options.timeout),
                             .ranks = options.ranks,
                             .rank = options.rank,
                             .world = options.world,
                             .rendezvous = options.rendezvous,
                             .interface = options.interface};
  if (options.engine == "loopback") {
    return run_threads(engine, *parsed, {options, *parsed, "loopback", options.ranks, json}, json);
  }
  const auto opened = open_engine(engine);
  if (!opened) return fail_to_open(opened.error(), json);
  return run_process(*opened->engine, *parsed,
                     {options, *parsed, opened->library, opened->engine->world(), json}, json);
}

}  // namespace laconic::tools
