// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The features of this machine: `laconic lab --check`.
#pragma once

#include <optional>
#include <string>

#include "report.h"
#include "sandbox.h"

namespace laconic::lab {

/// The features found to work inside a sandbox of one kind.
struct Features {
  bool permitted = false;  ///< the namespaces themselves
  bool mounts = false;     ///< a private /dev/shm and /etc/hosts
  bool veth = false;       ///< bridge and pairs of interfaces
  bool tbf = false;        ///< token buckets: --rate
  bool loss = false;       ///< dropping at random by cls_bpf: --loss
  bool delay = false;      ///< reading frames from a port by AF_PACKET: --delay
  bool arrivals = false;   ///< queues at the hosts by ifb: --rate for XDP at --switch

  [[nodiscard]] bool usable() const { return permitted && mounts && veth && tbf; }
};

Features probe(Isolation isolation);

/// Everything `features` lacks for `options`, as one error; nothing if all is there.
std::optional<Error> missing_for(const Options& options, const Features& features);

/// Prints the findings for both kinds of isolation; the exit status says whether a lab can run
/// here.
int print_check(bool json);

}  // namespace laconic::lab
