// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The process that takes the bridge's place where frames are to be delayed (--delay): it reads what
// hosts send from the switch's ports (AF_PACKET), holds it back and sends it out by the port of its
// destination, whose token bucket comes next. Needs no netem.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "delay.h"
#include "process.h"

namespace laconic::lab {

/// A device that the forwarder has for itself.
struct ForwardedPort {
  std::string device;
  int number = 0;       ///< last byte of the following hardware address
  bool delayed = true;  ///< what comes from there is held back
};

/// Hardware address of what has the IPv4 address 10.77.0.`number`: by it frames find their port.
std::string hardware_address(int number);

struct ForwarderReport {
  uint64_t frames = 0;   ///< sent on
  uint64_t lost = 0;     ///< by --loss
  uint64_t refused = 0;  ///< the queue of a port was full
  uint64_t overrun = 0;  ///< had no place to wait: the forwarder did not keep up
  double late_mean = 0;  ///< seconds after the time that the delay law gives
  double late_max = 0;
  double cpu_seconds = 0;
  bool realtime = false;  ///< it runs before all others on its core
};

class Forwarder {
 public:
  /// Takes all ports, in the current network namespace. `rate` is the highest that is planned,
  /// `queue` what waits at a port, `mtu` what a frame carries at most: they say how much memory is
  /// needed.
  static Result<std::unique_ptr<Forwarder>> start(const std::vector<ForwardedPort>& ports,
                                                  const DelayLaw& law, BitRate rate, uint64_t queue,
                                                  uint32_t mtu);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  /// From now on slots are counted.
  void begin();

  void set_loss(double share);

  ForwarderReport report();

 private:
  struct Shared;
  Forwarder() = default;

  pid_t pid_ = 0;
  Shared* shared_ = nullptr;
  std::vector<Fd> sockets_;  ///< also the child's; here for their counters
  uint64_t overrun_ = 0;
};

/// Whether the current namespace permits what the forwarder does with `device`.
bool forwarder_works(const std::string& device);

}  // namespace laconic::lab
