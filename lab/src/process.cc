// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace laconic::lab {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

/// A file in memory that the program reads as its stdin: no pipe that could fill up and block us.
Result<Fd> input_file(std::string_view text) {
  Fd file(memfd_create("lab-input", MFD_CLOEXEC));
  if (!file) return system_error("creating an input file in memory");
  if (!write_all(file.get(), text)) return system_error("writing an input file in memory");
  if (lseek(file.get(), 0, SEEK_SET) < 0) return system_error("rewinding an input file in memory");
  return file;
}

[[noreturn]] void become_tool(const std::vector<std::string>& argv, int input, int output,
                              int netns) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (netns >= 0 && setns(netns, CLONE_NEWNET) != 0) _exit(126);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(argv[0].c_str(), pointers(argv).data());
  _exit(127);
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

OpenFileLimit::OpenFileLimit() {
  getrlimit(RLIMIT_NOFILE, &before_);
  rlimit most = before_;
  most.rlim_cur = most.rlim_max;
  setrlimit(RLIMIT_NOFILE, &most);
}

void OpenFileLimit::restore() const { setrlimit(RLIMIT_NOFILE, &before_); }

Error system_error(std::string_view action) {
  return Error{Errc::engine_failed, std::string(action) + ": " + std::strerror(errno), {}};
}

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("creating a pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> block{};
  for (;;) {
    const ssize_t n = read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(block.data(), static_cast<std::size_t>(n));
  }
}

Result<void> write_file(const std::string& path, std::string_view text) {
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file || !write_all(file.get(), text)) return system_error("writing " + path);
  return {};
}

std::string find_program(std::string_view name) {
  if (name.empty()) return {};
  const auto runnable = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  if (name.find('/') != std::string_view::npos)
    return runnable(std::string(name)) ? std::string(name) : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(std::string(path != nullptr ? path : "") +
                             ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string full = folder + "/" + std::string(name);
    if (!folder.empty() && runnable(full)) return full;
  }
  return {};
}

Result<std::string> run_tool(const std::vector<std::string>& argv, std::string_view input,
                             int netns) {
  const std::string program = find_program(argv.front());
  if (program.empty())
    return Error{Errc::unsupported, "the program '" + argv.front() + "' is missing",
                 "apt install iproute2 (Debian, Ubuntu); dnf install iproute iproute-tc (Fedora)"};
  auto stdin_file = input_file(input);
  if (!stdin_file) return std::move(stdin_file).error();
  auto output = make_pipe();
  if (!output) return std::move(output).error();

  std::vector<std::string> words = argv;
  words[0] = program;
  const pid_t pid = fork();
  if (pid < 0) return system_error("starting " + program);
  if (pid == 0) become_tool(words, stdin_file->get(), output->write.get(), netns);
  output->write.reset();
  std::string text = read_all(output->read.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  const std::string what = input.empty() ? join(argv) : join(argv) + " <<< " + std::string(input);
  return Error{Errc::engine_failed, "'" + what + "' failed: " + text, {}};
}

}  // namespace laconic::lab
