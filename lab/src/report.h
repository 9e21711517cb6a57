// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A run and its result, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "link.h"
#include "options.h"
#include "program.h"

namespace laconic {
class JsonText;
}  // namespace laconic

namespace laconic::lab {

struct HostReport {
  std::string address;
  std::optional<PortCounters> port;
  std::optional<Ending> ending;  ///< of the COMMAND of --beside
};

struct ProgramReport {
  std::optional<int> rank;  ///< none: the launcher
  int host = 0;
  int local_rank = 0;
  int core = -1;  ///< -1: not pinned to a single one
  std::optional<Ending> ending;
};

struct SwitchReport {
  std::string command;
  std::string address;
  PortCounters port;  ///< its own end of the bridge
  std::optional<Ending> ending;
};

struct RateEvent {
  Duration at{};
  BitRate rate = kUnshaped;
  std::string cause;  ///< "start", "schedule", "every" or "control"
};

struct Report {
  std::string shaped_by;
  std::string isolation;
  Shaping shaping;  ///< as it was at the end, except that `rate` is the first one
  uint32_t mtu = kUsualMtu;
  std::string tcp;
  std::vector<RateEvent> rates;
  std::vector<BitRate> turns;  ///< that --rate names, if several
  Duration every{};
  std::vector<std::string> command;
  Duration time{};
  int per_host = 1;
  std::vector<HostReport> hosts;
  std::vector<ProgramReport> programs;
  std::string at_beside;
  std::vector<HostReport> beside;
  std::optional<SwitchReport> at_switch;
  std::optional<ForwarderReport> forwarder;
  std::optional<Error> error;
};

/// The stable name of the codes that the lab uses.
std::string_view code_name(Errc code);

/// 0 fine, 1 the answer is bad, 2 usage.
int exit_status(const Error& error);

/// {"code", "name", "message", "hint"}.
void put(JsonText& json, const Error& error);
void put(JsonText& json, const PortCounters& port);
/// The output of --json.
std::string to_json(const Report& report);
std::string to_json(const Error& error);

/// The table, with the definition of the shaping above it.
std::string to_text(const Report& report);
std::string to_text(const Error& error);

}  // namespace laconic::lab
