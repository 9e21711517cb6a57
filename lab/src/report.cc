// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cstdio>
#include <utility>

#include "base/json_text.h"

namespace laconic::lab {
namespace {

/// "12,345,678".
std::string grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string padded(const std::string& text, std::size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string row(const std::vector<std::string>& cells) {
  constexpr std::size_t kWidths[] = {6, 12, 5, 9, 16, 16, 12, 12};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i)
    line += padded(cells[i], kWidths[i]) + (i + 1 < cells.size() ? " " : "\n");
  return line;
}

/// Values of a host are in the row of its first rank.
std::vector<std::string> counter_cells(const std::optional<PortCounters>& port) {
  if (!port) return {"-", "-", "-", "-"};
  return {grouped(port->tx_bytes), grouped(port->rx_bytes), grouped(port->tx_packets),
          grouped(port->rx_packets)};
}

std::string table_row(std::vector<std::string> cells, const std::vector<std::string>& counters) {
  cells.insert(cells.end(), counters.begin(), counters.end());
  return row(cells);
}

std::string status_of(const std::optional<Ending>& ending) {
  return ending ? describe(*ending) : "running";
}

std::string program_row(const ProgramReport& w, const HostReport& host) {
  return table_row(
      {w.rank ? std::to_string(*w.rank) : "-", host.address,
       w.core < 0 ? "-" : std::to_string(w.core), status_of(w.ending)},
      w.local_rank == 0 ? counter_cells(host.port) : std::vector<std::string>{"", "", "", ""});
}

bool launched(const Report& r) { return !r.programs.empty() && !r.programs[0].rank; }

/// "4 hosts", "4 hosts of 2 ranks".
std::string size_of(const Report& r) {
  const std::string hosts = std::to_string(r.hosts.size()) + " hosts";
  if (r.per_host == 1) return hosts;
  return hosts + " of " + std::to_string(r.per_host) + (launched(r) ? " slots" : " ranks");
}

/// The ranks of a launcher are not ours: a row for each host, the launcher's end in that of host 0.
std::string launcher_rows(const Report& r) {
  std::string text;
  for (std::size_t i = 0; i < r.hosts.size(); ++i)
    text += table_row({std::to_string(i), r.hosts[i].address, "-",
                       i == 0 && !r.programs.empty() ? status_of(r.programs[0].ending) : "-"},
                      counter_cells(r.hosts[i].port));
  return text;
}

std::string program_rows(const Report& r) {
  std::string text;
  for (const ProgramReport& program : r.programs)
    text += program_row(program, r.hosts[static_cast<std::size_t>(program.host)]);
  return text;
}

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// "50mbit each way, tbf burst 64kb, queue 1mb".
std::string definition(const Report& r) {
  if (r.shaped_by == "emulated")
    return "EMULATED: loopback, " + format_rate(r.shaping.rate) +
           " announced, nothing shaped by the kernel";
  std::string text =
      r.shaping.rate == kUnshaped ? "unshaped" : format_rate(r.shaping.rate) + " each way (kernel)";
  text += ", tbf burst " + format_size(r.shaping.burst) + ", queue " + format_size(r.shaping.queue);
  if (r.mtu != kUsualMtu) text += ", mtu " + std::to_string(r.mtu);
  text += ", tcp " + r.tcp;
  if (r.shaping.loss > 0) text += ", loss " + format_share(r.shaping.loss);
  if (r.shaping.delay.count() > 0) text += ", delay " + format_time(r.shaping.delay);
  if (r.shaping.jitter.count() > 0)
    text += ", jitter " + format_time(r.shaping.jitter) + " (seed " +
            std::to_string(r.shaping.seed) + ")";
  return text;
}

void put(JsonText& json, const RateEvent& e) {
  json.open('{').field("t", seconds(e.at)).field("rate", format_rate(e.rate));
  json.field("rate_bits_per_second", e.rate).field("cause", e.cause).close('}');
}

/// The members of a port's counters; null where there is no port.
void put_counters(JsonText& json, const std::optional<PortCounters>& port) {
  constexpr std::pair<const char*, uint64_t PortCounters::*> kCounters[] = {
      {"tx_bytes", &PortCounters::tx_bytes},
      {"rx_bytes", &PortCounters::rx_bytes},
      {"tx_packets", &PortCounters::tx_packets},
      {"rx_packets", &PortCounters::rx_packets}};
  for (const auto& [name, counter] : kCounters)
    json.field(name, port ? std::optional((*port).*counter) : std::nullopt);
}

void put_ending(JsonText& json, const std::optional<Ending>& ending) {
  const bool killed = ending && ending->signal != 0;
  json.field("exit", ending && !killed ? std::optional(ending->code) : std::nullopt);
  json.field("signal", killed ? std::optional(describe(*ending)) : std::nullopt);
}

void put(JsonText& json, const SwitchReport& s) {
  json.open('{').field("command", s.command).field("address", s.address);
  put_counters(json, s.port);
  put_ending(json, s.ending);
  json.close('}');
}

void put_beside(JsonText& json, const Report& r, std::size_t i) {
  const HostReport& host = r.beside[i];
  json.open('{').field("beside", i).field("address", host.address).field("command", r.at_beside);
  put_counters(json, host.port.value_or(PortCounters{}));
  put_ending(json, host.ending);
  json.close('}');
}

void put(JsonText& json, const ForwarderReport& f) {
  json.open('{').field("frames", f.frames).field("lost", f.lost).field("refused", f.refused);
  json.field("overrun", f.overrun).field("late_seconds_mean", f.late_mean);
  json.field("late_seconds_max", f.late_max).field("cpu_seconds", f.cpu_seconds);
  json.field("realtime", f.realtime).close('}');
}

/// Null where there is nothing.
template <class T>
void put(JsonText& json, const char* key, const std::optional<T>& x) {
  json.key(key);
  if (x)
    put(json, *x);
  else
    json.null();
}

void put_end_of(JsonText& json, const ProgramReport& w) {
  json.field("core", w.core < 0 ? std::nullopt : std::optional(w.core));
  put_ending(json, w.ending);
}

void put_rank(JsonText& json, const ProgramReport& w) {
  json.open('{').field("rank", *w.rank).field("host", w.host).field("local_rank", w.local_rank);
  put_end_of(json, w);
  json.close('}');
}

/// With `only`, the one rank of the host.
void put_host(JsonText& json, std::size_t host, const HostReport& h, const ProgramReport* only) {
  json.open('{').field("host", host);
  if (only != nullptr) json.field("rank", *only->rank);
  json.field("address", h.address);
  if (only != nullptr) put_end_of(json, *only);
  put_counters(json, h.port);
  json.close('}');
}

void put_ends(JsonText& json, const Report& r) {
  json.key("launcher");
  if (launched(r)) {
    json.open('{');
    put_ending(json, r.programs[0].ending);
    json.close('}');
  } else {
    json.null();
  }
  json.key("per_rank").open('[');
  for (const ProgramReport& program : r.programs)
    if (program.rank) put_rank(json, program);
  const bool one_rank_each = r.programs.size() == r.hosts.size() && !launched(r);
  json.close(']').key("per_host").open('[');
  for (std::size_t i = 0; i < r.hosts.size(); ++i)
    put_host(json, i, r.hosts[i], one_rank_each ? &r.programs[i] : nullptr);
  json.close(']');
}

/// "forwarder: 12,345 frames, 0.02 ms behind the delay asked for (at most 0.4 ms), 0.3 s of CPU".
std::string forwarder_line(const ForwarderReport& f) {
  char figures[96];
  std::snprintf(figures, sizeof figures, "%.2f ms behind the delay asked for (at most %.2f ms)",
                f.late_mean * 1e3, f.late_max * 1e3);
  std::string text = "forwarder: " + grouped(f.frames) + " frames, " + figures + ", " +
                     one_decimal(f.cpu_seconds) + " s of CPU";
  if (f.overrun > 0) text += "; " + grouped(f.overrun) + " had no place to wait and were dropped";
  return text + "\n";
}

/// "rates: off at 0.0 s (start), 10mbit at 2.1 s (control)".
std::string rates_line(const std::vector<RateEvent>& rates) {
  std::string text;
  for (const RateEvent& e : rates) {
    text += text.empty() ? "rates: " : ", ";
    text += format_rate(e.rate) + " at " + one_decimal(seconds(e.at)) + " s (" + e.cause + ")";
  }
  return text + "\n";
}

}  // namespace

std::string_view code_name(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::unsupported:
      return "unsupported";
    case Errc::peer_failed:
      return "peer_failed";
    case Errc::engine_failed:
      return "engine_failed";
    case Errc::timed_out:
      return "timed_out";
    default:
      return "internal";
  }
}

