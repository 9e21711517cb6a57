// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The properties of this machine that affect speed.
#pragma once

#include <cstdint>
#include <string>

#include "output.h"

namespace laconic::tools {

/// "model name" of /proc/cpuinfo.
std::string cpu_model();
/// Cores that this process may run on.
uint32_t usable_cores();
/// The chosen word of /sys/kernel/mm/transparent_hugepage/enabled: always, madvise or never.
std::string huge_page_setting();
/// Names of available_isas(), slowest first.
std::vector<std::string_view> isa_names();

/// Keeps the calling thread on the core it runs on; the mask it had comes back with the object's
/// end.
class PinnedToCore {
 public:
  PinnedToCore();
  ~PinnedToCore();
  PinnedToCore(const PinnedToCore&) = delete;
  PinnedToCore& operator=(const PinnedToCore&) = delete;
  /// -1 when the system refused.
  [[nodiscard]] int core() const noexcept { return core_; }

 private:
  int core_ = -1;
  alignas(8) unsigned char before_[128]{};  // cpu_set_t
};

/// The clock that this core really runs at in these milliseconds, where a multiplication has a
/// latency of three cycles (x86): the rate of dependent ones.
double clock_ghz();

Json machine_json();

}  // namespace laconic::tools
