/* What shall become of a file, kept beside it until it has. Integers are little-endian. */
#ifndef SL_FILE_JOURNAL_H
#define SL_FILE_JOURNAL_H

#include "file_edit.h"

/** A file and its folder, opened; names are within the folder. */
struct sl_file_place {
    int folder, fd;
    char *path;            /* of the file */
    const char *name;      /* within path */
    char *journal, *fresh; /* ".NAME.sluice-edit", ".NAME.sluice-new" */
};
/** Its folder and names; fd becomes the place's, also on failure. path is absolute. */
int sl_file_place_open(struct sl_file_place *place, const char *path, int fd, struct sl_err *err);
void sl_file_place_release(struct sl_file_place *place);
/** -1: the kernel refuses to write to it, or beside it. */
int sl_file_edit_fail(const struct sl_file_place *place, int number, struct sl_err *err);
/** A new file `fresh`, in place of one that was left; -1 with the error. */
int sl_file_edit_create(const struct sl_file_place *place, unsigned mode, struct sl_err *err);
/** Sync a new file, and rename it. */
int sl_file_edit_name(const struct sl_file_place *place, int fd, const char *name,
                      struct sl_err *err);

/** Write the journal, and do what it says. The file is locked. */
int sl_file_journal_run(const struct sl_file_place *place, const struct sl_file_content *content,
                        struct sl_err *err);
/** Complete what a journal says that has begun, and remove it; 0 if there is none. The file is
 * locked. SL_E_AUTH: it is a stranger's. SL_E_INTEGRITY: it is damaged. */
int sl_file_journal_complete(const struct sl_file_place *place, struct sl_err *err);

#endif
