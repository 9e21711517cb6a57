// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace laconic::aggregation {

Result<protocol::Token> read_token(const std::string& path) {
  const auto refused = [&](const std::string& why) {
    return Error{Errc::invalid_argument, "token " + path + ": " + why,
                 "create one with laconic serve --new-token FILE"};
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return refused(std::strerror(errno));
  std::array<uint8_t, sizeof(protocol::Token) + 1> bytes{};
  const ssize_t size = ::read(fd, bytes.data(), bytes.size());
  ::close(fd);
  protocol::Token token;
  if (size != static_cast<ssize_t>(token.size())) return refused("not a file of 32 bytes");
  std::copy_n(bytes.begin(), token.size(), token.begin());
  if (token == protocol::Token{}) return refused("all its bytes are zero");
  return token;
}

}  // namespace laconic::aggregation
