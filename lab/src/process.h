// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Running helper programs (ip, tc) and the few file operations that need care with partial results.
#pragma once

#include <sys/resource.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "laconic/error.h"

namespace laconic::lab {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  void reset();
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A lab holds several files per host and per rank: while this lives, the limit of open files is
/// the machine's.
class OpenFileLimit {
 public:
  OpenFileLimit();
  ~OpenFileLimit() { restore(); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;
  /// In a child as well: what it starts gets the limit that we were started with.
  void restore() const;

 private:
  rlimit before_{};
};

struct Pipe {
  Fd read, write;
};

/// "action: reason" from errno, as the lab's own error.
Error system_error(std::string_view action);

/// A pipe, both ends closed on exec.
Result<Pipe> make_pipe();

/// Writes everything; false when the other side is gone.
bool write_all(int fd, std::string_view bytes);

/// Everything until end of file.
std::string read_all(int fd);

Result<void> write_file(const std::string& path, std::string_view text);

/// Full path of a program: PATH first, then the sbin folders that a plain user's PATH lacks. Empty
/// if absent.
std::string find_program(std::string_view name);

/// Runs a program with `input` on its stdin, inside network namespace `netns` unless that is
/// negative. Returns its stdout; a failure carries its stderr.
Result<std::string> run_tool(const std::vector<std::string>& argv, std::string_view input = {},
                             int netns = -1);

}  // namespace laconic::lab
