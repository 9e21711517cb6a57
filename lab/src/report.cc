// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cstdio>

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

/// Those of a host stand in the row of its first rank.
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

std::string worker_row(const WorkerReport& w, const HostReport& host) {
  return table_row(
      {w.rank ? std::to_string(*w.rank) : "-", host.address,
       w.core < 0 ? "-" : std::to_string(w.core), status_of(w.ending)},
      w.local_rank == 0 ? counter_cells(host.port) : std::vector<std::string>{"", "", "", ""});
}

bool launched(const Report& r) { return !r.workers.empty() && !r.workers[0].rank; }

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
                       i == 0 && !r.workers.empty() ? status_of(r.workers[0].ending) : "-"},
                      counter_cells(r.hosts[i].port));
  return text;
}

std::string worker_rows(const Report& r) {
  std::string text;
  for (const WorkerReport& worker : r.workers)
    text += worker_row(worker, r.hosts[static_cast<std::size_t>(worker.host)]);
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

Json to_json(const RateEvent& e) {
  return {{"t", seconds(e.at)},
          {"rate", format_rate(e.rate)},
          {"rate_bits_per_second", e.rate},
          {"cause", e.cause}};
}

void add_ending(const std::optional<Ending>& ending, Json& json) {
  json["exit"] = ending && ending->signal == 0 ? Json(ending->code) : Json();
  json["signal"] = ending && ending->signal != 0 ? Json(describe(*ending)) : Json();
}

Json to_json(const SwitchReport& s) {
  Json json{{"command", s.command}, {"address", s.address}};
  json.update(to_json(s.port));
  add_ending(s.ending, json);
  return json;
}

Json beside_json(const Report& r, std::size_t i) {
  const HostReport& host = r.beside[i];
  Json json{{"beside", i}, {"address", host.address}, {"command", r.at_beside}};
  json.update(to_json(host.port.value_or(PortCounters{})));
  add_ending(host.ending, json);
  return json;
}

Json to_json(const ForwarderReport& f) {
  return {{"frames", f.frames},
          {"lost", f.lost},
          {"refused", f.refused},
          {"overrun", f.overrun},
          {"late_seconds_mean", f.late_mean},
          {"late_seconds_max", f.late_max},
          {"cpu_seconds", f.cpu_seconds},
          {"realtime", f.realtime}};
}

void add_end_of(const WorkerReport& w, Json& json) {
  json["core"] = w.core < 0 ? Json() : Json(w.core);
  add_ending(w.ending, json);
}

Json rank_json(const WorkerReport& w) {
  Json json{{"rank", *w.rank}, {"host", w.host}, {"local_rank", w.local_rank}};
  add_end_of(w, json);
  return json;
}

/// With `only`, the one rank of the host.
Json host_json(std::size_t host, const HostReport& h, const WorkerReport* only) {
  Json json{{"host", host}};
  if (only != nullptr) json["rank"] = *only->rank;
  json["address"] = h.address;
  if (only != nullptr) add_end_of(*only, json);
  const Json port = h.port ? to_json(*h.port) : Json();
  for (const char* key : {"tx_bytes", "rx_bytes", "tx_packets", "rx_packets"})
    json[key] = h.port ? port[key] : Json();
  return json;
}

void add_ends(const Report& r, Json& json) {
  json["launcher"] = Json();
  json["per_rank"] = Json::array();
  for (const WorkerReport& worker : r.workers) {
    if (worker.rank)
      json["per_rank"].push_back(rank_json(worker));
    else
      add_ending(worker.ending, json["launcher"]);
  }
  const bool one_rank_each = r.workers.size() == r.hosts.size() && !launched(r);
  json["per_host"] = Json::array();
  for (std::size_t i = 0; i < r.hosts.size(); ++i)
    json["per_host"].push_back(host_json(i, r.hosts[i], one_rank_each ? &r.workers[i] : nullptr));
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

Json to_json(const Error& error) {
  return {{"code", static_cast<int>(error.code)},
          {"name", code_name(error.code)},
          {"message", error.message},
          {"hint", error.hint}};
}

Error error_from(const Json& answer) {
  const Json error = answer.is_object() ? answer.value("error", Json::object()) : Json::object();
  return {static_cast<Errc>(error.value("code", static_cast<int>(Errc::engine_failed))),
          error.value("message", "the lab's answer is not understood"), error.value("hint", "")};
}

Json to_json(const PortCounters& p) {
  return {{"tx_bytes", p.tx_bytes},
          {"rx_bytes", p.rx_bytes},
          {"tx_packets", p.tx_packets},
          {"rx_packets", p.rx_packets}};
}

Json to_json(const Report& r) {
  Json json{{"hosts", r.hosts.size()},
            {"ranks_per_host", r.per_host},
            {"shaped", r.shaped_by},
            {"isolation", r.isolation},
            {"rate", format_rate(r.shaping.rate)},
            {"rate_bits_per_second", r.shaping.rate},
            {"burst", r.shaping.burst},
            {"queue", r.shaping.queue},
            {"mtu", r.mtu},
            {"loss", r.shaping.loss},
            {"tcp", r.tcp},
            {"delay_seconds", seconds(r.shaping.delay)},
            {"jitter_seconds", seconds(r.shaping.jitter)},
            {"seed", r.shaping.seed},
            {"forwarder", r.forwarder ? to_json(*r.forwarder) : Json()},
            {"seconds", seconds(r.time)},
            {"command", r.command}};
  json["rates"] = Json::array();
  for (const RateEvent& event : r.rates) json["rates"].push_back(to_json(event));
  add_ends(r, json);
  json["beside"] = Json::array();
  for (std::size_t i = 0; i < r.beside.size(); ++i) json["beside"].push_back(beside_json(r, i));
  json["switch"] = r.at_switch ? to_json(*r.at_switch) : Json();
  if (r.error) json["error"] = to_json(*r.error);
  return json;
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
  text += launched(r) ? launcher_rows(r) : worker_rows(r);
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
