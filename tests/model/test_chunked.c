/*
 * Tensors that are put together of chunks: any range, any slice, the digest; and which chunks are a
 * tensor.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "chunked.h"
#include "claims.h"
#include "format.h"
#include "hash.h"
#include "memory_store.h"
#include "seed.h"
#include "stores.h"
#include "tensor_reader.h"

enum { RANK = 3, ROWS = 5, COLUMNS = 7, DEEP = 3, ITEM = 4, ELEMENTS = ROWS * COLUMNS * DEEP };
static const uint64_t shape[RANK] = {ROWS, COLUMNS, DEEP};

/* A grid of 2 x 3 x 2 chunks, stored one behind another, some of them column by column. */
static const uint64_t cuts[RANK][4] = {{0, 2, ROWS, ROWS}, {0, 3, 4, COLUMNS}, {0, 1, DEEP, DEEP}};
enum { CHUNKS = 12 };

struct made {
    struct sl_store *store;
    struct sl_index *index;
    uint8_t whole[ELEMENTS * ITEM], stored[ELEMENTS * ITEM];
    struct sl_tensor_chunk chunks[CHUNKS];
    uint64_t numbers[CHUNKS][3][RANK]; /* at, shape, strides */
};

static size_t place_of(const uint64_t *at)
{
    return (at[0] * COLUMNS + at[1]) * DEEP + at[2];
}

/* Elements of chunk i to the end of what is stored. */
static size_t store_chunk(struct made *made, unsigned i, size_t used)
{
    struct sl_tensor *tensor = &made->chunks[i].tensor;
    const uint64_t *at = made->chunks[i].at, *size = tensor->shape;
    bool turned = i % 3 == 1;
    uint64_t *strides = made->numbers[i][2];
    uint64_t straight[RANK] = {size[1] * size[2], size[2], 1},
             other[RANK] = {1, size[0], size[0] * size[1]};
    memcpy(strides, turned ? other : straight, sizeof(straight));
    for (uint64_t a = 0; a < size[0]; a++)
        for (uint64_t b = 0; b < size[1]; b++)
            for (uint64_t c = 0; c < size[2]; c++)
                memcpy(made->stored +
                           (used + a * strides[0] + b * strides[1] + c * strides[2]) * ITEM,
                       made->whole + place_of((uint64_t[]){at[0] + a, at[1] + b, at[2] + c}) * ITEM,
                       ITEM);
    tensor->strides = turned ? strides : NULL;
    tensor->begin = used * ITEM;
    tensor->bytes = size[0] * size[1] * size[2] * ITEM;
    tensor->end = tensor->begin + tensor->bytes;
    return used + tensor->bytes / ITEM;
}

static void make_chunks(struct made *made)
{
    size_t used = 0;
    for (unsigned i = 0; i < CHUNKS; i++) {
        unsigned number[RANK] = {i / 6, i / 2 % 3, i % 2};
        uint64_t *at = made->numbers[i][0], *size = made->numbers[i][1];
        for (unsigned d = 0; d < RANK; d++) {
            at[d] = cuts[d][number[d]];
            size[d] = cuts[d][number[d] + 1] - at[d];
        }
        made->chunks[i] = (struct sl_tensor_chunk){
            .at = at,
            .tensor = {.name = "t", .name_bytes = 1, .dtype = SL_DTYPE_F32, .rank = RANK}};
        made->chunks[i].tensor.dtype_name = "F32";
        made->chunks[i].tensor.shape = size;
        used = store_chunk(made, i, used);
    }
    ck_assert_uint_eq(used, ELEMENTS);
}

