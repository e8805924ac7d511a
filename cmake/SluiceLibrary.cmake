# sluice for other programs: two libraries with one header. libsluice has the whole engine. libsluice-attach is what a
# client of the pool needs, src/client/api and src/client/cuda, with libc and nothing else. What each exports, and with
# which version, src/lib/open/sluice.map and src/client/api/sluice-attach.map say; a symbol never leaves them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
file(GLOB api_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/client/api/*.c ${CMAKE_SOURCE_DIR}/src/client/cuda/*.c)
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)

# sluice_library(TARGET KIND NAME): how a library that is installed is called, and found.
function(sluice_library target kind name)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} EXPORT_NAME ${kind} C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
    target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    install(TARGETS ${target} EXPORT sluice LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "SHARED_LIBRARY")
        set(map ${CMAKE_SOURCE_DIR}/src/${ARGN}/${name}.map)
        set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${map})
        target_link_options(${target} PRIVATE -Wl,--version-script=${map})
    endif()
endfunction()

set(kinds STATIC)
if(SLUICE_SHARED)
    list(APPEND kinds SHARED)
endif()
foreach(type ${kinds})
    string(TOLOWER ${type} kind)
    add_library(libsluice_attach_${kind} ${type} ${api_files})
    target_compile_options(libsluice_attach_${kind} PRIVATE "SHELL:-iquote \"${CMAKE_SOURCE_DIR}/src/client/api\""
        "SHELL:-iquote \"${CMAKE_SOURCE_DIR}/src/client/cuda\"")
    target_link_libraries(libsluice_attach_${kind} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    sluice_library(libsluice_attach_${kind} attach_${kind} sluice-attach client/api)
endforeach()

# The engine is what the program is made of; the layers are archives, of which a program takes what it names, so all that
# the library exports is named.
if(SLUICE_SHARED)
    set(library_file ${CMAKE_BINARY_DIR}/lib/library.c)
    file(WRITE ${library_file} "/* libsluice.so is made of the layers' archives. */\n")
    if(SLUICE_STATIC)
        set(library_file ${CMAKE_SOURCE_DIR}/cmake/older_libc.c)
    endif()
    add_library(libsluice_shared SHARED ${library_file})
    target_link_libraries(libsluice_shared PRIVATE -Wl,--whole-archive sluice_open sluice_edit sluice_api -Wl,--no-whole-archive)
    if(NOT SANITIZE AND NOT SLUICE_FUZZ) # whose runtime is the program's
        target_link_options(libsluice_shared PRIVATE -Wl,--no-undefined)
    endif()
    sluice_library(libsluice_shared shared sluice lib/open)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/src/client/api/sluice.h ${CMAKE_SOURCE_DIR}/src/lib/edit/sluice_edit.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# For who builds against them: `pkg-config sluice` and `sluice-attach`, and find_package(sluice) with sluice::shared,
# sluice::attach_shared and sluice::attach_static. What is installed may be moved.
foreach(name sluice sluice-attach)
    configure_file(${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/lib/${name}.pc @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/lib/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lib/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/lib/sluiceConfig.cmake @ONLY CONTENT
"include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(\${CMAKE_CURRENT_LIST_DIR}/sluiceTargets.cmake)
")
install(EXPORT sluice FILE sluiceTargets.cmake NAMESPACE sluice:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(FILES ${CMAKE_BINARY_DIR}/lib/sluiceConfig.cmake ${CMAKE_BINARY_DIR}/lib/sluiceConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
