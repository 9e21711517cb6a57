// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "segmentation.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

#include "process.h"

namespace laconic::lab {
namespace {

Result<void> set_in_current_namespace(const std::string& device, bool on) {
  const Fd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd) return system_error("opening a socket for interface settings");
  ethtool_value value{ETHTOOL_STSO, on ? 1U : 0U};
  ifreq request{};
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (ioctl(socket_fd.get(), SIOCETHTOOL, &request) != 0)
    return system_error("switching segmentation offload of " + device);
  return {};
}

}  // namespace

Result<void> set_segmentation_offload(int host, int home, const std::string& device, bool on) {
  if (setns(host, CLONE_NEWNET) != 0) return system_error("joining a host's network namespace");
  Result<void> set = set_in_current_namespace(device, on);
  if (setns(home, CLONE_NEWNET) != 0) return system_error("leaving a host's network namespace");
  return set;
}

}  // namespace laconic::lab
