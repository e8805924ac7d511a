# A toolchain file, to compile for another processor against a folder of scripts/sysroot: SLUICE_SYSROOT. What comes out
# runs in qemu-user where that is, so that ctest can run the tests.
set(SLUICE_SYSROOT "" CACHE PATH "The folder that scripts/sysroot made")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SLUICE_SYSROOT SLUICE_OWN_LOADER)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER ${SLUICE_SYSROOT}/bin/cc)
execute_process(COMMAND ${CMAKE_C_COMPILER} -dumpmachine OUTPUT_VARIABLE CMAKE_LIBRARY_ARCHITECTURE
    OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "${CMAKE_LIBRARY_ARCHITECTURE}")
set(CMAKE_C_LIBRARY_ARCHITECTURE ${CMAKE_LIBRARY_ARCHITECTURE})
foreach(tool AR RANLIB STRIP OBJCOPY NM)
    string(TOLOWER ${tool} name)
    find_program(CMAKE_${tool} ${CMAKE_LIBRARY_ARCHITECTURE}-${name})
endforeach()
find_program(SLUICE_EMULATOR qemu-${CMAKE_SYSTEM_PROCESSOR}-static)
if(SLUICE_EMULATOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${SLUICE_SYSROOT}/bin/run)
endif()
# With -L, by which bin/run finds loader and libc, qemu opens the folder for "/" too, so who walks down from there ends up
# elsewhere. Programs that name their loader and libc need no -L: for tests, they run on this machine alone.
option(SLUICE_OWN_LOADER "Link programs with the loader and libc of SLUICE_SYSROOT by their paths" OFF)
if(SLUICE_OWN_LOADER AND SLUICE_EMULATOR)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${SLUICE_EMULATOR})
    file(GLOB loader ${SLUICE_SYSROOT}/lib/ld-linux-*.so.*)
    string(CONCAT CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--dynamic-linker=${loader},--disable-new-dtags"
        ",-rpath,${SLUICE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE}:${SLUICE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
# Libraries are those of the folder; programs are this machine's.
set(CMAKE_FIND_ROOT_PATH ${SLUICE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${SLUICE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${SLUICE_SYSROOT})
