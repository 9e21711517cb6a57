# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# One executable and one ctest entry per folder of tests: starting a process per case would cost more than the cases.

# Build targets and ctest labels besides laconic_tests, which is all of them.
# laconic_optimised_tests, `optimised`: what depends on optimisation or on instruction sets, what counts memory (sanitizers
# have allocators of their own), and long runs in virtual time (aggregation). The others run sanitized alone.
set(LACONIC_OPTIMISED_TESTS test_kernels test_codecs test_conformance test_golden test_distributed test_engines test_gloo
  test_session test_aggregation)
# laconic_threaded_tests, `threads`: what ThreadSanitizer has something to say about.
set(LACONIC_THREADED_TESTS
  test_base test_device test_aggregation test_collective test_session test_capi test_distributed test_engines)
# laconic_scalar_tests, `scalar`: what the absence of Highway changes, and the bytes that must stay; <name>_scalar.
set(LACONIC_SCALAR_TESTS test_kernels test_conformance test_golden)
# In parts: ctest runs several at once, and each stays within the limit of a test on a machine that is three times slower.
set(LACONIC_PARTS_test_distributed 4)
set(LACONIC_PARTS_test_conformance 2)
set(LACONIC_PARTS_test_codecs 2)
set(LACONIC_PARTS_test_aggregation 2)
set(LACONIC_PARTS_test_engines 2)
# Their own loops take longer than compiling them with optimisation: under ThreadSanitizer, which slows down every access, and
# under the other sanitizers.
if(LACONIC_SANITIZE MATCHES thread)
  set(LACONIC_COMPUTING_TESTS test_aggregation test_distributed test_engines)
elseif(LACONIC_SANITIZE)
  set(LACONIC_COMPUTING_TESTS test_codecs test_conformance)
endif()
# Files of tests/distributed about what each rank computes for itself: ThreadSanitizer leaves them to the weekly tier, which sets
# LACONIC_WEEKLY. Threads meet in the others.
set(LACONIC_UNTHREADED_FILES capacity control dense fixed_point grace memory nodes record rules saved_laws unequal)
foreach(_tests IN ITEMS tests optimised_tests threaded_tests scalar_tests)
  add_custom_target(laconic_${_tests})
endforeach()

# Reading GoogleTest and the usual standard headers is a quarter of what compiling a test costs: they are read once for
# all test programs, which therefore share their flags. Macros may differ as long as these headers do not look at them.
function(laconic_test_pch NAME LEVEL)
  # A program, because only those of its kind share all flags with it (-fPIE).
  file(CONFIGURE OUTPUT laconic_test_pch.cc CONTENT "int main() { return 0; }\n")  # written only if it differs
  add_executable(${NAME} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/laconic_test_pch.cc)
  target_link_libraries(${NAME} PRIVATE laconic_flags GTest::gtest Threads::Threads)
  target_precompile_headers(${NAME} PRIVATE <gtest/gtest.h> <algorithm> <cmath> <random> <string> <vector>)
  laconic_test_options(${NAME} ${LEVEL})
endfunction()

# What tests call is optimised, the tests themselves not: they are compiled more often than they run. LEVEL: -O0 or -O1.
function(laconic_test_options TARGET)
  set(level ${ARGN} -O0)
  list(GET level 0 level)
  set_property(TARGET ${TARGET} PROPERTY LACONIC_TEST_PROGRAM ON)
  # ccache looks at the text that gcc -E gives, which must then name the precompiled header; clang's holds the time otherwise.
  target_compile_options(${TARGET} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess> $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp> ${level})
endfunction()

