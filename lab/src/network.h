// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The shaped network: a bridge ("switch") with one port per host, each host in a network namespace
// of its own. To be made inside a sandbox, whose end removes all of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "link.h"
#include "process.h"

namespace laconic::lab {

std::string host_address(int rank);
std::string host_name(int rank);

/// Names for all addresses, so that reverse look-ups succeed.
std::string hosts_file(int hosts);

/// The tc filter that drops `share` of the packets at random, as classic BPF: a random number
/// against a threshold. Works in every kernel with cls_bpf, needs neither netem nor a capability
/// beyond the namespace.
std::string loss_bytecode(double share);

class Network final : public Link {
 public:
  static Result<std::unique_ptr<Link>> make(const Options& options);

  std::string_view shaped_by() const override { return "kernel"; }
  Result<void> shape(const Shaping& shaping) override;
  Result<std::vector<PortCounters>> counters() override;
  std::string address(int rank) const override { return host_address(rank); }
  Variables environment(int rank) const override;
  std::string folder(int rank) const override;
  std::string folder_inside(int) const override { return "/dev/shm"; }
  Result<void> enter(int rank) override;

 private:
  Result<void> add_namespace(const std::string& tcp);
  Result<void> add_interfaces();
  Result<void> tc(const std::string& host_batch, bool with_ports);
  Result<void> set_rate(const Shaping& shaping);
  Result<void> unshape(const Shaping& shaping);
  Result<void> set_loss(double share);
  [[nodiscard]] int hosts() const { return static_cast<int>(namespaces_.size()); }

  Fd switch_;                   ///< our own network namespace
  std::vector<Fd> namespaces_;  ///< one per host
  std::optional<Shaping> now_;
};

}  // namespace laconic::lab
