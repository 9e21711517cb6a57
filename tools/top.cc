// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic top: what an aggregation server is doing, from its metrics.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "command.h"
#include "http_get.h"
#include "output.h"

namespace laconic::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTimeout{3000};
constexpr std::size_t kMostJobs = 4096;  // laconic serve takes no more

struct Options {
  std::string address;
  bool once = false;
  bool json = false;
  double interval = 1;
};

/// One job, summed or at its worst over what has several labels.
struct Row {
  std::string state;
  std::map<std::string, double> values;  ///< by name, without laconic_job_ and _total
  double rejected = 0;
  double lag = 0, round_trip = 0;  ///< of the worst worker
  uint64_t workers = 0;
  [[nodiscard]] double value(const char* name) const {
    const auto found = values.find(name);
    return found == values.end() ? 0 : found->second;
  }
};
using Rows = std::map<std::string, Row>;

// ---- the text format, as far as laconic serve writes it ----

/// name{label="value",…} number. Labels that laconic serve writes have nothing to escape.
struct Sample {
  std::string_view name, labels;
  double value = 0;
  [[nodiscard]] std::string label(std::string_view wanted) const {
    const std::string key = std::string(wanted) + "=\"";
    for (std::size_t at = labels.find(key); at != std::string_view::npos;
         at = labels.find(key, at + 1)) {
      if (at != 0 && labels[at - 1] != ',') continue;
      const std::string_view rest = labels.substr(at + key.size());
      return std::string(rest.substr(0, std::min<std::size_t>(rest.find('"'), 64)));
    }
    return {};
  }
};

std::optional<Sample> parse_line(std::string_view line) {
  if (line.empty() || line.front() == '#') return std::nullopt;
  const std::size_t name_end = line.find_first_of("{ ");
  if (name_end == std::string_view::npos) return std::nullopt;
  Sample sample;
  sample.name = line.substr(0, name_end);
  std::size_t at = name_end;
  if (line[at] == '{') {
    const std::size_t close = line.find('}', at);
    if (close == std::string_view::npos) return std::nullopt;
    sample.labels = line.substr(at + 1, close - at - 1);
    at = close + 1;
  }
  while (at < line.size() && line[at] == ' ') ++at;
  const auto [end, status] =
      std::from_chars(line.data() + at, line.data() + line.size(), sample.value);
  if (status != std::errc{} || !std::isfinite(sample.value)) return std::nullopt;
  return sample;
}

/// What a terminal may be shown: an answer may hold any bytes.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

void take(const Sample& sample, Rows& rows) {
  constexpr std::string_view kJob = "laconic_job_", kWorker = "laconic_worker_";
  const std::string job = printable(sample.label("job"));
  if (job.empty() || (rows.size() >= kMostJobs && rows.find(job) == rows.end())) return;
  if (sample.name.substr(0, kWorker.size()) == kWorker) {
    Row& row = rows[job];
    if (sample.name == "laconic_worker_lag_sums") {
      ++row.workers;
      row.lag = std::max(row.lag, sample.value);
    } else if (sample.name == "laconic_worker_round_trip_seconds") {
      row.round_trip = std::max(row.round_trip, sample.value);
    }
    return;
  }
  if (sample.name.substr(0, kJob.size()) != kJob) return;
  std::string name(sample.name.substr(kJob.size()));
  if (const auto total = name.rfind("_total"); total != std::string::npos) name.resize(total);
  Row& row = rows[job];
  if (name == "rejected") {
    row.rejected += sample.value;
  } else if (name == "state") {
    row.state = printable(sample.label("state"));
  } else if (row.values.size() < 64) {
    row.values[name] = sample.value;
  }
}

Rows parse(std::string_view text) {
  Rows rows;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (const auto sample = parse_line(text.substr(0, end))) take(*sample, rows);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

// ---- what is shown ----

std::string count_text(double x) { return fmt::format("{:.0f}", x); }
std::string rate_text(double x) {
  return x >= 10000 ? fmt::format("{:.0f}k", x / 1000) : fmt::format("{:.0f}", x);
}

/// Rates since `before`, which was read `seconds` ago; none at first.
void print_rows(const Rows& rows, const Rows& before, double seconds) {
  constexpr auto kRight = Table::Align::right;
  Table table({{"job"},
               {"state"},
               {"workers", kRight},
               {"sums", kRight},
               {"sums/s", kRight},
               {"datagrams/s", kRight},
               {"partial", kRight},
               {"late", kRight},
               {"duplicates", kRight},
               {"rejected", kRight},
               {"open", kRight},
               {"kept", kRight},
               {"lag", kRight},
               {"round trip ms", kRight}});
  for (const auto& [job, row] : rows) {
    const auto old = before.find(job);
    const auto rate = [&](const char* name) {
      if (old == before.end() || seconds <= 0) return std::string("-");
      return rate_text(std::max(row.value(name) - old->second.value(name), 0.0) / seconds);
    };
    table.add({job, row.state, std::to_string(row.workers), count_text(row.value("sums")),
               rate("sums"), rate("datagrams"), count_text(row.value("partial_sums")),
               count_text(row.value("late")), count_text(row.value("duplicates")),
               count_text(row.rejected), count_text(row.value("open_slots")),
               count_text(row.value("kept_slots")), count_text(row.lag),
               fmt::format("{:.2f}", 1e3 * row.round_trip)});
  }
  table.print();
  if (rows.empty()) fmt::print("no job\n");
}

Json to_json(const Rows& rows) {
  Json jobs = Json::array();
  for (const auto& [job, row] : rows) {
    Json one{{"job", job}, {"state", row.state}, {"workers", row.workers}};
    for (const auto& [name, value] : row.values) one[name] = value;
    one["rejected"] = row.rejected;
    one["lag"] = row.lag;
    one["round_trip_seconds"] = row.round_trip;
    jobs.push_back(std::move(one));
  }
  return {{"jobs", std::move(jobs)}};
}

int top(const Options& options) {
  Rows before;
  Clock::time_point read_at;
  for (bool first = true;; first = false) {
    const auto text = http_get(options.address, "/metrics", kTimeout);
    if (!text) return fail(text.error(), options.json, kBadAnswer);
    const Clock::time_point now = Clock::now();
    const Rows rows = parse(*text);
    if (options.json) {
      fmt::print("{}\n", to_json(rows).dump());
    } else {
      // From the upper left corner of an empty screen.
      if (!options.once && isatty(STDOUT_FILENO) != 0) fmt::print("\x1b[H\x1b[2J");
      print_rows(rows, before, first ? 0 : std::chrono::duration<double>(now - read_at).count());
    }
    std::fflush(stdout);
    if (options.once) return kFine;
    before = rows;
    read_at = now;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
  }
}

}  // namespace

Run add_top(Program& program) {
  const Command command =
      program.add_command("top", "what an aggregation server is doing, until it ends");
  const auto options = std::make_shared<Options>();
  command.add_option("address", options->address, "ADDR:PORT of laconic serve --metrics")
      .required();
  command.add_flag("--once", options->once, "one table, without rates, and end");
  command.add_option("--interval", options->interval, "seconds between tables")
      .capture_default_str()
      .range(0.1, 3600.0);
  command.add_flag("--json", options->json, "machine-readable, a line each");
  return [options] { return top(*options); };
}

}  // namespace laconic::tools
