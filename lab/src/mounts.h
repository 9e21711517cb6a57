// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A host's view of the file system: the machine's own, except for a few names that must be the
// host's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "laconic/error.h"
#include "process.h"

namespace laconic::lab {

/// The folder that becomes /dev/shm of the host `name`; exists only inside the lab.
std::string shm_folder(const std::string& name);

/// Once, in the lab's mount namespace: nothing propagates out, /proc shows the lab's processes,
/// /dev/shm is an own tmpfs, /etc/hosts is `hosts_file`.
Result<void> make_private_mounts(const std::string& hosts_file);

/// In the namespaces of the host `name`: its name, its own /dev/shm, and below /sys/class/net its
/// interfaces where the kernel permits that.
Result<void> make_host_mounts(const std::string& name);

/// The namespaces of a host's processes.
struct Namespaces {
  Fd network, name, ipc, mounts;
  [[nodiscard]] std::vector<int> all() const {
    return {network.get(), name.get(), ipc.get(), mounts.get()};
  }
};

/// The namespaces of the calling process.
Result<Namespaces> current_namespaces();

/// Moves the calling process into new ones, except for the network's if not `with_network`.
Result<void> unshare_namespaces(bool with_network);

/// Moves the calling process, which has one thread, into given ones. The working folder stays.
Result<void> enter_namespaces(std::span<const int> namespaces);

}  // namespace laconic::lab
