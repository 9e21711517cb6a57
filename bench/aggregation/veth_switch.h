// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A bridge with a host at each port, in network namespaces of this process: needs root.
#pragma once

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace laconic::bench {

/// A network namespace for the calling thread while it is inside and for threads that it starts.
class NetworkNamespace {
 public:
  NetworkNamespace() : home_(current()) {
    if (unshare(CLONE_NEWNET) == 0) fd_ = current();
    leave();
  }
  ~NetworkNamespace() {
    if (fd_ >= 0) ::close(fd_);
    if (home_ >= 0) ::close(home_);
  }
  NetworkNamespace(const NetworkNamespace&) = delete;
  NetworkNamespace& operator=(const NetworkNamespace&) = delete;

  [[nodiscard]] bool ok() const { return home_ >= 0 && fd_ >= 0; }
  [[nodiscard]] std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }
  /// Returns the result of `work`, from inside.
  template <class Work>
  auto inside(Work&& work) const {
    (void)setns(fd_, CLONE_NEWNET);
    auto result = work();
    leave();
    return result;
  }

 private:
  static int current() { return ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); }
  void leave() const { (void)setns(home_, CLONE_NEWNET); }
  int home_ = -1, fd_ = -1;
};

class VethSwitch {
 public:
  static constexpr const char* kAddress = "10.99.0.254";

  explicit VethSwitch(unsigned hosts) {
    ok_ = here_.ok() && here_.inside([] {
      return ip("link add name br0 type bridge stp_state 0 forward_delay 0") &&
             ip(std::string("addr add ") + kAddress + "/24 dev br0") && ip("link set br0 up");
    });
    for (unsigned h = 0; h < hosts && ok_; ++h) {
      ports_.push_back("port" + std::to_string(h));
      hosts_.push_back(std::make_unique<NetworkNamespace>());
      const NetworkNamespace& host = *hosts_.back();
      ok_ = host.ok() && here_.inside([&] {
        return ip("link add name " + ports_.back() + " type veth peer name eth0 netns " +
                  host.path()) &&
               ip("link set " + ports_.back() + " master br0 up");
      });
      ok_ = ok_ && host.inside([&] {
        return ip("addr add 10.99.0." + std::to_string(h + 1) + "/24 dev eth0") &&
               ip("link set eth0 up") && take_redirected();
      });
    }
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] const NetworkNamespace& here() const { return here_; }
  [[nodiscard]] const NetworkNamespace& host(unsigned which) const { return *hosts_[which]; }
  [[nodiscard]] const std::vector<std::string>& ports() const { return ports_; }

 private:
  static bool ip(const std::string& words) {
    return std::system(("ip " + words + " >&2").c_str()) == 0;  // stdout is the answer's
  }
  /// Generic receive offload on a veth: without it, it accepts nothing that is redirected to it.
  static bool take_redirected() {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ethtool_value on{ETHTOOL_SGRO, 1};
    ifreq request{};
    std::strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&on);
    const bool done = ioctl(fd, SIOCETHTOOL, &request) == 0;
    ::close(fd);
    return done;
  }

  NetworkNamespace here_;
  std::vector<std::unique_ptr<NetworkNamespace>> hosts_;
  std::vector<std::string> ports_;
  bool ok_ = false;
};

}  // namespace laconic::bench
