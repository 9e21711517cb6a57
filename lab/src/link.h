// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The network between the hosts, as the rest of the lab sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "forwarder.h"
#include "laconic/error.h"
#include "options.h"

namespace laconic::lab {

/// Bytes and packets of one host since the COMMANDs were started.
struct PortCounters {
  uint64_t tx_bytes = 0, rx_bytes = 0, tx_packets = 0, rx_packets = 0;
};

/// In place of a host's number: where the ports of all hosts meet. Only with --switch.
constexpr int kSwitch = -1;

/// The first of the hosts that are not ranks (--beside).
constexpr int kBeside = 1000;
constexpr bool is_beside(int host) { return host >= kBeside; }

/// The numbers of all hosts of `options`; those of --beside follow those of the ranks.
std::vector<int> all_hosts(const Options& options);

using Variables = std::vector<std::pair<std::string, std::string>>;

class Link {
 public:
  virtual ~Link() = default;

  /// "kernel" or "emulated": what every table says about where the figures come from.
  [[nodiscard]] virtual std::string_view shaped_by() const = 0;

  /// Applies to all ports, now; packets that wait in a queue are kept.
  virtual Result<void> shape(const Shaping& shaping) = 0;

  /// One entry per host, in the order of all_hosts, then that of the switch with --switch; none
  /// when hosts have no port of their own.
  [[nodiscard]] virtual Result<std::vector<PortCounters>> counters() = 0;

  /// The COMMANDs start now: laws of time count from here.
  virtual void begin() {}

  /// The process that delays frames, if there is one; without it nothing arrives.
  [[nodiscard]] virtual std::optional<pid_t> forwarder() const { return std::nullopt; }
  virtual std::optional<ForwarderReport> forwarded() { return std::nullopt; }

  [[nodiscard]] virtual std::string address(int host) const = 0;

  /// Environment of the COMMANDs of `host` that depends on the network.
  [[nodiscard]] virtual Variables environment(int host) const = 0;

  /// Folder, seen from here, in which the control socket of `host` is made.
  [[nodiscard]] virtual std::string folder(int host) const = 0;

  /// The same folder as a COMMAND sees it.
  [[nodiscard]] virtual std::string folder_inside(int host) const = 0;

  /// The namespaces of `host`, which enter_namespaces (mounts.h) takes; none where hosts have none.
  [[nodiscard]] virtual std::vector<int> namespaces(int host) const = 0;
};

/// Bridge, veth pairs and token buckets in the current (private) namespaces.
Result<std::unique_ptr<Link>> make_kernel_link(const Options& options);

/// A name in $TMPDIR that nothing has yet, for make_loopback_link.
std::string unused_folder();

/// Everybody on 127.0.0.1; the rate is announced, not enforced. Makes `folder`, which must not
/// exist, and removes it at its end.
Result<std::unique_ptr<Link>> make_loopback_link(const Options& options, const std::string& folder);

}  // namespace laconic::lab
