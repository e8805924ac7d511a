/* Entries of folders. Any thread, each with a folder of its own. readdir(3). */
#ifndef SL_ENTRIES_H
#define SL_ENTRIES_H

#include <dirent.h>

/**
 * The next entry, without "." and "..".
 *
 * @return  the entry, until the next call; or NULL: errno is 0 at the end of the folder, or it
 *          tells why the rest cannot be read (EIO, ESTALE).
 */
struct dirent *sl_next_entry(DIR *folder);

#endif
