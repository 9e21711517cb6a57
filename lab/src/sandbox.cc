// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "descendants.h"
#include "process.h"

namespace laconic::lab {
namespace {

constexpr std::array kForwarded{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

unsigned long namespaces_of(Isolation isolation) {
  constexpr unsigned long kOwn =
      CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC;
  switch (isolation) {
    case Isolation::root:
      return kOwn;
    case Isolation::user:
      return kOwn | CLONE_NEWUSER;
    case Isolation::none:
      return 0;
  }
  return 0;
}

bool ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

/// Signals for which the parent waits. One that it was started to ignore (nohup) stays ignored.
sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded)
    if (!ignored(signal)) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  return set;
}

/// Maps the caller to root of the child's user namespace: mounting and `ip` need its capabilities
/// across exec.
Result<void> map_caller_to_root(pid_t child) {
  const std::string folder = "/proc/" + std::to_string(child);
  const auto map = [](unsigned id) { return "0 " + std::to_string(id) + " 1\n"; };
  // The kernel accepts a group map from an unprivileged writer only after setgroups is denied.
  const std::array<std::array<std::string, 2>, 3> files{{{folder + "/setgroups", "deny"},
                                                         {folder + "/uid_map", map(geteuid())},
                                                         {folder + "/gid_map", map(getegid())}}};
  for (const auto& [path, text] : files)
    if (const Result<void> written = write_file(path, text); !written) return written;
  return {};
}

/// The child's side: wait for the user map, arrange to die with the parent, run.
[[noreturn]] void live_inside(Isolation isolation, Pipe gate, Pipe lifeline, const Body& body) {
  lifeline.write.reset();
  gate.write.reset();
  char go = 0;
  if (read(gate.read.get(), &go, 1) != 1) _exit(1);
  // Out of the terminal's foreground group: a Ctrl-C reaches the parent alone, which passes it on
  // once.
  setsid();
  // Without namespaces the lifeline must suffice, because a process has to be left to end the
  // hosts.
  if (isolation != Isolation::none) prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int status = body(lifeline.read.get());
  std::fflush(nullptr);
  _exit(status);
}

/// Passes signals on until the child has ended and returns its wait status; nothing when `lifeline`
/// (-1: none) has ended first.
std::optional<int> wait_for_child(pid_t child, const sigset_t& watched, int lifeline) {
  const Fd signals(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  for (;;) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status;
    std::array<pollfd, 2> polled{{{signals.get(), POLLIN, 0}, {lifeline, POLLIN, 0}}};
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[1].revents != 0) return std::nullopt;
    for (signalfd_siginfo info; read(signals.get(), &info, sizeof info) == sizeof info;)
      if (info.ssi_signo != SIGCHLD) kill(child, static_cast<int>(info.ssi_signo));
  }
}

/// The exit status of a child, or an error if it did not exit by itself.
Result<int> exit_status_of(std::optional<int> wait_status) {
  if (!wait_status) return 1;  // our own parent is gone: this has no reader
  if (WIFEXITED(*wait_status)) return WEXITSTATUS(*wait_status);
  const char* name = sigabbrev_np(WTERMSIG(*wait_status));
  return Error{Errc::engine_failed,
               std::string("the process that ran the hosts was ended by SIG") +
                   (name != nullptr ? name : "?"),
               "what it had started was ended too"};
}

/// Runs `body` in a child with its own namespaces, if any; ends with the child or with `lifeline`.
Result<int> run_child(Isolation isolation, int lifeline_of_ours, const Body& body) {
  auto gate = make_pipe();
  auto lifeline = make_pipe();
  if (!gate) return std::move(gate).error();
  if (!lifeline) return std::move(lifeline).error();

  const sigset_t watched = watched_signals();
  signal(SIGCHLD, SIG_DFL);  // an inherited SIG_IGN would lose the child's exit status
  sigset_t before;
  sigprocmask(SIG_BLOCK, &watched, &before);
  std::fflush(nullptr);
  // A plain fork with new namespaces; glibc has no wrapper for clone without a stack.
  const long made =
      syscall(SYS_clone, namespaces_of(isolation) | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  const auto child = static_cast<pid_t>(made);
  if (child == 0) live_inside(isolation, std::move(*gate), std::move(*lifeline), body);
  Result<int> result = 1;
  if (child < 0) {
    result =
        Error{Errc::unsupported, std::string("creating namespaces: ") + std::strerror(errno), {}};
  } else {
    gate->read.reset();
    lifeline->read.reset();
    const Result<void> mapped =
        isolation == Isolation::user ? map_caller_to_root(child) : Result<void>();
    if (mapped) write_all(gate->write.get(), "g");
    gate->write.reset();
    result = exit_status_of(wait_for_child(child, watched, lifeline_of_ours));
    if (!mapped) result = mapped.error();
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return result;
}

bool permitted(Isolation isolation) {
  const Result<int> status = run_child(isolation, kNoLifeline, [](int) { return 0; });
  return status && *status == 0;
}

}  // namespace

std::string_view isolation_name(Isolation isolation) {
  switch (isolation) {
    case Isolation::root:
      return "root";
    case Isolation::user:
      return "user namespace";
    case Isolation::none:
      return "none";
  }
  return "none";
}

Result<int> run_sandboxed(Isolation isolation, const Body& body) {
  return run_child(isolation, kNoLifeline, body);
}

Result<int> run_guarded(int lifeline, const std::function<void()>& tidy, const Body& body) {
  // A shell may have started others before it became us by exec.
  const std::vector<pid_t> not_ours = children();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Result<int> result = run_child(Isolation::none, lifeline, body);
  kill_descendants(not_ours);
  tidy();
  return result;
}

Result<Isolation> choose_isolation() {
  if (geteuid() == 0 && permitted(Isolation::root)) return Isolation::root;
  if (permitted(Isolation::user)) return Isolation::user;
  return Error{Errc::unsupported,
               "this machine permits neither root's namespaces nor user namespaces",
               "run as root, or allow them (sysctl user.max_user_namespaces, "
               "kernel.unprivileged_userns_clone, in containers CAP_SYS_ADMIN), or use --emulate"};
}

}  // namespace laconic::lab
