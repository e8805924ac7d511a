# src/node/csi/*.proto as C, in the build's own folder: protoc-c makes them whenever they change. What a machine wrote is
# compiled without our warnings.
set(SLUICE_PROTO ${CMAKE_BINARY_DIR}/generated/csi)
file(MAKE_DIRECTORY ${SLUICE_PROTO})
foreach(proto csi pluginregistration)
    set(made ${SLUICE_PROTO}/${proto}.pb-c.c ${SLUICE_PROTO}/${proto}.pb-c.h)
    add_custom_command(OUTPUT ${made}
        COMMAND ${SLUICE_PROTOC_C} --proto_path=${CMAKE_SOURCE_DIR}/src/node/csi --c_out=${SLUICE_PROTO} ${proto}.proto
        DEPENDS ${CMAKE_SOURCE_DIR}/src/node/csi/${proto}.proto VERBATIM)
    list(GET made 0 code)
    set_source_files_properties(${made} PROPERTIES GENERATED ON)
    set_source_files_properties(${code} PROPERTIES COMPILE_OPTIONS -w)
    target_sources(sluice_csi PRIVATE ${made})
endforeach()
target_compile_options(sluice_csi PRIVATE "SHELL:-iquote \"${SLUICE_PROTO}\"")
target_include_directories(sluice_csi SYSTEM PRIVATE ${SLUICE_PROTO}) # the generated code includes its own header
set_property(GLOBAL APPEND PROPERTY SLUICE_INSIDES ${SLUICE_PROTO})
