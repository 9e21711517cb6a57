# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# The kernels for GPUs, compiled by nvcc and embedded in src/kernels/device_images.cc: cubins of LACONIC_CUBINS, and PTX
# for all later cards. nvcc compiles once; ptxas makes every cubin from that PTX. Its version line is set to the oldest
# that has compute_80, so that older drivers compile it, too; ptxas refuses it should a kernel use something newer.
# In its own process (cmake -P) this file sets that line.
set(LACONIC_PTX_VERSION 7.0)
set(LACONIC_PTX_TARGET compute_80)
set(LACONIC_CUBINS 80 90 100 120)

if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${PTX} text)
  string(REGEX REPLACE "\n[.]version [0-9.]+" "\n.version ${LACONIC_PTX_VERSION}" text "${text}")
  file(WRITE ${PTX} "${text}")
  return()
endif()

# LACONIC_NVCC and LACONIC_PTXAS, of the system or of scripts/bootstrap --cuda. Sanitized trees do without.
set(LACONIC_WITH_CUDA OFF)
set(_why "LACONIC_CUDA is OFF")
if(LACONIC_CUDA STREQUAL "AUTO" AND LACONIC_SANITIZE)
  set(_why "sanitized")
elseif(NOT LACONIC_CUDA STREQUAL "OFF")
  file(GLOB _hints ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/bin)
  find_program(LACONIC_NVCC nvcc HINTS ${_hints})
  if(LACONIC_NVCC)
    get_filename_component(_hints ${LACONIC_NVCC} DIRECTORY)
    find_program(LACONIC_PTXAS ptxas HINTS ${_hints})
  endif()
  set(_why "no nvcc with ptxas; scripts/bootstrap --cuda installs them")
  set(_status none)
  if(LACONIC_NVCC AND LACONIC_PTXAS)
    file(WRITE ${PROJECT_BINARY_DIR}/cuda/empty.cu "")
    execute_process(COMMAND ${LACONIC_NVCC} -optf ${PROJECT_SOURCE_DIR}/src/kernels/nvcc.flags -arch=${LACONIC_PTX_TARGET}
                            -ptx ${PROJECT_BINARY_DIR}/cuda/empty.cu -o ${PROJECT_BINARY_DIR}/cuda/empty.ptx
                    RESULT_VARIABLE _status OUTPUT_QUIET ERROR_VARIABLE _why)
  endif()
  if(_status EQUAL 0)
    set(LACONIC_WITH_CUDA ON)
  elseif(LACONIC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LACONIC_CUDA=ON: ${_why}")
  endif()
endif()
if(LACONIC_WITH_CUDA)
  list(JOIN LACONIC_CUBINS ", sm_" _cubins)
  message(STATUS "Kernels for GPUs: sm_${_cubins}, PTX ${LACONIC_PTX_VERSION}, by ${LACONIC_NVCC}")
else()
  message(STATUS "Kernels for GPUs: none (${_why})")
endif()

# laconic_device_images(TARGET): compiles them into TARGET.
function(laconic_device_images TARGET)
  set(kernels ${PROJECT_SOURCE_DIR}/src/kernels)
  set(folder ${PROJECT_BINARY_DIR}/cuda)
  set(ptx ${folder}/kernels.ptx)
  add_custom_command(OUTPUT ${ptx}
    COMMAND ${LACONIC_NVCC} -optf ${kernels}/nvcc.flags -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
            -arch=${LACONIC_PTX_TARGET} -MD -MF ${ptx}.d -MT ${ptx} -ptx ${kernels}/kernels.cu -o ${ptx}
    COMMAND ${CMAKE_COMMAND} -DPTX=${ptx} -P ${PROJECT_SOURCE_DIR}/cmake/LaconicCuda.cmake
    DEPENDS ${kernels}/kernels.cu ${kernels}/nvcc.flags ${PROJECT_SOURCE_DIR}/cmake/LaconicCuda.cmake
    DEPFILE ${ptx}.d COMMENT "Compiling kernels for GPUs" VERBATIM)
  set(images ${ptx})
  foreach(architecture IN LISTS LACONIC_CUBINS)
    set(cubin ${folder}/sm_${architecture}.cubin)
    add_custom_command(OUTPUT ${cubin} COMMAND ${LACONIC_PTXAS} -arch=sm_${architecture} ${ptx} -o ${cubin}
      DEPENDS ${ptx} COMMENT "Assembling kernels for sm_${architecture}" VERBATIM)
    list(APPEND images ${cubin})
  endforeach()
  target_sources(${TARGET} PRIVATE ${images})
  set_source_files_properties(${kernels}/device_images.cc PROPERTIES
    OBJECT_DEPENDS "${images}" COMPILE_DEFINITIONS LACONIC_WITH_CUDA COMPILE_OPTIONS "-Wa,-I${folder}")
endfunction()
