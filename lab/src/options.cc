// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace laconic::lab {
namespace {

constexpr int kMaxHosts = 200;
constexpr int kMaxRanks = 200;
constexpr int kMaxBeside = 50;
constexpr Duration kMaxDelay = std::chrono::seconds(10);
constexpr Duration kMinEvery =
    std::chrono::milliseconds(100);  // a change takes some, on many hosts

/// The options whose values have units arrive as text.
struct Texts {
  std::string rate, every, burst, queue, mtu, schedule, loss, delay, jitter, seed, grace, timeout;
  std::vector<std::string> beside;
};

Error usage(std::string message, std::string hint = "laconic lab --help lists the options") {
  return Error{Errc::invalid_argument, std::move(message), std::move(hint)};
}

void declare(CLI::App& app, Options& o, Texts& t) {
  app.add_option("--hosts", o.hosts, "number of hosts (default 2)");
  app.add_option("--per-host", o.per_host, "ranks on each host, which share its link (default 1)");
  app.add_flag("--launcher", o.launcher,
               "COMMAND runs once, on host 0: an mpirun, which finds all hosts in its environment");
  app.add_option("--switch", o.at_switch,
                 "a line that /bin/sh runs in the switch, host name 'switch', while the ranks run: "
                 "'laconic serve --bind switch:7420'");
  app.add_option("--beside", t.beside,
                 "N hosts more that are not ranks, and a line that /bin/sh runs on each of them "
                 "while the ranks run: 1 'ping -q -f -s 1400 $LACONIC_LAB_RANK_0'")
      ->type_name("N COMMAND")
      ->expected(0, -1);
  app.add_option("--rate", t.rate,
                 "rate of every port, each way: 50mbit, 1gbit, off (default); several take turns: "
                 "100mbit,10mbit --every 3s");
  app.add_option("--every", t.every, "how long each of several rates lasts");
  app.add_option("--burst", t.burst, "size of the token bucket (default 64kb)");
  app.add_option("--queue", t.queue, "bytes that wait at a port before packets drop (default 1mb)");
  app.add_option("--mtu", t.mtu, "bytes that a frame carries, 576 to 9000 (default 1500)");
  app.add_option("--schedule", t.schedule, "rates over time: 't=0 100mbit, t=20 10mbit'");
  app.add_option("--loss", t.loss, "share of packets dropped where they enter the switch: 1%");
  app.add_option("--delay", t.delay, "one-way delay: 10ms");
  app.add_option("--jitter", t.jitter,
                 "lets the delay vary by as much, up and down: 2ms; order is kept");
  app.add_option("--seed", t.seed, "of what --delay, --jitter and --loss draw (default 0)");
  app.add_option("--tcp", o.tcp, "congestion control: reno (default), cubic, bbr, system");
  app.add_option("--port", o.port, "MASTER_PORT (default 29500; a free one with --emulate)");
  app.add_option("--logs", o.logs,
                 "folder for rank0.out, rank0.err, ... (launcher.out, launcher.err)");
  app.add_option("--grace", t.grace, "wait before stopping the others when a rank failed (5s)");
  app.add_option("--timeout", t.timeout, "stop everything after this time");
  app.add_flag("--keep-going", o.keep_going, "let the other ranks finish when one failed");
  app.add_flag("!--no-pin", o.pin, "do not pin rank i to core i mod cores");
  app.add_flag("--raw", o.raw, "pass output through without rank prefixes");
  app.add_flag("--emulate", o.emulate, "no namespaces: loopback, the rate is only announced");
  app.add_flag("--json", o.json, "one JSON object on stdout at the end; output goes to stderr");
  app.add_flag("--check", o.check, "report what this machine can do, run nothing");
  app.add_option("--send", o.send, "inside a lab: send one control line, print the answer");
  app.add_option("--on", o.on, "inside a lab: run all words that follow HOST on it, as ssh does");
  app.footer(
      "COMMAND follows --, for example:\n"
      "  laconic lab --hosts 4 --rate 50mbit -- python train.py\n"
      "  laconic lab --hosts 4 --rate 50mbit --launcher -- mpirun -n 4 ./train");
}

/// Stores the parsed `text` in `target` unless the option was absent.
template <class Parser, class Target>
Result<void> read(const std::string& text, Parser parse, Target& target) {
  if (text.empty()) return {};
  auto value = parse(text);
  if (!value) return std::move(value).error();
  target = *value;
  return {};
}

Result<void> read_units(const Texts& t, Options& o) {
  const Result<void> steps[] = {
      read(t.rate, parse_rates, o.rates),           read(t.every, parse_time, o.every),
      read(t.burst, parse_size, o.shaping.burst),   read(t.queue, parse_size, o.shaping.queue),
      read(t.loss, parse_share, o.shaping.loss),    read(t.delay, parse_time, o.shaping.delay),
      read(t.jitter, parse_time, o.shaping.jitter), read(t.schedule, parse_schedule, o.schedule),
      read(t.grace, parse_time, o.grace),           read(t.timeout, parse_time, o.timeout)};
  for (const Result<void>& step : steps)
    if (!step) return step;
  return {};
}

/// Leaves `rates` empty unless several take turns.
Result<void> read_turns(bool every_given, Options& o) {
  if (!o.rates.empty()) o.shaping.rate = o.rates.front();
  if (o.rates.size() < 2) {
    o.rates.clear();
    return every_given ? usage("--every needs several rates, which take turns",
                               "--rate 100mbit,10mbit --every 3s")
                       : Result<void>();
  }
  if (!every_given)
    return usage("--rate has several rates, but --every does not say how long each lasts",
                 "--rate 100mbit,10mbit --every 3s");
  if (o.every < kMinEvery) return usage("--every is below " + format_time(kMinEvery));
  if (!o.schedule.empty()) return usage("--every and --schedule exclude each other");
  return {};
}

/// All of `text` as a whole number, or nothing.
template <class Number>
std::optional<Number> whole(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

Result<void> read_beside(bool given, const std::vector<std::string>& words, Options& o) {
  const std::string hint = "--beside 1 'ping -q -f -s 1400 $LACONIC_LAB_RANK_0'";
  if (!given) return {};
  if (words.size() != 2)
    return usage("--beside takes a number of hosts and a COMMAND in one word, once", hint);
  const auto count = whole<int>(words[0]);
  if (!count || *count < 1 || *count > kMaxBeside)
    return usage("--beside " + words[0] + " is no number from 1 to " + std::to_string(kMaxBeside),
                 hint);
  if (words[1].find_first_not_of(" \t\n") == std::string::npos)
    return usage("--beside lacks a COMMAND", hint);
  o.beside = *count;
  o.at_beside = words[1];
  return {};
}

Result<void> read_mtu(const std::string& text, Options& o) {
  if (text.empty()) return {};
  const auto mtu = whole<uint32_t>(text);
  if (!mtu || *mtu < 576 || *mtu > 9000)
    return usage("--mtu " + text + " is no number from 576 to 9000");
  o.mtu = *mtu;
  return {};
}

Result<void> read_seed(const std::string& text, Options& o) {
  if (text.empty()) return {};
  const auto seed = whole<uint64_t>(text);
  if (!seed) return usage("--seed " + text + " is no whole number from 0 to 2^64 - 1");
  o.shaping.seed = *seed;
  return {};
}

Result<void> validate_delay(const Shaping& s) {
  if (s.delay > kMaxDelay) return usage("--delay is above " + format_time(kMaxDelay));
  if (s.jitter > s.delay)
    return usage("--jitter " + format_time(s.jitter) + " is above --delay " + format_time(s.delay),
                 "the delay lies between --delay minus and --delay plus --jitter");
  return {};
}

Result<void> validate(const Options& o) {
  if (o.hosts < 1 || o.hosts > kMaxHosts)
    return usage("--hosts " + std::to_string(o.hosts) + " is outside 1 to " +
                 std::to_string(kMaxHosts));
  if (const int most = kMaxRanks / o.hosts; o.per_host < 1 || o.per_host > most)
    return usage("--per-host " + std::to_string(o.per_host) + " is outside 1 to " +
                 std::to_string(most) + ", as a lab has at most " + std::to_string(kMaxRanks) +
                 " ranks");
  if (o.launcher && o.emulate)
    return usage("--launcher needs hosts of their own, which --emulate does not make",
                 "mpirun -n 4 COMMAND runs on this machine without a lab");
  if (!o.at_switch.empty() && o.emulate)
    return usage("--switch needs a network of its own, which --emulate does not make",
                 "start it by hand before the lab; it is reached at 127.0.0.1");
  if (o.beside > 0 && o.emulate)
    return usage("--beside needs hosts of their own, which --emulate does not make",
                 "leave out --beside, or --emulate");
  if (const Result<void> valid = validate_delay(o.shaping); !valid) return valid;
  if (o.port < 1 || o.port > 65535) return usage("--port must be from 1 to 65535");
  // A bucket smaller than a packet never lets that packet pass.
  if (const uint64_t least = uint64_t{o.mtu} + 548; o.shaping.burst < least)
    return usage("--burst is below " + std::to_string(least) + "b, less than a packet needs");
  if (o.shaping.queue < o.shaping.burst) return usage("--queue is smaller than --burst");
  if (o.emulate && o.mtu != kUsualMtu)
    return usage("--mtu needs a network of its own, which --emulate does not make",
                 "leave out --mtu, or --emulate");
  if (o.emulate && (o.shaping.loss > 0 || o.shaping.delay.count() > 0))
    return usage("--emulate cannot lose or delay packets", "leave out --loss and --delay");
  if (o.raw && !o.logs.empty()) return usage("--raw and --logs exclude each other");
  if (o.raw && o.json) return usage("--raw and --json exclude each other");
  if (o.check || !o.send.empty()) return {};
  if (o.command.empty())
    return usage("there is no COMMAND",
                 o.on.empty() ? "laconic lab --hosts 4 --rate 50mbit -- COMMAND ARGUMENTS"
                              : "laconic lab --on HOST COMMAND ARGUMENTS");
  return {};
}

/// The lab's own arguments and COMMAND.
struct Parts {
  std::vector<std::string> ours, command;
};

/// COMMAND follows `--`; after `--on HOST` it may stand without, as launchers call their remote
/// shell.
Parts split(const std::vector<std::string>& words) {
  auto end = std::find(words.begin(), words.end(), "--");
  const auto on = std::find(words.begin(), end, "--on");
  if (on != end && on + 1 != end) end = on + 2;
  const auto command = end != words.end() && *end == "--" ? end + 1 : end;
  return {{words.begin(), end}, {command, words.end()}};
}

}  // namespace

bool wants_json(const std::vector<std::string>& words) {
  const std::vector<std::string> ours = split(words).ours;
  return std::find(ours.begin(), ours.end(), "--json") != ours.end();
}

Result<Options> parse_options(const std::vector<std::string>& words) {
  const Parts parts = split(words);
  Options options;
  Texts texts;
  CLI::App app{"Runs COMMAND on all hosts of a network that the kernel shapes.", "laconic lab"};
  declare(app, options, texts);
  std::vector<std::string> before = parts.ours;
  std::reverse(before.begin(), before.end());  // CLI11 takes arguments from the back
  try {
    app.parse(before);
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ExtrasError&) {
    const auto stray = app.remaining();
    return usage("unknown option " + (stray.empty() ? std::string("?") : "'" + stray.front() + "'"),
                 "COMMAND and its options follow --; laconic lab --help lists ours");
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  options.port_given = app.count("--port") > 0;
  options.command = parts.command;
  if (app.count("--on") > 0 && options.on.empty()) return usage("--on lacks the name of a host");
  if (app.count("--switch") > 0 &&
      options.at_switch.find_first_not_of(" \t\n") == std::string::npos)
    return usage("--switch lacks a COMMAND", "--switch 'laconic serve --bind switch:7420'");
  if (const Result<void> units = read_units(texts, options); !units) return units.error();
  if (const Result<void> turns = read_turns(app.count("--every") > 0, options); !turns)
    return turns.error();
  if (const auto beside = read_beside(app.count("--beside") > 0, texts.beside, options); !beside)
    return beside.error();
  if (const Result<void> seed = read_seed(texts.seed, options); !seed) return seed.error();
  if (const Result<void> mtu = read_mtu(texts.mtu, options); !mtu) return mtu.error();
  if (const Result<void> valid = validate(options); !valid) return valid.error();
  if (!options.schedule.empty() && options.schedule.front().at.count() == 0)
    options.shaping.rate = options.schedule.front().rate;
  return options;
}

}  // namespace laconic::lab
