# sluice_layer(FLOOR/ROOM [ROOM ...] [LIBS TARGET ...])
#
# One folder src/FLOOR/ROOM is one static library made of every .c file in it. It may include its own headers and the
# public ones of the rooms it names, with theirs: an include that points upwards does not compile. Headers in its
# folder in/ are its own: no other room can include them. Tests see them all (sluice_insides).
define_property(GLOBAL PROPERTY SLUICE_INSIDES BRIEF_DOCS "folders of private headers" FULL_DOCS "for tests")
function(sluice_layer place)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBS")
    get_filename_component(name ${place} NAME)
    set(folder ${CMAKE_SOURCE_DIR}/src/${place})
    file(GLOB files CONFIGURE_DEPENDS ${folder}/*.c)
    add_library(sluice_${name} STATIC ${files})
    target_compile_options(sluice_${name} PUBLIC "SHELL:-iquote \"${folder}\"")
    if(IS_DIRECTORY ${folder}/in)
        target_compile_options(sluice_${name} PRIVATE "SHELL:-iquote \"${folder}/in\"")
        set_property(GLOBAL APPEND PROPERTY SLUICE_INSIDES ${folder}/in)
    endif()
    foreach(layer ${arg_UNPARSED_ARGUMENTS})
        target_link_libraries(sluice_${name} PUBLIC sluice_${layer})
    endforeach()
    if(arg_LIBS)
        target_link_libraries(sluice_${name} PUBLIC ${arg_LIBS})
    endif()
endfunction()

# sluice_insides(TARGET): it may include private headers, too, as tests and fuzzers do.
function(sluice_insides target)
    get_property(insides GLOBAL PROPERTY SLUICE_INSIDES)
    foreach(folder ${insides})
        target_compile_options(${target} PUBLIC "SHELL:-iquote \"${folder}\"")
    endforeach()
endfunction()
