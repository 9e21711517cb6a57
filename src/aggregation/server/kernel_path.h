// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "aggregation/protocol/address.h"
#include "aggregation/protocol/enrolment.h"
#include "aggregation/server/slots.h"

namespace laconic::aggregation {

/// A program in the kernel that adds to the same slots (io/xdp). docs/decisions/0037.
class KernelPath {
 public:
  KernelPath() = default;
  virtual ~KernelPath() = default;
  KernelPath(const KernelPath&) = delete;
  KernelPath& operator=(const KernelPath&) = delete;

  /// Empty slots for a job, closed to the program until `open` is set; none if it cannot serve such
  /// a job, or has no more.
  virtual SharedSlots take(const protocol::JobSettings& settings, uint32_t id, uint64_t epoch,
                           const protocol::SipKey& key) = 0;
  /// When this returns the program touches them no longer.
  virtual void give_back(const SharedSlots& slots) noexcept = 0;
  /// Records the port of a worker. False: the program cannot answer there.
  virtual bool place(const SharedSlots& slots, uint32_t worker,
                     const Address& address) noexcept = 0;
};

}  // namespace laconic::aggregation
