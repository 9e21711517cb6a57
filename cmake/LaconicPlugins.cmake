# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Engines in libraries of their own (include/laconic/plugin.h), opened at run time: built where what they stand on is.

# laconic_plugin(TARGET SOURCE DEPS...): exports laconic_plugin_v1 and nothing else.
function(laconic_plugin TARGET SOURCE)
  set(map ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  add_library(${TARGET} MODULE ${SOURCE})
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR}/plugins)
  target_link_libraries(${TARGET} PRIVATE laconic_flags laconic_transport ${ARGN})
  target_link_options(${TARGET} PRIVATE LINKER:--version-script=${map} LINKER:--exclude-libs,ALL)
  if(NOT LACONIC_SANITIZE)
    target_link_options(${TARGET} PRIVATE -static-libstdc++ -static-libgcc LINKER:--no-undefined LINKER:--as-needed)
  endif()
  set_target_properties(${TARGET} PROPERTIES LINK_DEPENDS ${map})
endfunction()

set(LACONIC_PLUGINS)  # installed
foreach(_mpi IN LISTS LACONIC_MPIS)
  laconic_plugin(laconic_mpi_${_mpi} ${PROJECT_SOURCE_DIR}/plugins/mpi.cc laconic_mpi::${_mpi})
  list(APPEND LACONIC_PLUGINS laconic_mpi_${_mpi})
endforeach()