static void set_up(struct made *made)
{
    char *key = NULL;
    struct sl_source *source = NULL;
    for (size_t i = 0; i < sizeof(made->whole); i++)
        made->whole[i] = (uint8_t)(i * 37 + i / 251);
    make_chunks(made);
    ck_assert_int_eq(sl_memory_put("chunks", made->stored, sizeof(made->stored), NULL), 0);
    ck_assert_int_eq(sl_store_open("memory:chunks", NULL, &made->store, &key, NULL), 0);
    ck_assert_int_eq(sl_source_open(made->store, key, 1, &source, NULL), 0);
    free(key);
    made->index = sl_format_begin("dcp", source, NULL);
    struct sl_tensor *tensor = sl_index_add_tensor(made->index, NULL);
    *tensor = made->chunks[0].tensor;
    tensor->shape = shape;
    tensor->strides = NULL;
    tensor->begin = tensor->end = 0;
    tensor->bytes = sizeof(made->whole);
    tensor->chunks = made->chunks;
    tensor->chunk_count = CHUNKS;
}

static void tear_down(struct made *made)
{
    sl_index_free(made->index);
    sl_store_free(made->store);
    sl_memory_clear();
}

SL_TEST(every_range_of_bytes_is_put_together)
{
    struct made made = {0};
    struct sl_err err = SL_ERR_INIT;
    uint8_t out[sizeof(made.whole)];
    set_up(&made);
    SL_AUTO(sl_tensor_reader) reader = sl_tensor_reader_new(made.index, NULL);
    for (size_t begin = 0; begin < sizeof(out); begin++)
        for (size_t end = begin; end <= sizeof(out); end += 1 + end % 5) {
            memset(out, 0xee, sizeof(out));
            ck_assert_msg(
                sl_tensor_read(reader, &made.index->tensors[0], NULL, begin, end, out, &err) == 0,
                "%s", err.message);
            ck_assert_int_eq(memcmp(out, made.whole + begin, end - begin), 0);
            ck_assert(end == sizeof(out) || out[end - begin] == 0xee);
        }
    sl_tensor_reader_free(sl_steal(&reader));
    tear_down(&made);
}

/* The elements of a slice, row by row. */
static size_t cut(const struct made *made, const struct sl_slice *slice, uint8_t *out)
{
    size_t used = 0;
    for (uint64_t a = slice->begin[0]; a < slice->end[0]; a++)
        for (uint64_t b = slice->begin[1]; b < slice->end[1]; b++)
            for (uint64_t c = slice->begin[2]; c < slice->end[2]; c++, used += ITEM)
                memcpy(out + used, made->whole + place_of((uint64_t[]){a, b, c}) * ITEM, ITEM);
    return used;
}

SL_TEST(every_slice_is_put_together)
{
    struct made made = {0};
    struct sl_err err = SL_ERR_INIT;
    uint8_t out[sizeof(made.whole)], expected[sizeof(made.whole)], digest[32], right[32];
    uint64_t random = sl_test_seed();
    set_up(&made);
    SL_AUTO(sl_tensor_reader) reader = sl_tensor_reader_new(made.index, NULL);
    const struct sl_tensor *tensor = &made.index->tensors[0];
    for (unsigned i = 0; i < 3000; i++) {
        struct sl_slice slice;
        for (unsigned d = 0; d < RANK; d++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            slice.begin[d] = random >> 40 & 0xff;
            slice.begin[d] %= shape[d];
            slice.end[d] = slice.begin[d] + 1 + (random >> 50) % (shape[d] - slice.begin[d]);
        }
        size_t bytes = cut(&made, &slice, expected), begin = (random >> 33) % (bytes + 1);
        ck_assert_int_eq(sl_tensor_read(reader, tensor, &slice, begin, bytes, out, &err), 0);
        ck_assert_int_eq(memcmp(out, expected + begin, bytes - begin), 0);
        if (i % 50)
            continue;
        SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
        sl_sha256_update(sha, expected, bytes);
        sl_sha256_finish(sha, right);
        ck_assert_int_eq(sl_slice_digest(made.index, tensor, &slice, digest, &err), 0);
        ck_assert_int_eq(memcmp(digest, right, 32), 0);
    }
    sl_tensor_reader_free(sl_steal(&reader));
    tear_down(&made);
}

