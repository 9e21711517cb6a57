// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "features.h"

#include <unistd.h>

#include <iostream>

#include "base/json_text.h"
#include "mounts.h"
#include "network.h"
#include "process.h"

namespace laconic::lab {
namespace {

/// The flags in the order of the struct, as letters: what a probing child sends to its parent.
std::string encode(const Features& f) {
  std::string text;
  for (const bool flag : {f.permitted, f.mounts, f.veth, f.tbf, f.loss, f.delay, f.arrivals})
    text += flag ? '1' : '0';
  return text;
}

Features decode(const std::string& t) {
  if (t.size() != 7) return {};
  return {t[0] == '1', t[1] == '1', t[2] == '1', t[3] == '1',
          t[4] == '1', t[5] == '1', t[6] == '1'};
}

Features probe_inside() {
  const auto works = [](const std::string& program, const std::string& lines) {
    return run_tool({program, "-batch", "-"}, lines).ok();
  };
  Features f;
  f.permitted = true;
  f.mounts = make_private_mounts(hosts_file(1, 0, false)).ok();
  f.veth = works("ip",
                 "link add name br0 type bridge\nlink add name lab0 type veth peer name lab1\n"
                 "link set lab0 master br0 up\n");
  f.tbf = works("tc", "qdisc add dev lab0 root handle 1: tbf rate 8mbit burst 64kb limit 1mb\n");
  f.loss = works(
      "tc",
      "qdisc add dev lab0 clsact\nfilter add dev lab0 ingress protocol all bpf da bytecode \"" +
          loss_bytecode(0.01) + "\"\n");
  f.delay = forwarder_works("lab1");
  f.arrivals = works("ip", "link add name " + std::string(kArrivals) + " type ifb\n") &&
               works("tc", arrivals_filter("lab1"));
  return f;
}

void put(JsonText& json, const Features& f) {
  json.open('{').field("namespaces", f.permitted).field("mounts", f.mounts);
  json.field("bridge_and_veth", f.veth).field("tbf", f.tbf).key("loss");
  json.value(f.loss ? std::optional("cls_bpf") : std::nullopt).key("delay");
  json.value(f.delay ? std::optional("AF_PACKET") : std::nullopt).key("xdp_at_switch");
  json.value(f.arrivals ? std::optional("ifb") : std::nullopt);
  json.field("usable", f.usable()).close('}');
}

std::string line(const std::string& name, const std::string& root, const std::string& user) {
  const auto cell = [](std::string text, std::size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
  };
  return cell(name, 34) + cell(root, 10) + user + "\n";
}

std::string check_table(const Features& root, const Features& user) {
  const auto row = [&](const char* name, bool Features::*flag) {
    return line(name, root.*flag ? "yes" : "no", user.*flag ? "yes" : "no");
  };
  return line("", "as root", "as a user") + row("namespaces", &Features::permitted) +
         row("private /dev/shm and /etc/hosts", &Features::mounts) +
         row("bridge, veth", &Features::veth) + row("--rate (tbf)", &Features::tbf) +
         row("--loss (cls_bpf)", &Features::loss) + row("--delay (AF_PACKET)", &Features::delay) +
         row("--rate for XDP at --switch (ifb)", &Features::arrivals);
}

Error lacks(const std::string& what, const std::string& hint) {
  return Error{Errc::unsupported, what,
               hint + "; laconic lab --check shows what this machine can do"};
}

}  // namespace

Features probe(Isolation isolation) {
  auto pipe = make_pipe();
  if (!pipe) return {};
  const int answer = pipe->write.get();
  const auto status = run_sandboxed(isolation, [answer](int) {
    write_all(answer, encode(probe_inside()));
    return 0;
  });
  pipe->write.reset();
  return status && *status == 0 ? decode(read_all(pipe->read.get())) : Features{};
}

std::optional<Error> missing_for(const Options& o, const Features& f) {
  if (!f.mounts || !f.veth)
    return lacks("the kernel does not let us make mounts, bridges and veth pairs in a namespace",
                 "run as root, load the modules bridge and veth, or use --emulate");
  const bool shaped = o.shaping.rate != kUnshaped || !o.schedule.empty() || !o.rates.empty();
  if (shaped && !f.tbf)
    return lacks("this kernel has no token bucket filter, which --rate needs",
                 "load the module sch_tbf, or use --emulate");
  if (o.shaping.loss > 0 && o.shaping.delay.count() == 0 && !f.loss)
    return lacks("this kernel cannot drop packets at random, which --loss needs",
                 "load the modules sch_ingress and cls_bpf");
  if (o.shaping.delay.count() > 0 && !f.delay)
    return lacks("this kernel does not let us read frames from a port, which --delay needs",
                 "load the module af_packet, or leave out --delay");
  return std::nullopt;
}

int print_check(bool json) {
  const bool tools = !find_program("ip").empty() && !find_program("tc").empty();
  const bool is_root = geteuid() == 0;
  const Features root = is_root ? probe(Isolation::root) : Features{};
  const Features user = probe(Isolation::user);
  const bool usable = tools && (root.usable() || user.usable());
  if (json) {
    JsonText text(kJsonIndented);
    text.open('{').field("usable", usable).field("iproute2", tools).key("root");
    if (is_root)
      put(text, root);
    else
      text.null();
    put(text.key("user_namespace"), user);
    std::cout << text.close('}').take() << "\n";
  } else {
    std::cout << (is_root ? "" : "not root: the first column is not tried\n")
              << check_table(root, user)
              << line("programs ip and tc", tools ? "yes" : "missing: apt install iproute2", "")
              << (usable ? "a lab can run here\n" : "no lab here: use --emulate\n");
  }
  return usable ? 0 : 1;
}

}  // namespace laconic::lab
