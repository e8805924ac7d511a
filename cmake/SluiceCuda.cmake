# Kernels for GPUs, compiled from src/device/kernels/kernels.cu and carried in the program. SLUICE_CUDA:
#
#   AUTO  with a compiler for GPUs if there is one, else without kernels (sluice version says so)
#   ON    a compiler must be there: scripts/cuda-compiler gets one
#   OFF   no kernels
#
# A compiler is NVRTC (libnvrtc.so), nvcc or clang, see scripts/cuda-compile. Nothing of NVIDIA's is
# linked; a driver is opened at run time (src/client/cuda). Static programs cannot, and have no kernels.
set(SLUICE_CUDA AUTO CACHE STRING "Kernels for GPUs: AUTO, ON or OFF")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT SLUICE_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "SLUICE_CUDA is '${SLUICE_CUDA}', not AUTO, ON or OFF")
endif()
set(SLUICE_CUDA_ARCHS sm_80 sm_90 sm_100 compute_80 CACHE STRING "What kernels are compiled for")

set(images_header ${CMAKE_BINARY_DIR}/generated/kernel_images_data.h)
set(images "")
set(images_text "none: this sluice was built without a compiler for GPUs")
set(cuda_wanted ${SLUICE_CUDA})
if(SLUICE_STATIC STREQUAL "full")
    set(cuda_wanted OFF)
    set(images_text "none: a fully static sluice cannot open a driver")
endif()

if(NOT cuda_wanted STREQUAL "OFF")
    set(cache $ENV{SLUICE_CACHE})
    if(NOT cache)
        set(cache ${CMAKE_SOURCE_DIR}/.cache)
    endif()
    file(GLOB cached ${cache}/cuda/*/nvidia/cuda_nvrtc/lib/libnvrtc.so.*)
    if(cached AND NOT SLUICE_CUDA_COMPILER) # also after a configuration that found none
        list(SORT cached COMPARE NATURAL ORDER DESCENDING)
        list(GET cached 0 cached)
        set(SLUICE_CUDA_COMPILER ${cached} CACHE FILEPATH "nvcc, libnvrtc.so or clang" FORCE)
    endif()
    find_program(SLUICE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
    find_library(SLUICE_CUDA_COMPILER NAMES libnvrtc.so.12 nvrtc PATHS /usr/local/cuda/lib64)
    find_program(SLUICE_PYTHON python3)
    if((NOT SLUICE_CUDA_COMPILER OR NOT SLUICE_PYTHON) AND SLUICE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "SLUICE_CUDA is ON, but there is no compiler for GPUs: run scripts/cuda-compiler")
    endif()
endif()

if(SLUICE_CUDA_COMPILER AND SLUICE_PYTHON AND NOT cuda_wanted STREQUAL "OFF")
    set(compile ${SLUICE_PYTHON} ${CMAKE_SOURCE_DIR}/scripts/cuda-compile --compiler ${SLUICE_CUDA_COMPILER})
    execute_process(COMMAND ${compile} --list ${SLUICE_CUDA_ARCHS} RESULT_VARIABLE cuda_failed
        OUTPUT_VARIABLE cuda_list OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE cuda_error)
    if(cuda_failed AND SLUICE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "${SLUICE_CUDA_COMPILER}: ${cuda_error}")
    elseif(cuda_failed)
        message(STATUS "No kernels for GPUs: ${cuda_error}")
    else()
        string(REPLACE "\n" ";" cuda_list "${cuda_list}")
        list(POP_FRONT cuda_list cuda_compiler_name)
        file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/kernels/kernel*.h
            ${CMAKE_SOURCE_DIR}/src/device/kernels/kernels.*)
        foreach(arch ${cuda_list})
            string(REGEX REPLACE "^[a-z]+_" "" number ${arch})
            set(ptx 0)
            if(arch MATCHES "^compute_")
                set(ptx 1)
            endif()
            set(file ${CMAKE_BINARY_DIR}/generated/kernels_${arch}.image)
            add_custom_command(OUTPUT ${file} VERBATIM
                COMMAND ${compile} --root ${CMAKE_SOURCE_DIR} --arch ${arch} --out ${file} --log ${file}.log
                DEPENDS ${cuda_sources} ${CMAKE_SOURCE_DIR}/scripts/cuda-compile
                    ${CMAKE_SOURCE_DIR}/src/core/base/device.h ${CMAKE_SOURCE_DIR}/src/model/transform/cast_element.h
                COMMENT "Compiling kernels for ${arch}")
            list(APPEND image_files ${file})
            string(APPEND images " SL_IMAGE(${arch}, ${number}, ${ptx}, \"kernels_${arch}.image\")")
        endforeach()
        list(JOIN cuda_list " " images_text)
        string(APPEND images_text " (${cuda_compiler_name})")
    endif()
endif()
message(STATUS "Kernels for GPUs: ${images_text}")
file(CONFIGURE OUTPUT ${images_header} CONTENT
"/* cmake/SluiceCuda.cmake wrote this. */
#define SL_IMAGES @images@
#define SL_IMAGES_TEXT \"@images_text@\"
" @ONLY)

target_compile_options(sluice_kernels PRIVATE "SHELL:-iquote \"${CMAKE_BINARY_DIR}/generated\"")
set_source_files_properties(src/device/kernels/kernel_images.c PROPERTIES OBJECT_DEPENDS "${image_files}"
    COMPILE_OPTIONS "-Wa,-I${CMAKE_BINARY_DIR}/generated")
