/* readdir() returns NULL for both; at the end it leaves errno alone. */
#include "entries.h"

#include <errno.h>
#include <string.h>

struct dirent *sl_next_entry(DIR *folder)
{
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(folder);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry;
}
