// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What a run was and how it ended, for people and for machines.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host.h"
#include "link.h"
#include "options.h"

namespace laconic::lab {

struct HostReport {
  int rank = 0;
  std::string address;
  int core = -1;
  std::optional<Ending> ending;
  std::optional<PortCounters> port;
};

struct RateEvent {
  Duration at{};
  BitRate rate = kUnshaped;
  std::string cause;  ///< "start", "schedule" or "control"
};

struct Report {
  std::string shaped_by;
  std::string isolation;
  Shaping shaping;  ///< as it was at the end, except that `rate` is the first one
  std::string tcp;
  std::vector<RateEvent> rates;
  std::vector<std::string> command;
  Duration time{};
  std::vector<HostReport> hosts;
  std::optional<Error> error;
};

using Json = nlohmann::ordered_json;

/// The stable name of the codes that the lab uses.
std::string_view code_name(Errc code);

/// 0 fine, 1 the answer is bad, 2 usage.
int exit_status(const Error& error);

/// {"code", "name", "message", "hint"}.
Json to_json(const Error& error);
Json to_json(const PortCounters& port);
Json to_json(const Report& report);

/// The table, with the definition of the shaping above it.
std::string to_text(const Report& report);
std::string to_text(const Error& error);

}  // namespace laconic::lab
