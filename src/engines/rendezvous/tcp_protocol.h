// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Messages between a board over TCP and its clients.
#pragma once

#include <netdb.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "laconic/error.h"

namespace laconic::rendezvous::detail {

// Requests and answers over TCP, little-endian: "LCN1", kind, length of the key, two zeros, length
// of the value (4 bytes), key, value.
enum class Kind : uint8_t {
  put = 1,
  get = 2,     ///< no value
  answer = 3,  ///< without a value: the key has none
  news = 4,    ///< unsolicited
  refused = 5  ///< the board is full
};
struct Frame {
  Kind kind = Kind::get;
  std::string key, value;
};
inline constexpr std::string_view kMagic = "LCN1";
inline constexpr size_t kHeader = 12;

std::string encode(Kind kind, std::string_view key, std::string_view value);

enum class Taken : uint8_t { nothing, frame, nonsense };
/// Takes the first frame out of `in`.
Taken take(std::string* in, Frame* frame);

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;
Result<Addresses> resolve(const std::string& host, const std::string& port);

}  // namespace laconic::rendezvous::detail
