// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "laconic/error.h"

namespace laconic::tools {

/// Whatever this process starts has no more rights than it; before any thread is made.
void forbid_new_privileges() noexcept;

/// Root becomes nobody, in all threads, and has no capability left, but `keep_bpf` the one for
/// programs in the kernel that it has loaded. Other users keep what they have.
Result<void> drop_privileges(bool keep_bpf);

}  // namespace laconic::tools
