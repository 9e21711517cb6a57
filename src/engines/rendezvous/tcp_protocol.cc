// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/rendezvous/tcp_protocol.h"

#include "engines/rendezvous/posix.h"
#include "laconic/engine/rendezvous.h"

namespace laconic::rendezvous::detail {

std::string encode(Kind kind, std::string_view key, std::string_view value) {
  std::string out(kMagic);
  out.push_back(static_cast<char>(kind));
  put_le(&out, key.size(), 1);
  put_le(&out, 0, 2);
  put_le(&out, value.size(), 4);
  return out.append(key).append(value);
}

Taken take(std::string* in, Frame* frame) {
  const std::string_view bytes(*in);
  if (!kMagic.starts_with(bytes.substr(0, kMagic.size()))) return Taken::nonsense;
  if (bytes.size() < kHeader) return Taken::nothing;
  const uint64_t kind = get_le(bytes.substr(4, 1)), key = get_le(bytes.substr(5, 1)),
                 zeros = get_le(bytes.substr(6, 2)), value = get_le(bytes.substr(8, 4));
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
