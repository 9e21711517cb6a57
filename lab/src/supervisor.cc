// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "descendants.h"

namespace laconic::lab {
namespace {

/// Between SIGTERM and SIGKILL.
constexpr auto kKillAfter = std::chrono::seconds(5);

Result<Fd> watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) sigaddset(&set, one);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error value of write
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return system_error("watching signals");
  return fd;
}

std::string refusal(const Error& error) {
  return Json{{"ok", false}, {"error", to_json(error)}}.dump();
}

}  // namespace

Supervisor::Supervisor(const Options& options, std::unique_ptr<Link> link)
    : options_(options),
      link_(std::move(link)),
      control_(loop_, [this](int rank, std::string_view line) { return answer(rank, line); }),
      shaping_(options.shaping),
      start_(Clock::now()) {}

Report Supervisor::run(int lifeline) {
  Result<void> ready = prepare(lifeline);
  if (ready) ready = start_hosts();
  if (ready) {
    plan_timers();
    loop_.run();
  } else {
    error_ = ready.error();
  }
  Report done = report();
  signal_all(SIGKILL);
  kill_descendants();
  return done;
}

Result<void> Supervisor::prepare(int lifeline) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of a COMMAND stay ours, so that we can end them
  auto signals = watch_signals();
  if (!signals) return std::move(signals).error();
  signals_ = std::move(*signals);
  loop_.watch(signals_.get(), [this] { on_signal(); });
  loop_.watch(lifeline, [this] {
    signal_all(SIGKILL);
    kill_descendants();
    link_.reset();
    _exit(1);
  });
  for (int rank = 0; rank < options_.hosts; ++rank)
    if (auto made = control_.listen_in(link_->folder(rank), rank); !made) return made;
  std::error_code failed;
  if (!options_.logs.empty()) std::filesystem::create_directories(options_.logs, failed);
  if (failed)
    return Error{Errc::engine_failed, "making " + options_.logs + ": " + failed.message(), {}};
  if (auto shaped = link_->shape(shaping_); !shaped) return shaped;
  auto before = link_->counters();
  if (!before) return std::move(before).error();
  at_start_ = std::move(*before);
  return {};
}

Result<void> Supervisor::start_hosts() {
  const std::vector<int> cores = usable_cores();
  hosts_.resize(static_cast<std::size_t>(options_.hosts));
  start_ = Clock::now();
  rates_.push_back({Duration(0), shaping_.rate, "start"});
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].rank = static_cast<int>(i);
    if (options_.pin && !cores.empty()) hosts_[i].core = cores[i % cores.size()];
    if (auto started = start_host(options_, *link_, hosts_[i]); !started) return started;
    if (auto relayed = relay_output(hosts_[i]); !relayed) return relayed;
  }
  return {};
}

Result<void> Supervisor::relay_output(Host& host) {
  if (options_.raw) return {};
  // stdout belongs to the JSON object alone.
  const int target = options_.json ? STDERR_FILENO : STDOUT_FILENO;
  if (auto out = relay_stream(host, std::move(host.out), target, ".out"); !out) return out;
  return relay_stream(host, std::move(host.err), STDERR_FILENO, ".err");
}

Result<void> Supervisor::relay_stream(Host& host, Fd source, int target, const char* suffix) {
  const std::string rank = std::to_string(host.rank);
  Fd log;
  if (!options_.logs.empty()) {
    const std::string path = options_.logs + "/rank" + rank + suffix;
    log = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!log) return system_error("opening the log " + path);
  }
  const std::string prefix = options_.hosts > 1 ? "[" + rank + "] " : "";
  LineRelay& relay = relays_.emplace_back(std::move(source), target, prefix, std::move(log));
  loop_.watch(relay.source(), [this, &relay] {
    if (!relay.drain()) loop_.remove(relay.source());
    if (relay.broken()) stop(Error{Errc::engine_failed, "nobody reads our output any more", {}});
  });
  return {};
}

void Supervisor::plan_timers() {
  for (const RateChange& change : options_.schedule)
    if (change.at.count() > 0)
      loop_.at(start_ + change.at, [this, rate = change.rate] {
        if (auto changed = change_rate(rate, "schedule"); !changed) stop(changed.error());
      });
  if (options_.timeout)
    loop_.at(start_ + *options_.timeout, [this] {
      stop(Error{Errc::timed_out,
                 "stopped by --timeout after " + std::to_string(seconds(*options_.timeout)) + " s",
                 {}});
    });
}

void Supervisor::on_signal() {
  for (signalfd_siginfo info; read(signals_.get(), &info, sizeof info) == sizeof info;) {
    if (info.ssi_signo == SIGCHLD) {
      reap();
    } else if (stopping_) {
      signal_all(SIGKILL);  // asked twice
    } else {
      const char* name = sigabbrev_np(static_cast<int>(info.ssi_signo));
      stop(Error{Errc::peer_failed,
                 std::string("interrupted by SIG") + (name != nullptr ? name : "?"),
                 {}});
    }
  }
}

