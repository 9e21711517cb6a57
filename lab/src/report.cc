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
  constexpr std::size_t kWidths[] = {4, 12, 5, 9, 16, 16, 12, 12};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i)
    line += padded(cells[i], kWidths[i]) + (i + 1 < cells.size() ? " " : "\n");
  return line;
}

std::string host_row(const HostReport& h) {
  const auto counter = [&](uint64_t PortCounters::*field) {
    return h.port ? grouped((*h.port).*field) : "-";
  };
  return row({std::to_string(h.rank), h.address, h.core < 0 ? "-" : std::to_string(h.core),
              h.ending ? describe(*h.ending) : "running", counter(&PortCounters::tx_bytes),
              counter(&PortCounters::rx_bytes), counter(&PortCounters::tx_packets),
              counter(&PortCounters::rx_packets)});
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
  text += ", tcp " + r.tcp;
  if (r.shaping.loss > 0) text += ", loss " + format_share(r.shaping.loss);
  if (r.shaping.delay.count() > 0)
    text += ", delay " + one_decimal(seconds(r.shaping.delay) * 1e3) + " ms";
  return text;
}

Json to_json(const RateEvent& e) {
  return {{"t", seconds(e.at)},
          {"rate", format_rate(e.rate)},
          {"rate_bits_per_second", e.rate},
          {"cause", e.cause}};
}

Json to_json(const HostReport& h) {
  Json json{{"rank", h.rank}, {"address", h.address}};
  json["core"] = h.core < 0 ? Json() : Json(h.core);
  json["exit"] = h.ending && h.ending->signal == 0 ? Json(h.ending->code) : Json();
  json["signal"] = h.ending && h.ending->signal != 0 ? Json(describe(*h.ending)) : Json();
  const Json port = h.port ? to_json(*h.port) : Json();
  for (const char* key : {"tx_bytes", "rx_bytes", "tx_packets", "rx_packets"})
    json[key] = h.port ? port[key] : Json();
  return json;
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

Json to_json(const PortCounters& p) {
  return {{"tx_bytes", p.tx_bytes},
          {"rx_bytes", p.rx_bytes},
          {"tx_packets", p.tx_packets},
          {"rx_packets", p.rx_packets}};
}

Json to_json(const Report& r) {
  Json json{{"hosts", r.hosts.size()},
            {"shaped", r.shaped_by},
            {"isolation", r.isolation},
            {"rate", format_rate(r.shaping.rate)},
            {"rate_bits_per_second", r.shaping.rate},
            {"burst", r.shaping.burst},
            {"queue", r.shaping.queue},
            {"loss", r.shaping.loss},
            {"tcp", r.tcp},
            {"delay_seconds", seconds(r.shaping.delay)},
            {"seconds", seconds(r.time)},
            {"command", r.command}};
  json["rates"] = Json::array();
  for (const RateEvent& event : r.rates) json["rates"].push_back(to_json(event));
  json["per_host"] = Json::array();
  for (const HostReport& host : r.hosts) json["per_host"].push_back(to_json(host));
  if (r.error) json["error"] = to_json(*r.error);
  return json;
}

std::string to_text(const Report& r) {
  std::string text = "laconic lab: " + std::to_string(r.hosts.size()) + " hosts, " + definition(r) +
                     "; " + one_decimal(seconds(r.time)) + " s\n";
  if (r.rates.size() > 1) text += rates_line(r.rates);
  text += row({"rank", "address", "core", "status", "sent bytes", "received bytes", "sent pkts",
               "recv pkts"});
  for (const HostReport& host : r.hosts) text += host_row(host);
  return r.error ? text + to_text(*r.error) : text;
}

std::string to_text(const Error& error) {
  std::string text = "laconic lab: " + error.message + "\n";
  return error.hint.empty() ? text : text + "  " + error.hint + "\n";
}

}  // namespace laconic::lab
