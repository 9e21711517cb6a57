// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The kernel's own byte counters.
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

}  // namespace laconic::lab
