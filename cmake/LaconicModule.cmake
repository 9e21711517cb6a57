# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0

# Optional parts: NAME is on when LACONIC_WITH_<NAME> is. See laconic_drop_twins.
set(LACONIC_OPTIONAL_PARTS hwy cuda mpi gloo nccl)

# An optional part is a pair of files with the same symbols in one folder: x_mpi.cc and x_no_mpi.cc, or mpi.cc and
# no_mpi.cc. Of each pair, leaves one in the list named by SOURCES. A file without a partner stays.
# The partner may be x_cuda.cu, which is not in the list: it goes into laconic_cuda, a library of its own.
function(laconic_drop_twins SOURCES)
  set(kept ${${SOURCES}})
  foreach(part IN LISTS LACONIC_OPTIONAL_PARTS)
    string(TOUPPER ${part} upper)
    foreach(absent IN LISTS ${SOURCES})
      if(NOT absent MATCHES "(/|_)no_${part}\\.cc$")
        continue()
      endif()
      string(REGEX REPLACE "no_${part}\\.cc$" "${part}" stem ${absent})
      if(NOT LACONIC_WITH_${upper})
        list(REMOVE_ITEM kept ${stem}.cc)
      elseif(EXISTS ${stem}.cc OR EXISTS ${stem}.cu)
        list(REMOVE_ITEM kept ${absent})
      endif()
    endforeach()
  endforeach()
  set(${SOURCES} ${kept} PARENT_SCOPE)
endfunction()

# laconic_module(NAME [DEPS module...]): target laconic_NAME from src/NAME, linking only DEPS, so that a call into a
# module that NAME may not know fails to link in NAME's tests. A module without sources is an interface library.
function(laconic_module NAME)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "DEPS")
  set(dir ${PROJECT_SOURCE_DIR}/src/${NAME})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc ${dir}/*/*.cc)
  laconic_drop_twins(sources)
  list(TRANSFORM ARG_DEPS PREPEND laconic_)

  set(target laconic_${NAME})
  set(scope INTERFACE)
  if(sources)
    set(scope PUBLIC)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PRIVATE laconic_flags)
    target_include_directories(${target} SYSTEM PRIVATE ${LACONIC_XXHASH_INCLUDE_DIR})
  else()
    add_library(${target} INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} ${scope} ${ARG_DEPS} Threads::Threads)
  if(NAME STREQUAL "kernels" AND LACONIC_WITH_HWY)
    target_compile_definitions(${target} ${scope} LACONIC_WITH_HWY=1)
    target_include_directories(${target} SYSTEM ${scope} ${LACONIC_HWY_INCLUDE_DIR})
  endif()
  set_property(GLOBAL APPEND PROPERTY LACONIC_MODULES ${NAME})
endfunction()
