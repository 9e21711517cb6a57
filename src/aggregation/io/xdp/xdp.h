// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The program in the kernel (aggregate.bpf.c): loaded, attached to the ports of a switch, and gone
// with the process, because the kernel holds it for open files of the process alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aggregation/server/kernel_path.h"
#include "laconic/error.h"

namespace laconic::aggregation {

struct XdpSettings {
  Address address;      ///< of the server: IPv4
  uint64_t memory = 0;  ///< of slots, taken at once
  std::vector<std::string> interfaces;
};

class Xdp : public KernelPath {
 public:
  static Result<std::unique_ptr<Xdp>> open(const XdpSettings& settings);
  /// Whether open() could work here; the error says why not.
  static Result<void> check();
  /// The program's file descriptor.
  [[nodiscard]] virtual int program() const noexcept = 0;
  /// Makes a port one that results can go to.
  virtual Result<void> add_port(uint32_t ifindex) = 0;
};

}  // namespace laconic::aggregation
