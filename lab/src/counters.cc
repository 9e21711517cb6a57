// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "counters.h"

#include <fcntl.h>

#include <sstream>

#include "process.h"

namespace laconic::lab {

std::map<std::string, PortCounters> parse_net_dev(std::string_view text) {
  std::map<std::string, PortCounters> found;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;  // the two lines of headings
    std::string name = line.substr(0, colon);
    name.erase(0, name.find_first_not_of(' '));
    // Received: bytes packets errs drop fifo frame compressed multicast; then the same for sent.
    uint64_t skip = 0;
    PortCounters c;
    std::istringstream fields(line.substr(colon + 1));
    fields >> c.rx_bytes >> c.rx_packets >> skip >> skip >> skip >> skip >> skip >> skip >>
        c.tx_bytes >> c.tx_packets;
    if (fields) found[name] = c;
  }
  return found;
}

Result<std::map<std::string, PortCounters>> read_net_dev() {
  const Fd file(open("/proc/net/dev", O_RDONLY | O_CLOEXEC));
  if (!file) return system_error("opening /proc/net/dev");
  return parse_net_dev(read_all(file.get()));
}

bool has_socket_in(std::string_view text, std::string_view state) {
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);  // headings
  while (std::getline(lines, line)) {
    std::string number, local, remote, found;
    std::istringstream(line) >> number >> local >> remote >> found;
    if (found == state) return true;
  }
  return false;
}

bool has_open_port() {
  const std::string folder = "/proc/net/";
  for (const auto& [name, state] :
       {std::pair{"udp", "07"}, {"udp6", "07"}, {"tcp", "0A"}, {"tcp6", "0A"}}) {
    const Fd file(open((folder + name).c_str(), O_RDONLY | O_CLOEXEC));
    if (file && has_socket_in(read_all(file.get()), state)) return true;
  }
  return false;
}

}  // namespace laconic::lab
