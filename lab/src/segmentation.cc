// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "segmentation.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "process.h"

namespace laconic::lab {
namespace {

/// One request about `device`, in 32-bit words of which the first is the command.
template <std::size_t N>
bool ask_device(int socket_fd, const std::string& device, std::array<uint32_t, N>& words) {
  ifreq request{};
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(words.data());
  return ioctl(socket_fd, SIOCETHTOOL, &request) >= 0;
}

constexpr uint32_t kMostFeatures = 512;
constexpr uint32_t kNameWords = ETH_GSTRING_LEN / 4;

uint32_t count_features(int socket_fd, const std::string& device) {
  // ethtool_sset_info: command, reserved, mask of 64 bits; then a count for each bit.
  alignas(8) std::array<uint32_t, 5> words{ETHTOOL_GSSET_INFO};
  const uint64_t mask = uint64_t{1} << ETH_SS_FEATURES;
  std::memcpy(&words[2], &mask, sizeof mask);
  return ask_device(socket_fd, device, words) ? std::min(words[4], kMostFeatures) : 0;
}

/// UDP's segmentation has no ethtool command: features are found by name.
bool set_udp_segmentation(int socket_fd, const std::string& device, bool on) {
  const uint32_t count = count_features(socket_fd, device);
  // ethtool_gstrings: command, set, count, names
  std::array<uint32_t, 3 + kMostFeatures * kNameWords> names{ETHTOOL_GSTRINGS, ETH_SS_FEATURES,
                                                             count};
  if (!ask_device(socket_fd, device, names)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* name = reinterpret_cast<const char*>(&names[3 + i * kNameWords]);
    if (std::string_view(name, strnlen(name, ETH_GSTRING_LEN)) != "tx-udp-segmentation") continue;
    // ethtool_sfeatures: command, number of blocks, and per 32 features which are set, to what
    std::array<uint32_t, 2 + kMostFeatures / 32 * 2> wanted{ETHTOOL_SFEATURES, (count + 31) / 32};
    const uint32_t block = 2 + i / 32 * 2, bit = uint32_t{1} << i % 32;
    wanted[block] = bit;
    wanted[block + 1] = on ? bit : 0;
    return ask_device(socket_fd, device, wanted);
  }
  return true;  // a kernel before 4.18: no socket sends such segments
}

Result<void> set_in_current_namespace(const std::string& device, bool on) {
  const Fd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd) return system_error("opening a socket for interface settings");
  std::array<uint32_t, 2> tcp{ETHTOOL_STSO, on ? 1U : 0U};  // ethtool_value
  // Opposite a program of XDP (`laconic serve --io xdp`) a veth has none to switch.
  const bool done = ask_device(socket_fd.get(), device, tcp) || errno == EOPNOTSUPP;
  if (!done || !set_udp_segmentation(socket_fd.get(), device, on))
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
