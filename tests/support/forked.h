// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace laconic::test {

/// body() in a child that is forked from this thread, which is all that it has. False: it did not
/// come to an end within a hundred seconds.
template <class Body>
bool ends_in_a_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(7);
  }
  int status = 0;
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > last) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

}  // namespace laconic::test
