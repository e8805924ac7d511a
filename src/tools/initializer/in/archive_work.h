/* An archive, unpacked into the work place of a destination, with as little room as it takes. */
#ifndef SL_ARCHIVE_WORK_H
#define SL_ARCHIVE_WORK_H

#include "destination.h"
#include "storage_uri.h"

/** Where to; everything is borrowed. */
struct sl_archive_work {
    struct sl_destination *destination;
    unsigned number;
    const char *to; /* the destination's path */
    struct sl_cancel *cancel;
};
struct sl_archive_file {
    int fd; /* open for reading */
    enum sl_archive kind;
    const char *name; /* for messages */
    bool own;         /* it was loaded into the work place, so it may be spoiled */
};
/**
 * Unpack an archive into SL_WORK_FILES; nothing of it remains there on failure.
 *
 * @work          where to.
 * @file          what; its descriptor stays the caller's.
 * @files, bytes  out: how many were unpacked, of how many bytes.
 * @return        0, or -1 with the errors of unpack.h.
 *
 * Where archive and content do not fit, what an earlier run left in the destination goes, and an
 * archive of our own is given back piece by piece as it is read; an archive that cannot be put
 * there, by itself, is refused before.
 */
int sl_archive_work_unpack(const struct sl_archive_work *work, const struct sl_archive_file *file,
                           uint64_t *files, uint64_t *bytes, struct sl_err *err);

#endif
