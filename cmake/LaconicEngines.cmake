# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Engines that are compiled with the program's own MPI or Gloo: the library is linked with neither.

# laconic_target_engine(TARGET mpi|gloo): the sources of MpiEngine or GlooEngine become sources of TARGET, which links
# laconic::laconic and the MPI or Gloo that they are compiled with.
function(laconic_target_engine TARGET ENGINE)
  get_property(folder GLOBAL PROPERTY LACONIC_ENGINES)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/${ENGINE}/*.cc)
  if(NOT sources)
    message(FATAL_ERROR "laconic_target_engine(${TARGET} ${ENGINE}): there are mpi and gloo")
  endif()
  target_sources(${TARGET} PRIVATE ${sources})
endfunction()
