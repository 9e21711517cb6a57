// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What a host sees of the file system: the machine's own, except for a few names that must be the
// host's.
#pragma once

#include <string>

#include "laconic/error.h"

namespace laconic::lab {

/// The folder that becomes /dev/shm of a host; exists only inside the lab.
std::string shm_folder(int rank);

/// Once, in the lab's mount namespace: nothing propagates out, /proc shows the lab's processes,
/// /dev/shm is an own tmpfs with one folder per host, /etc/hosts is `hosts_file`.
Result<void> make_private_mounts(int hosts, const std::string& hosts_file);

/// In a process of host `rank`, in its network namespace: own mount and host names, own /dev/shm,
/// and below /sys/class/net the host's interfaces where the kernel permits that.
Result<void> enter_mounts(int rank, const std::string& name);

}  // namespace laconic::lab
