// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "launcher.h"
#include "mounts.h"
#include "network.h"

namespace laconic::lab {
namespace {

void add_rank(const Options& o, const Program& program, Variables& all) {
  const auto number = [&](const char* name, std::optional<int> value) {
    all.emplace_back(name, value ? std::to_string(*value) : "");  // empty: removed
  };
  // As torchrun numbers them. A launcher numbers its ranks by itself.
  const bool is_rank = program.rank.has_value();
  const auto if_rank = [&](int value) {
    return is_rank ? std::optional<int>(value) : std::nullopt;
  };
  number("RANK", program.rank);
  number("WORLD_SIZE", if_rank(o.hosts * o.per_host));
  number("LOCAL_RANK", if_rank(program.local_rank));
  number("LOCAL_WORLD_SIZE", if_rank(o.per_host));
  number("GROUP_RANK", if_rank(program.host));
}

/// Host of each rank; a launcher that fills one host after the other numbers them the same way.
void add_beside(const Options& o, const Link& link, int host, Variables& all) {
  all.emplace_back("LACONIC_LAB_BESIDE", std::to_string(host - kBeside));
  all.emplace_back("LACONIC_LAB_ADDRESS", link.address(host));
  std::string ranks;
  for (int rank = 0; rank < o.hosts * o.per_host; ++rank) {
    const std::string address = link.address(rank / o.per_host);
    all.emplace_back("LACONIC_LAB_RANK_" + std::to_string(rank), address);
    ranks += (rank > 0 ? " " : "") + address;
  }
  all.emplace_back("LACONIC_LAB_RANKS", ranks);
}

Variables environment(const Options& o, const Link& link, const Program& program) {
  Variables all = link.environment(program.host);
  add_rank(o, program, all);
  const std::string folder = link.folder_inside(program.host);
  if (is_beside(program.host)) add_beside(o, link, program.host, all);
  if (o.launcher && program.host == 0)
    for (auto& variable : launcher_environment(folder)) all.push_back(std::move(variable));
  const auto add = [&](const char* name, std::string value) {
    all.emplace_back(name, std::move(value));
  };
  add("MASTER_ADDR", link.address(0));
  add("MASTER_PORT", std::to_string(o.port));
  add("LACONIC_LAB", std::string(link.shaped_by()));
  add("LACONIC_LAB_CONTROL", folder + "/laconic-lab.sock");
  // Threads beyond the one core only take turns on it (torchrun sets the same).
  if (!program.cores.empty() && std::getenv("OMP_NUM_THREADS") == nullptr)
    add("OMP_NUM_THREADS", "1");
  return all;
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

[[noreturn]] void become_command(const Options& o, const Link& link, const OpenFileLimit& files,
                                 const Program& program, int out, int err, int report) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  restore_signals();
  if (const auto entered = enter_namespaces(link.namespaces(program.host)); !entered)
    give_up(report, entered.error().message);
  pin(program.cores);
  files.restore();
  for (const auto& [name, value] : environment(o, link, program)) {
    if (value.empty())
      unsetenv(name.c_str());
    else
      setenv(name.c_str(), value.c_str(), 1);
  }
  redirect(out, err);
  std::vector<std::string> command = o.command;
  if (program.host == kSwitch) command = {"/bin/sh", "-c", o.at_switch};
  if (is_beside(program.host)) command = {"/bin/sh", "-c", o.at_beside};
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  give_up(report, "cannot run '" + command[0] + "': " + std::strerror(errno));
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

std::string called(const Program& program) {
  if (program.host == kSwitch || is_beside(program.host)) return host_name(program.host);
  return program.rank ? "rank " + std::to_string(*program.rank) : "launcher";
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

std::vector<int> cores_of(const Options& options, const std::vector<int>& usable, int host) {
  if (!options.pin || usable.empty()) return {};
  std::set<int> cores;
  for (int local = 0; local < options.per_host; ++local)
    cores.insert(usable[static_cast<std::size_t>(host * options.per_host + local) % usable.size()]);
  return {cores.begin(), cores.end()};
}

std::vector<Program> plan_programs(const Options& options, const std::vector<int>& usable) {
  std::vector<Program> programs;
  if (options.launcher) {
    programs.emplace_back().cores = cores_of(options, usable, 0);
    return programs;
  }
  for (int rank = 0; rank < options.hosts * options.per_host; ++rank) {
    Program& program = programs.emplace_back();
    program.rank = rank;
    program.host = rank / options.per_host;
    program.local_rank = rank % options.per_host;
    if (options.pin && !usable.empty())
      program.cores = {usable[static_cast<std::size_t>(rank) % usable.size()]};
  }
  return programs;
}

std::vector<Program> plan_beside(const Options& options) {
  std::vector<Program> programs(static_cast<std::size_t>(options.beside));
  for (int i = 0; i < options.beside; ++i) programs[static_cast<std::size_t>(i)].host = kBeside + i;
  return programs;
}

void pin(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

Result<void> start_program(const Options& options, const Link& link, const OpenFileLimit& files,
                           Program& program) {
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
  if (pid < 0) return system_error("starting a COMMAND");
  if (pid == 0)
    become_command(options, link, files, program, out.write.get(), err.write.get(),
                   report->write.get());
  report->write.reset();
  program.pid = pid;
  program.out = std::move(out.read);
  program.err = std::move(err.read);
  const std::string why = read_all(report->read.get());
  if (why.empty()) return {};
  return Error{Errc::engine_failed, called(program) + ": " + why, {}};
}

}  // namespace laconic::lab
