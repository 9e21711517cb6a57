# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# The laconic command, the benchmarks and the examples.

# What programs and tests may use, the library itself not. Header-only, so that the command in the wheel needs nothing
# at run time.
add_library(laconic_program_deps INTERFACE)
if(TARGET fmt::fmt-header-only)
  target_link_libraries(laconic_program_deps INTERFACE fmt::fmt-header-only)
endif()

# JSON as a value, for the command, benchmarks and tests. It parses and prints: -O3 gains nothing.
set(LACONIC_JSON_SOURCES ${PROJECT_SOURCE_DIR}/tools/json.cc ${PROJECT_SOURCE_DIR}/tools/json_read.cc)
if(TARGET nlohmann_json::nlohmann_json)
  add_library(laconic_json STATIC EXCLUDE_FROM_ALL ${LACONIC_JSON_SOURCES})
  target_include_directories(laconic_json PUBLIC
    ${PROJECT_SOURCE_DIR}/tools ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(laconic_json PRIVATE laconic_flags nlohmann_json::nlohmann_json)
  target_compile_options(laconic_json PRIVATE $<$<CONFIG:Release>:-O1>)
endif()

# laconic_programs(PREFIX DIR PATTERN DEPS...): one executable per file, named PREFIX<file>.
function(laconic_programs PREFIX DIR PATTERN)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${DIR}/${PATTERN})
  list(FILTER sources EXCLUDE REGEX "/(mpi|gloo)_[a-z_]+\\.cc$")  # where those are: below
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${PREFIX}${name} ${source})
    target_include_directories(${PREFIX}${name} PRIVATE ${PROJECT_SOURCE_DIR}/${DIR})
    target_link_libraries(${PREFIX}${name} PRIVATE laconic_flags ${ARGN})
    set_property(GLOBAL APPEND PROPERTY LACONIC_${DIR}_PROGRAMS ${PREFIX}${name})
  endforeach()
endfunction()

if(LACONIC_BUILD_TOOLS)
  add_subdirectory(lab)
  # All but main.cc is a library, because benchmarks call what the commands call.
  file(GLOB _tool_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*.cc)
  list(FILTER _tool_sources EXCLUDE REGEX "/(main|metrics_[a-z]+)\\.cc$")
  list(REMOVE_ITEM _tool_sources ${LACONIC_JSON_SOURCES})
  add_library(laconic_tools STATIC ${_tool_sources})
  target_include_directories(laconic_tools PUBLIC ${PROJECT_SOURCE_DIR}/tools)
  target_link_libraries(laconic_tools
    PRIVATE laconic_flags CLI11::CLI11 PUBLIC laconic_all laconic_json laconic_program_deps)
  target_include_directories(laconic_tools SYSTEM PRIVATE ${LACONIC_TOML_INCLUDE_DIR})
  # What parses, prints and waits gains nothing from -O3; what is measured, or measures, does.
  target_compile_options(laconic_tools PRIVATE $<$<CONFIG:Release>:-O1>)
  foreach(file IN ITEMS all_reduce bench_point error_metrics gradients wire)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tools/${file}.cc PROPERTIES
      COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  endforeach()
  if(LACONIC_WITH_HWY)  # it says which kernels were compiled
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/tools/doctor.cc APPEND PROPERTY COMPILE_DEFINITIONS LACONIC_WITH_HWY)
  endif()
  # Linked to the command, never to the library.
  if(TARGET prometheus-cpp::pull)
    add_library(laconic_metrics STATIC ${PROJECT_SOURCE_DIR}/tools/metrics_prometheus.cc)
    target_link_libraries(laconic_metrics PRIVATE prometheus-cpp::pull)
  else()
    add_library(laconic_metrics STATIC ${PROJECT_SOURCE_DIR}/tools/metrics_none.cc)
  endif()
  target_link_libraries(laconic_metrics PRIVATE laconic_flags laconic_tools)
  target_compile_options(laconic_metrics PRIVATE $<$<CONFIG:Release>:-O1>)
  add_executable(laconic_cli ${PROJECT_SOURCE_DIR}/tools/main.cc)
  target_link_libraries(laconic_cli PRIVATE laconic_flags laconic_tools laconic_metrics laconic_lab)
  target_compile_options(laconic_cli PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(laconic_cli PROPERTIES OUTPUT_NAME laconic)
endif()
if(LACONIC_BUILD_BENCH AND LACONIC_BUILD_TOOLS)
  laconic_programs("" bench */*_bench.cc laconic_tools)
  # Measures what callers in C get, so it links what they link.
  set_property(TARGET c_abi_bench PROPERTY LINK_LIBRARIES laconic_flags laconic::c laconic_json)
  foreach(mpi IN LISTS LACONIC_MPIS)
    add_executable(mpi_sum_bench_${mpi} ${PROJECT_SOURCE_DIR}/bench/engines/mpi_sum_bench.cc)
    target_link_libraries(mpi_sum_bench_${mpi} PRIVATE laconic_flags laconic_tools laconic_engine_${mpi})
  endforeach()
  if(TARGET laconic_gloo::gloo)
    add_executable(gloo_sum_bench ${PROJECT_SOURCE_DIR}/bench/engines/gloo_sum_bench.cc)
    target_link_libraries(gloo_sum_bench PRIVATE laconic_flags laconic_tools laconic_engine_gloo)
  endif()
endif()
if(LACONIC_BUILD_EXAMPLES)
  laconic_programs(example_ examples *.cc laconic::laconic)  # what users see: public headers only
  foreach(engine IN LISTS LACONIC_MPIS ITEMS gloo)  # launched by tests/engines/test_sharded_example.py
    if(NOT TARGET laconic_engine_${engine})
      continue()
    endif()
    add_executable(example_sharded_${engine} ${PROJECT_SOURCE_DIR}/examples/sharded.cc)
    target_link_libraries(example_sharded_${engine} PRIVATE laconic_flags laconic::laconic laconic_engine_${engine})
    string(REGEX REPLACE "^(openmpi|mpich)$" "MPI" kind ${engine})
    string(TOUPPER ${kind} kind)
    target_compile_definitions(example_sharded_${engine} PRIVATE SHARDED_${kind})
    list(APPEND LACONIC_LAUNCHED example_sharded_${engine})
  endforeach()
  find_package(Eigen3 QUIET NO_MODULE)
  if(TARGET Eigen3::Eigen)
    foreach(mpi IN LISTS LACONIC_MPIS)  # launched by tests/engines/test_mpi.py
      add_executable(example_mpi_train_${mpi} ${PROJECT_SOURCE_DIR}/examples/mpi_train.cc)
      target_link_libraries(example_mpi_train_${mpi} PRIVATE
        laconic_flags laconic::laconic laconic_engine_${mpi} Eigen3::Eigen)
      list(APPEND LACONIC_LAUNCHED example_mpi_train_${mpi})
    endforeach()
  endif()
  enable_language(C)
  set(CMAKE_C_STANDARD 99)
  laconic_programs(example_ examples *.c laconic::c)  # the C ABI, from C
endif()
