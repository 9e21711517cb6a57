// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "http_get.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/aggregation/socket.h"

namespace laconic::tools {
namespace {

namespace agg = transport::aggregation;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMost = std::size_t{4} << 20U;

class Connection {
 public:
  Connection(int fd, Clock::time_point deadline) : fd_(fd), deadline_(deadline) {}
  ~Connection() {
    if (fd_ >= 0) ::close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  /// False: not before the deadline.
  [[nodiscard]] bool wait(short events) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd p{fd_, events, 0};
    return left > 0 && poll(&p, 1, static_cast<int>(left)) > 0;
  }

 private:
  int fd_;
  Clock::time_point deadline_;
};

Error failed(const std::string& address, std::string_view why) {
  return {Errc::engine_failed, fmt::format("{}: {}", address, why),
          "is that the address of laconic serve --metrics?"};
}

Result<void> connect_to(const Connection& c, const agg::Endpoint& to, const std::string& address) {
  const auto* where = reinterpret_cast<const sockaddr*>(&to.address);
  if (::connect(c.fd(), where, to.size) == 0) return {};
  if (errno != EINPROGRESS) return failed(address, std::strerror(errno));
  if (!c.wait(POLLOUT)) return failed(address, "no answer");
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(c.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return failed(address, std::strerror(error));
  return {};
}

}  // namespace

Result<std::string> http_get(const std::string& address, const std::string& path,
                             std::chrono::milliseconds timeout) {
  const auto to = agg::parse_endpoint(address);
  if (!to) return to.error();
  const int fd = ::socket(to->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const Connection c(fd, Clock::now() + timeout);
  if (fd < 0) return failed(address, std::strerror(errno));
  if (auto connected = connect_to(c, *to, address); !connected) return connected.error();
  // 1.0: the answer ends with the connection, in one piece.
  const std::string request = fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", path, address);
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return failed(address, std::strerror(errno));
  }
  std::string answer;
  std::array<char, 16384> part;
  for (;;) {
    if (!c.wait(POLLIN)) return failed(address, "no whole answer in time");
    const ssize_t n = ::recv(fd, part.data(), part.size(), 0);
    if (n == 0) break;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) return failed(address, std::strerror(errno));
    answer.append(part.data(), static_cast<std::size_t>(n));
    if (answer.size() > kMost) return failed(address, "an answer of more than 4 MiB");
  }
  const std::size_t end = answer.find("\r\n\r\n");
  const bool fine =
      answer.rfind("HTTP/1.", 0) == 0 && answer.size() > 12 && answer.compare(9, 3, "200") == 0;
  if (end == std::string::npos || !fine) {
    return failed(address, "no answer of a server with metrics");
  }
  return answer.substr(end + 4);
}

}  // namespace laconic::tools
