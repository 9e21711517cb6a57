// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace laconic::lab {
namespace {

constexpr std::size_t kLongestRequest = 4096;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Error{Errc::engine_failed, "the path of the control socket is too long: " + path,
                 "point TMPDIR at a shorter folder"};
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

Result<void> ControlServer::listen_in(const std::string& folder, int rank) {
  const std::string path = folder + "/laconic-lab.sock";
  const auto address = address_of(path);
  if (!address) return address.error();
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || bind(listener.get(), generic(*address), sizeof *address) != 0 ||
      listen(listener.get(), 16) != 0)
    return system_error("listening on " + path);
  chmod(path.c_str(), 0666);  // a COMMAND may have given up its rights; the folder is private
  const int fd = listener.get();
  loop_.watch(fd, [this, fd, rank] { accept_on(fd, rank); });
  listeners_.push_back(std::move(listener));
  return {};
}

void ControlServer::accept_on(int listener, int rank) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return;
  const int number = fd.get();
  connections_[number] = Connection{std::move(fd), {}};
  loop_.watch(number, [this, number, rank] { read_from(number, rank); });
}

void ControlServer::read_from(int fd, int rank) {
  std::array<char, 1024> block{};
  const ssize_t n = read(fd, block.data(), block.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return close_connection(fd);
  std::string& pending = connections_[fd].pending;
  pending.append(block.data(), static_cast<std::size_t>(n));
  for (std::size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
    const std::string answer = handler_(rank, std::string_view(pending).substr(0, end)) + "\n";
    pending.erase(0, end + 1);
    if (!write_all(fd, answer)) return close_connection(fd);
  }
  if (pending.size() > kLongestRequest) close_connection(fd);
}

void ControlServer::close_connection(int fd) {
  loop_.remove(fd);
  connections_.erase(fd);
}

Result<std::string> send_control(const std::string& path, std::string_view line) {
  const auto address = address_of(path);
  if (!address) return address.error();
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), generic(*address), sizeof *address) != 0)
    return system_error("connecting to " + path);
  if (!write_all(fd.get(), std::string(line) + "\n")) return system_error("writing to " + path);
  shutdown(fd.get(), SHUT_WR);
  const std::string answer = read_all(fd.get());
  if (answer.empty()) return Error{Errc::peer_failed, "the lab closed the control socket", {}};
  return answer.substr(0, answer.find('\n'));
}

}  // namespace laconic::lab