SL_TEST(the_digest_is_of_the_whole_and_hashes_of_chunks_are_checked)
{
    struct made made = {0};
    struct sl_err err = SL_ERR_INIT;
    uint8_t digest[32], right[32];
    struct sl_index_hash hash = {0};
    set_up(&made);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    sl_sha256_update(sha, made.whole, sizeof(made.whole));
    sl_sha256_finish(sha, right);
    const struct sl_tensor *tensor = &made.index->tensors[0];
    struct sl_tensor *last = &made.chunks[CHUNKS - 1].tensor;
    uint32_t crc = sl_crc32(0, made.stored + last->begin, last->bytes);
    for (unsigned i = 0; i < 4; i++)
        hash.expected[i] = (uint8_t)(crc >> (24 - 8 * i));
    last->hashes = &hash;
    last->hash_count = 1;
    ck_assert_msg(sl_tensor_digest(made.index, tensor, true, digest, &err) == 0, "%s", err.message);
    ck_assert_int_eq(memcmp(digest, right, 32), 0);
    hash.expected[0] ^= 1;
    ck_assert_int_lt(sl_tensor_digest(made.index, tensor, true, digest, &err), 0);
    ck_assert_str_eq(err.code, "E_HASH_CRC32");
    tear_down(&made);
}

/* ---- which chunks are a tensor --------------------------------------------------------------- */

/* Boxes "at+size,at+size …" of a tensor of rank 2, U8. */
static const char *verdict(const char *boxes, uint64_t rows, uint64_t columns, uint64_t work)
{
    static struct sl_err err;
    uint64_t sizes[2] = {rows, columns}, numbers[16][4];
    struct sl_tensor tensor = {.name = "t", .name_bytes = 1, .dtype = SL_DTYPE_U8, .rank = 2};
    struct sl_tensor_chunk chunks[16];
    size_t count = 0;
    int used = 0;
    tensor.shape = sizes;
    tensor.bytes = rows * columns;
    err = (struct sl_err)SL_ERR_INIT;
    for (; *boxes &&
           sscanf(boxes, "%" SCNu64 "+%" SCNu64 ",%" SCNu64 "+%" SCNu64 " %n", &numbers[count][0],
                  &numbers[count][2], &numbers[count][1], &numbers[count][3], &used) == 4;
         count++, boxes += used)
        chunks[count] =
            (struct sl_tensor_chunk){numbers[count], {.rank = 2, .shape = numbers[count] + 2}};
    return sl_chunked_check(&tensor, chunks, count, &work, &err) == 0 ? "" : err.code;
}

SL_TEST(chunks_cover_a_tensor_exactly)
{
    static const struct {
        const char *boxes, *code;
    } cases[] = {
        {"0+4,0+6", ""},
        {"0+1,0+6 1+3,0+6", ""},
        {"1+3,0+6 0+1,0+6", ""},
        {"0+4,0+2 0+4,2+4", ""},
        {"0+2,0+3 0+2,3+3 2+2,0+3 2+2,3+3", ""},
        {"0+1,0+6 1+3,0+2 1+3,2+4", ""},                 /* no grid */
        {"0+2,0+4 0+3,4+2 2+2,0+3 3+1,3+3 2+1,3+1", ""}, /* a whirl */
        {"", "chunk.gap"},
        {"0+3,0+6", "chunk.gap"},
        {"0+1,0+6 2+2,0+6", "chunk.gap"},
        {"0+4,0+6 0+1,0+1", "chunk.overlap"},
        {"0+2,0+6 0+2,0+6", "chunk.overlap"}, /* as many elements as there are */
        {"0+3,0+4 1+3,2+4", "chunk.overlap"},
        {"0+4,0+7", "chunk.bounds"},
        {"0+4,1+6", "chunk.bounds"},
        {"5+1,0+6", "chunk.bounds"},
        {"0+18446744073709551615,0+6", "chunk.bounds"},
        {"18446744073709551615+2,0+6", "chunk.bounds"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_msg(strcmp(verdict(cases[i].boxes, 4, 6, 1000), cases[i].code) == 0, "%s: %s",
                      cases[i].boxes, verdict(cases[i].boxes, 4, 6, 1000));
    ck_assert_str_eq(verdict("0+1,0+6 1+3,0+2 1+3,2+4", 4, 6, 0), "chunk.limit");
}

SL_CASE(.seconds = 60)
