// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <array>
#include <utility>

namespace laconic::mpi {

bool Status::good(int code, const char* doing, int peer) {
  if (code == MPI_SUCCESS) return true;
  const std::string whose = peer < 0 ? "" : " rank " + std::to_string(peer);
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0, kind = MPI_ERR_OTHER;
  MPI_Error_string(code, text.data(), &length);
  MPI_Error_class(code, &kind);
  die(Error{kind == MPI_ERR_TRUNCATE ? Errc::exchange_order : Errc::engine_failed,
            "mpi: " + std::string(doing) + whose + ": " +
                std::string(text.data(), static_cast<size_t>(length)),
            "restart the job"});
  return false;
}

std::string Process::library() {
#if defined(OPEN_MPI)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + "." +
         std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "MPI " + std::to_string(MPI_VERSION) + "." + std::to_string(MPI_SUBVERSION);
#endif
}

bool Process::is_open() noexcept {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

bool Process::ready() {
  if (is_open()) return true;
  int ended = 0;
  MPI_Finalized(&ended);
  status_.die(ended != 0 ? Error{Errc::engine_failed, "mpi: MPI has been finalised",
                                 "MPI can be initialised once per process: keep the first engine"}
                         : Error{Errc::engine_failed, "mpi: MPI has not been initialised",
                                 "call MPI_Init_thread, or pass argc and argv to the engine"});
  return false;
}

bool Process::initialise(int* argc, char*** argv) {
  int begun = 0, level = 0;
  MPI_Initialized(&begun);
  if (begun == 0) {
    if (!status_.good(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"))
      return false;
    finalises_ = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  return ready();
}

bool Process::look_around(Environment environment) {
  MPI_Query_thread(&level_);
  int size = 0;
  if (!status_.good(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size")) return false;
  if (environment == nullptr) return true;
  std::string other;
  for (const auto& [variable, name] :
       {std::pair{"OMPI_COMM_WORLD_SIZE", "Open MPI"}, std::pair{"PMI_SIZE", "MPICH"}}) {
    const char* started = environment(variable);
    if (started == nullptr) continue;
    if (std::to_string(size) == started) return true;
    other = std::string(name) + "'s launcher started " + started + " (" + variable + ")";
  }
  if (other.empty()) return true;
  status_.die(Error{Errc::engine_failed,
                    "mpi: " + library() + " sees " + std::to_string(size) +
                        (size == 1 ? " rank, " : " ranks, ") + other,
                    "use the mpirun of the MPI that the program was built with"});
  return false;
}

}  // namespace laconic::mpi
