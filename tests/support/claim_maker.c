/* Heads and tails are made in memory and laid at both ends of a file of holes. */
#include "claim_maker.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "sizes_case.h"

enum { BYTES_MAX = 1 << 20 };

static void put(struct sl_buf *to, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_buf_append(to, data, bytes, NULL), 0);
}

static void put_number(struct sl_buf *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        uint8_t byte = i < sizeof(value) ? value >> 8 * i & 0xff : 0;
        put(to, &byte, 1);
    }
}

static void put_zeros(struct sl_buf *to, size_t upto)
{
    while (to->used < upto)
        put(to, "", 1);
}

/* ---- tensorizer ------------------------------------------------------------------------------ */

const struct claim_tensorizer claim_tensorizer = {
    1, CLAIM_METADATA_BYTES, CLAIM_HEADER_AT, 100, 100000, 100000};

static void put_front(struct sl_buf *to, uint64_t count, uint64_t metadata_bytes)
{
    put(to, "|TZR|\5\0\0\0\2", 10);
    put_zeros(to, 57);
    put_number(to, count, 8);
    put_number(to, metadata_bytes, 8);
}

static void put_entry(struct sl_buf *to, const char *name, uint64_t header_at,
                      const struct claim_tensorizer *wanted)
{
    put_number(to, 5, 4);
    put_number(to, strlen(name), 2);
    put(to, name, strlen(name));
    put(to, "\2\3|u1\1", 6);
    put_number(to, wanted->shape, 8);
    put_number(to, header_at, 8);
    put_number(to, header_at + wanted->header_bytes, 8);
    put_number(to, wanted->data_bytes, 8);
}

/* Without hashes, up to where the length of the data or zeros follow. */
static void put_header(struct sl_buf *to, const char *name, const struct claim_tensorizer *wanted)
{
    put_number(to, wanted->header_bytes, 8);
    put(to, "\0\0\2", 3);
    put_number(to, strlen(name), 2);
    put(to, name, strlen(name));
    put(to, "\3|u1\1", 5);
    put_number(to, wanted->shape, 8);
    put(to, "\1\0\0", 3);
}

size_t claim_tensorizer_head(const struct claim_tensorizer *wanted, uint8_t *data)
{
    struct sl_buf file = SL_BUF_INIT(BYTES_MAX);
    put_front(&file, wanted->count, wanted->metadata_bytes);
    put_entry(&file, "w", wanted->header_at, wanted);
    put_zeros(&file, CLAIM_HEADER_AT);
    put_header(&file, "w", wanted);
    if (wanted->header_bytes >= file.used - CLAIM_HEADER_AT + 8 && wanted->header_bytes <= 4096) {
        put_zeros(&file, CLAIM_HEADER_AT + wanted->header_bytes - 8);
        put_number(&file, wanted->data_bytes, 8);
    }
    memcpy(data, file.data, file.used);
    size_t bytes = file.used;
    sl_buf_release(&file);
    return bytes;
}

void claim_headers_file(const char *name, unsigned count, const struct claim_tensorizer *wanted)
{
    enum { ENTRY_BYTES = 64 };
    char tensor[16];
    uint8_t length[8];
    uint64_t begin = 73 + count * ENTRY_BYTES, each = wanted->header_bytes + wanted->data_bytes;
    struct sl_buf file = SL_BUF_INIT(BYTES_MAX), header = SL_BUF_INIT(BYTES_MAX);
    put_front(&file, count, count * ENTRY_BYTES);
    for (unsigned i = 0; i < count; i++) {
        snprintf(tensor, sizeof(tensor), "t%u", i);
        put_entry(&file, tensor, begin + i * each, wanted);
    }
    sizes_make_file(name, file.data, file.used, begin + count * each + 8);
    sl_put_le64(length, wanted->data_bytes);
    for (unsigned i = 0; i < count; i++) {
        uint64_t at = begin + i * each;
        snprintf(tensor, sizeof(tensor), "t%u", i);
        header.used = 0;
        put_header(&header, tensor, wanted);
        sizes_patch_file(name, at, header.data, header.used);
        sizes_patch_file(name, at + wanted->header_bytes - 8, length, sizeof(length));
    }
    sl_buf_release(&header);
    sl_buf_release(&file);
}

