# libsluice for other programs: src/lib/api and src/device/cuda, which need libc and nothing else. What it exports,
# and with which version, src/lib/api/sluice.map says; a symbol never leaves it.
file(GLOB api_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/lib/api/*.c ${CMAKE_SOURCE_DIR}/src/device/cuda/*.c)
set(kinds static)
if(NOT SLUICE_STATIC)
    list(APPEND kinds shared)
endif()
foreach(kind ${kinds})
    string(TOUPPER ${kind} type)
    add_library(libsluice_${kind} ${type} ${api_files})
    set_target_properties(libsluice_${kind} PROPERTIES OUTPUT_NAME sluice C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
    target_compile_options(libsluice_${kind} PRIVATE "SHELL:-iquote \"${CMAKE_SOURCE_DIR}/src/lib/api\""
        "SHELL:-iquote \"${CMAKE_SOURCE_DIR}/src/device/cuda\"")
    target_link_libraries(libsluice_${kind} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    install(TARGETS libsluice_${kind} LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
endforeach()
if(NOT SLUICE_STATIC)
    set(map ${CMAKE_SOURCE_DIR}/src/lib/api/sluice.map)
    set_target_properties(libsluice_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${map})
    target_link_options(libsluice_shared PRIVATE -Wl,--version-script=${map})
endif()
install(FILES ${CMAKE_SOURCE_DIR}/src/lib/api/sluice.h DESTINATION include)
