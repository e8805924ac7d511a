# At installation: the manual pages of MANUAL_PAGES into FOLDER, with the day of SOURCE_DATE_EPOCH in their titles. Without that
# variable, which a release sets, they have no day.
set(day "")
if(DEFINED ENV{SOURCE_DATE_EPOCH})
    string(TIMESTAMP day "%Y-%m-%d" UTC)
endif()
foreach(page IN LISTS MANUAL_PAGES)
    get_filename_component(name "${page}" NAME)
    file(READ "${page}" text)
    string(REGEX REPLACE "^(\\.TH [^ ]+ 1 )\"\"" "\\1\"${day}\"" text "${text}")
    file(WRITE "${FOLDER}/${name}" "${text}")
endforeach()
