# src/node/web/page.html as bytes in web_page_data.h, made again whenever the page changes.
set(page ${CMAKE_SOURCE_DIR}/src/node/web/page.html)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
file(READ ${page} page_hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," page_bytes "${page_hex}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/web_page_data.h CONTENT
"/* src/node/web/page.html and a 0 */
static const unsigned char web_page_data[] = {@page_bytes@0};
" @ONLY)
target_compile_options(sluice_web PRIVATE "SHELL:-iquote \"${CMAKE_BINARY_DIR}/generated\"")
