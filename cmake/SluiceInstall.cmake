# What is installed beside the program: manual pages, completions, a unit for systemd, licence and changes. All of it is
# the component "program"; the library for other programs (SluiceLibrary.cmake) is the rest.
include(GNUInstallDirs)
set(SLUICE_RUN "" CACHE FILEPATH "A sluice of this version that runs here, for manual pages and completions of one that does not")
install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
    COMPONENT program)
configure_file(${CMAKE_SOURCE_DIR}/packaging/sluice.service.in ${CMAKE_BINARY_DIR}/lib/sluice.service @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/lib/sluice.service DESTINATION lib/systemd/system COMPONENT program)

# Printed by the program itself, when it is installed: it knows its flags.
set(runs "$<TARGET_FILE:sluice>")
if(SLUICE_RUN)
    set(runs "${SLUICE_RUN}")
endif()
install(CODE "
set(FOLDER \"${CMAKE_BINARY_DIR}/lib/docs\")
file(REMOVE_RECURSE \"\${FOLDER}\")
execute_process(COMMAND \"${runs}\" docs --write \"\${FOLDER}\" RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR \"'${runs} docs --write' failed: set SLUICE_RUN to a sluice that runs here\")
endif()" COMPONENT program)
install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/date_manual_pages.cmake COMPONENT program)
install(DIRECTORY ${CMAKE_BINARY_DIR}/lib/docs/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
set(sluice_completions bash-completion/completions/sluice zsh/site-functions/_sluice fish/vendor_completions.d/sluice.fish)
foreach(shell bash zsh fish)
    list(POP_FRONT sluice_completions file)
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(name ${file} NAME)
    install(CODE "
file(MAKE_DIRECTORY \"${CMAKE_BINARY_DIR}/lib/completions/${shell}\")
execute_process(COMMAND \"${runs}\" completion ${shell} RESULT_VARIABLE status
    OUTPUT_FILE \"${CMAKE_BINARY_DIR}/lib/completions/${shell}/${name}\")
if(NOT status EQUAL 0)
    message(FATAL_ERROR \"'${runs} completion ${shell}' failed: set SLUICE_RUN to a sluice that runs here\")
endif()" COMPONENT program)
    install(FILES ${CMAKE_BINARY_DIR}/lib/completions/${shell}/${name}
        DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder} COMPONENT program)
endforeach()