# laconic_test(NAME LABEL DEPS SOURCES...): a GoogleTest executable.
function(laconic_test NAME LABEL DEPS)
  add_executable(${NAME} ${ARGN})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_include_directories(${NAME} SYSTEM PRIVATE ${LACONIC_XXHASH_INCLUDE_DIR})
  target_link_libraries(${NAME} PRIVATE
    laconic_flags laconic_test_support ${DEPS} laconic_program_deps GTest::gmock GTest::gtest_main)
  if(NAME IN_LIST LACONIC_COMPUTING_TESTS)
    target_precompile_headers(${NAME} REUSE_FROM laconic_test_pch_optimised)
    laconic_test_options(${NAME} -O1)
  else()
    target_precompile_headers(${NAME} REUSE_FROM laconic_test_pch)
    laconic_test_options(${NAME})
  endif()
  set(tests ${NAME})
  if(LACONIC_PARTS_${NAME})
    set(tests)
    foreach(part RANGE 1 ${LACONIC_PARTS_${NAME}})
      list(APPEND tests ${NAME}.${part})
    endforeach()
  endif()
  set(temporary ${PROJECT_BINARY_DIR}/tmp/${NAME})  # trees are tested at the same time, and files have names
  file(MAKE_DIRECTORY ${temporary})
  list(LENGTH tests shards)
  set(shard 0)
  foreach(test IN LISTS tests)
    add_test(NAME ${test} COMMAND ${NAME} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES LABELS ${LABEL} TIMEOUT 300
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard};TEST_TMPDIR=${temporary}")
    math(EXPR shard "${shard} + 1")
  endforeach()
  add_dependencies(laconic_tests ${NAME})
  if(NAME IN_LIST LACONIC_THREADED_TESTS)
    set_property(TEST ${tests} APPEND PROPERTY LABELS threads)
    add_dependencies(laconic_threaded_tests ${NAME})
  endif()
  if(NAME IN_LIST LACONIC_OPTIMISED_TESTS)
    set_property(TEST ${tests} APPEND PROPERTY LABELS optimised)
    add_dependencies(laconic_optimised_tests ${NAME})
  endif()
  if(NAME IN_LIST LACONIC_SCALAR_TESTS AND LACONIC_WITH_HWY AND NOT LACONIC_SANITIZE)
    laconic_scalar_test(${NAME} "${DEPS}")
  endif()
endfunction()

