// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/rendezvous/tcp_protocol.h"

#include <algorithm>
#include <array>

#include "laconic/bytes.h"
#include "laconic/engine/rendezvous.h"

namespace laconic::rendezvous::detail {

std::string encode(Kind kind, std::string_view key, std::string_view value) {
  std::array<uint8_t, kHeader> header{};
  std::copy(kMagic.begin(), kMagic.end(), header.begin());
  header[4] = static_cast<uint8_t>(kind);
  header[5] = static_cast<uint8_t>(key.size());
  store(&header[8], static_cast<uint32_t>(value.size()));
  std::string out(header.begin(), header.end());
  return out.append(key).append(value);
}

Taken take(std::string* in, Frame* frame) {
  const std::string_view bytes(*in);
  if (!kMagic.starts_with(bytes.substr(0, kMagic.size()))) return Taken::nonsense;
  if (bytes.size() < kHeader) return Taken::nothing;
  const auto* header = reinterpret_cast<const uint8_t*>(bytes.data());
  const uint64_t kind = header[4], key = header[5], zeros = load<uint16_t>(header + 6),
                 value = load<uint32_t>(header + 8);
  if (kind < 1 || kind > 5 || key < 1 || key > kMaxKey || zeros != 0 || value > kMaxValue)
    return Taken::nonsense;
  if (bytes.size() < kHeader + key + value) return Taken::nothing;
  frame->kind = static_cast<Kind>(kind);
  frame->key = bytes.substr(kHeader, key);
  frame->value = bytes.substr(kHeader + key, value);
  in->erase(0, kHeader + key + value);
  const bool has_value = frame->kind == Kind::put || frame->kind == Kind::news;
  if (!is_key(frame->key) || (has_value && !is_value(frame->key, frame->value)) ||
      (frame->kind == Kind::get && value != 0))
    return Taken::nonsense;
  return Taken::frame;
}

Result<Addresses> resolve(const std::string& host, const std::string& port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int bad = ::getaddrinfo(host.c_str(), port.c_str(), &wanted, &list); bad != 0) {
    return Error{Errc::engine_failed,
                 "cannot resolve the rendezvous host " + host + ": " + ::gai_strerror(bad),
                 "use a host name or address of rank 0 that every rank can resolve"};
  }
  return Addresses(list);
}

}  // namespace laconic::rendezvous::detail
