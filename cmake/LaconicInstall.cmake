# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Two ways to install: a prefix with headers, libraries, CMake and pkg-config files; or, under scikit-build, the
# component `wheel` with the library and its plug-ins inside the Python package and the command among its scripts.
# Installed plug-ins have no RUNPATH: the MPI or Gloo they open is that of the machine that they run on.

add_custom_target(laconic_installed)  # builds what is installed
add_dependencies(laconic_installed laconic_c ${LACONIC_PLUGINS})
if(TARGET laconic_cli)
  add_dependencies(laconic_installed laconic_cli)
endif()

if(SKBUILD)
  # A wheel holds no symbolic links: one file, without version suffixes.
  set_property(TARGET laconic_c PROPERTY VERSION)
  set_property(TARGET laconic_c PROPERTY SOVERSION)
  install(TARGETS laconic_c ${LACONIC_PLUGINS} LIBRARY DESTINATION laconic/lib COMPONENT wheel)
  if(TARGET laconic_cli)
    target_link_options(laconic_cli PRIVATE -static-libstdc++ -static-libgcc)
    install(TARGETS laconic_cli RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
  endif()
  return()
endif()

add_dependencies(laconic_installed laconic_static)
include(CMakePackageConfigHelpers)
set(_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/laconic)

# Notices of what is compiled in; of a wheel, pyproject.toml names them.
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/laconic)
install(DIRECTORY LICENSES DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/laconic)
install(DIRECTORY include/laconic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS laconic_c laconic_static EXPORT laconic-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET laconic_cli)
  install(TARGETS laconic_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(LACONIC_PLUGINS)  # opened at run time, so nobody links them and they are not exported
  install(TARGETS ${LACONIC_PLUGINS} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# Sources of the engines, which a program compiles with its own MPI or Gloo.
set(_engines ${CMAKE_INSTALL_DATADIR}/laconic/engines)
install(DIRECTORY src/engines/mpi src/engines/gloo src/engines/shared DESTINATION ${_engines})
install(EXPORT laconic-targets NAMESPACE laconic:: DESTINATION ${_cmake_dir})
configure_package_config_file(cmake/laconicConfig.cmake.in ${PROJECT_BINARY_DIR}/laconicConfig.cmake
  INSTALL_DESTINATION ${_cmake_dir} PATH_VARS CMAKE_INSTALL_INCLUDEDIR _engines NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/laconicConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/laconicConfig.cmake ${PROJECT_BINARY_DIR}/laconicConfigVersion.cmake
        cmake/LaconicEngines.cmake DESTINATION ${_cmake_dir})

# laconic.pc is the C ABI, laconic++.pc the C++ library. Both find their prefix from where they lie, so that an
# installation may be moved; libdir may have more than one part (lib/x86_64-linux-gnu).
string(REGEX REPLACE "[^/]+" ".." LACONIC_PC_UP ${CMAKE_INSTALL_LIBDIR})
foreach(name laconic laconic++)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
