// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// UDP sockets, many datagrams to a call: with segmentation by the kernel (`gso`, Linux 5.0), or
// recvmmsg and sendmmsg (`mmsg`). Nothing here blocks, but for a full send buffer.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/bytes.h"
#include "laconic/error.h"

namespace laconic::net {

enum class Io : uint8_t { gso, mmsg };

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
};
/// "10.0.0.9:7420", "[::1]:7420", or a name in place of the address.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text);
[[nodiscard]] std::string endpoint_text(const Endpoint& endpoint);
[[nodiscard]] bool is_loopback(const Endpoint& endpoint) noexcept;
[[nodiscard]] bool is_wildcard(const Endpoint& endpoint) noexcept;  ///< any address
[[nodiscard]] bool same_address(const Endpoint& a, const Endpoint& b) noexcept;
/// "239.7.4.2", "239.7.4.2:7421" or "[ff12::7]:7421"; without a port that of `server`, whose family
/// it has to have.
[[nodiscard]] Result<Endpoint> parse_group(std::string_view text, const Endpoint& server);

/// An IPv6 address, big-endian; ::ffff:a.b.c.d for IPv4.
using IpAddress = std::array<uint8_t, 16>;
[[nodiscard]] IpAddress ip_of(const Endpoint& endpoint) noexcept;
[[nodiscard]] uint16_t port_of(const Endpoint& endpoint) noexcept;
[[nodiscard]] Endpoint endpoint_of(const IpAddress& address, uint16_t port) noexcept;

/// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// Receives from anybody. No other program can have the port, whatever it asks for.
  static Result<Socket> bound(const Endpoint& local, Io io);
  /// A socket connected to one peer; `beside`: with the address and port of that socket.
  static Result<Socket> connected(const Endpoint& remote, Io io, const Socket* beside = nullptr);

  /// A socket that sends to a group from the address of `beside`, which also selects the interface.
  /// Datagrams stay on the link.
  static Result<Socket> to_group(const Endpoint& group, const Socket& beside, Io io);
  /// Receives what `source` sends to a group, on the interface of `local`. Others of this machine
  /// may do so as well.
  static Result<Socket> in_group(const Endpoint& group, const Endpoint& source,
                                 const Endpoint& local, Io io);

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  [[nodiscard]] Result<Endpoint> local() const;
  /// Bytes that the kernel keeps of what was not read yet, with what it needs to keep them.
  [[nodiscard]] uint64_t receive_buffer() const noexcept;
  /// MTU of the path, as far as known; connected sockets only.
  [[nodiscard]] uint32_t mtu() const noexcept;
  /// Takes the errors that came back; returns how many of them say that the peer's port is closed.
  /// What all others say is that something was lost.
  uint32_t take_errors() const noexcept;

 private:
  static Result<Socket> open(int family, Io io);
  static Result<Socket> at_port_of(const Socket& other, Io io);
  Result<void> bind_to(const Endpoint& local) const;
  int fd_ = -1;
};

/// Whether the kernel has segmentation and coalescing for UDP.
[[nodiscard]] bool has_gso() noexcept;

/// Datagrams to one peer, sent together. Payloads are read until flush() returns.
class Batch {
 public:
  explicit Batch(Io io) noexcept;

  /// Adds a datagram: `header`, which is copied, `payload` and `padding` zeros. Payloads without a
  /// header that are contiguous are sent from one piece of memory. If the batch is full, or the
  /// datagram has another length, flushes first, and returns what flush() does.
  uint32_t add(const Socket& socket, Bytes header, Bytes payload, std::size_t padding,
               const Endpoint* to = nullptr) noexcept;
  /// Sends to `to`, or where the socket is connected to. Returns what Socket::take_errors() does.
  uint32_t flush(const Socket& socket, const Endpoint* to) noexcept;

 private:
  static constexpr std::size_t kMost = 64;         // segments in older kernels
  static constexpr std::size_t kHeaderRoom = 656;  // enrolments come as headers
  static constexpr std::size_t kPieces = 3;        // header, payload, padding
  /// False: the datagram does not fit, or has another length.
  bool push(Bytes header, Bytes payload, std::size_t padding) noexcept;
  std::size_t pieces_of(std::size_t index, iovec* pieces) const noexcept;
  std::size_t pieces_of_all(iovec* pieces) const noexcept;
  [[nodiscard]] bool send_segmented(const Socket& socket, const Endpoint* to,
                                    int* error) const noexcept;
  void send_each(const Socket& socket, const Endpoint* to, int* error) const noexcept;

  Io io_;
  std::size_t count_ = 0, bytes_ = 0, segment_ = 0;
  bool last_is_short_ = false;
  std::array<std::array<uint8_t, 40>, kMost> headers_;
  std::array<uint8_t, kHeaderRoom> long_header_;
  std::array<uint16_t, kMost> header_sizes_;
  std::array<Bytes, kMost> payloads_;
  std::array<uint16_t, kMost> paddings_;
};

/// Memory for what a thread receives.
class Receiver {
 public:
  static constexpr std::size_t kAll = ~std::size_t{0};
  explicit Receiver(Io io);

  /// Keeps received data in place until rewind(): further calls append theirs. False: there is no
  /// space for `most` messages.
  bool keep(std::size_t most) noexcept;
  void rewind() noexcept { begin_ = 0; }

  /// Receives available datagrams, at most one call's worth or `most` messages of the kernel, which
  /// may be 64 datagrams each, and calls take(from, datagram) for each. Returns the number of
  /// datagrams, 0 if there are none, -1 after an error.
  template <class Take>
  int receive(const Socket& socket, Take&& take, std::size_t most = kAll) {
    const int messages = fill(socket, most);
    int datagrams = messages < 0 ? -1 : 0;
    for (int i = 0; i < messages; ++i) {
      Bytes rest = message(i);
      const std::size_t segment = segment_of(i);
      do {
        const Bytes one = rest.first(segment == 0 ? rest.size() : std::min(segment, rest.size()));
        rest = rest.subspan(one.size());
        take(from(i), one);
        ++datagrams;
      } while (!rest.empty());
    }
    return datagrams;
  }

 private:
  struct Messages;
  struct Free {
    void operator()(Messages* m) const noexcept;
  };
  int fill(const Socket& socket, std::size_t most) noexcept;
  [[nodiscard]] Bytes message(int index) const noexcept;
  [[nodiscard]] std::size_t segment_of(int index) const noexcept;
  [[nodiscard]] const Endpoint& from(int index) const noexcept;

  std::unique_ptr<Messages, Free> messages_;
  std::size_t begin_ = 0;  ///< of the memory, for the next call
  std::size_t end_ = 0;    ///< end of the last received data
};

}  // namespace laconic::net