bool claim_tensorizer_file(const char *name, const struct claim_tensorizer *wanted)
{
    enum { TERMINATOR_BYTES = 8 };
    uint8_t head[16384], length[8];
    size_t bytes = claim_tensorizer_head(wanted, head);
    uint64_t data_at = sl_add_capped(wanted->header_at, wanted->header_bytes);
    uint64_t end = sl_add_capped(sl_add_capped(data_at, wanted->data_bytes), TERMINATOR_BYTES);
    uint64_t has = sizes_make_file(name, head, bytes, end);
    sl_put_le64(length, wanted->data_bytes);
    if (data_at >= bytes + sizeof(length) && data_at <= has)
        sizes_patch_file(name, data_at - sizeof(length), length, sizeof(length));
    return has == end;
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

const struct claim_pytorch claim_pytorch = {
    .storage = 100000, .elements = 100000, .shape = 100000, .stride = 1};

/* As pickle writes it: the shortest that holds it, signed. */
static void put_integer(struct sl_buf *to, uint64_t value, bool minus_one)
{
    if (value == UINT64_MAX && minus_one) {
        put(to, "J\xff\xff\xff\xff", 5);
    } else if (value <= INT32_MAX) {
        put(to, "J", 1);
        put_number(to, value, 4);
    } else {
        put(to, "\x8a", 1);
        put_number(to, value > INT64_MAX ? 9 : 8, 1);
        put_number(to, value, value > INT64_MAX ? 9 : 8);
    }
}

static void put_pickle(struct sl_buf *to, const struct claim_pytorch *wanted)
{
    static const char begin[] = "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(("
                                "X\7\0\0\0storagectorch\nByteStorage\nX\1\0\0\0000X\3\0\0\0cpu";
    static const char end[] = "\x89"
                              "ccollections\nOrderedDict\n)RtRs.";
    put(to, begin, sizeof(begin) - 1);
    put_integer(to, wanted->elements, wanted->minus_one);
    put(to, "tQ", 2);
    put_integer(to, wanted->offset, wanted->minus_one);
    put_integer(to, wanted->shape, wanted->minus_one);
    put(to, "\x85", 1);
    put_integer(to, wanted->stride, wanted->minus_one);
    put(to, "\x85", 1);
    put(to, end, sizeof(end) - 1);
}

/* A place for 64 bits of both sizes and of the offset. */
struct entry {
    const char *name;
    uint64_t at, bytes;
    const uint64_t *said_bytes, *said_at;
};

static void put_local(struct sl_buf *to, const char *name, uint64_t bytes)
{
    put_number(to, 0x04034b50, 4);
    put_number(to, 0, 2);
    put_number(to, 0x0800, 2);
    put_number(to, 0, 2 + 4 + 4);
    put_number(to, bytes < UINT32_MAX ? bytes : UINT32_MAX, 4);
    put_number(to, bytes < UINT32_MAX ? bytes : UINT32_MAX, 4);
    put_number(to, strlen(name), 2);
    put_number(to, 0, 2);
    put(to, name, strlen(name));
}

static void put_central(struct sl_buf *to, const struct entry *entry)
{
    uint64_t bytes = entry->said_bytes ? *entry->said_bytes : entry->bytes;
    put_number(to, 0x02014b50, 4);
    put_number(to, 0, 4);
    put_number(to, 0x0800, 2);
    put_number(to, 0, 2 + 4 + 4);
    put_number(to, UINT32_MAX, 4);
    put_number(to, UINT32_MAX, 4);
    put_number(to, strlen(entry->name), 2);
    put_number(to, 4 + 24, 2);
    put_number(to, 0, 2 + 2 + 2 + 4);
    put_number(to, UINT32_MAX, 4);
    put(to, entry->name, strlen(entry->name));
    put_number(to, 1, 2);
    put_number(to, 24, 2);
    put_number(to, bytes, 8);
    put_number(to, bytes, 8);
    put_number(to, entry->said_at ? *entry->said_at : entry->at, 8);
}

static void put_ends(struct sl_buf *to, uint64_t at, uint64_t bytes, uint64_t end, uint64_t count)
{
    put_number(to, 0x06064b50, 4);
    put_number(to, 44, 8);
    put_number(to, 0, 4 + 4 + 4);
    put_number(to, count, 8);
    put_number(to, count, 8);
    put_number(to, bytes, 8);
    put_number(to, at, 8);
    put_number(to, 0x07064b50, 4);
    put_number(to, 0, 4);
    put_number(to, end, 8);
    put_number(to, 1, 4);
    put_number(to, 0x06054b50, 4);
    put_number(to, 0, 4);
    put_number(to, 0xffff, 2);
    put_number(to, 0xffff, 2);
    put_number(to, UINT32_MAX, 4);
    put_number(to, UINT32_MAX, 4);
    put_number(to, 0, 2);
}

static uint64_t said(const uint64_t *wanted, uint64_t truth)
{
    return wanted ? *wanted : truth;
}

/* data.pkl, a gap, version, the storage, directory, its holes, end records. */
bool claim_pytorch_file(const char *name, const struct claim_pytorch *wanted)
{
    enum { ENTRIES = 3 };
    struct sl_buf pickle = SL_BUF_INIT(BYTES_MAX), head = SL_BUF_INIT(BYTES_MAX),
                  middle = SL_BUF_INIT(BYTES_MAX), directory = SL_BUF_INIT(BYTES_MAX),
                  ends = SL_BUF_INIT(BYTES_MAX);
    put_pickle(&pickle, wanted);
    put_local(&head, "m/data.pkl", pickle.used);
    put(&head, pickle.data, pickle.used);
    uint64_t middle_at = sl_add_capped(head.used, wanted->gap);
    put_local(&middle, "m/version", 2);
    put(&middle, "3\n", 2);
    uint64_t storage_at = sl_add_capped(middle_at, middle.used);
    put_local(&middle, "m/data/0", wanted->storage);
    uint64_t directory_at = sl_add_capped(sl_add_capped(middle_at, middle.used), wanted->storage);
    put_central(&directory, &(struct entry){"m/data.pkl", 0, pickle.used, NULL, NULL});
    put_central(&directory, &(struct entry){"m/version", middle_at, 2, NULL, NULL});
    put_central(&directory, &(struct entry){"m/data/0", storage_at, wanted->storage,
                                            wanted->said_entry_bytes, wanted->said_entry_at});
    uint64_t directory_bytes = sl_add_capped(directory.used, wanted->directory_holes);
    uint64_t ends_at = sl_add_capped(directory_at, directory_bytes);
    put_ends(&ends, said(wanted->said_directory_at, directory_at),
             said(wanted->said_directory_bytes, directory_bytes), ends_at,
             said(wanted->said_count, ENTRIES));
    uint64_t end = sl_add_capped(ends_at, ends.used);
    bool fits = sizes_make_file(name, head.data, head.used, end) == end;
    if (fits) {
        sizes_patch_file(name, middle_at, middle.data, middle.used);
        sizes_patch_file(name, directory_at, directory.data, directory.used);
        sizes_patch_file(name, ends_at, ends.data, ends.used);
    }
    sl_buf_release(&pickle);
    sl_buf_release(&head);
    sl_buf_release(&middle);
    sl_buf_release(&directory);
    sl_buf_release(&ends);
    return fits;
}
