// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engines/plugin/plugin.h"
#include "laconic/loopback.h"
#include "output.h"

namespace laconic::tools {
namespace {

struct Launcher {
  const char *size, *rank, *local_rank;  // variables
  const char *library, *plugin, *packages;
};
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI",
     "liblaconic_mpi_openmpi.so", "libopenmpi-dev openmpi-bin"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPICH", "liblaconic_mpi_mpich.so",
     "libmpich-dev mpich"}};

/// Null where it is not set, or empty.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

uint32_t number(const char* name) {
  const char* const value = variable(name);
  const std::string_view text = value == nullptr ? "" : value;
  uint32_t found = 0;
  std::from_chars(text.data(), text.data() + text.size(), found);
  return found;
}

using Path = std::filesystem::path;

/// Entries of `folder` that are there, last name first; none where it cannot be read.
std::vector<Path> entries(const Path& folder) {
  std::vector<Path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    found.push_back(at->path());
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

/// Folders of plug-ins for a command in `program`: as built and as installed; on Debian in the
/// folder of an architecture; in the Python package, where pip puts it.
std::vector<Path> plugin_folders(const Path& program) {
  std::vector<Path> folders = {program / "../lib", program / "../lib64",
                               program / "../laconic/lib"};
  for (const char* lib : {"../lib", "../lib64"}) {
    for (const auto& entry : entries(program / lib)) {
      const std::string name = entry.filename().string();
      if (name.find("-linux-") != std::string::npos) folders.push_back(entry);
      if (!name.starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"})
        folders.push_back(entry / packages / "laconic/lib");
    }
  }
  return folders;
}

/// The path in this program's folders; otherwise the name for the loader.
std::string path_of(const std::string& file) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return file;
  for (const auto& folder : plugin_folders(program)) {
    if (std::filesystem::exists(folder / file, error)) return (folder / file).lexically_normal();
  }
  return file;
}

struct Plugin {
  std::string path;
  std::string hint;  // where it cannot be opened
};

Result<Plugin> mpi_plugin() {
  if (const char* named = variable("LACONIC_MPI_LIB"))
    return Plugin{named, "LACONIC_MPI_LIB sets the path of a plug-in, liblaconic_mpi_*.so"};
  const auto launched = launch();
  if (!launched) {
    return Error{Errc::engine_failed,
                 "mpi: no launcher started this process (neither OMPI_COMM_WORLD_SIZE nor "
                 "PMI_SIZE is set)",
                 "mpirun -n 4 laconic bench --engine mpi; under another launcher set "
                 "LACONIC_MPI_LIB to the plug-in"};
  }
  return Plugin{path_of(launched->plugin),
                launched->library + " started this process: apt install " + launched->packages +
                    " and build laconic again, or set LACONIC_MPI_LIB to the plug-in"};
}

Plugin gloo_plugin() {
  if (const char* named = variable("LACONIC_GLOO_LIB"))
    return {named, "LACONIC_GLOO_LIB sets the path of a plug-in, liblaconic_gloo.so"};
  return {path_of("liblaconic_gloo.so"),
          "apt install libgloo-dev and build laconic again, or set LACONIC_GLOO_LIB to the "
          "plug-in"};
}

}  // namespace

std::optional<Launch> launch() {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.size) == nullptr) continue;
    return Launch{launcher.library, launcher.plugin, launcher.packages, number(launcher.rank),
                  number(launcher.local_rank)};
  }
  return {};
}

int fail_everywhere(const Error& error, bool json, int status) {
  const auto launched = launch();
  return launched && launched->rank != 0 ? status : fail(error, json, status);
}

Result<OpenEngine> open_engine(const EngineOptions& options) {
  const auto plugin = options.name == "mpi" ? mpi_plugin() : Result<Plugin>(gloo_plugin());
  if (!plugin) return plugin.error();
  const auto told = [&](const Error& error) {
    return Error{error.code, error.message, error.hint.empty() ? "" : plugin->hint};
  };
  const auto table = engines::load_plugin(plugin->path);
  if (!table) return told(table.error());
  if ((*table)->engine != options.name) {
    return Error{
        Errc::engine_failed,
        plugin->path + " is a plug-in for " + (*table)->engine + ", not for " + options.name,
        plugin->hint};
  }
  auto engine = engines::open_plugin(plugin->path, {.timeout = options.timeout,
                                                    .rank = options.rank,
                                                    .world = options.world,
                                                    .rendezvous = options.rendezvous,
                                                    .interface = options.interface});
  if (!engine) return told(engine.error());
  return OpenEngine{*std::move(engine), (*table)->library};
}

std::optional<RankFailure> run_loopback(const EngineOptions& options,
                                        const std::function<std::optional<Error>(Engine&)>& body) {
  LoopbackHub hub(options.ranks, options.timeout);
  std::mutex mutex;
  std::optional<RankFailure> first;
  const auto run = [&](uint32_t rank) {
    std::optional<Error> error;
    try {
      error = body(hub.engine(rank));
    } catch (const std::bad_alloc&) {
      error = Error{Errc::out_of_memory, "not enough memory for the gradients", {}};
    }
    if (!error) return;
    {
      const std::lock_guard lock(mutex);
      if (!first) first = RankFailure{rank, *std::move(error)};
    }
    hub.break_off(rank);
  };
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) threads.emplace_back(run, rank);
  threads.clear();
  return first;
}

}  // namespace laconic::tools
