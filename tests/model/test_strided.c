/*
 * Reading views: every range of many random views against picking element by element, in little
 * memory and few requests.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "scratch.h"
#include "stores.h"
#include "strided.h"

enum { STORAGE_BYTES = 300000 };
static uint8_t storage[STORAGE_BYTES];

static uint64_t random_state;

static uint64_t pick(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

/* A view and an index of one source that holds its storage. */
struct view {
    struct sl_tensor tensor;
    uint64_t shape[4], strides[4];
    struct sl_slice slice;
    struct sl_store *store;
    struct sl_source *source;
};

static void open_view(struct view *view, const char *uri)
{
    struct sl_err err = SL_ERR_INIT;
    char *key = NULL;
    ck_assert_msg(sl_store_open(uri, NULL, &view->store, &key, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_open(view->store, key, 1, &view->source, &err), 0);
    free(key);
    view->tensor.shape = view->shape;
    view->tensor.strides = view->strides;
    view->tensor.name = "view";
    view->tensor.name_bytes = 4;
}

static void close_view(struct view *view)
{
    sl_source_free(view->source);
    sl_store_free(view->store);
}

/* Any strides, overlapping and zero ones too, as far as the storage reaches. */
static void make_view(struct view *view)
{
    static const enum sl_dtype dtypes[] = {SL_DTYPE_U8, SL_DTYPE_BF16, SL_DTYPE_F32, SL_DTYPE_F64,
                                           SL_DTYPE_C128};
    static const uint64_t widths[] = {1, 2, 3, 7, 40, 300};
    static const uint64_t steps[] = {0, 1, 2, 3, 7, 40, 900, 20000};
    memset(view, 0, sizeof(*view));
    view->tensor.dtype = dtypes[pick(SL_COUNT(dtypes))];
    view->tensor.rank = (unsigned)pick(5);
    unsigned item = sl_dtype_row(view->tensor.dtype)->bits / 8;
    uint64_t room = STORAGE_BYTES / item - 1;
    view->tensor.begin = pick(8);
    room -= view->tensor.begin;
    for (unsigned i = 0; i < view->tensor.rank; i++) {
        view->shape[i] = widths[pick(SL_COUNT(widths))];
        view->strides[i] = steps[pick(SL_COUNT(steps))];
        while (view->shape[i] > 1 && (view->shape[i] - 1) * view->strides[i] > room)
            view->shape[i]--;
        room -= (view->shape[i] - 1) * view->strides[i];
        view->slice.begin[i] = pick(view->shape[i]);
        view->slice.end[i] = view->slice.begin[i] + pick(view->shape[i] - view->slice.begin[i] + 1);
        if (pick(3) == 0) {
            view->slice.begin[i] = 0;
            view->slice.end[i] = view->shape[i];
        }
    }
    unsigned complex = view->tensor.dtype == SL_DTYPE_C128 ? 2 : 1;
    if (pick(2))
        view->tensor.swap_bytes = item / complex;
}

/* The slice's plaintext, element by element; free() it. */
static uint8_t *expect(const struct view *view, uint64_t *bytes)
{
    unsigned item = sl_dtype_row(view->tensor.dtype)->bits / 8;
    unsigned swap = view->tensor.swap_bytes > 1 ? view->tensor.swap_bytes : 1;
    uint64_t count = 1;
    for (unsigned i = 0; i < view->tensor.rank; i++)
        count *= view->slice.end[i] - view->slice.begin[i];
    uint8_t *data = malloc(count * item + 1);
    for (uint64_t e = 0; e < count; e++) {
        uint64_t at = 0, rest = e;
        for (unsigned i = view->tensor.rank; i-- > 0;) {
            uint64_t width = view->slice.end[i] - view->slice.begin[i];
            at += (view->slice.begin[i] + rest % width) * view->strides[i];
            rest /= width;
        }
        for (unsigned b = 0; b < item; b++) {
            unsigned from = swap > 1 ? b / swap * swap + swap - 1 - b % swap : b;
            data[e * item + b] = storage[view->tensor.begin + at * item + from];
        }
    }
    *bytes = count * item;
    return data;
}

static void check_range(struct sl_strided *strided, const uint8_t *expected, uint64_t begin,
                        uint64_t end)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t *out = malloc(end - begin + 1);
    ck_assert_msg(sl_strided_read(strided, begin, end, out, &err) == 0, "%s", err.message);
    ck_assert_int_eq(memcmp(out, expected + begin, end - begin), 0);
    free(out);
}

static void check_view(uint64_t seed)
{
    struct view view;
    struct sl_err err = SL_ERR_INIT;
    uint64_t bytes;
    random_state = seed;
    make_view(&view);
    open_view(&view, "memory:storage");
    uint8_t *expected = expect(&view, &bytes);
    SL_AUTO(sl_strided) strided = sl_strided_new(view.source, &view.tensor, &view.slice, &err);
    ck_assert_ptr_nonnull(strided);
    ck_assert_uint_eq(sl_strided_bytes(strided), bytes);
    check_range(strided, expected, 0, bytes);
    for (int i = 0; i < 6 && bytes; i++) {
        uint64_t begin = pick(bytes), end = begin + pick(bytes - begin + 1);
        check_range(strided, expected, begin, end);
        check_range(strided, expected, begin, SL_MIN(begin + 16, bytes));
    }
    sl_strided_free(sl_steal(&strided));
    close_view(&view);
    free(expected);
}

