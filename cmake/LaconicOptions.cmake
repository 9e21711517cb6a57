# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Options. After this file LACONIC_WITH_HWY and LACONIC_WITH_XDP say what is really used.

# On with the compilers that every change is built with; a newer one may warn of more, and a user who only wants to
# build must not fail over that.
set(_known_compiler OFF)
if(PROJECT_IS_TOP_LEVEL AND "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^(GNU 12|Clang 14)\\.")
  set(_known_compiler ON)
endif()
option(LACONIC_WERROR "Warnings are errors" ${_known_compiler})
option(LACONIC_BUILD_TOOLS "Build the laconic command" ${PROJECT_IS_TOP_LEVEL})
option(LACONIC_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(LACONIC_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(LACONIC_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
option(LACONIC_HARDEN "Stack protector, checked C functions in optimised builds, read-only relocations" ON)
option(LACONIC_FUZZ "Fuzz targets are libFuzzer binaries (needs clang)" OFF)
option(LACONIC_WEEKLY "ThreadSanitizer's tree has every file of tests/distributed" OFF)
set(LACONIC_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize= (for example address,undefined)")
set(_auto OFF)  # what is not the library
if(PROJECT_IS_TOP_LEVEL)
  set(_auto AUTO)
endif()
set(LACONIC_HIGHWAY AUTO CACHE STRING "SIMD kernels through Google Highway: AUTO, ON or OFF")
set(LACONIC_CUDA AUTO CACHE STRING "Kernels for GPUs in the library, compiled by nvcc: AUTO, ON or OFF")
set(LACONIC_MPI ${_auto} CACHE STRING "Plug-ins and tests of MPI, for each library that is here: AUTO, ON or OFF")
set(LACONIC_GLOO ${_auto} CACHE STRING "Plug-in and tests of Gloo: AUTO, ON or OFF")
set(LACONIC_METRICS ${_auto} CACHE STRING "laconic serve --metrics by prometheus-cpp: AUTO, ON or OFF")
set(LACONIC_XDP ${_auto} CACHE STRING "The aggregation server's program in the kernel: AUTO, ON or OFF")
set_property(CACHE LACONIC_HIGHWAY LACONIC_CUDA LACONIC_MPI LACONIC_GLOO LACONIC_METRICS LACONIC_XDP
             PROPERTY STRINGS AUTO ON OFF)

get_property(_is_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT _is_multi_config AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()

include(LaconicDependencies)
include(LaconicMpi)

message(STATUS "Laconic ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, highway ${LACONIC_WITH_HWY}, "
               "xdp ${LACONIC_WITH_XDP}, sanitizers '${LACONIC_SANITIZE}'")
