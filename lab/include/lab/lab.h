// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// `laconic lab`: several hosts on a network with given rates, made by the kernel of one machine.
// lab/README.md describes what it does and what it needs.
#pragma once

namespace laconic::lab {

/// `argv` holds the words after `laconic lab`. Returns the exit status: 0 fine, 1 failed, 2 usage.
int lab_main(int argc, char** argv);

}  // namespace laconic::lab
