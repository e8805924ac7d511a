/* The records of a ZIP archive that say what there is: those at its end, and its directory. Pure
 * functions: any thread. */
#ifndef SL_ZIP_RECORDS_H
#define SL_ZIP_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/* Of the records of an archive (APPNOTE 4.3): their fixed bytes, and what each begins with. */
enum {
    SL_ZIP_LOCAL_BYTES = 30,
    SL_ZIP_CENTRAL_BYTES = 46,
    SL_ZIP_END_BYTES = 22,
    SL_ZIP_END64_BYTES = 56,
    SL_ZIP_LOCATOR_BYTES = 20,
    SL_ZIP_LOCAL_MAGIC = 0x04034b50,
    SL_ZIP_CENTRAL_MAGIC = 0x02014b50,
    SL_ZIP_END_MAGIC = 0x06054b50,
    SL_ZIP_END64_MAGIC = 0x06064b50,
    SL_ZIP_LOCATOR_MAGIC = 0x07064b50,
};

enum {
    SL_ZIP_TAIL_BYTES = 65535 + SL_ZIP_END_BYTES + SL_ZIP_LOCATOR_BYTES + SL_ZIP_END64_BYTES,
    SL_ZIP_FLAG_ENCRYPTED = 1,
    SL_ZIP_FLAG_DESCRIPTOR = 8,
    SL_ZIP_STORED = 0,
    SL_ZIP_DEFLATED = 8,
};

/** The last bytes of an archive, from `begin` on: SL_ZIP_TAIL_BYTES or more, or all of it. */
struct sl_zip_tail {
    const uint8_t *data;
    size_t bytes;
    uint64_t begin;
};
struct sl_zip_ends {
    uint64_t directory, directory_bytes, count;
    uint64_t end; /* where the first of the end records begins, and the directory ends */
};
/**
 * Read the end records, of 64 bits or less.
 *
 * @bytes_max  limit of the directory's bytes.
 * @count_max  limit of its entries.
 * @ends       out: the directory lies before the records, its bytes fit its count, and both are
 *             within the limits; anything after a failure.
 * @return     0, or -1 with SL_E_FORMAT, codes zip.*.
 */
int sl_pkzip_read_ends(const struct sl_zip_tail *tail, uint64_t bytes_max, uint64_t count_max,
                       struct sl_zip_ends *ends, struct sl_err *err);

/** An entry, as the directory has it. */
struct sl_zip_row {
    const char *name; /* in the directory; not NUL-terminated */
    size_t name_bytes;
    uint64_t packed, bytes, header; /* stored; of the file; where its local header begins */
    uint32_t crc, attributes;
    uint16_t flags, method, disk, mode; /* mode: of Unix, 0 if it was made elsewhere */
};
/** The row at *at, of which *left bytes are left, and step behind it. SL_E_FORMAT, zip.cd. */
int sl_pkzip_next_row(const uint8_t **at, size_t *left, struct sl_zip_row *row, struct sl_err *err);

#endif
