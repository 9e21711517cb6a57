// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace laconic::lab {
namespace {

Variables environment(const Options& o, const Link& link, const Host& host) {
  Variables all = link.environment(host.rank);
  const auto add = [&](const char* name, std::string value) {
    all.emplace_back(name, std::move(value));
  };
  add("RANK", std::to_string(host.rank));
  add("WORLD_SIZE", std::to_string(o.hosts));
  // One process per host: it is the first of its machine, as torchrun would number it.
  add("LOCAL_RANK", "0");
  add("LOCAL_WORLD_SIZE", "1");
  add("GROUP_RANK", std::to_string(host.rank));
  add("MASTER_ADDR", link.address(0));
  add("MASTER_PORT", std::to_string(o.port));
  add("LACONIC_LAB", std::string(link.shaped_by()));
  add("LACONIC_LAB_CONTROL", link.folder_inside(host.rank) + "/laconic-lab.sock");
  // Threads beyond the one core only take turns on it (torchrun sets the same).
  if (host.core >= 0 && std::getenv("OMP_NUM_THREADS") == nullptr) add("OMP_NUM_THREADS", "1");
  return all;
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

void restore_signals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

void redirect(int out, int err) {
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  if (out >= 0) dup2(out, STDOUT_FILENO);
  if (err >= 0) dup2(err, STDERR_FILENO);
}

/// Says why and ends; `report` is closed by a successful exec, so that our parent reads nothing
/// then.
[[noreturn]] void give_up(int report, const std::string& why) {
  write_all(report, why);
  _exit(127);
}

[[noreturn]] void become_command(const Options& o, Link& link, const Host& host, int out, int err,
                                 int report) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  restore_signals();
  if (const Result<void> entered = link.enter(host.rank); !entered)
    give_up(report, entered.error().message);
  pin(host.core);
  for (const auto& [name, value] : environment(o, link, host)) {
    if (value.empty())
      unsetenv(name.c_str());
    else
      setenv(name.c_str(), value.c_str(), 1);
  }
  redirect(out, err);
  std::vector<char*> words;
  for (const std::string& word : o.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  give_up(report, "cannot run '" + o.command[0] + "': " + std::strerror(errno));
}

}  // namespace

Ending ending_from(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {0, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

std::string describe(const Ending& ending) {
  if (ending.signal == 0) return "exit " + std::to_string(ending.code);
  const char* name = sigabbrev_np(ending.signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(ending.signal);
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  return cores;
}

Result<void> start_host(const Options& options, Link& link, Host& host) {
  auto report = make_pipe();
  if (!report) return std::move(report).error();
  Pipe out, err;
  if (!options.raw) {
    for (Pipe* pipe : {&out, &err}) {
      auto made = make_pipe();
      if (!made) return std::move(made).error();
      *pipe = std::move(*made);
      fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
    }
  }
  const pid_t pid = fork();
  if (pid < 0) return system_error("starting a host");
  if (pid == 0)
    become_command(options, link, host, out.write.get(), err.write.get(), report->write.get());
  report->write.reset();
  host.pid = pid;
  host.out = std::move(out.read);
  host.err = std::move(err.read);
  const std::string why = read_all(report->read.get());
  if (why.empty()) return {};
  return Error{Errc::engine_failed, "rank " + std::to_string(host.rank) + ": " + why, {}};
}

}  // namespace laconic::lab
