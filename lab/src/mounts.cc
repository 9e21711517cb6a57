// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "mounts.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace laconic::lab {
namespace {

constexpr const char* kShm = "/dev/shm";

Result<void> bind(const std::string& from, const std::string& to) {
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0)
    return system_error("mounting " + from + " on " + to);
  return {};
}

Result<void> make_folder(const std::string& path, mode_t mode) {
  if (mkdir(path.c_str(), mode) != 0 || chmod(path.c_str(), mode) != 0)
    return system_error("making the folder " + path);
  return {};
}

/// Only the two folders that list interfaces: a whole new /sys would hide the cgroups mounted in
/// it. Containers may forbid it; the byte counters are then in /proc/net/dev alone.
void show_own_interfaces(const std::string& stage) {
  if (mkdir(stage.c_str(), 0755) != 0 || mount("sysfs", stage.c_str(), "sysfs", 0, nullptr) != 0)
    return;
  (void)bind(stage + "/devices/virtual/net", "/sys/devices/virtual/net");
  (void)bind(stage + "/class/net", "/sys/class/net");
  umount2(stage.c_str(), MNT_DETACH);
}

}  // namespace

std::string shm_folder(const std::string& name) { return std::string(kShm) + "/" + name; }

Result<void> make_private_mounts(const std::string& hosts_file) {
  if (mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return system_error("making the mounts private");
  // A container may mask parts of /proc and then forbids a new one: commands see outer process
  // numbers, no harm.
  (void)mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  // An own /dev/shm keeps hosts from sharing memory, and takes what a killed COMMAND leaves there
  // with it.
  if (mount("tmpfs", kShm, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") != 0)
    return system_error("mounting a private /dev/shm");
  const std::string file = std::string(kShm) + "/hosts";
  if (const Result<void> written = write_file(file, hosts_file); !written) return written;
  return bind(file, "/etc/hosts");
}

Result<void> make_host_mounts(const std::string& name) {
  if (sethostname(name.c_str(), name.size()) != 0) return system_error("naming a host");
  show_own_interfaces(std::string(kShm) + "/sys-" + name);
  if (const Result<void> made = make_folder(shm_folder(name), 01777); !made) return made;
  return bind(shm_folder(name), kShm);
}

Result<Namespaces> current_namespaces() {
  const auto open_one = [](const char* kind) {
    return Fd(open((std::string("/proc/self/ns/") + kind).c_str(), O_RDONLY | O_CLOEXEC));
  };
  Namespaces now{open_one("net"), open_one("uts"), open_one("ipc"), open_one("mnt")};
  if (!now.network || !now.name || !now.ipc || !now.mounts)
    return system_error("opening our namespaces");
  return now;
}

Result<void> unshare_namespaces(bool with_network) {
  const int network = with_network ? CLONE_NEWNET : 0;
  if (unshare(network | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNS) != 0)
    return system_error("making a host's namespaces");
  return {};
}

Result<void> enter_namespaces(std::span<const int> namespaces) {
  // Entering a mount namespace sets the working folder to its root.
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::current_path(unknown);
  for (const int one : namespaces)
    if (setns(one, 0) != 0) return system_error("entering a host's namespaces");
  if (!unknown) std::filesystem::current_path(folder, unknown);  // gone: at the root, then
  return {};
}

}  // namespace laconic::lab