int exit_status(const Error& error) { return error.code == Errc::invalid_argument ? 2 : 1; }

void put(JsonText& json, const Error& error) {
  json.open('{').field("code", static_cast<int>(error.code)).field("name", code_name(error.code));
  json.field("message", error.message).field("hint", error.hint).close('}');
}

void put(JsonText& json, const PortCounters& port) {
  json.open('{');
  put_counters(json, port);
  json.close('}');
}

std::string to_json(const Error& error) {
  JsonText json(kJsonIndented);
  put(json.open('{').key("error"), error);
  return json.close('}').take();
}

std::string to_json(const Report& r) {
  JsonText json(kJsonIndented);
  json.open('{').field("hosts", r.hosts.size()).field("ranks_per_host", r.per_host);
  json.field("shaped", r.shaped_by).field("isolation", r.isolation);
  json.field("rate", format_rate(r.shaping.rate)).field("rate_bits_per_second", r.shaping.rate);
  json.field("burst", r.shaping.burst).field("queue", r.shaping.queue).field("mtu", r.mtu);
  json.field("loss", r.shaping.loss).field("tcp", r.tcp);
  json.field("delay_seconds", seconds(r.shaping.delay));
  json.field("jitter_seconds", seconds(r.shaping.jitter)).field("seed", r.shaping.seed);
  put(json, "forwarder", r.forwarder);
  json.field("seconds", seconds(r.time)).key("command").open('[');
  for (const std::string& word : r.command) json.value(word);
  json.close(']').key("rates").open('[');
  for (const RateEvent& event : r.rates) put(json, event);
  json.close(']');
  put_ends(json, r);
  json.key("beside").open('[');
  for (std::size_t i = 0; i < r.beside.size(); ++i) put_beside(json, r, i);
  json.close(']');
  put(json, "switch", r.at_switch);
  if (r.error) put(json.key("error"), *r.error);
  return json.close('}').take();
}

std::string to_text(const Report& r) {
  std::string text = "laconic lab: " + size_of(r) + ", " + definition(r) + "; " +
                     one_decimal(seconds(r.time)) + " s\n";
  if (!r.turns.empty())
    text += "rates: " + format_rates(r.turns) + " in turn, " + format_time(r.every) + " each\n";
  else if (r.rates.size() > 1)
    text += rates_line(r.rates);
  if (r.forwarder) text += forwarder_line(*r.forwarder);
  text += row({launched(r) ? "host" : "rank", "address", "core", "status", "sent bytes",
               "received bytes", "sent pkts", "recv pkts"});
  text += launched(r) ? launcher_rows(r) : program_rows(r);
  for (const HostReport& host : r.beside)
    text +=
        table_row({"beside", host.address, "-", status_of(host.ending)}, counter_cells(host.port));
  if (const auto& s = r.at_switch)
    text += table_row({"switch", s->address, "-", status_of(s->ending)}, counter_cells(s->port));
  return r.error ? text + to_text(*r.error) : text;
}

std::string to_text(const Error& error) {
  std::string text = "laconic lab: " + error.message + "\n";
  return error.hint.empty() ? text : text + "  " + error.hint + "\n";
}

}  // namespace laconic::lab
