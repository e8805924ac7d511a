/* tar, written entry by entry: what tar.h reads, and every usual program. Names and targets of any
 * length come in headers of pax. Any thread, nothing blocks. */
#ifndef SL_TAR_WRITE_H
#define SL_TAR_WRITE_H

#include "buf.h"
#include "tar.h"

/**
 * Append the header of an entry: a file (whose data is to follow), a folder, a symbolic link.
 *
 * @entry  of the name and the target as many bytes count as it says; no NUL is among them.
 * @return 0, or -1 with SL_E_NO_SPACE.
 */
int sl_tar_write_head(const struct sl_tar_entry *entry, struct sl_buf *out, struct sl_err *err);
/** Zero bytes that are due behind so many of data, and at the end of all: less than 2 KiB. */
enum { SL_TAR_ZERO_BYTES = 1024 };
size_t sl_tar_padding(uint64_t bytes);

#endif
