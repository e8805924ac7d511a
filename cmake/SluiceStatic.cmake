# The libraries as archives, for SLUICE_STATIC: scripts/static-libs builds the ones that the
# distribution does not have in a form that serves; the rest are its own. Each is named by its whole
# path, so nothing shared is taken where an archive was meant.
set(SLUICE_STATIC_LIBS ${CMAKE_SOURCE_DIR}/.cache/static CACHE PATH "Where scripts/static-libs put its archives")

# sluice_archive(TARGET NAME [TARGET ...]): libNAME.a, and what it needs.
function(sluice_archive target name)
    find_library(SLUICE_ARCHIVE_${name} NAMES lib${name}.a PATHS ${SLUICE_STATIC_LIBS}/lib
        NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
    find_library(SLUICE_ARCHIVE_${name} NAMES lib${name}.a)
    if(NOT SLUICE_ARCHIVE_${name})
        message(FATAL_ERROR "no lib${name}.a: run scripts/deps static, then scripts/static-libs")
    endif()
    add_library(${target} STATIC IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${SLUICE_ARCHIVE_${name}})
    target_link_libraries(${target} INTERFACE ${ARGN})
    target_include_directories(${target} SYSTEM INTERFACE ${SLUICE_STATIC_LIBS}/include)
endfunction()

if(NOT EXISTS ${SLUICE_STATIC_LIBS}/include/curl/curl.h)
    message(FATAL_ERROR "no libraries in ${SLUICE_STATIC_LIBS}: run scripts/static-libs")
endif()
sluice_archive(OpenSSL::Crypto crypto)
sluice_archive(OpenSSL::SSL ssl OpenSSL::Crypto)
sluice_archive(sluice_cares cares)
sluice_archive(ZLIB::ZLIB z)
sluice_archive(CURL::libcurl curl OpenSSL::SSL sluice_cares)
sluice_archive(PkgConfig::YAML yaml)
sluice_archive(PkgConfig::JANSSON jansson)
sluice_archive(PkgConfig::EXPAT expat m)
sluice_archive(PkgConfig::SODIUM sodium)
sluice_archive(PkgConfig::MICROHTTPD microhttpd)
sluice_archive(PkgConfig::HIREDIS hiredis)
sluice_archive(PkgConfig::ISAL isal)
sluice_archive(PkgConfig::LZ4 lz4)
sluice_archive(PkgConfig::ZSTD zstd)
sluice_archive(PkgConfig::NGHTTP2 nghttp2)
sluice_archive(SLUICE_PROTOBUF_C protobuf-c)
target_compile_definitions(CURL::libcurl INTERFACE CURL_STATICLIB)
target_compile_definitions(PkgConfig::NGHTTP2 INTERFACE NGHTTP2_STATICLIB)

add_compile_options(-ffunction-sections -fdata-sections)
add_link_options(-Wl,--gc-sections -static-libgcc)
if(SLUICE_STATIC STREQUAL "full")
    # As a PIE, so that addresses stay random; the compiler's own objects are its crt for that.
    add_compile_options(-fPIE)
    add_link_options(-static-pie)
endif()
