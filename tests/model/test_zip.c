/*
 * Archives: every field of the end records and the directory that decides something, at its limit
 * and one off.
 */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "stores.h"
#include "zip.h"

static uint64_t opened_begin; /* of the storage data/0, where it was found */

/* The code that an archive is refused with, "" if it and all its payloads are found. */
static const char *code_of(const uint8_t *data, size_t bytes)
{
    static struct sl_err err;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    struct sl_zip zip = {0};
    char *key = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_memory_put("x.zip", data, bytes, &err), 0);
    ck_assert_int_eq(sl_store_open("memory:x.zip", NULL, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &source, &err), 0);
    if (sl_zip_open(&zip, source, &err) == 0) {
        for (size_t i = 0; i < zip.count; i++)
            zip.entries[i].wanted = true;
        struct sl_zip_entry *entry = sl_zip_find(&zip, "data/0", 6);
        if (sl_zip_locate(&zip, true, &err) == 0 && entry)
            opened_begin = entry->begin;
    }
    sl_zip_release(&zip);
    free(key);
    return err.code;
}

/* A field `back` bytes before the end of the archive gets another value. */
static void check_field(size_t back, uint8_t value, const char *code)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/records_2_7.pt", &bytes);
    data[bytes - back] = value;
    ck_assert_msg(strcmp(code_of(data, bytes), code) == 0, "%zu: %s instead of %s", back,
                  code_of(data, bytes), code);
    free(data);
}

SL_TEST(end_records_must_agree)
{
    check_field(1, 0, "");
    check_field(1, 1, "zip.trailing");           /* a comment that is not there */
    check_field(22, 0, "zip.no-eocd");           /* the signature */
    check_field(18, 1, "zip.multidisk");         /* number of this disk */
    check_field(16, 1, "zip.multidisk");         /* of the directory's */
    check_field(14, 0xee, "zip.eocd");           /* entries on this disk */
    check_field(6, 0xee, "zip.eocd");            /* place of the directory */
    check_field(22 + 4, 2, "zip.multidisk");     /* disks of the locator */
    check_field(22 + 12, 0xee, "zip.eocd");      /* place of the ZIP64 record */
    check_field(22 + 20 + 52, 0xee, "zip.eocd"); /* its size */
}

/* ---- the directory --------------------------------------------------------------------------- */

static void put_number(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = value >> 8 * i & 0xff;
}

static uint64_t get_number(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* The row of a name in the directory, or (local) its header. */
static uint8_t *find_row(uint8_t *data, size_t bytes, const char *name, bool local)
{
    static const uint8_t row_magic[] = {'P', 'K', 1, 2}, local_magic[] = {'P', 'K', 3, 4};
    const uint8_t *magic = local ? local_magic : row_magic;
    size_t head = local ? 30 : 46, name_bytes = strlen(name);
    for (size_t i = 0; i + head + name_bytes <= bytes; i++)
        if (memcmp(data + i, magic, 4) == 0 && memcmp(data + i + head, name, name_bytes) == 0)
            return data + i;
    ck_abort_msg("no entry '%s'", name);
}

/* Where a field lies in a row and in a local header, and its length. */
struct field {
    unsigned row, local, bytes;
};
static const struct field FLAGS = {8, 6, 2}, METHOD = {10, 8, 2}, STORED = {20, 18, 4},
                          SIZE = {24, 22, 4}, NAME_BYTES = {28, 26, 2}, EXTRA_BYTES = {30, 28, 2},
                          COMMENT_BYTES = {32, 0, 2}, DISK = {34, 0, 2}, HEADER = {42, 0, 4};

/* Add to a field of data/0 and to another one (may be the same: once). */
static void check_row(struct field field, int64_t more, struct field other, const char *code)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/records_2_7.pt", &bytes);
    uint8_t *row = find_row(data, bytes, "gen/data/0", false);
    put_number(row + field.row, get_number(row + field.row, field.bytes) + (uint64_t)more,
               field.bytes);
    if (other.row != field.row)
        put_number(row + other.row, get_number(row + other.row, other.bytes) + (uint64_t)more,
                   other.bytes);
    ck_assert_msg(strcmp(code_of(data, bytes), code) == 0, "field %u by %d: '%s' instead of '%s'",
                  field.row, (int)more, code_of(data, bytes), code);
    free(data);
}

SL_TEST(fields_of_the_directory_are_checked)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/records_2_7.pt", &bytes);
    uint8_t *row = find_row(data, bytes, "gen/data/0", false);
    uint64_t room = get_number(find_row(data, bytes, "gen/data/1", false) + HEADER.row, 4) -
                    get_number(row + HEADER.row, 4) - 30 - strlen("gen/data/0");
    uint64_t size = get_number(row + SIZE.row, 4), begin = get_number(row + HEADER.row, 4),
             end = get_number(data + bytes - 22 + 16, 4);
    free(data);
    check_row(FLAGS, 0, FLAGS, "");
    check_row(FLAGS, 1, FLAGS, "zip.encrypted");
    check_row(METHOD, 8, METHOD, "zip.compressed");
    check_row(STORED, 1, STORED, "zip.compressed");
    check_row(SIZE, 1, SIZE, "zip.compressed");
    check_row(SIZE, (int64_t)(room - size) + 1, STORED, "zip.overlap");
    check_row(SIZE, (int64_t)(room - size), STORED, "zip.overlap"); /* its padding is found out */
    check_row(SIZE, (int64_t)(end - begin - 30 - 10 - size) + 1, STORED, "zip.bounds");
    check_row(NAME_BYTES, 1, NAME_BYTES, "zip.cd");
    check_row(EXTRA_BYTES, 1, EXTRA_BYTES, "zip.cd");
    check_row(COMMENT_BYTES, 1, COMMENT_BYTES, "zip.cd");
    check_row(COMMENT_BYTES, 0xffff, COMMENT_BYTES, "zip.cd");
    check_row(DISK, 1, DISK, "zip.multidisk");
    check_row(HEADER, 1, HEADER, "zip.local-mismatch");
    check_row(HEADER, (int64_t)(end - begin), HEADER, "zip.bounds");
}

