/* ZIP archives for tests, stored. */
#ifndef SL_ZIP_MAKER_H
#define SL_ZIP_MAKER_H

#include "buf.h"

/** Both empty at first; sl_buf_release() both. */
struct zip_maker {
    struct sl_buf file, directory;
    unsigned count;
};
#define ZIP_MAKER_INIT                                                                             \
    {                                                                                              \
        .file = SL_BUF_INIT(1024 * 1024), .directory = SL_BUF_INIT(1024 * 1024)                    \
    }

/** One entry; mode as stat() has it (S_IFLNK for a link whose target is the data). */
void zip_entry(struct zip_maker *zip, const char *name, unsigned mode, const void *data,
               size_t bytes);
/** The directory goes behind the entries: zip->file is the archive. */
void zip_end(struct zip_maker *zip);

#endif
