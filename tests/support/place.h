// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A place where ranks that are processes can meet: the test's own folder, a free port.
#pragma once

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>

namespace laconic::test {

/// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/laconic-test-XXXXXX";
    const char* made = ::mkdtemp(name);
    if (made == nullptr) throw std::runtime_error("no folder");
    path_ = made;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A port of 127.0.0.1, below those that the system gives to connections: one of these could be
/// taken before the test listens there.
inline std::string free_port() {
  std::random_device random;
  for (;;) {
    const auto port = static_cast<uint16_t>(12'000 + random() % 20'000);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool free = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (free) return std::to_string(port);
  }
}

}  // namespace laconic::test
