// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Whether a host's interface hands whole 64 kB segments to the network or real packets.
#pragma once

#include <string>

#include "laconic/error.h"

namespace laconic::lab {

/// Switches TCP's and UDP's segmentation offload of `device` in network namespace `host`, coming
/// back to `home`.
///
/// Off, the kernel cuts segments into packets after the token bucket: what crosses the port, is
/// counted and may be lost is a packet of at most 1514 bytes, while sockets still build large
/// segments, so that it costs little. (A limit on the interface's gso_max_size would be remembered
/// by every connection made under it.) On, an unshaped link is some 40 times faster, and the
/// counters lack the headers between the merged packets.
Result<void> set_segmentation_offload(int host, int home, const std::string& device, bool on);

}  // namespace laconic::lab
