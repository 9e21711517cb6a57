// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "laconic/error.h"

namespace laconic::tools {

/// Whatever this process starts has no more rights than it; before any thread is made.
void forbid_new_privileges() noexcept;

/// Changes root to the user nobody in all threads, without capabilities, except with `keep_bpf` the
/// one for loaded programs in the kernel. Other users keep theirs.
Result<void> drop_privileges(bool keep_bpf);

}  // namespace laconic::tools