# laconic_scalar_test(NAME DEPS): the same objects linked with what a build without Highway has in place of the accessors
# of kernels: the linker asks the library only for what it has not found before.
function(laconic_scalar_test NAME DEPS)
  set(kernels ${PROJECT_SOURCE_DIR}/src/kernels)
  if(NOT TARGET laconic_no_hwy)
    add_library(laconic_no_hwy OBJECT EXCLUDE_FROM_ALL ${kernels}/no_hwy.cc ${kernels}/core/simd.cc)
    target_include_directories(laconic_no_hwy PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(laconic_no_hwy PRIVATE laconic_flags)
  endif()
  add_executable(${NAME}_scalar EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${NAME}> $<TARGET_OBJECTS:laconic_no_hwy>)
  set_target_properties(${NAME}_scalar PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${NAME}_scalar PRIVATE
    laconic_flags laconic_test_support ${DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${NAME}_scalar COMMAND ${NAME}_scalar --gtest_brief=1)
  set_tests_properties(${NAME}_scalar PROPERTIES LABELS scalar TIMEOUT 300)
  add_dependencies(laconic_scalar_tests ${NAME}_scalar)
endfunction()

# tests/support: helpers without a dependency of their own, so that the tests of a low module can use them.
function(laconic_test_support)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cc)
  if(sources)
    add_library(laconic_test_support STATIC ${sources})
    target_include_directories(laconic_test_support PUBLIC
      ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(laconic_test_support PRIVATE laconic_flags laconic_program_deps GTest::gtest)
  else()
    add_library(laconic_test_support INTERFACE)
  endif()
endfunction()

# Files that read others of tests/. These alone: with a path of this checkout in its command line, a file is compiled
# again in every other one.
set_source_files_properties(
  ${PROJECT_SOURCE_DIR}/tests/golden/golden_test.cc ${PROJECT_SOURCE_DIR}/tests/golden/datagram_test.cc
  ${PROJECT_SOURCE_DIR}/tests/unit/capi/boundary_test.cc ${PROJECT_SOURCE_DIR}/tests/distributed/driver_test.cc
  PROPERTIES COMPILE_DEFINITIONS LACONIC_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")

# tests/unit/<folder>/*_test.cc -> test_<folder>, linking the modules of src/<folder> and what they may use.
function(laconic_unit_tests)
  get_property(modules GLOBAL PROPERTY LACONIC_MODULES)
  file(GLOB folders LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR}/tests/unit CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/unit/*)
  foreach(folder IN LISTS folders)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/unit/${folder}/*_test.cc)
    set(deps ${modules})
    list(FILTER deps INCLUDE REGEX "^${folder}(_|$)")
    list(TRANSFORM deps PREPEND laconic_)
    if(sources)
      laconic_test(test_${folder} unit "${deps}" ${sources})
    endif()
  endforeach()
endfunction()

# tests/<folder>/*_test.cc -> test_<folder>, linking DEPS.
function(laconic_folder_tests FOLDER DEPS)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${FOLDER}/*_test.cc)
  if(FOLDER STREQUAL distributed AND LACONIC_SANITIZE MATCHES thread AND NOT LACONIC_WEEKLY)
    list(JOIN LACONIC_UNTHREADED_FILES "|" unthreaded)
    list(FILTER sources EXCLUDE REGEX "/(${unthreaded})_test[.]cc$")
  endif()
  laconic_test(test_${FOLDER} ${FOLDER} "${DEPS}" ${sources})
endfunction()

# tests/fuzz/<name>_fuzz.cc: a libFuzzer binary with LACONIC_FUZZ, else a program of the same name that replays its corpus.
# As a test both replay the corpus. laconic_fuzzers builds all.
function(laconic_fuzz_targets)
  add_custom_target(laconic_fuzzers)
  set(dir ${PROJECT_SOURCE_DIR}/tests/fuzz)
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  foreach(source IN LISTS sources)
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" name ${target})
    add_executable(${target} ${source})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${target} PRIVATE laconic_flags laconic_test_support laconic_all)
    set(replay)
    if(LACONIC_FUZZ)
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      set(replay -runs=0)
    else()
      target_sources(${target} PRIVATE ${dir}/replay_main.cc)
    endif()
    add_dependencies(laconic_fuzzers ${target})
    add_dependencies(laconic_tests ${target})
    add_test(NAME ${target} COMMAND ${target} ${replay} ${dir}/corpus/${name})
    set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT 300)
  endforeach()
endfunction()

# Everything in examples/ runs as a test: an example that fails is a lie in the documentation.
function(laconic_example_tests)
  get_property(programs GLOBAL PROPERTY LACONIC_examples_PROGRAMS)
  add_custom_target(laconic_examples DEPENDS ${programs})
  foreach(program IN LISTS programs)
    add_test(NAME ${program} COMMAND ${program})
    set_tests_properties(${program} PROPERTIES LABELS example TIMEOUT 300)
  endforeach()
endfunction()

# tests/golden: *_test.cc -> test_golden, which replays the files; make_golden, which wrote them, is no test.
function(laconic_golden_tests)
  laconic_folder_tests(golden "laconic_pipeline;laconic_aggregation_protocol;laconic_json")
  add_executable(make_golden EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/golden/make_golden.cc)
  target_include_directories(make_golden PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(make_golden PRIVATE laconic_flags laconic_pipeline laconic_aggregation_protocol laconic_json)
endfunction()

# A recording NCCL as a library that is opened at run time, and the same with the symbols of an old version.
function(laconic_fake_nccl)
  set(dir ${PROJECT_SOURCE_DIR}/tests/engines)
  foreach(name fake_nccl fake_nccl_old)
    add_library(laconic_${name} SHARED EXCLUDE_FROM_ALL
      ${dir}/fake_world.cc ${dir}/fake_nccl.cc ${dir}/fake_cuda.cc ${dir}/fake_kernels.cc)
    target_link_libraries(laconic_${name} PRIVATE laconic_flags laconic_test_support laconic_kernels)
    add_dependencies(test_engines laconic_${name})
  endforeach()
  target_compile_definitions(laconic_fake_nccl_old PRIVATE FAKE_NCCL_OLD)
  # The library with their images in place of its own: for Python.
  add_library(laconic_on_fake SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:laconic_capi> ${dir}/fake_images.cc)
  target_include_directories(laconic_on_fake PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(laconic_on_fake PRIVATE laconic_flags laconic_session ${CMAKE_DL_LIBS})
  add_dependencies(test_engines laconic_on_fake)
  # Once loaded, it is the driver of the process.
  set_target_properties(laconic_fake_nccl PROPERTIES NO_SONAME ON)
  target_link_options(laconic_fake_nccl PRIVATE LINKER:-soname,libcuda.so.1)
endfunction()

# tests/engines: the table that every engine has to pass, for the programs that run it over MPI and Gloo, and
# *_test.cc -> test_engines.
function(laconic_engine_tests)
  set(dir ${PROJECT_SOURCE_DIR}/tests/engines)
  add_library(laconic_engine_table STATIC EXCLUDE_FROM_ALL
    ${dir}/engine_table.cc ${dir}/raw_steps.cc ${dir}/table.cc)
  target_include_directories(laconic_engine_table PUBLIC ${PROJECT_SOURCE_DIR}/tests)
  target_include_directories(laconic_engine_table SYSTEM PRIVATE ${LACONIC_XXHASH_INCLUDE_DIR})
  target_link_libraries(laconic_engine_table PRIVATE laconic_flags PUBLIC laconic_all GTest::gtest)
  laconic_test_options(laconic_engine_table)
  laconic_folder_tests(engines laconic_engine_table)
  # The linker asks the library only for what it has not found before.
  target_sources(test_engines PRIVATE ${dir}/fake_images.cc ${PROJECT_SOURCE_DIR}/tools/wire.cc)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/tools/wire.cc PROPERTY SKIP_PRECOMPILE_HEADERS ON)  # optimised, for what it is of
  laconic_fake_nccl()
  # Some of them on the machine's GPU, with the library's own kernels: scripts/gpu_check.
  add_executable(test_on_card ${dir}/device_tensor_test.cc)
  if(LACONIC_SANITIZE)
    set_property(TARGET test_on_card PROPERTY EXCLUDE_FROM_ALL ON)
  endif()
  target_compile_definitions(test_on_card PRIVATE LACONIC_ON_CARD)
  target_link_libraries(test_on_card PRIVATE
    laconic_flags laconic_test_support laconic_engine_table laconic_program_deps GTest::gmock GTest::gtest_main)
  laconic_test_options(test_on_card)
  foreach(fault IN ITEMS "" 1 2 3 4)  # beside the program that opens them
    set(fake fake_plugin)
    if(fault)
      set(fake fake_plugin_${fault})
    endif()
    laconic_plugin(${fake} ${PROJECT_SOURCE_DIR}/tests/engines/fake_plugin.cc)
    set_target_properties(${fake} PROPERTIES LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:test_engines>)
    if(fault)
      target_compile_definitions(${fake} PRIVATE FAULT=${fault})
    endif()
    add_dependencies(test_engines ${fake})
  endforeach()
  foreach(mpi IN LISTS LACONIC_MPIS)  # launched by test_mpi.py
    add_executable(mpi_ranks_${mpi} ${PROJECT_SOURCE_DIR}/tests/engines/mpi_ranks.cc)
    target_link_libraries(mpi_ranks_${mpi} PRIVATE
      laconic_flags laconic_engine_table laconic_json laconic_engine_${mpi})
    laconic_test_options(mpi_ranks_${mpi})
    # launched by python/tests/test_session.py
    add_executable(beside_python_${mpi} ${PROJECT_SOURCE_DIR}/tests/engines/beside_python.cc)
    target_compile_definitions(beside_python_${mpi} PRIVATE BESIDE_PYTHON_OVER_MPI)
    target_link_libraries(beside_python_${mpi} PRIVATE laconic_flags laconic_all laconic_engine_${mpi})
    laconic_test_options(beside_python_${mpi})
    list(APPEND LACONIC_LAUNCHED mpi_ranks_${mpi} beside_python_${mpi})
  endforeach()
  if(TARGET laconic_gloo::gloo)  # launched by python/tests/test_session.py
    add_executable(beside_python ${PROJECT_SOURCE_DIR}/tests/engines/beside_python.cc)
    target_link_libraries(beside_python PRIVATE laconic_flags laconic_all laconic_engine_gloo)
    laconic_test_options(beside_python)
    list(APPEND LACONIC_LAUNCHED beside_python)
  endif()
  # NCCL is opened at run time, so this is built everywhere; started by test_nccl.py.
  add_executable(nccl_ranks ${PROJECT_SOURCE_DIR}/tests/engines/nccl_ranks.cc)
  target_link_libraries(nccl_ranks PRIVATE laconic_flags laconic_engine_table laconic_json)
  laconic_test_options(nccl_ranks)
  list(APPEND LACONIC_LAUNCHED nccl_ranks)
  # Ranks on the hosts of a lab, started by tests/aggregation.
  add_executable(aggregation_rank ${PROJECT_SOURCE_DIR}/tests/aggregation/aggregation_rank.cc)
  target_link_libraries(aggregation_rank PRIVATE laconic_flags laconic_all laconic_json laconic_program_deps)
  laconic_test_options(aggregation_rank)
  list(APPEND LACONIC_LAUNCHED aggregation_rank)
  # What tests in Python launch or open.
  add_custom_target(laconic_launched)
  add_dependencies(laconic_launched ${LACONIC_LAUNCHED} ${LACONIC_PLUGINS})
endfunction()

# tests/engines/gloo/*_test.cc -> test_gloo: processes over Gloo, where it is.
function(laconic_gloo_tests)
  if(TARGET laconic_gloo::gloo)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/engines/gloo/*_test.cc)
    laconic_test(test_gloo engines "laconic_engine_table;laconic_engine_gloo" ${sources})
    target_compile_definitions(test_gloo PRIVATE LACONIC_GLOO_PLUGIN="$<TARGET_FILE_NAME:laconic_gloo>")
    add_dependencies(test_gloo laconic_gloo)
  else()
    laconic_skipped_test(test_gloo engines "Gloo was not found (libgloo-dev), or LACONIC_GLOO is OFF")
  endif()
endfunction()

# A test that ctest lists as skipped, with the reason.
function(laconic_skipped_test NAME LABEL REASON)
  add_test(NAME ${NAME} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${REASON}")
  set_tests_properties(${NAME} PROPERTIES LABELS ${LABEL} SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()

function(laconic_all_tests)
  laconic_fuzz_targets()
  laconic_test_pch(laconic_test_pch -O0)
  laconic_test_pch(laconic_test_pch_optimised -O1)
  laconic_test_support()
  laconic_unit_tests()
  laconic_folder_tests(conformance laconic_pipeline)
  laconic_folder_tests(distributed laconic_all)
  laconic_engine_tests()
  laconic_gloo_tests()
  laconic_golden_tests()
  if(TARGET test_lab)  # lab/ adds its own test, with the label
    add_dependencies(laconic_tests test_lab)
    add_dependencies(laconic_optimised_tests test_lab)
  endif()
  laconic_example_tests()
endfunction()
