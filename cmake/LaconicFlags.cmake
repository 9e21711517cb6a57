# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Flags for our own targets only: the interface target laconic_flags is linked privately, never exported.
# There is no -march, no -ffast-math and no OpenMP here on purpose: instruction sets are chosen at run time and every
# machine must compute the same bits.

add_library(laconic_flags INTERFACE)
target_compile_features(laconic_flags INTERFACE cxx_std_20)

set(_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion)
if(LACONIC_WERROR)
  list(APPEND _warnings -Werror)
endif()
# No contraction: a fused multiply-add rounds once instead of twice, so replicas on mixed CPUs would drift apart.
set(_numeric -ffp-contract=off -fno-math-errno -fno-trapping-math)
set(_visibility -fvisibility=hidden -fvisibility-inlines-hidden)
target_compile_options(laconic_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${_warnings} ${_numeric} ${_visibility}>)
target_compile_definitions(laconic_flags INTERFACE
  XXH_INLINE_ALL
  $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)

if(LACONIC_HARDEN)
  # The library reads bytes from other ranks and from files: a fault in a parser shall end the process, not more.
  # tests/install/audit reads this off the finished files. Sanitizers bring checks of their own for C functions, and
  # without optimisation there are none. Some distributions define the macro in the compiler, hence -U first.
  target_compile_options(laconic_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
  # But for the loops of the sparse decode: there it takes 4 to 5 % of 4 MiB (topk, sidco); no other codec loses over 1 %.
  # Their input was checked, and what they keep on the stack has a fixed size.
  set_source_files_properties(
    ${PROJECT_SOURCE_DIR}/src/kernels/sparse/scatter_hwy.cc ${PROJECT_SOURCE_DIR}/src/codecs/sparse/sparse_payload.cc
    PROPERTIES COMPILE_OPTIONS -fno-stack-protector)
  if(NOT LACONIC_SANITIZE)
    target_compile_options(laconic_flags INTERFACE
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=2>)
  endif()
  target_link_options(laconic_flags INTERFACE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()

if(LACONIC_SANITIZE)
  target_compile_options(laconic_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
    -fsanitize=${LACONIC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>
    # Undefined behaviour is looked for in what tests call: looking for it in the tests themselves is a third of what
    # compiling them costs.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:LACONIC_TEST_PROGRAM>>>:-fno-sanitize=undefined>)
  target_link_options(laconic_flags INTERFACE -fsanitize=${LACONIC_SANITIZE})
endif()
if(LACONIC_FUZZ)
  target_compile_options(laconic_flags INTERFACE  # what fuzzing looks for is in what tests call
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:LACONIC_TEST_PROGRAM>>>>:-fsanitize=fuzzer-no-link>)
endif()

# Relocatable code everywhere: the modules end up in liblaconic.so as well as in programs.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_EXTENSIONS OFF)
