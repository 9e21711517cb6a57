// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The shaped network: a bridge ("switch") with one port per host, each host in its own network
// namespace. To be made inside a sandbox, whose end removes all of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "link.h"
#include "mounts.h"
#include "process.h"

namespace laconic::lab {

std::string host_address(int host);
std::string host_name(int host);

/// Names for all addresses, so that reverse look-ups succeed.
std::string hosts_file(int hosts, int beside, bool with_switch);

/// The tc filter that drops `share` of the packets at random, as classic BPF: a random number
/// against a threshold. Works in every kernel with cls_bpf, needs neither netem nor a capability
/// beyond the namespace.
std::string loss_bytecode(double share);
/// The same for IPv4 packets from `source` alone.
std::string loss_bytecode_from(uint32_t source, double share);

/// The tc lines that lead all packets which enter by `device` through the queue of kArrivals.
std::string arrivals_filter(const std::string& device);
/// A host's device of the kernel's ifb, whose queue shapes what the host receives.
constexpr const char* kArrivals = "arrivals";

class Network final : public Link {
 public:
  static Result<std::unique_ptr<Link>> make(const Options& options);

  std::string_view shaped_by() const override { return "kernel"; }
  Result<void> shape(const Shaping& shaping) override;
  Result<std::vector<PortCounters>> counters() override;
  void begin() override;
  std::optional<pid_t> forwarder() const override;
  std::optional<ForwarderReport> forwarded() override;
  std::string address(int host) const override { return host_address(host); }
  Variables environment(int host) const override;
  std::string folder(int host) const override;
  std::string folder_inside(int) const override { return "/dev/shm"; }
  std::vector<int> namespaces(int host) const override;

 private:
  Result<void> add_host(int number, const std::string& tcp);
  Result<void> add_switch(const std::string& tcp);
  Result<void> add_interfaces(bool forwarded, uint32_t mtu);
  bool add_arrivals();
  Result<void> start_forwarder(const Options& options);
  Result<void> tc(const std::string& lines, bool both_ways);
  Result<void> set_rate(const Shaping& shaping);
  Result<void> unshape(const Shaping& before);
  Result<void> set_loss(double share);
  Result<void> set_loss_from_switch(double share);

  struct Host {
    int number = 0;
    Namespaces namespaces;
  };
  Namespaces own_;                    ///< the switch's network, and what is around the hosts
  std::optional<Namespaces> switch_;  ///< the same network, seen by the COMMAND of --switch
  std::vector<Host> hosts_;
  std::unique_ptr<Forwarder> forwarder_;  ///< with a delay: joins the ports instead of the bridge
  std::optional<Shaping> now_;
  bool shapes_arrivals_ = false;  ///< by kArrivals of each host, in place of the switch's ports
};

}  // namespace laconic::lab
