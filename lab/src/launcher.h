// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Files that an mpirun needs in order to start ranks on all hosts of a lab (--launcher), and the
// remote shell that it calls (--on).
#pragma once

#include <string>

#include "link.h"
#include "options.h"

namespace laconic::lab {

/// Puts the files into `folder` that launcher_environment names: a remote shell in one word, and
/// the list of hosts in the form of each MPI.
Result<void> write_launcher_files(const Options& options, const std::string& folder);

/// The settings of Open MPI and MPICH, given as variables so that `mpirun -n 4 ./train` needs no
/// options. `folder` is the one of the files, as the COMMAND sees it.
Variables launcher_environment(const std::string& folder);

/// Becomes COMMAND on the host `options.on` of the surrounding lab; returns why that failed. As
/// with ssh, a shell there evaluates COMMAND's words.
Error become_command_on_host(const Options& options);

}  // namespace laconic::lab
