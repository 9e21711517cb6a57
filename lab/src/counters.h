// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Counters of /proc/net: bytes and open ports.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "link.h"

namespace laconic::lab {

/// Reads the text of /proc/net/dev: interface name -> counters. Lines that are not understood are
/// left out.
std::map<std::string, PortCounters> parse_net_dev(std::string_view text);

/// Counters of the interfaces in the current network namespace.
Result<std::map<std::string, PortCounters>> read_net_dev();

/// Whether the text of /proc/net/udp (07) or /proc/net/tcp (0A) has a socket in this state.
bool has_socket_in(std::string_view text, std::string_view state);

/// Whether anybody in the current network namespace receives on UDP or listens on TCP.
bool has_open_port();

}  // namespace laconic::lab
