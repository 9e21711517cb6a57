// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "privileges.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace laconic::tools {
namespace {

constexpr id_t kNobody = 65534;
constexpr uint32_t kBpf = 39;  // CAP_BPF, of Linux 5.8; older headers lack it

Error system_error(const char* what) {
  return {Errc::engine_failed, std::string(what) + ": " + std::strerror(errno), {}};
}

}  // namespace

void forbid_new_privileges() noexcept { prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); }

Result<void> drop_privileges(bool keep_bpf) {
  if (geteuid() != 0) return {};
  if (keep_bpf) prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
  // The C library does these in all threads; with the user all capabilities go.
  if (setgroups(0, nullptr) != 0) return system_error("setgroups");
  if (setresgid(kNobody, kNobody, kNobody) != 0) return system_error("setresgid");
  if (setresuid(kNobody, kNobody, kNobody) != 0) return system_error("setresuid");
  if (!keep_bpf) return {};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  data[kBpf / 32].permitted = data[kBpf / 32].effective = 1U << kBpf % 32;
  if (syscall(SYS_capset, &header, data.data()) != 0) return system_error("capset");
  return {};
}

}  // namespace laconic::tools
