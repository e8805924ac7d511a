/* Entries of folders. Any thread, each with a folder of its own. readdir(3). */
#ifndef SL_ENTRIES_H
#define SL_ENTRIES_H

#include <dirent.h>

/**
 * The next entry, without "." and "..".
 *
 * @return  until the next call; or NULL, with errno: 0 at the end, else why the rest cannot be
 *          read (EIO, ESTALE), which is no end.
 */
struct dirent *sl_next_entry(DIR *folder);

#endif