SL_TEST(any_range_of_any_view_is_what_its_elements_are)
{
    struct sl_err err = SL_ERR_INIT;
    for (size_t i = 0; i < sizeof(storage); i++)
        storage[i] = (uint8_t)(i * 2654435761u >> 13);
    ck_assert_int_eq(sl_memory_put("storage", storage, sizeof(storage), &err), 0);
    for (uint64_t seed = 0; seed < 1500; seed++)
        check_view(seed);
}

/* ---- large views ----------------------------------------------------------------------------- */

enum { ROWS = 8192, COLUMNS = 40000 };

/* F32 [COLUMNS, ROWS] over a file of 1.2 GiB that holds ROWS rows; element (c, r) is c ^ r << 16
 * where marked, and else a hole. */
static bool mark(int fd, uint64_t row, uint64_t column)
{
    uint32_t value = (uint32_t)(column ^ row << 16);
    return pwrite(fd, &value, 4, (off_t)((row * COLUMNS + column) * 4)) == 4;
}

static void open_transposed(struct view *view, const char *path)
{
    char uri[600];
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_int_eq(ftruncate(fd, (off_t)ROWS * COLUMNS * 4), 0);
    for (uint64_t i = 0; i < ROWS; i++)
        ck_assert(mark(fd, i, i * 3));
    close(fd);
    snprintf(uri, sizeof(uri), "file://%s", path);
    memset(view, 0, sizeof(*view));
    open_view(view, uri);
    view->tensor.dtype = SL_DTYPE_F32;
    view->tensor.rank = 2;
    view->shape[0] = COLUMNS;
    view->shape[1] = ROWS;
    view->strides[0] = 1;
    view->strides[1] = COLUMNS;
}

static uint32_t marked_at(uint64_t element)
{
    uint64_t column = element / ROWS, row = element % ROWS;
    return column == row * 3 ? (uint32_t)(column ^ row << 16) : 0;
}

static bool is_marked(const uint32_t *piece, uint64_t begin, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (piece[i] != marked_at(begin + i))
            return false;
    return true;
}

SL_TEST(a_transposed_gigabyte_is_read_in_little_memory)
{
    struct view view;
    struct sl_err err = SL_ERR_INIT;
    struct rusage before, after;
    char folder[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
    int directory = sl_scratch_open(folder);
    snprintf(path, sizeof(path), "%s/transposed", folder);
    open_transposed(&view, path);
    SL_AUTO(sl_strided) strided = sl_strided_new(view.source, &view.tensor, NULL, &err);
    enum { PIECE = 1 << 20 };
    uint32_t *piece = malloc(PIECE);
    getrusage(RUSAGE_SELF, &before);
    for (uint64_t at = 7 * PIECE; at < 90 * (uint64_t)PIECE; at += PIECE) {
        ck_assert_int_eq(sl_strided_read(strided, at, at + PIECE, piece, &err), 0);
        ck_assert(is_marked(piece, at / 4, PIECE / 4));
    }
    getrusage(RUSAGE_SELF, &after);
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* they have memory of their own */
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, (SL_STRIDED_BYTES_MAX + (8 << 20)) / 1024);
#endif
    free(piece);
    sl_strided_free(sl_steal(&strided));
    close_view(&view);
    sl_scratch_close(directory, folder);
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint64_t requests_for(struct view *view, uint64_t begin, uint64_t end)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t before, after, bytes;
    uint8_t *out = malloc(end - begin);
    sl_source_counts(view->source, &before, &bytes);
    SL_AUTO(sl_strided) strided = sl_strided_new(view->source, &view->tensor, NULL, &err);
    ck_assert_int_eq(sl_strided_read(strided, begin, end, out, &err), 0);
    sl_source_counts(view->source, &after, &bytes);
    free(out);
    return after - before;
}

SL_TEST(a_small_transposed_matrix_is_one_request)
{
    struct view view = {.shape = {200, 300}, .strides = {1, 200}};
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_memory_put("storage", storage, sizeof(storage), &err), 0);
    open_view(&view, "memory:storage");
    view.tensor.dtype = SL_DTYPE_F32;
    view.tensor.rank = 2;
    view.tensor.begin = 5;
    ck_assert_uint_eq(requests_for(&view, 0, 240000), 1);
    ck_assert_uint_eq(requests_for(&view, 100000, 100100), 1);
    close_view(&view);
}

/* ---- failing calls --------------------------------------------------------------------------- */

static int read_once(void *arg, struct sl_err *err)
{
    struct view *view = arg;
    uint8_t out[2000];
    SL_AUTO(sl_strided) strided = sl_strided_new(view->source, &view->tensor, NULL, err);
    return strided ? sl_strided_read(strided, 10, 2000, out, err) : -1;
}

SL_TEST(every_failing_allocation_is_reported)
{
    struct view view = {.shape = {20, 300}, .strides = {1, 20}};
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_memory_put("storage", storage, sizeof(storage), &err), 0);
    open_view(&view, "memory:storage");
    view.tensor.dtype = SL_DTYPE_F32;
    view.tensor.rank = 2;
    view.tensor.begin = 5;
    ck_assert_uint_gt(golden_each_allocation(read_once, &view), 4);
    close_view(&view);
}

SL_CASE(.seconds = 60)
