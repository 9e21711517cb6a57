// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Where ranks that are processes can meet: a folder of the test's own, a free port.
#pragma once

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
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

/// Of 127.0.0.1: free a moment ago.
inline std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  const bool found = ::bind(fd, at, size) == 0 && ::getsockname(fd, at, &size) == 0;
  ::close(fd);
  if (!found) throw std::runtime_error("no port");
  return std::to_string(ntohs(address.sin_port));
}

}  // namespace laconic::test
