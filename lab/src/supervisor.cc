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
#include <cstring>
#include <filesystem>
#include <span>

#include "base/json_text.h"
#include "counters.h"
#include "descendants.h"
#include "launcher.h"
#include "network.h"

namespace laconic::lab {
namespace {

/// Between SIGTERM and SIGKILL.
constexpr auto kKillAfter = std::chrono::seconds(5);

/// Number of checks, over ten seconds, for a port that a COMMAND in the switch opens. Counted,
/// because a machine that stands still keeps that COMMAND waiting, too.
constexpr uint32_t kSwitchLooks = 1000;
constexpr auto kSwitchLook = std::chrono::milliseconds(10);

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

/// A shell's exit status for a program that does not exist, or cannot be run.
bool not_started(const Ending& ending) { return ending.code == 126 || ending.code == 127; }

std::string refusal(const Error& error) {
  JsonText json(kJsonCompact);
  put(json.open('{').field("ok", false).key("error"), error);
  return json.close('}').take();
}

}  // namespace

Supervisor::Supervisor(const Options& options, std::unique_ptr<Link> link,
                       const OpenFileLimit& files)
    : options_(options),
      link_(std::move(link)),
      files_(files),
      control_(loop_, [this](std::string_view line) { return answer(line); }),
      shaping_(options.shaping),
      start_(Clock::now()) {}

Report Supervisor::run(int lifeline) {
  Result<void> ready = prepare(lifeline);
  if (ready) ready = begin();
  if (ready) {
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
  std::vector<int> places = all_hosts(options_);
  if (!options_.at_switch.empty()) places.push_back(kSwitch);
  for (const int host : places) {
    const std::string folder = link_->folder(host);
    if (auto made = control_.listen_in(folder); !made) return made;
    if (!options_.launcher || host == kSwitch || is_beside(host)) continue;
    if (auto written = write_launcher_files(options_, folder); !written) return written;
  }
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

/// The ranks start now, or when the COMMAND in the switch is ready.
Result<void> Supervisor::begin() {
  if (options_.at_switch.empty()) return start_programs();
  switch_.emplace().host = kSwitch;
  if (auto started = start_program(options_, *link_, files_, *switch_); !started) return started;
  if (auto relayed = relay_output(*switch_); !relayed) return relayed;
  await_switch(kSwitchLooks);
  return {};
}

void Supervisor::await_switch(uint32_t looks) {
  if (released_ || switch_->ending) return;
  if (looks != 0 && !has_open_port())
    return loop_.at(Clock::now() + kSwitchLook, [this, looks] { await_switch(looks - 1); });
  if (auto started = start_programs(); !started) {
    error_ = started.error();
    loop_.stop();
  }
}

Result<void> Supervisor::start_programs() {
  programs_ = plan_programs(options_, usable_cores());
  beside_ = plan_beside(options_);
  start_ = Clock::now();
  link_->begin();
  rates_.push_back({Duration(0), shaping_.rate, "start"});
  for (std::vector<Program>* all : {&programs_, &beside_})
    for (Program& program : *all) {
      if (auto started = start_program(options_, *link_, files_, program); !started) return started;
      if (auto relayed = relay_output(program); !relayed) return relayed;
    }
  plan_timers();
  return {};
}

Result<void> Supervisor::relay_output(Program& program) {
  if (options_.raw) return {};
  // stdout belongs to the JSON object alone.
  const int target = options_.json ? STDERR_FILENO : STDOUT_FILENO;
  if (auto out = relay_stream(program, std::move(program.out), target, ".out"); !out) return out;
  return relay_stream(program, std::move(program.err), STDERR_FILENO, ".err");
}

Result<void> Supervisor::relay_stream(Program& program, Fd source, int target, const char* suffix) {
  Fd log;
  if (!options_.logs.empty()) {
    const std::string path =
        options_.logs + "/" +
        (program.rank ? "rank" + std::to_string(*program.rank) : called(program)) + suffix;
    log = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!log) return system_error("opening the log " + path);
  }
  std::string prefix;
  if (program.host == kSwitch || is_beside(program.host)) prefix = "[" + called(program) + "] ";
  if (program.rank && programs_.size() > 1) prefix = "[" + std::to_string(*program.rank) + "] ";
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
  if (!options_.rates.empty()) plan_turn(1);
  if (options_.timeout)
    loop_.at(start_ + *options_.timeout, [this] {
      stop(Error{Errc::timed_out,
                 "stopped by --timeout after " + std::to_string(seconds(*options_.timeout)) + " s",
                 {}});
    });
}

/// The `turn`-th of the rates that take turns.
void Supervisor::plan_turn(std::size_t turn) {
  loop_.at(start_ + static_cast<int64_t>(turn) * options_.every, [this, turn] {
    const BitRate rate = options_.rates[turn % options_.rates.size()];
    if (auto changed = change_rate(rate, "every"); !changed) return stop(changed.error());
    plan_turn(turn + 1);
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
    if (link_->forwarder() == pid) {
      on_forwarder_ending(ending_from(status));
      continue;
    }
    const auto is_it = [pid](const Program* w) { return w->pid == pid; };
    const std::vector<Program*> others = companions();
    if (const auto found = std::find_if(others.begin(), others.end(), is_it);
        found != others.end()) {
      (*found)->ending = ending_from(status);
      is_beside((*found)->host) ? on_beside_ending(**found) : on_switch_ending();
      continue;
    }
    const auto program = std::find_if(programs_.begin(), programs_.end(),
                                      [&](const Program& w) { return w.pid == pid; });
    if (program == programs_.end()) continue;  // an orphan of a COMMAND
    program->ending = ending_from(status);
    on_ending(*program);
  }
}

void Supervisor::on_ending(Program& program) {
  if (std::all_of(programs_.begin(), programs_.end(),
                  [](const Program& w) { return w.ending.has_value(); }))
    return end_companions();
  if (program.ending->good() || options_.keep_going || stopping_) return;
  loop_.at(Clock::now() + options_.grace, [this] { stop(std::nullopt); });
}

void Supervisor::on_switch_ending() {
  if (released_) return;
  if (programs_.empty()) {
    error_ = failures();
    return loop_.stop();
  }
  if (options_.keep_going || stopping_) return;
  loop_.at(Clock::now() + options_.grace, [this] { stop(std::nullopt); });
}

/// Programs next to the ranks do not decide about the run, unless they could not be started.
void Supervisor::on_beside_ending(const Program& program) {
  if (released_ || stopping_ || program.ending->good()) return;
  if (!not_started(*program.ending)) {
    const std::string line = "laconic lab: the COMMAND on " + called(program) + " failed (" +
                             describe(*program.ending) + "); the ranks go on\n";
    write_all(STDERR_FILENO, line);
  } else if (!options_.keep_going) {
    stop(std::nullopt);
  }
}

void Supervisor::on_forwarder_ending(const Ending& ending) {
  stop(Error{Errc::engine_failed, "the process that delays frames ended (" + describe(ending) + ")",
             "without it nothing arrives"});
}

std::vector<Program*> Supervisor::companions() {
  std::vector<Program*> all;
  for (Program& program : beside_) all.push_back(&program);
  if (switch_) all.push_back(&*switch_);
  return all;
}

/// The last thing: the ranks have ended, or never will start.
void Supervisor::end_companions() {
  if (released_) return;
  if (!error_) error_ = failures();  // what they make of SIGTERM does not count
  released_ = true;
  for (const Program* one : companions())
    if (one->pid > 0) kill(-one->pid, SIGTERM);
  loop_.at(Clock::now() + kKillAfter, [this] {
    for (const Program* one : companions())
      if (one->pid > 0) kill(-one->pid, SIGKILL);
  });
  await_companions();
}

/// A shell dies of the signal before what it has started comes to its end.
void Supervisor::await_companions() {
  for (const Program* one : companions())
    if (one->pid > 0 && kill(-one->pid, 0) == 0)
      return loop_.at(Clock::now() + std::chrono::milliseconds(10), [this] { await_companions(); });
  loop_.stop();
}

void Supervisor::stop(std::optional<Error> why) {
  if (stopping_) return;
  stopping_ = true;
  error_ = std::move(why);
  if (!error_) error_ = failures();  // now, before those that we end look like failures too
  if (programs_.empty()) return end_companions();
  signal_all(SIGTERM);
  loop_.at(Clock::now() + kKillAfter, [this] { signal_all(SIGKILL); });
}

void Supervisor::signal_all(int signal) {
  for (const Program& program : programs_)
    if (program.pid > 0 && (!program.ending || signal == SIGKILL)) kill(-program.pid, signal);
  for (const Program* one : companions())
    if (one->pid > 0 && signal == SIGKILL) kill(-one->pid, signal);
}

Result<void> Supervisor::change_rate(BitRate rate, const char* cause) {
  Shaping wanted = shaping_;
  wanted.rate = rate;
  if (auto shaped = link_->shape(wanted); !shaped) return shaped;
  shaping_ = wanted;
  rates_.push_back({elapsed(), rate, cause});
  return {};
}

ControlServer::Answer Supervisor::answer(std::string_view line) {
  if (line.starts_with("rate ")) return {answer_rate(line.substr(5)), {}};
  if (line.starts_with("loss ")) return {answer_loss(line.substr(5)), {}};
  if (line == "status") return {answer_status(), {}};
  if (line == "counters") return {answer_counters(), {}};
  if (line.starts_with("enter ")) return answer_enter(line.substr(6));
  return {refusal(Error{Errc::invalid_argument, "unknown request '" + std::string(line) + "'",
                        "valid requests: rate RATE, loss SHARE, status, counters, enter HOST"}),
          {}};
}

std::string Supervisor::answer_status() {
  JsonText json(kJsonCompact);
  json.open('{').field("ok", true).field("shaped", link_->shaped_by());
  json.field("rate", format_rate(shaping_.rate)).field("rate_bits_per_second", shaping_.rate);
  json.field("loss", shaping_.loss).field("seconds", seconds(elapsed()));
  return json.close('}').take();
}

std::string Supervisor::answer_rate(std::string_view text) {
  const auto rate = parse_rate(text);
  if (!rate) return refusal(rate.error());
  if (auto changed = change_rate(*rate, "control"); !changed) return refusal(changed.error());
  return answer_status();
}

std::string Supervisor::answer_loss(std::string_view text) {
  const auto share = parse_share(text);
  if (!share) return refusal(share.error());
  if (options_.emulate)
    return refusal(Error{Errc::unsupported, "an emulated lab cannot lose packets", {}});
  Shaping wanted = shaping_;
  wanted.loss = *share;
  if (auto shaped = link_->shape(wanted); !shaped) return refusal(shaped.error());
  shaping_ = wanted;
  return answer_status();
}

std::string Supervisor::answer_counters() {
  const auto now = counters();
  if (!now) return refusal(now.error());
  JsonText json(kJsonCompact);
  const auto put_ports = [&](const char* key, std::span<const PortCounters> ports) {
    json.key(key).open('[');
    for (const PortCounters& port : ports) put(json, port);
    json.close(']');
  };
  const std::span all(*now);
  const std::span hosts = all.first(all.size() - (switch_ ? 1 : 0));
  const std::size_t ranks = std::min(hosts.size(), static_cast<std::size_t>(options_.hosts));
  json.open('{').field("ok", true).field("seconds", seconds(elapsed()));
  put_ports("per_host", hosts.first(ranks));
  if (switch_) put(json.key("switch"), all.back());
  if (!beside_.empty()) put_ports("beside", hosts.subspan(ranks));
  return json.close('}').take();
}

ControlServer::Answer Supervisor::answer_enter(std::string_view name) {
  std::vector<int> places = all_hosts(options_);
  if (switch_) places.push_back(kSwitch);
  const auto found = std::find_if(places.begin(), places.end(), [name](int one) {
    return name == host_name(one) || name == host_address(one);
  });
  if (found == places.end()) {
    const std::string last = host_name(options_.hosts - 1);
    return {
        refusal(Error{Errc::invalid_argument, "there is no host '" + std::string(name) + "'",
                      "this lab has " + host_name(0) + (options_.hosts > 1 ? " to " + last : "")}),
        {}};
  }
  const int host = *found;
  const std::vector<int> namespaces = link_->namespaces(host);
  if (namespaces.empty())
    return {refusal(Error{Errc::unsupported, "an emulated lab has no hosts to enter", {}}), {}};
  JsonText json(kJsonCompact);
  json.open('{').field("ok", true).field("host", host_name(host)).key("cores").open('[');
  if (host != kSwitch && !is_beside(host))
    for (const int core : cores_of(options_, usable_cores(), host)) json.value(core);
  return {json.close(']').close('}').take(), namespaces};
}

std::string Supervisor::name_of(const Program& program) const {
  if (!program.rank) return {};
  const std::string rank = "rank " + std::to_string(*program.rank);
  return (options_.per_host > 1 ? rank + " on " + host_name(program.host) : rank) + " ";
}

std::optional<Error> Supervisor::failures() const {
  std::string names;
  for (const Program& program : programs_)
    if (program.ending && !program.ending->good())
      names +=
          (names.empty() ? "" : ", ") + name_of(program) + "(" + describe(*program.ending) + ")";
  std::string what;
  if (switch_ && switch_->ending && !released_)
    what = "the COMMAND in the switch ended (" + describe(*switch_->ending) + ") before the ranks";
  for (const Program& program : beside_)
    if (program.ending && not_started(*program.ending))
      what += (what.empty() ? "" : "; ") + ("the COMMAND on " + called(program)) +
              " could not be started (" + describe(*program.ending) + ")";
  if (!names.empty()) {
    const std::string where = options_.launcher ? " " : " on ";
    what += (what.empty() ? "" : "; ") + ("COMMAND failed" + where + names);
  }
  if (what.empty()) return std::nullopt;
  return Error{Errc::peer_failed, what, "its last lines of output say why"};
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
  r.mtu = options_.mtu;
  r.tcp = options_.tcp;
  r.rates = rates_;
  r.turns = options_.rates;
  r.every = options_.every;
  r.forwarder = link_->forwarded();
  r.command = options_.command;
  r.error = error_ ? error_ : failures();
  const auto ports = counters();
  r.per_host = options_.per_host;
  if (switch_)
    r.at_switch = SwitchReport{options_.at_switch, link_->address(kSwitch),
                               ports ? ports->back() : PortCounters{}, switch_->ending};
  const std::vector<int> all = all_hosts(options_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    HostReport one{link_->address(all[i]), {}, {}};
    if (ports && i < ports->size()) one.port = (*ports)[i];
    if (is_beside(all[i]) && !beside_.empty())
      one.ending = beside_[static_cast<std::size_t>(all[i] - kBeside)].ending;
    (is_beside(all[i]) ? r.beside : r.hosts).push_back(std::move(one));
  }
  r.at_beside = options_.at_beside;
  for (const Program& program : programs_)
    r.programs.push_back({program.rank, program.host, program.local_rank,
                          program.cores.size() == 1 ? program.cores[0] : -1, program.ending});
  return r;
}

}  // namespace laconic::lab
