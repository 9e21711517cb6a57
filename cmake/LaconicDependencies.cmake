# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# What a build takes from the system, looked for in one place: a user who lacks four packages hears of four in one
# message, not of the first of them.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# laconic_lacks(WHAT PACKAGES): WHAT was not found; Debian and Ubuntu have it in PACKAGES.
macro(laconic_lacks WHAT PACKAGES)
  list(APPEND _lacking "${WHAT}")
  string(APPEND _packages " ${PACKAGES}")
endmacro()

# xxHash and Highway are used from their headers alone (Highway with the detection of src/kernels/core/simd.cc): nothing
# is linked, and liblaconic needs neither at run time.
find_path(LACONIC_XXHASH_INCLUDE_DIR xxhash.h)
if(NOT LACONIC_XXHASH_INCLUDE_DIR)
  laconic_lacks(xxHash libxxhash-dev)
endif()

set(LACONIC_WITH_HWY OFF)
if(NOT LACONIC_HIGHWAY STREQUAL "OFF")
  find_path(LACONIC_HWY_INCLUDE_DIR hwy/highway.h)
  if(LACONIC_HWY_INCLUDE_DIR)
    set(LACONIC_WITH_HWY ON)
  elseif(LACONIC_HIGHWAY STREQUAL "ON" OR _lacking)
    laconic_lacks(Highway libhwy-dev)
  else()
    message(WARNING "Highway was not found: kernels without SIMD, several times slower. Debian and Ubuntu: "
                    "sudo apt install libhwy-dev. LACONIC_HIGHWAY=OFF says that this is intended.")
  endif()
endif()

# laconic_gloo::gloo: for the sources in src/engines/gloo.
if(NOT LACONIC_GLOO STREQUAL "OFF")
  find_path(LACONIC_GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
  find_library(LACONIC_GLOO_LIBRARY gloo)
  if(LACONIC_GLOO_INCLUDE_DIR AND LACONIC_GLOO_LIBRARY)
    add_library(laconic_gloo::gloo INTERFACE IMPORTED)
    target_include_directories(laconic_gloo::gloo SYSTEM INTERFACE ${LACONIC_GLOO_INCLUDE_DIR})
    target_link_libraries(laconic_gloo::gloo INTERFACE ${LACONIC_GLOO_LIBRARY} Threads::Threads)
  elseif(LACONIC_GLOO STREQUAL "ON")
    laconic_lacks(Gloo libgloo-dev)
  endif()
endif()

# The server's program in the kernel: clang compiles it, libbpf loads it. A wheel's command needs nothing at run time.
# The program reads little-endian fields as they lie.
set(LACONIC_WITH_XDP OFF)
if(NOT LACONIC_XDP STREQUAL "OFF" AND NOT SKBUILD AND CMAKE_CXX_BYTE_ORDER STREQUAL "LITTLE_ENDIAN")
  find_program(LACONIC_BPF_CLANG NAMES clang-14 clang)
  find_path(LACONIC_BPF_INCLUDE_DIR bpf/libbpf.h)
  find_library(LACONIC_BPF_LIBRARY bpf)
  set(_status none)
  if(LACONIC_BPF_CLANG AND LACONIC_BPF_INCLUDE_DIR AND LACONIC_BPF_LIBRARY)
    set(LACONIC_BPF_FLAGS -target bpf -mcpu=v3 -isystem ${LACONIC_BPF_INCLUDE_DIR})
    if(CMAKE_LIBRARY_ARCHITECTURE)  # the kernel's headers include some of the architecture's
      list(APPEND LACONIC_BPF_FLAGS -isystem /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
    endif()
    execute_process(COMMAND ${LACONIC_BPF_CLANG} ${LACONIC_BPF_FLAGS} -include linux/bpf.h -include bpf/bpf_helpers.h
                            -x c -fsyntax-only /dev/null RESULT_VARIABLE _status OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(_status EQUAL 0)
    set(LACONIC_WITH_XDP ON)
  elseif(LACONIC_XDP STREQUAL "ON")
    laconic_lacks("clang and libbpf" "clang-14 libbpf-dev")
  endif()
endif()

# Of the command and of the tests, never of the library: another project may have its own.
if(LACONIC_BUILD_TOOLS OR LACONIC_TESTS)
  find_package(fmt QUIET)
  find_package(CLI11 QUIET)
  find_package(nlohmann_json QUIET)
endif()
if(LACONIC_BUILD_TOOLS)
  foreach(_entry "fmt libfmt-dev" "CLI11 libcli11-dev")
    separate_arguments(_entry)
    list(GET _entry 0 _package)
    if(NOT ${_package}_FOUND)
      laconic_lacks(${_entry})
    endif()
  endforeach()
  # Its headers alone, as xxHash: Debian's package for CMake would link a library, which a wheel has not.
  find_path(LACONIC_TOML_INCLUDE_DIR toml++/toml.h)
  if(NOT LACONIC_TOML_INCLUDE_DIR)
    laconic_lacks(toml++ libtomlplusplus-dev)
  endif()
endif()
if((LACONIC_BUILD_TOOLS OR LACONIC_TESTS) AND NOT nlohmann_json_FOUND)
  laconic_lacks(nlohmann_json nlohmann-json3-dev)
endif()
# Of the command alone. Its library is C++ with a C++ library of its own, which the command in a wheel has inside: not there.
if(LACONIC_BUILD_TOOLS AND NOT SKBUILD AND NOT LACONIC_METRICS STREQUAL "OFF")
  find_package(prometheus-cpp CONFIG QUIET)
  if(NOT TARGET prometheus-cpp::pull AND LACONIC_METRICS STREQUAL "ON")
    laconic_lacks(prometheus-cpp prometheus-cpp-dev)
  endif()
endif()
if(LACONIC_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    laconic_lacks(GoogleTest "libgtest-dev libgmock-dev")
  endif()
endif()

if(_lacking)
  list(JOIN _lacking ", " _lacking)
  message(FATAL_ERROR "Laconic needs ${_lacking}. Debian and Ubuntu:\n"
                      "  sudo apt install${_packages}\n"
                      "The library alone: -DLACONIC_BUILD_TOOLS=OFF -DBUILD_TESTING=OFF; then xxHash is all that it needs.")
endif()
