/* What shall become of a file, kept beside it until it has. Integers are little-endian. */
#ifndef SL_FILE_JOURNAL_H
#define SL_FILE_JOURNAL_H

#include <fcntl.h>
#include <limits.h>
#include <sys/types.h>

#include "file_edit.h"

enum { SL_FILE_QUIET = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC }; /* nothing is followed */
#define SL_FILE_FRESH_SUFFIX ".sluice-new"

/** A file and its folder, opened; names are within the folder, and no path is resolved again. */
struct sl_file_place {
    int folder, fd, lock_fd;
    pid_t locked_by;              /* a child that has it by fork() leaves the lock where it is */
    char *path;                   /* of the file */
    const char *name;             /* within path */
    char *journal, *fresh, *lock; /* ".NAME.sluice-edit", ".NAME.sluice-new", ".NAME.sluice-lock" */
};
/** A name of a new file that nobody has; -1 with errno. */
int sl_file_fresh_name(const struct sl_file_place *place, char name[NAME_MAX + 1]);
/** Remove what has one of the names, or rename a folder that holds something: is the name free? */
bool sl_file_place_clear(const struct sl_file_place *place, const char *name);
/** -1: the kernel refuses to write to it, or beside it. */
int sl_file_edit_fail(const struct sl_file_place *place, int number, struct sl_err *err);
/** A new file `fresh` of the file's owner, in place of one that was left; -1 with the error. */
int sl_file_edit_create(struct sl_file_place *place, struct sl_err *err);
/** Sync a new file, and rename it. */
int sl_file_edit_name(const struct sl_file_place *place, int fd, const char *name,
                      struct sl_err *err);

/** Write the journal, and do what it says. The file is locked. 1: it cannot be changed where it
 * lies, and nothing has happened. */
int sl_file_journal_run(struct sl_file_place *place, const struct sl_file_content *content,
                        struct sl_err *err);
/** Complete what a journal says that has begun, and remove it; 0 if there is none that counts. The
 * file is locked. SL_E_INTEGRITY: it is damaged. */
int sl_file_journal_complete(const struct sl_file_place *place, struct sl_err *err);
/** Has its change begun, and is not complete? Nothing is written; place->fd may be read-only. */
bool sl_file_journal_is_half(const struct sl_file_place *place);

#endif
