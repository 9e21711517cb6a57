// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
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

/// A host's namespaces are all that is ever sent.
constexpr std::size_t kMostDescriptors = 8;

/// Buffers of sendmsg and recvmsg for one block of bytes and its descriptors.
struct Envelope {
  explicit Envelope(iovec bytes) : block(bytes) {
    header.msg_iov = &block;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  iovec block;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
};

bool send_answer(int fd, std::string line, const std::vector<int>& descriptors) {
  if (descriptors.empty()) return write_all(fd, line);
  const std::size_t size = descriptors.size() * sizeof(int);
  Envelope out({line.data(), line.size()});
  out.header.msg_controllen = CMSG_SPACE(size);
  cmsghdr* first = CMSG_FIRSTHDR(&out.header);
  first->cmsg_level = SOL_SOCKET;
  first->cmsg_type = SCM_RIGHTS;
  first->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(first), descriptors.data(), size);
  const ssize_t sent = sendmsg(fd, &out.header, MSG_NOSIGNAL);
  return sent > 0 && write_all(fd, std::string_view(line).substr(static_cast<std::size_t>(sent)));
}

/// Everything until the other side closes.
ControlReply receive_reply(int fd) {
  ControlReply reply;
  for (;;) {
    std::array<char, 4096> bytes{};
    Envelope in({bytes.data(), bytes.size()});
    const ssize_t n = recvmsg(fd, &in.header, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return reply;
    reply.line.append(bytes.data(), static_cast<std::size_t>(n));
    for (cmsghdr* one = CMSG_FIRSTHDR(&in.header); one != nullptr;
         one = CMSG_NXTHDR(&in.header, one)) {
      if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
      std::array<int, kMostDescriptors> numbers{};
      const std::size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(numbers.data(), CMSG_DATA(one), count * sizeof(int));
      for (std::size_t i = 0; i < count; ++i) reply.descriptors.emplace_back(numbers[i]);
    }
  }
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

Result<void> ControlServer::listen_in(const std::string& folder) {
  const std::string path = folder + "/laconic-lab.sock";
  const auto address = address_of(path);
  if (!address) return address.error();
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener || bind(listener.get(), generic(*address), sizeof *address) != 0 ||
      listen(listener.get(), 16) != 0)
    return system_error("listening on " + path);
  chmod(path.c_str(), 0666);  // a COMMAND may have given up its rights; the folder is private
  const int fd = listener.get();
  loop_.watch(fd, [this, fd] { accept_on(fd); });
  listeners_.push_back(std::move(listener));
  return {};
}

void ControlServer::accept_on(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return;
  const int number = fd.get();
  connections_[number] = Connection{std::move(fd), {}};
  loop_.watch(number, [this, number] { read_from(number); });
}

void ControlServer::read_from(int fd) {
  std::array<char, 1024> block{};
  const ssize_t n = read(fd, block.data(), block.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return close_connection(fd);
  std::string& pending = connections_[fd].pending;
  pending.append(block.data(), static_cast<std::size_t>(n));
  for (std::size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
    const Answer answer = handler_(std::string_view(pending).substr(0, end));
    pending.erase(0, end + 1);
    if (!send_answer(fd, answer.line + "\n", answer.descriptors)) return close_connection(fd);
  }
  if (pending.size() > kLongestRequest) close_connection(fd);
}

void ControlServer::close_connection(int fd) {
  loop_.remove(fd);
  connections_.erase(fd);
}

Result<ControlReply> ask_lab(const std::string& option, std::string_view line) {
  const char* given = std::getenv("LACONIC_LAB_CONTROL");
  if (given == nullptr)
    return Error{Errc::invalid_argument, "LACONIC_LAB_CONTROL is not set",
                 option + " works inside a lab only"};
  const std::string path = given;
  const auto address = address_of(path);
  if (!address) return address.error();
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), generic(*address), sizeof *address) != 0)
    return Error{Errc::peer_failed, "no lab answers at " + path + ": " + std::strerror(errno),
                 "LACONIC_LAB_CONTROL names the socket of a running lab"};
  if (!write_all(fd.get(), std::string(line) + "\n")) return system_error("writing to " + path);
  shutdown(fd.get(), SHUT_WR);
  ControlReply reply = receive_reply(fd.get());
  if (reply.line.empty()) return Error{Errc::peer_failed, "the lab closed the control socket", {}};
  reply.line.resize(std::min(reply.line.find('\n'), reply.line.size()));
  return reply;
}

}  // namespace laconic::lab
