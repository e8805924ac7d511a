# src/node/web/page.html with page.css and page.js put into it, as bytes in web_page_data.h, made again whenever one changes.
# All of it is text in hexadecimal here, so that no character means anything to CMake.
set(page_folder ${CMAKE_SOURCE_DIR}/src/node/web)
foreach(part html css js)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/page.${part})
    file(READ ${page_folder}/page.${part} page_${part} HEX)
endforeach()
foreach(part css js)
    string(HEX "@page.${part}@" page_place)
    string(REPLACE "${page_place}" "${page_${part}}" page_html "${page_html}")
endforeach()
string(REGEX REPLACE "(..)" "0x\\1," page_bytes "${page_html}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/web_page_data.h CONTENT
"/* The page, with its style and script, and a 0 */
static const unsigned char web_page_data[] = {@page_bytes@0};
" @ONLY)
target_compile_options(sluice_web PRIVATE "SHELL:-iquote \"${CMAKE_BINARY_DIR}/generated\"")
