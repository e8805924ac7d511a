# At installation: the manual pages in FOLDER/man get the day of SOURCE_DATE_EPOCH into their titles. Without that variable,
# which a release sets, they have no day.
if(DEFINED ENV{SOURCE_DATE_EPOCH})
    string(TIMESTAMP day "%Y-%m-%d" UTC)
    file(GLOB pages "${FOLDER}/man/*.1")
    foreach(page IN LISTS pages)
        file(READ "${page}" text)
        string(REGEX REPLACE "^(\\.TH [^ ]+ 1 )\"\"" "\\1\"${day}\"" text "${text}")
        file(WRITE "${page}" "${text}")
    endforeach()
endif()
