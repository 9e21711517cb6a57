# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# laconic_bpf_program(TARGET SOURCE): SOURCE, compiled for the kernel, becomes an array of bytes in TARGET. In its own
# process (cmake -P) this file writes that array.
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${OBJECT} bytes HEX)
  string(LENGTH "${bytes}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  file(WRITE ${OUTPUT}
    "extern \"C\" {\n"
    "extern const unsigned char laconic_bpf_object[];\n"
    "extern const unsigned long laconic_bpf_object_size;\n"
    "alignas(8) const unsigned char laconic_bpf_object[] = {\n${bytes}};\n"
    "const unsigned long laconic_bpf_object_size = ${size};\n"
    "}\n")
  return()
endif()

function(laconic_bpf_program TARGET SOURCE)
  get_filename_component(name ${SOURCE} NAME_WE)
  set(object ${PROJECT_BINARY_DIR}/bpf/${name}.o)
  set(array ${PROJECT_BINARY_DIR}/bpf/${name}.cc)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/bpf)
  set(flags ${LACONIC_BPF_FLAGS} -O2 -g -Wall -Wextra -I${PROJECT_SOURCE_DIR}/src)
  if(LACONIC_WERROR)
    list(APPEND flags -Werror)
  endif()
  add_custom_command(OUTPUT ${array}
    COMMAND ${LACONIC_BPF_CLANG} ${flags} -MD -MF ${object}.d -MT ${array} -c ${SOURCE} -o ${object}
    COMMAND ${CMAKE_COMMAND} -DOBJECT=${object} -DOUTPUT=${array}
            -P ${PROJECT_SOURCE_DIR}/cmake/LaconicBpf.cmake
    DEPENDS ${SOURCE} ${PROJECT_SOURCE_DIR}/cmake/LaconicBpf.cmake DEPFILE ${object}.d
    COMMENT "Compiling ${name} for the kernel" VERBATIM)
  target_sources(${TARGET} PRIVATE ${array})
  target_include_directories(${TARGET} SYSTEM PRIVATE ${LACONIC_BPF_INCLUDE_DIR})
  # Programs that load nothing need no libbpf at run time.
  target_link_libraries(${TARGET} PUBLIC "-Wl,--push-state,--as-needed,${LACONIC_BPF_LIBRARY},--pop-state")
endfunction()
