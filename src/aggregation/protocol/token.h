// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Keys of aggregation, all made of a token that never travels. docs/format/DATAGRAM.md section 5.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "aggregation/protocol/datagram.h"

namespace laconic::aggregation::protocol {

/// 32 random bytes. All zeros: none, for servers that listen on the loopback interface alone.
using Token = std::array<uint8_t, 32>;

enum class KeyUse : uint64_t {
  challenge = 1,  ///< nonces: job, instance
  enrol = 2,      ///< nonces: job, instance, epoch, the challenge's nonce
  job = 3,        ///< nonces: job, epoch
  hello = 4,      ///< no nonces
};

inline constexpr std::size_t kMaxNonces = 4;

/// A function of all its arguments; without the token nothing is known about it.
[[nodiscard]] SipKey derive_key(const Token& token, KeyUse use,
                                std::span<const uint64_t> nonces) noexcept;

/// The key for a job's datagrams.
[[nodiscard]] SipKey job_key(const Token& token, uint64_t job, uint64_t epoch) noexcept;

}  // namespace laconic::aggregation::protocol
