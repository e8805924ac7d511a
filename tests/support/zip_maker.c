/* The headers of APPNOTE.TXT by hand: nothing is packed, nothing is longer than 32 bits. */
#include "zip_maker.h"

#include <check.h>
#include <string.h>

#include "hash.h"

enum { LOCAL_MAGIC = 0x04034b50, ROW_MAGIC = 0x02014b50, END_MAGIC = 0x06054b50, BY_UNIX = 3 << 8 };

static void put(struct sl_buf *out, uint32_t value, size_t bytes)
{
    uint8_t text[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                       (uint8_t)(value >> 24)};
    ck_assert_int_eq(sl_buf_append(out, text, bytes, NULL), 0);
}

/* What a local header and a row of the directory share: versions to names' lengths. */
static void put_common(struct sl_buf *out, const char *name, uint32_t crc, size_t bytes)
{
    put(out, 20, 2);      /* version needed */
    put(out, 1 << 11, 2); /* names are UTF-8 */
    put(out, 0, 2);       /* stored */
    put(out, 0, 4);       /* time and date */
    put(out, crc, 4);
    put(out, (uint32_t)bytes, 4);
    put(out, (uint32_t)bytes, 4);
    put(out, (uint32_t)strlen(name), 2);
    put(out, 0, 2); /* extra */
}

void zip_entry(struct zip_maker *zip, const char *name, unsigned mode, const void *data,
               size_t bytes)
{
    uint32_t at = (uint32_t)zip->file.used, crc = sl_crc32(0, data, bytes);
    put(&zip->file, LOCAL_MAGIC, 4);
    put_common(&zip->file, name, crc, bytes);
    ck_assert_int_eq(sl_buf_append(&zip->file, name, strlen(name), NULL), 0);
    ck_assert_int_eq(sl_buf_append(&zip->file, data, bytes, NULL), 0);
    put(&zip->directory, ROW_MAGIC, 4);
    put(&zip->directory, BY_UNIX | 20, 2);
    put_common(&zip->directory, name, crc, bytes);
    put(&zip->directory, 0, 2); /* comment */
    put(&zip->directory, 0, 4); /* disk, internal attributes */
    put(&zip->directory, (uint32_t)mode << 16, 4);
    put(&zip->directory, at, 4);
    ck_assert_int_eq(sl_buf_append(&zip->directory, name, strlen(name), NULL), 0);
    zip->count++;
}

void zip_end(struct zip_maker *zip)
{
    uint32_t at = (uint32_t)zip->file.used, bytes = (uint32_t)zip->directory.used;
    ck_assert_int_eq(sl_buf_append(&zip->file, zip->directory.data, bytes, NULL), 0);
    put(&zip->file, END_MAGIC, 4);
    put(&zip->file, 0, 4); /* disks */
    put(&zip->file, zip->count, 2);
    put(&zip->file, zip->count, 2);
    put(&zip->file, bytes, 4);
    put(&zip->file, at, 4);
    put(&zip->file, 0, 2); /* comment */
}
