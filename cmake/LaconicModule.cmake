# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0

# Optional parts: NAME is on when LACONIC_WITH_<NAME> is. See laconic_drop_absent.
set(LACONIC_OPTIONAL_PARTS hwy xdp)

# What an optional part brings lies in files named *_<part>.cc; no_<part>.cc defines the same symbols for a build
# without it. Leaves one of the two in the list named by SOURCES.
function(laconic_drop_absent SOURCES)
  set(kept ${${SOURCES}})
  foreach(part IN LISTS LACONIC_OPTIONAL_PARTS)
    string(TOUPPER ${part} upper)
    if(LACONIC_WITH_${upper})
      list(FILTER kept EXCLUDE REGEX "/no_${part}\\.cc$")
    else()
      list(FILTER kept EXCLUDE REGEX "_${part}\\.cc$")
      if("${${SOURCES}}" MATCHES "([^;]*/no_${part}\\.cc)")
        list(APPEND kept ${CMAKE_MATCH_1})
      endif()
    endif()
  endforeach()
  set(${SOURCES} ${kept} PARENT_SCOPE)
endfunction()

# laconic_module(NAME [DEPS module...]): target laconic_NAME, "/" as "_", from src/NAME, linking only DEPS, so that a call into a
# module that NAME may not know fails to link in NAME's tests. A module without sources is an interface library.
function(laconic_module NAME)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "DEPS")
  set(dir ${PROJECT_SOURCE_DIR}/src/${NAME})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  # Compiled with an MPI or Gloo, of the program (LaconicEngines) or of a plug-in (LaconicPlugins).
  list(FILTER sources EXCLUDE REGEX "/src/engines/(mpi|gloo|plugin/exports)/")
  laconic_drop_absent(sources)
  if(LACONIC_SANITIZE MATCHES undefined)
    # Checks between the instructions of every vector double what these files take to compile, and so do those for vectors
    # that are used outside their block. Each kernel has a reference that is looked at in full, and the tests find the two
    # equal bit for bit. Nor does fuzzing look for paths in them, and checks of addresses are calls: half the code.
    set(simd ${sources})
    list(FILTER simd INCLUDE REGEX "_hwy\\.cc$")
    set_property(SOURCE ${simd} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined
      -fno-sanitize-address-use-after-scope
      "$<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=fuzzer-no-link;-mllvm;-asan-instrumentation-with-call-threshold=0>")
  endif()
  if(LACONIC_SANITIZE MATCHES undefined)
    # NCCL and CUDA are opened at run time, by types of our own: clang compares them with those of the library.
    set(opened ${sources})
    list(FILTER opened INCLUDE REGEX "/(engines/nccl|device)/")
    set_property(SOURCE ${opened} APPEND PROPERTY COMPILE_OPTIONS $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  endif()
  string(REPLACE "/" "_" NAME ${NAME})
  list(TRANSFORM ARG_DEPS REPLACE "/" "_")
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
  target_link_libraries(${target} ${scope} ${ARG_DEPS} Threads::Threads ${CMAKE_DL_LIBS})
  # Of this module alone: with and without Highway, the objects of all others are the same.
  if(NAME STREQUAL "kernels" AND LACONIC_WITH_HWY)
    target_compile_definitions(${target} PRIVATE LACONIC_WITH_HWY=1)
    target_include_directories(${target} SYSTEM PRIVATE ${LACONIC_HWY_INCLUDE_DIR})
  endif()
  set_property(GLOBAL APPEND PROPERTY LACONIC_MODULES ${NAME})
endfunction()
