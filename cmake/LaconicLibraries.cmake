# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# What users link: laconic::c (liblaconic.so, the C ABI) and laconic::laconic (liblaconic.a, the C++ library).

get_property(_modules GLOBAL PROPERTY LACONIC_MODULES)
set(_objects)
foreach(module IN LISTS _modules)
  get_target_property(_type laconic_${module} TYPE)
  if(_type STREQUAL "STATIC_LIBRARY")
    list(APPEND _objects $<TARGET_OBJECTS:laconic_${module}>)
  endif()
endforeach()

# Everything below the C ABI, for tests and programs of ours: it sees private headers too.
add_library(laconic_all INTERFACE)
target_link_libraries(laconic_all INTERFACE laconic_capi laconic_session laconic_aggregation_io)

# ---- liblaconic.so ----
add_library(laconic_c SHARED)
add_library(laconic::c ALIAS laconic_c)
# The objects of capi are listed because nothing in the library calls them; they pull in the rest.
target_sources(laconic_c PRIVATE $<TARGET_OBJECTS:laconic_capi>)
set(_map ${PROJECT_SOURCE_DIR}/cmake/laconic.map)
target_link_libraries(laconic_c PRIVATE laconic_flags laconic_session ${CMAKE_DL_LIBS})
target_include_directories(laconic_c INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_options(laconic_c PRIVATE LINKER:--version-script=${_map} LINKER:--exclude-libs,ALL)
if(NOT LACONIC_SANITIZE)
  # The C++ runtime travels inside, so that one build serves every Python and every torch.
  target_link_options(laconic_c PRIVATE -static-libstdc++ -static-libgcc LINKER:--no-undefined LINKER:--as-needed)
endif()
set_target_properties(laconic_c PROPERTIES
  OUTPUT_NAME laconic EXPORT_NAME c LINKER_LANGUAGE CXX LINK_DEPENDS ${_map}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

# ---- liblaconic.a: all modules in one archive ----
add_library(laconic_static STATIC ${_objects})
add_library(laconic::laconic ALIAS laconic_static)
target_compile_features(laconic_static PUBLIC cxx_std_20)
target_include_directories(laconic_static INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(laconic_static PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(laconic_static PROPERTIES OUTPUT_NAME laconic EXPORT_NAME laconic LINKER_LANGUAGE CXX)
