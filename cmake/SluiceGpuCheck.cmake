# What scripts/gpu-check runs on a machine with a GPU. Without tests it is made only when asked for by name.
file(GLOB gpu_check_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/e2e/gpu/*.c)
if(NOT gpu_check_files)
    return() # sources without e2e/, as in an image's build
endif()
add_executable(gpu_check ${gpu_check_files})
target_compile_options(gpu_check PRIVATE "SHELL:-iquote \"${CMAKE_SOURCE_DIR}/e2e/gpu\"")
target_link_libraries(gpu_check PRIVATE sluice_kernels sluice_gpu sluice_api)
if(NOT SLUICE_TESTS)
    set_target_properties(gpu_check PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
