# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Engines in libraries of their own (include/laconic/plugin.h), opened at run time: built where what they stand on is.

# laconic_plugin(TARGET SOURCE [SHARED_RUNTIME] DEPS...): exports laconic_plugin_v1 and nothing else. SHARED_RUNTIME: what
# it stands on is C++ itself, and throws.
function(laconic_plugin TARGET SOURCE)
  cmake_parse_arguments(arg "SHARED_RUNTIME" "" "" ${ARGN})
  set(map ${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  add_library(${TARGET} MODULE ${SOURCE})
  target_link_libraries(${TARGET} PRIVATE laconic_flags laconic_engines ${arg_UNPARSED_ARGUMENTS})
  target_link_options(${TARGET} PRIVATE LINKER:--version-script=${map} LINKER:--exclude-libs,ALL)
  if(NOT LACONIC_SANITIZE)
    target_link_options(${TARGET} PRIVATE
      $<$<NOT:$<BOOL:${arg_SHARED_RUNTIME}>>:-static-libstdc++$<SEMICOLON>-static-libgcc>
      LINKER:--no-undefined LINKER:--as-needed)
  endif()
  set_target_properties(${TARGET} PROPERTIES LINK_DEPENDS ${map})
endfunction()

# In this tree each engine is compiled once for each library that it stands on, for all programs that link it.
function(laconic_engine_objects TARGET ENGINE DEPS)
  add_library(${TARGET} OBJECT EXCLUDE_FROM_ALL)
  target_include_directories(${TARGET} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${TARGET} PRIVATE laconic_flags PUBLIC ${DEPS})
  laconic_target_engine(${TARGET} ${ENGINE})
endfunction()

set(LACONIC_PLUGINS)   # installed
set(LACONIC_LAUNCHED)  # programs that tests in Python launch
foreach(_mpi IN LISTS LACONIC_MPIS)
  laconic_engine_objects(laconic_engine_${_mpi} mpi laconic_mpi::${_mpi})
  laconic_plugin(laconic_mpi_${_mpi} ${PROJECT_SOURCE_DIR}/src/engines/plugin/exports/mpi.cc laconic_engine_${_mpi})
  list(APPEND LACONIC_PLUGINS laconic_mpi_${_mpi})
endforeach()
if(TARGET laconic_gloo::gloo)
  laconic_engine_objects(laconic_engine_gloo gloo laconic_gloo::gloo)
  laconic_plugin(laconic_gloo ${PROJECT_SOURCE_DIR}/src/engines/plugin/exports/gloo.cc SHARED_RUNTIME laconic_engine_gloo)
  list(APPEND LACONIC_PLUGINS laconic_gloo)
endif()
