# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# MPI libraries, side by side: their ABIs differ, so whatever touches MPI is built once for each. The library itself is
# linked with none.

# LACONIC_MPIS: of openmpi and mpich those that are here, each as target laconic_mpi::NAME.
set(LACONIC_MPIS)
if(NOT LACONIC_MPI STREQUAL "OFF")
  find_package(PkgConfig QUIET)
  foreach(_entry "openmpi ompi-c" "mpich mpich")
    separate_arguments(_entry)
    list(GET _entry 0 _mpi)
    list(GET _entry 1 _package)
    if(PkgConfig_FOUND)
      pkg_check_modules(LACONIC_${_mpi} QUIET ${_package})
    endif()
    # Of what they list, that of MPI alone is called; the rest is for static linking.
    set(_libraries ${LACONIC_${_mpi}_LINK_LIBRARIES})
    list(FILTER _libraries INCLUDE REGEX "libmpi[a-z]*\\.")
    if(NOT LACONIC_${_mpi}_FOUND OR NOT _libraries)
      continue()
    endif()
    add_library(laconic_mpi::${_mpi} INTERFACE IMPORTED)
    target_include_directories(laconic_mpi::${_mpi} SYSTEM INTERFACE ${LACONIC_${_mpi}_INCLUDE_DIRS})
    target_link_libraries(laconic_mpi::${_mpi} INTERFACE ${_libraries})
    list(APPEND LACONIC_MPIS ${_mpi})
  endforeach()
  if(LACONIC_MPI STREQUAL "ON" AND NOT LACONIC_MPIS)
    message(FATAL_ERROR "LACONIC_MPI=ON, but pkg-config knows neither ompi-c nor mpich. Debian and Ubuntu:\n"
                        "  sudo apt install libopenmpi-dev libmpich-dev")
  endif()
endif()
