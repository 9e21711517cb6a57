// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The slots of the slot machine.
#pragma once

#include <cstdint>

#include "aggregation/protocol/enrolment.h"
#include "aggregation/server/shared.h"

namespace laconic::aggregation {

struct Addend {
  uint32_t worker = 0;
  uint64_t number = 0;
  uint32_t settings = 0;
  uint16_t norm = 0;
  uint8_t flags = 0;  ///< protocol::DatagramFlag
  Bytes payload{};
  bool stays = false;  ///< the payload can be read until settle(), and may be added then
};

/// The results that a worker has when it registers.
struct Holding {
  uint64_t ack = 0;
  uint64_t kept = 0;
  Bytes held{};
};

enum SlotState : uint8_t {
  unused = LACONIC_SLOT_UNUSED,
  open = LACONIC_SLOT_OPEN,
  fetching = LACONIC_SLOT_FETCHING,
  closed = LACONIC_SLOT_CLOSED,
};
using Slot = laconic_slot;

/// Slots shared with a program in the kernel, in jobs that need all their workers: no worker is
/// late there, and no deadline closes a sum.
struct SharedSlots {
  laconic_kernel_job* job = nullptr;  ///< null: the slots are this process's alone
  laconic_kernel_slot* slots = nullptr;
};

[[nodiscard]] constexpr uint64_t bit_of(uint32_t worker) noexcept { return uint64_t{1} << worker; }

}  // namespace laconic::aggregation
