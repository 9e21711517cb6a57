// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "counters.h"
#include "segmentation.h"

namespace laconic::lab {
namespace {

/// Neighbour discovery of IPv6 would put unasked packets on the ports and into their counters.
void disable_ipv6() {
  for (const char* which : {"all", "default"})
    (void)write_file(std::string("/proc/sys/net/ipv6/conf/") + which + "/disable_ipv6", "1");
}

/// Part of the definition of the network: the machine's own choice may be one (bbr) whose rate on a
/// small shaped link varies by a third from run to run. Reno is in every kernel and open to every
/// namespace.
Result<void> set_congestion_control(const std::string& name) {
  if (name == "system") return {};
  const std::string folder = "/proc/sys/net/ipv4/";
  if (write_file(folder + "tcp_congestion_control", name)) return {};
  const Fd allowed(open((folder + "tcp_allowed_congestion_control").c_str(), O_RDONLY | O_CLOEXEC));
  std::string names = read_all(allowed.get());
  if (!names.empty() && names.back() == '\n') names.pop_back();
  return Error{Errc::unsupported,
               "the kernel does not let a namespace use the congestion control '" + name + "'",
               "allowed here: " + names + "; or --tcp system"};
}

std::string tbf(const Shaping& s) {
  return "tbf rate " + std::to_string(s.rate) + "bit burst " + std::to_string(s.burst) +
         "b limit " + std::to_string(s.queue) + "b";
}

/// The same lines for one device; '@' stands for its name.
std::string for_device(std::string lines, const std::string& device) {
  for (std::size_t at = lines.find('@'); at != std::string::npos; at = lines.find('@', at))
    lines.replace(at, 1, device);
  return lines;
}

/// The last bytes of addresses: ranks' hosts end at 200, those of --beside at 250.
constexpr int kBesideNumber = 201;
constexpr int kSwitchNumber = 254;
constexpr uint32_t kSwitchAddress = 0x0a4d0000 | kSwitchNumber;  // 10.77.0.254

constexpr const char* kBridge = "br0";
/// Between the bridge and the forwarder, seen from the latter.
constexpr const char* kUplink = "uplink";

int number_of(int host) {
  if (host == kSwitch) return kSwitchNumber;
  return is_beside(host) ? kBesideNumber + host - kBeside : host + 1;
}

std::string port(int host) {
  return is_beside(host) ? "beside" + std::to_string(host - kBeside)
                         : "port" + std::to_string(host);
}

/// The highest rate that `options` plan; kUnshaped if it is unshaped once.
BitRate highest_rate(const Options& options) {
  std::vector<BitRate> rates = options.rates;
  rates.push_back(options.shaping.rate);
  for (const RateChange& change : options.schedule) rates.push_back(change.rate);
  if (std::count(rates.begin(), rates.end(), kUnshaped) > 0) return kUnshaped;
  return *std::max_element(rates.begin(), rates.end());
}

uint64_t loss_threshold(double share) {
  constexpr double kRange = 4294967296.0;
  return static_cast<uint64_t>(std::llround(share * kRange));
}

}  // namespace

std::string host_address(int host) { return "10.77.0." + std::to_string(number_of(host)); }

std::string host_name(int host) {
  if (host == kSwitch) return "switch";
  return is_beside(host) ? "beside" + std::to_string(host - kBeside)
                         : "host" + std::to_string(host);
}

std::vector<int> all_hosts(const Options& options) {
  std::vector<int> all;
  for (int host = 0; host < options.hosts; ++host) all.push_back(host);
  for (int i = 0; i < options.beside; ++i) all.push_back(kBeside + i);
  return all;
}

std::string hosts_file(int hosts, int beside, bool with_switch) {
  std::vector<int> all;
  if (with_switch) all.push_back(kSwitch);
  for (int host = 0; host < hosts; ++host) all.push_back(host);
  for (int i = 0; i < beside; ++i) all.push_back(kBeside + i);
  std::string text = "127.0.0.1 localhost\n";
  for (const char* form :
       {"", "::ffff:"})  // the second is how a dual-stack socket (c10d's) sees its peer
    for (const int host : all) text += form + host_address(host) + " " + host_name(host) + "\n";
  return text;
}

std::string loss_bytecode(double share) {
  const uint64_t threshold = loss_threshold(share);
  // ld #random; jgt #threshold: pass (-1, "no verdict") : drop (2, TC_ACT_SHOT)
  return "4,32 0 0 4294963256,37 0 1 " + std::to_string(threshold) + ",6 0 0 4294967295,6 0 0 2";
}

std::string loss_bytecode_from(uint32_t source, double share) {
  // ld [26], the source address after Ethernet's 14 bytes; jeq #source: continue, else pass; then
  // as above
  return "6,32 0 0 26,21 0 2 " + std::to_string(source) + ",32 0 0 4294963256,37 0 1 " +
         std::to_string(loss_threshold(share)) + ",6 0 0 4294967295,6 0 0 2";
}

std::string arrivals_filter(const std::string& device) {
  // ret: matches every packet. Loss comes before, at preference 1.
  return for_device(
      "qdisc replace dev @ clsact\nfilter add dev @ ingress pref 2 protocol all bpf bytecode "
      "\"1,6 0 0 4294967295\" action mirred egress redirect dev " +
          std::string(kArrivals) + "\n",
      device);
}

Result<std::unique_ptr<Link>> Network::make(const Options& options) {
  const bool with_switch = !options.at_switch.empty();
  const bool delayed = options.shaping.delay.count() > 0;
  if (const auto mounts =
          make_private_mounts(hosts_file(options.hosts, options.beside, with_switch));
      !mounts)
    return mounts.error();
  auto network = std::make_unique<Network>();
  auto own = current_namespaces();
  if (!own) return std::move(own).error();
  network->own_ = std::move(*own);
  disable_ipv6();
  for (const int host : all_hosts(options))
    if (const auto added = network->add_host(host, options.tcp); !added) return added.error();
  if (with_switch)
    if (const Result<void> added = network->add_switch(options.tcp); !added) return added.error();
  if (const auto added = network->add_interfaces(delayed, options.mtu); !added)
    return added.error();
  if (delayed)
    if (const auto started = network->start_forwarder(options); !started) return started.error();
  return std::unique_ptr<Link>(std::move(network));
}

Result<void> Network::add_host(int host, const std::string& tcp) {
  if (const auto made = unshare_namespaces(true); !made) return made;
  disable_ipv6();
  if (const auto set = set_congestion_control(tcp); !set) return set;
  if (const auto mounted = make_host_mounts(host_name(host)); !mounted) return mounted;
  auto made = current_namespaces();
  if (!made) return std::move(made).error();
  hosts_.push_back({host, std::move(*made)});
  return enter_namespaces(own_.all());
}

/// Its COMMAND sees the bridge's network, but a name, shared memory and interfaces as hosts have.
Result<void> Network::add_switch(const std::string& tcp) {
  if (const auto set = set_congestion_control(tcp); !set) return set;
  if (const auto made = unshare_namespaces(false); !made) return made;
  if (const auto mounted = make_host_mounts(host_name(kSwitch)); !mounted) return mounted;
  auto made = current_namespaces();
  if (!made) return std::move(made).error();
  switch_ = std::move(*made);
  return enter_namespaces(own_.all());
}

/// With a forwarder the ports are its own and the bridge, where the switch's COMMAND has its
/// address, is one more that it serves.
Result<void> Network::add_interfaces(bool forwarded, uint32_t mtu) {
  const std::string frames = " mtu " + std::to_string(mtu);
  // The bridge comes first: a port whose number equals its peer's would wait a second for its
  // carrier (linkwatch takes it for a device that is not a pair, and collects its events).
  std::string bridge =
      "link add name br0 address " + hardware_address(kSwitchNumber) +
      " type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n";
  if (switch_) bridge += "link set lo up\naddr add " + host_address(kSwitch) + "/24 dev br0\n";
  if (switch_ && forwarded)
    bridge += "link add name " + std::string(kUplink) + frames + " type veth peer name wire" +
              frames + "\nlink set " + kUplink + " arp off up\nlink set wire master br0 up\n";
  if (const auto made = run_tool({"ip", "-batch", "-"}, bridge); !made) return made.error();
  std::string ports;
  for (const auto& [host, namespaces] : hosts_) {
    // Process 1 of the sandbox is we: the other end of the pair arrives in the switch.
    const std::string lines = "link set lo up\nlink add name eth0 address " +
                              hardware_address(number_of(host)) + frames + " type veth peer name " +
                              port(host) + frames + " netns 1\naddr add " + host_address(host) +
                              "/24 dev eth0\nlink set eth0 up\n";
    const auto made = run_tool({"ip", "-batch", "-"}, lines, namespaces.network.get());
    if (!made) return made.error();
    // Our own kernel receives what comes in by a port that is not the bridge's: it shall not
    // answer.
    ports += "link set " + port(host) + (forwarded ? " arp off up\n" : " master br0 up\n");
  }
  if (const auto made = run_tool({"ip", "-batch", "-"}, ports); !made) return made.error();
  shapes_arrivals_ = switch_ && !forwarded && add_arrivals();
  return {};
}

/// XDP at a port of the switch sends past the port's queue, so each host gets a queue for what it
/// receives. False if the kernel lacks ifb: then ports shape.
bool Network::add_arrivals() {
  const std::string device = kArrivals;
  for (const auto& [host, namespaces] : hosts_) {
    const int network = namespaces.network.get();
    const std::string links = "link add name " + device + " type ifb\nlink set " + device +
                              " txqueuelen 10000 arp off up\n";
    if (!run_tool({"ip", "-batch", "-"}, links, network) ||
        !run_tool({"tc", "-batch", "-"}, arrivals_filter("eth0"), network))
      return false;
  }
  return true;
}

/// Runs tc lines on eth0 of every host and, if `both_ways`, on the queue towards it: kArrivals or
/// the port of the switch.
Result<void> Network::tc(const std::string& lines, bool both_ways) {
  const std::vector<std::string> command{"tc", "-batch", "-"};
  std::string ports;
  for (const auto& [host, namespaces] : hosts_) {
    std::string own = for_device(lines, "eth0");
    if (both_ways && shapes_arrivals_) own += for_device(lines, kArrivals);
    const auto done = run_tool(command, own, namespaces.network.get());
    if (!done) return done.error();
    ports += for_device(lines, port(host));
  }
  if (!both_ways || shapes_arrivals_) return {};
  const auto done = run_tool(command, ports);
  return done ? Result<void>() : done.error();
}

Result<void> Network::start_forwarder(const Options& options) {
  std::vector<ForwardedPort> ports;
  for (const Host& host : hosts_)
    ports.push_back({port(host.number), number_of(host.number), true});
  if (switch_) ports.push_back({kUplink, kSwitchNumber, false});
  const Shaping& s = options.shaping;
  auto started = Forwarder::start(ports, {s.delay, s.jitter, s.seed}, highest_rate(options),
                                  s.queue, options.mtu);
  if (!started) return std::move(started).error();
  forwarder_ = std::move(*started);
  return {};
}

void Network::begin() {
  if (forwarder_) forwarder_->begin();
}

std::optional<pid_t> Network::forwarder() const {
  return forwarder_ ? std::optional(forwarder_->pid()) : std::nullopt;
}

std::optional<ForwarderReport> Network::forwarded() {
  return forwarder_ ? std::optional(forwarder_->report()) : std::nullopt;
}

Result<void> Network::shape(const Shaping& wanted) {
  const Shaping before = now_.value_or(Shaping{});
  const bool exact = wanted.rate != kUnshaped || wanted.loss > 0 || forwarder_;
  const int home = own_.network.get();
  for (const auto& [host, namespaces] : hosts_) {
    const auto end = set_segmentation_offload(namespaces.network.get(), home, "eth0", !exact);
    if (!end) return end;
    if (!switch_) continue;  // nothing else leaves by a port unsegmented
    if (const auto set = set_segmentation_offload(home, home, port(host), !exact); !set) return set;
  }
  if (switch_)  // its own counter
    if (const auto set = set_segmentation_offload(home, home, kBridge, !exact); !set) return set;
  if (wanted.rate != kUnshaped) {
    if (const auto set = set_rate(wanted); !set) return set;
  } else if (before.rate != kUnshaped) {
    if (const auto set = unshape(before); !set) return set;
  }
  if (forwarder_)
    forwarder_->set_loss(wanted.loss);
  else if (wanted.loss != before.loss)
    if (const auto set = set_loss(wanted.loss); !set) return set;
  now_ = wanted;
  return {};
}

Result<void> Network::set_rate(const Shaping& wanted) {
  return tc("qdisc replace dev @ root handle 1: " + tbf(wanted) + "\n", true);
}

/// Opens the buckets wide and lets the queues run out before it removes them: removing a queue
/// drops its packets, and the senders would then wait for a retransmission timeout.
Result<void> Network::unshape(const Shaping& before) {
  Shaping wide = before;
  wide.rate = 100'000'000'000;
  wide.burst = 16 * 1024 * 1024;
  if (const auto done = tc("qdisc change dev @ root handle 1: " + tbf(wide) + "\n", true); !done)
    return done;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return tc("qdisc del dev @ root\n", true);
}

Result<void> Network::set_loss(double share) {
  std::string lines;
  for (const auto& [host, namespaces] : hosts_) {
    const std::string device = " dev " + port(host);
    if (now_ && now_->loss > 0) lines += "qdisc del" + device + " clsact\n";
    if (share <= 0) continue;
    lines += "qdisc add" + device + " clsact\nfilter add" + device +
             " ingress protocol all bpf da bytecode \"" + loss_bytecode(share) + "\"\n";
  }
  const auto done = run_tool({"tc", "-batch", "-"}, lines);
  if (!done) return done.error();
  return switch_ ? set_loss_from_switch(share) : Result<void>();
}

/// Packets that the switch itself sends enter no port: they are lost where they enter the host.
Result<void> Network::set_loss_from_switch(double share) {
  std::string lines;
  if (now_ && now_->loss > 0) lines += "filter del dev @ ingress pref 1\n";
  if (share > 0)
    lines +=
        "qdisc replace dev @ clsact\n"  // keeps the filter of kArrivals
        "filter add dev @ ingress pref 1 protocol ip bpf da bytecode \"" +
        loss_bytecode_from(kSwitchAddress, share) + "\"\n";
  return tc(lines, false);
}

Result<std::vector<PortCounters>> Network::counters() {
  auto devices = read_net_dev();
  if (!devices) return std::move(devices).error();
  std::vector<PortCounters> all;
  for (const Host& host : hosts_) {
    const PortCounters& p = (*devices)[port(host.number)];
    // Seen from the switch: what its port receives is what the host has sent.
    all.push_back({p.rx_bytes, p.tx_bytes, p.rx_packets, p.tx_packets});
  }
  if (switch_) {
    PortCounters own = (*devices)[kBridge];
    own.rx_bytes += own.rx_packets * 14;  // counted without their Ethernet header
    all.push_back(own);
  }
  return all;
}

Variables Network::environment(int host) const {
  const std::string device = host == kSwitch ? kBridge : "eth0";
  return {
      {"GLOO_SOCKET_IFNAME", device}, {"NCCL_SOCKET_IFNAME", device}, {"TP_SOCKET_IFNAME", device}};
}

std::string Network::folder(int host) const { return shm_folder(host_name(host)); }

std::vector<int> Network::namespaces(int host) const {
  if (host == kSwitch) return switch_ ? switch_->all() : std::vector<int>{};
  for (const Host& one : hosts_)
    if (one.number == host) return one.namespaces.all();
  return {};
}

Result<std::unique_ptr<Link>> make_kernel_link(const Options& options) {
  return Network::make(options);
}

}  // namespace laconic::lab