/* The payload moves by one, so that its place must be read from the header. */
static void check_local_field(struct field field, uint64_t value, const char *code)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/repacked_stored.pt", &bytes);
    uint8_t *row = data;
    while (memcmp(row, "PK\1\2", 4) != 0 || !memmem(row, 60, "/data/0", 7))
        row++;
    uint8_t *local = data + get_number(row + HEADER.row, 4);
    put_number(local + field.local, value, field.bytes);
    ck_assert_msg(strcmp(code_of(data, bytes), code) == 0, "field %u: '%s' instead of '%s'",
                  field.local, code_of(data, bytes), code);
    free(data);
}

SL_TEST(fields_of_local_headers_are_checked)
{
    check_local_field(METHOD, 0, "");
    check_local_field(METHOD, 8, "zip.local-mismatch");
    check_local_field(FLAGS, 1, "zip.local-mismatch");
    check_local_field(NAME_BYTES, 1, "zip.local-mismatch");
    check_local_field(SIZE, 1, "zip.local-mismatch");
    check_local_field(EXTRA_BYTES, 0xffff, "zip.overlap");
}

/* Tag 1 of zip64_fields.pt: sizes, then the header's place, each only where its field is full. */
SL_TEST(zip64_fields_are_checked)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/zip64_fields.pt", &bytes), *row = data;
    ck_assert_str_eq(code_of(data, bytes), "");
    ck_assert_uint_eq(opened_begin, 448);
    while (memcmp(row, "PK\1\2", 4) != 0 || !memmem(row, 60, "/data/0", 7))
        row++;
    uint8_t *extra = row + 46 + get_number(row + NAME_BYTES.row, 2);
    uint64_t extra_bytes = get_number(row + EXTRA_BYTES.row, 2);
    ck_assert_uint_eq(get_number(extra, 2), 1);
    put_number(extra + 2, extra_bytes - 4 - 8, 2);
    ck_assert_str_eq(code_of(data, bytes), "zip.cd");
    put_number(extra + 2, extra_bytes - 4, 2);
    for (unsigned i = 4; i + 8 <= extra_bytes; i += 8) {
        uint64_t kept = get_number(extra + i, 8);
        static const uint64_t values[] = {UINT64_MAX, UINT64_MAX - 100, UINT64_C(1) << 62};
        for (size_t k = 0; k < SL_COUNT(values); k++) {
            put_number(extra + i, values[k], 8);
            ck_assert_str_ne(code_of(data, bytes), "");
        }
        put_number(extra + i, kept, 8);
    }
    free(data);
}

/* Nothing but end records that promise so many entries in a directory of so many bytes. */
static const char *code_of_promise(uint64_t count, uint64_t directory_bytes)
{
    size_t bytes = 4 + directory_bytes + 98;
    uint8_t *data = calloc(1, bytes), *end = data + 4 + directory_bytes;
    memcpy(data, "PK\3\4", 4);
    put_number(end, 0x06064b50, 4);
    put_number(end + 4, 44, 8);
    put_number(end + 24, count, 8);
    put_number(end + 32, count, 8);
    put_number(end + 40, directory_bytes, 8);
    put_number(end + 48, 4, 8);
    put_number(end + 56, 0x07064b50, 4);
    put_number(end + 64, 4 + directory_bytes, 8);
    put_number(end + 72, 1, 4);
    put_number(end + 76, 0x06054b50, 4);
    put_number(end + 84, 0xffff, 2);
    put_number(end + 86, 0xffff, 2);
    put_number(end + 88, 0xffffffff, 4);
    put_number(end + 92, 0xffffffff, 4);
    const char *code = code_of(data, bytes);
    sl_memory_clear();
    free(data);
    return code;
}

SL_TEST(directories_have_limits)
{
    ck_assert_str_eq(code_of_promise(SL_ZIP_ENTRIES_MAX, 100), "zip.cd");
    ck_assert_str_eq(code_of_promise(SL_ZIP_ENTRIES_MAX + 1, 100), "zip.limit");
    ck_assert_str_eq(code_of_promise(UINT64_MAX, 100), "zip.limit");
    ck_assert_str_eq(code_of_promise(1, SL_ZIP_DIRECTORY_BYTES_MAX), "zip.cd");
    ck_assert_str_eq(code_of_promise(1, SL_ZIP_DIRECTORY_BYTES_MAX + 1), "zip.limit");
}