void Supervisor::reap() {
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
    const auto host =
        std::find_if(hosts_.begin(), hosts_.end(), [&](const Host& h) { return h.pid == pid; });
    if (host == hosts_.end()) continue;  // an orphan of a COMMAND
    host->ending = ending_from(status);
    on_ending(*host);
  }
}

void Supervisor::on_ending(Host& host) {
  if (std::all_of(hosts_.begin(), hosts_.end(), [](const Host& h) { return h.ending.has_value(); }))
    return loop_.stop();
  if (host.ending->good() || options_.keep_going || stopping_) return;
  loop_.at(Clock::now() + options_.grace, [this] { stop(std::nullopt); });
}

void Supervisor::stop(std::optional<Error> why) {
  if (stopping_) return;
  stopping_ = true;
  error_ = std::move(why);
  if (!error_) error_ = failed_hosts();  // now, before those that we end look like failures too
  signal_all(SIGTERM);
  loop_.at(Clock::now() + kKillAfter, [this] { signal_all(SIGKILL); });
}

void Supervisor::signal_all(int signal) {
  for (const Host& host : hosts_)
    if (host.pid > 0 && (!host.ending || signal == SIGKILL)) kill(-host.pid, signal);
}

Result<void> Supervisor::change_rate(BitRate rate, const char* cause) {
  Shaping wanted = shaping_;
  wanted.rate = rate;
  if (auto shaped = link_->shape(wanted); !shaped) return shaped;
  shaping_ = wanted;
  rates_.push_back({elapsed(), rate, cause});
  return {};
}

std::string Supervisor::answer(int, std::string_view line) {
  if (line.starts_with("rate ")) return answer_rate(line.substr(5));
  if (line == "status")
    return Json{{"ok", true},
                {"shaped", link_->shaped_by()},
                {"rate", format_rate(shaping_.rate)},
                {"rate_bits_per_second", shaping_.rate},
                {"seconds", seconds(elapsed())}}
        .dump();
  if (line == "counters") {
    const auto now = counters();
    if (!now) return refusal(now.error());
    Json ports = Json::array();
    for (const PortCounters& port : *now) ports.push_back(to_json(port));
    return Json{{"ok", true}, {"seconds", seconds(elapsed())}, {"per_host", ports}}.dump();
  }
  return refusal(Error{Errc::invalid_argument, "unknown request '" + std::string(line) + "'",
                       "valid requests: rate RATE, status, counters"});
}

std::string Supervisor::answer_rate(std::string_view text) {
  const auto rate = parse_rate(text);
  if (!rate) return refusal(rate.error());
  if (auto changed = change_rate(*rate, "control"); !changed) return refusal(changed.error());
  return answer(0, "status");
}

std::optional<Error> Supervisor::failed_hosts() const {
  std::string names;
  for (const Host& host : hosts_)
    if (host.ending && !host.ending->good())
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(host.rank) + " (" +
               describe(*host.ending) + ")";
  if (names.empty()) return std::nullopt;
  return Error{Errc::peer_failed, "COMMAND failed on " + names, "its last lines of output say why"};
}

Duration Supervisor::elapsed() const {
  return std::chrono::duration_cast<Duration>(Clock::now() - start_);
}

Result<std::vector<PortCounters>> Supervisor::counters() {
  auto now = link_->counters();
  if (!now) return now;
  for (std::size_t i = 0; i < now->size(); ++i) {
    (*now)[i].tx_bytes -= at_start_[i].tx_bytes;
    (*now)[i].rx_bytes -= at_start_[i].rx_bytes;
    (*now)[i].tx_packets -= at_start_[i].tx_packets;
    (*now)[i].rx_packets -= at_start_[i].rx_packets;
  }
  return now;
}

Report Supervisor::report() {
  Report r;
  r.time = elapsed();
  for (LineRelay& relay : relays_) {
    relay.drain();
    relay.finish();
  }
  r.shaped_by = link_->shaped_by();
  r.shaping = options_.shaping;
  r.tcp = options_.tcp;
  r.rates = rates_;
  r.command = options_.command;
  r.error = error_ ? error_ : failed_hosts();
  const auto ports = counters();
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    HostReport& host = r.hosts.emplace_back();
    host.rank = static_cast<int>(i);
    host.address = link_->address(host.rank);
    host.core = hosts_[i].core;
    host.ending = hosts_[i].ending;
    if (ports && i < ports->size()) host.port = (*ports)[i];
  }
  return r;
}

}  // namespace laconic::lab
