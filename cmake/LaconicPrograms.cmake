# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# The laconic command, the benchmarks and the examples.

find_package(fmt QUIET)
find_package(CLI11 QUIET)
find_package(nlohmann_json QUIET)

# Libraries that programs and tests may use, the library itself not. Header-only, so that the command in the wheel
# needs nothing at run time.
add_library(laconic_program_deps INTERFACE)
foreach(dep fmt::fmt-header-only CLI11::CLI11 nlohmann_json::nlohmann_json)
  if(TARGET ${dep})
    target_link_libraries(laconic_program_deps INTERFACE ${dep})
  else()
    list(APPEND _missing_deps ${dep})
  endif()
endforeach()

# laconic_programs(PREFIX DIR PATTERN DEPS...): one executable per file, named PREFIX<file>.
function(laconic_programs PREFIX DIR PATTERN)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${DIR}/${PATTERN})
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${PREFIX}${name} ${source})
    target_include_directories(${PREFIX}${name} PRIVATE ${PROJECT_SOURCE_DIR}/${DIR})
    target_link_libraries(${PREFIX}${name} PRIVATE laconic_flags ${ARGN})
    set_property(GLOBAL APPEND PROPERTY LACONIC_${DIR}_PROGRAMS ${PREFIX}${name})
  endforeach()
endfunction()

file(GLOB _tool_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*.cc)
if(LACONIC_BUILD_TOOLS AND _tool_sources)
  if(_missing_deps)
    message(FATAL_ERROR "The laconic command needs ${_missing_deps}. Debian and Ubuntu: apt install libfmt-dev "
                        "libcli11-dev nlohmann-json3-dev. Or switch it off: -DLACONIC_BUILD_TOOLS=OFF")
  endif()
  # All but main.cc is a library, so that tests can call what the commands call.
  list(FILTER _tool_sources EXCLUDE REGEX "/main\\.cc$")
  set(_tools laconic_all)
  add_subdirectory(lab)
  list(APPEND _tools laconic_lab)
  if(_tool_sources)
    add_library(laconic_tools STATIC ${_tool_sources})
    target_include_directories(laconic_tools PUBLIC ${PROJECT_SOURCE_DIR}/tools)
    target_link_libraries(laconic_tools PRIVATE laconic_flags PUBLIC ${_tools} laconic_program_deps)
    # What parses, prints and waits gains nothing from -O3 but minutes of compiling JSON templates.
    foreach(file IN ITEMS list bench inspect frame_fields output doctor verify files machine)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/tools/${file}.cc PROPERTIES
        COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
    endforeach()
    list(PREPEND _tools laconic_tools)
  endif()
  set_property(GLOBAL PROPERTY LACONIC_TOOL_LIBRARIES ${_tools})
  if(EXISTS ${PROJECT_SOURCE_DIR}/tools/main.cc)
    add_executable(laconic_cli ${PROJECT_SOURCE_DIR}/tools/main.cc)
    target_include_directories(laconic_cli PRIVATE ${PROJECT_SOURCE_DIR}/tools)
    target_link_libraries(laconic_cli PRIVATE laconic_flags ${_tools} laconic_program_deps)
    target_compile_options(laconic_cli PRIVATE $<$<CONFIG:Release>:-O1>)
    if(TARGET laconic_lab)
      target_compile_definitions(laconic_cli PRIVATE LACONIC_WITH_LAB)
    endif()
    set_target_properties(laconic_cli PROPERTIES OUTPUT_NAME laconic)
  endif()
endif()
if(LACONIC_BUILD_BENCH AND TARGET laconic_tools)
  laconic_programs("" bench *_bench.cc laconic_tools)
  if(TARGET c_abi_bench)  # measures what callers in C get, so it links what they link
    set_property(TARGET c_abi_bench PROPERTY LINK_LIBRARIES laconic_flags laconic::c laconic_program_deps)
    target_include_directories(c_abi_bench PRIVATE ${PROJECT_SOURCE_DIR}/tools)
  endif()
endif()
if(LACONIC_BUILD_EXAMPLES AND TARGET laconic_static)
  laconic_programs(example_ examples *.cc laconic::laconic)  # what users see: public headers only
  file(GLOB _c_examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
  if(_c_examples)
    enable_language(C)
    set(CMAKE_C_STANDARD 99)
    laconic_programs(example_ examples *.c laconic::c)  # the C ABI, from C
  endif()
endif()
