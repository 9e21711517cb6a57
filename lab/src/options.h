// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Options of `laconic lab`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"
#include "units.h"

namespace laconic::lab {

/// How a port treats packets; the same in both directions of every host.
struct Shaping {
  BitRate rate = kUnshaped;
  uint64_t burst = 64 * 1024;    ///< bytes the token bucket holds
  uint64_t queue = 1024 * 1024;  ///< bytes that wait before packets are dropped
  double loss = 0;               ///< share of the packets dropped where they enter the switch
  Duration delay{};              ///< one way, added where packets enter the switch
  Duration jitter{};             ///< the delay is from delay - jitter to delay + jitter
  uint64_t seed = 0;             ///< of the jitter, and of the loss where there is a delay
};

struct Options {
  int hosts = 2;
  int per_host = 1;       ///< ranks on each host
  bool launcher = false;  ///< COMMAND runs once, on host 0, and starts the ranks itself
  Shaping shaping;
  uint32_t mtu = kUsualMtu;  ///< bytes of a frame after its Ethernet header, on every interface
  std::string tcp = "reno";  ///< congestion control; "system" leaves the machine's
  std::vector<RateChange> schedule;
  std::vector<BitRate> rates;  ///< take turns, `every` each; empty: one rate
  Duration every{};
  std::vector<std::string> command;
  std::string at_switch;  ///< a line for /bin/sh that runs where the ports meet; empty for none
  int beside = 0;         ///< hosts that are not ranks
  std::string at_beside;  ///< a line for /bin/sh that runs on each of them
  std::string logs;       ///< folder for one pair of files per rank; empty for none
  int port = 29500;
  bool port_given = false;
  bool pin = true;
  bool emulate = false;
  bool raw = false;
  bool json = false;
  bool keep_going = false;
  Duration grace = std::chrono::seconds(5);
  std::optional<Duration> timeout;
  bool check = false;
  std::string send;  ///< a line for the control socket of the lab that we run in
  std::string on;    ///< the host of that lab on which COMMAND is to run; empty for none
  std::string help;  ///< text to print instead of doing anything
};

/// Parses the arguments after `laconic lab`. COMMAND follows `--`, or `--on HOST`.
Result<Options> parse_options(const std::vector<std::string>& words);

/// Whether the arguments request JSON: errors in the rest of the line are then JSON too.
bool wants_json(const std::vector<std::string>& words);

}  // namespace laconic::lab
