// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "launcher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "answer.h"
#include "control.h"
#include "mounts.h"
#include "network.h"
#include "program.h"

namespace laconic::lab {
namespace {

constexpr const char* kShell = "/laconic-lab.rsh";
constexpr const char* kOpenMpiHosts = "/laconic-lab.openmpi";
constexpr const char* kMpichHosts = "/laconic-lab.mpich";

/// One line per host, with its number of slots.
std::string host_list(const Options& options, const std::string& slots) {
  std::string text;
  for (int host = 0; host < options.hosts; ++host)
    text += host_name(host) + slots + std::to_string(options.per_host) + "\n";
  return text;
}

/// One word of a shell.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

/// Our own command line up to `--on`.
Result<std::string> remote_shell() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return Error{Errc::engine_failed, "finding our own program: " + failed.message(), {}};
  const bool alone = self.filename() == "laconic-lab";
  return quoted(self.string()) + (alone ? "" : " lab") + " --on";
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

Result<void> write_launcher_files(const Options& options, const std::string& folder) {
  const auto shell = remote_shell();
  if (!shell) return shell.error();
  if (auto done = write_file(folder + kShell, "#!/bin/sh\nexec " + *shell + " \"$@\"\n"); !done)
    return done;
  if (chmod((folder + kShell).c_str(), 0755) != 0) return system_error("making " + folder + kShell);
  if (auto done = write_file(folder + kOpenMpiHosts, host_list(options, " slots=")); !done)
    return done;
  return write_file(folder + kMpichHosts, host_list(options, ":"));
}

Variables launcher_environment(const std::string& folder) {
  return {
      {"OMPI_MCA_plm", "rsh"},
      {"OMPI_MCA_plm_rsh_agent", folder + kShell},
      {"OMPI_MCA_orte_default_hostfile", folder + kOpenMpiHosts},
      {"OMPI_MCA_oob_tcp_if_include", "eth0"},
      {"OMPI_MCA_pml", "ob1"},
      {"OMPI_MCA_btl", "tcp,self"},
      {"OMPI_MCA_btl_tcp_if_include", "eth0"},
      // The machine's /tmp would keep the sessions of a killed lab, and two labs would share one:
      // host names and process numbers recur.
      {"OMPI_MCA_orte_tmpdir_base", folder},
      // Open MPI would bind the first rank of every host to the same core; the lab pins.
      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
      // It takes the cores for each host's own, and would poll without a pause.
      {"OMPI_MCA_mpi_yield_when_idle", "1"},
      // Inside the lab a plain user is root, too.
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"HYDRA_LAUNCHER", "rsh"},
      {"HYDRA_LAUNCHER_EXEC", folder + kShell},
      {"HYDRA_HOST_FILE", folder + kMpichHosts},
      {"HYDRA_IFACE", "eth0"},
      {"UCX_TLS", "tcp,self"},
      {"UCX_NET_DEVICES", "eth0"},
  };
}

Error become_command_on_host(const Options& options) {
  const auto answer = ask_lab("--on", "enter " + options.on);
  if (!answer) return answer.error();
  const auto cores = read_answer(answer->line);
  if (!cores) return cores.error();
  std::vector<int> namespaces;
  for (const Fd& one : answer->descriptors) namespaces.push_back(one.get());
  if (auto entered = enter_namespaces(namespaces); !entered) return entered.error();
  pin(*cores);
  const std::string line = join(options.command);
  execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  return system_error("running /bin/sh");
}

}  // namespace laconic::lab
