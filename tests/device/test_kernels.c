/*
 * Kernels that move bytes: casts against the host's, gathers against picking item by item and
 * against the reader of views. They run as the fake driver's, from the device's own source, with
 * memory that ends where nothing is mapped.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_images.h"
#include "kernel_case.h"
#include "memory_store.h"
#include "stores.h"
#include "strided.h"

static const struct fake_cuda_control *fake;

enum { MIB = 1024 * 1024 };

/* ---- casts ----------------------------------------------------------------------------------- */

static const enum sl_dtype types[] = {SL_DTYPE_F64,         SL_DTYPE_F32,        SL_DTYPE_F16,
                                      SL_DTYPE_BF16,        SL_DTYPE_F8_E4M3,    SL_DTYPE_F8_E5M2,
                                      SL_DTYPE_F8_E4M3FNUZ, SL_DTYPE_F8_E5M2FNUZ};

static unsigned size_of(enum sl_dtype dtype)
{
    return sl_dtype_row(dtype)->bits / 8;
}

/* Random bits, in which values of every size and those that are hard to round are frequent. */
static void make_elements(enum sl_dtype type, uint8_t *data, size_t count)
{
    unsigned bytes = size_of(type), mantissa = type == SL_DTYPE_F64 ? 52 : 23;
    gpu_random(data, count * bytes);
    for (size_t i = 0; bytes >= 4 && i < count; i++) {
        uint64_t code = 0;
        memcpy(&code, data + i * bytes, bytes);
        if (gpu_pick(2)) /* near halves and ends of the exponents that small types have */
            code = code >> (8 * bytes - 1) << (8 * bytes - 1) |
                   ((bytes == 8 ? 1023 : 127) - 30 + gpu_pick(60)) << mantissa |
                   gpu_pick(64) << (mantissa - 6) | gpu_pick(3);
        else if (gpu_pick(8) == 0) /* infinite, NaN, subnormal, zero */
            code = gpu_pick(2) << (8 * bytes - 1) | gpu_pick(3);
        else if (gpu_pick(8) == 0)
            code |= (bytes == 8 ? UINT64_C(0x7ff) : UINT64_C(0xff)) << mantissa;
        memcpy(data + i * bytes, &code, bytes);
    }
}

static void check_cast(struct gpu_case *gpu, enum sl_dtype from, enum sl_dtype to, size_t count,
                       const uint8_t *elements)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t *wanted = malloc(count * size_of(to) + 1);
    for (int overflow = SL_CAST_IEEE; overflow <= SL_CAST_SATURATE; overflow++) {
        uint8_t *in = gpu_tail(gpu, 0, count * size_of(from));
        uint8_t *out = gpu_tail(gpu, 1, count * size_of(to));
        memcpy(in, elements, count * size_of(from));
        memset(out - 16, 0xee, 16 + count * size_of(to));
        sl_cast(from, to, (enum sl_cast_overflow)overflow, in, wanted, count);
        ck_assert_msg(sl_kernels_cast(gpu->kernels, gpu->stream, from, to,
                                      (enum sl_cast_overflow)overflow, gpu_address(in),
                                      gpu_address(out), count, &err) == 0,
                      "%s", err.message);
        gpu_wait(gpu);
        ck_assert_msg(memcmp(out, wanted, count * size_of(to)) == 0, "%zu elements, %s to %s",
                      count, sl_dtype_row(from)->name, sl_dtype_row(to)->name);
        for (int i = 1; i <= 16; i++)
            ck_assert_int_eq(out[-i], 0xee);
    }
    free(wanted);
}

SL_TEST(every_cast_equals_the_hosts)
{
    static const size_t counts[] = {0, 1, 7, 8, 9, 15, 17, 2047, 2051, 65536};
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    uint8_t *elements = malloc(65536 * 8);
    for (unsigned f = 0; f < SL_COUNT(types); f++)
        for (unsigned t = 0; t < SL_COUNT(types); t++) {
            make_elements(types[f], elements, 65536);
            for (unsigned i = 0; i < SL_COUNT(counts); i++)
                check_cast(&gpu, types[f], types[t], counts[i], elements);
        }
    free(elements);
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

SL_TEST(every_code_of_small_types_is_cast_as_on_the_host)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (unsigned f = 2; f < SL_COUNT(types); f++) {
        unsigned bytes = size_of(types[f]);
        uint32_t count = 1u << (8 * bytes);
        uint8_t *elements = malloc((size_t)count * bytes);
        for (uint32_t code = 0; code < count; code++)
            memcpy(elements + (size_t)code * bytes, &code, bytes);
        for (unsigned t = 0; t < SL_COUNT(types); t++)
            check_cast(&gpu, types[f], types[t], count, elements);
        free(elements);
    }
    gpu_close(&gpu);
}

SL_TEST(types_of_one_size_are_cast_in_place)
{
    struct gpu_case gpu;
    struct sl_err err = SL_ERR_INIT;
    uint16_t data[1001], wanted[1001];
    gpu_open(&gpu);
    uint8_t *memory = gpu_memory(&gpu, MIB);
    gpu_random(data, sizeof(data));
    memcpy(memory, data, sizeof(data));
    sl_cast(SL_DTYPE_F16, SL_DTYPE_BF16, SL_CAST_IEEE, data, wanted, 1001);
    ck_assert_int_eq(sl_kernels_cast(gpu.kernels, gpu.stream, SL_DTYPE_F16, SL_DTYPE_BF16,
                                     SL_CAST_IEEE, gpu_address(memory), gpu_address(memory), 1001,
                                     &err),
                     0);
    gpu_wait(&gpu);
    ck_assert_mem_eq(memory, wanted, sizeof(wanted));
    gpu_close(&gpu);
}

SL_TEST(impossible_casts_are_refused)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    uint64_t at = gpu_address(gpu_memory(&gpu, MIB));
    const struct {
        enum sl_dtype from, to;
        uint64_t in, out, count;
    } wrong[] = {
        {SL_DTYPE_I32, SL_DTYPE_F32, at, at + 4096, 1},
        {SL_DTYPE_F32, SL_DTYPE_NONE, at, at + 4096, 1},
        {SL_DTYPE_F32, SL_DTYPE_BF16, at, at, 10}, /* threads would overtake each other */
        {SL_DTYPE_F32, SL_DTYPE_BF16, at, at + 39, 10},
        {SL_DTYPE_BF16, SL_DTYPE_F32, at + 39, at, 10},
        {SL_DTYPE_F64, SL_DTYPE_F32, at, at + 4096, UINT64_MAX / 8 + 1},
        {SL_DTYPE_F64, SL_DTYPE_F32, at, at + 4096, UINT64_MAX / 8},
    };
    for (unsigned i = 0; i < SL_COUNT(wrong); i++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_kernels_cast(gpu.kernels, gpu.stream, wrong[i].from, wrong[i].to,
                                         SL_CAST_IEEE, wrong[i].in, wrong[i].out, wrong[i].count,
                                         &err),
                         -1);
        ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    }
    gpu_close(&gpu);
}

/* ---- gathers --------------------------------------------------------------------------------- */

enum { STORED_BYTES = 300000, RANK = 5 };

/* Any box within so many bytes, overlapping and zero strides too. */
static void make_box(struct sl_gather_box *box, uint64_t widths[RANK], uint64_t strides[RANK])
{
    static const unsigned items[] = {1, 2, 3, 4, 6, 8, 16};
    static const uint64_t some[] = {1, 2, 3, 4, 7, 16, 40, 300};
    memset(box, 0, sizeof(*box));
    box->item_bytes = items[gpu_pick(SL_COUNT(items))];
    box->rank = (unsigned)gpu_pick(RANK + 1);
    box->first = gpu_pick(4) * (gpu_pick(2) ? 16 : 1);
    uint64_t room = STORED_BYTES - box->item_bytes - box->first, items_left = 20000, step = 1;
    for (unsigned i = box->rank; i-- > 0;) {
        widths[i] = some[gpu_pick(SL_COUNT(some))];
        widths[i] = SL_MIN(widths[i], items_left);
        bool dense = gpu_pick(2);
        strides[i] = dense ? step * box->item_bytes
                           : gpu_pick(5) * (gpu_pick(2) ? box->item_bytes : gpu_pick(100));
        if (widths[i] > 1 && strides[i] > room / (widths[i] - 1))
            strides[i] = room / (widths[i] - 1);
        room -= (widths[i] - 1) * strides[i];
        items_left = SL_MAX(items_left / widths[i], UINT64_C(1));
        step *= widths[i];
    }
    if (gpu_pick(3) == 0 && box->item_bytes % 2 == 0)
        box->swap_bytes = gpu_pick(2) ? 2 : box->item_bytes;
    box->widths = widths;
    box->strides = strides;
    box->begin = gpu_pick(2) ? 0 : gpu_pick(step);
    box->count = gpu_pick(2) ? step - box->begin : gpu_pick(step - box->begin + 1);
}

static void pick_item(const struct sl_gather_box *box, uint64_t number, const uint8_t *stored,
                      uint8_t *out)
{
    uint64_t place = box->first;
    unsigned swap = box->swap_bytes > 1 ? box->swap_bytes : 1;
    for (unsigned i = box->rank; i-- > 0; number /= box->widths[i])
        place += number % box->widths[i] * box->strides[i];
    for (unsigned b = 0; b < box->item_bytes; b++)
        out[b] = stored[place + (swap > 1 ? b / swap * swap + swap - 1 - b % swap : b)];
}

static void check_gather(struct gpu_case *gpu, struct sl_gather_box *box, uint64_t shift)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t bytes = box->count * box->item_bytes;
    uint8_t *stored = gpu_tail(gpu, 0, STORED_BYTES), *out = gpu_tail(gpu, 1, bytes + shift);
    uint8_t *wanted = malloc(bytes + 1);
    for (uint64_t i = 0; i < box->count; i++)
        pick_item(box, box->begin + i, stored, wanted + i * box->item_bytes);
    memset(out - 16, 0xee, bytes + shift + 16);
    box->in = gpu_address(stored);
    box->in_bytes = STORED_BYTES;
    box->out = gpu_address(out);
    box->out_bytes = bytes;
    ck_assert_msg(sl_kernels_gather(gpu->kernels, gpu->stream, box, &err) == 0, "%s", err.message);
    gpu_wait(gpu);
    ck_assert_int_eq(memcmp(out, wanted, bytes), 0);
    for (int i = 1; i <= 16; i++)
        ck_assert_int_eq(out[-i], 0xee);
    for (uint64_t i = 0; i < shift; i++)
        ck_assert_int_eq(out[bytes + i], 0xee);
    free(wanted);
}

SL_TEST(any_box_is_gathered_item_by_item)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    gpu_random(gpu_tail(&gpu, 0, STORED_BYTES), STORED_BYTES);
    for (int i = 0; i < 1500; i++) {
        struct sl_gather_box box;
        uint64_t widths[RANK], strides[RANK];
        make_box(&box, widths, strides);
        check_gather(&gpu, &box, gpu_pick(20));
    }
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

/* Rows of more than 2^32 items in between: numbers of 64 bits all the way. */
SL_TEST(numbers_beyond_32_bits_are_gathered)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    gpu_random(gpu_tail(&gpu, 0, STORED_BYTES), STORED_BYTES);
    uint64_t widths[] = {UINT64_C(5) << 32, 3, 100}, strides[] = {0, 8, 2};
    struct sl_gather_box box = {.item_bytes = 2,
                                .rank = 3,
                                .widths = widths,
                                .strides = strides,
                                .begin = (UINT64_C(4) << 32) * 300 + 77,
                                .count = 4000};
    check_gather(&gpu, &box, 0);
    gpu_close(&gpu);
}

SL_TEST(an_empty_box_is_nothing)
{
    struct gpu_case gpu;
    struct sl_err err = SL_ERR_INIT;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    uint64_t widths[] = {3, 0, UINT64_MAX}, strides[] = {UINT64_MAX, UINT64_MAX, 4};
    struct sl_gather_box box = {
        .item_bytes = 4, .rank = 3, .widths = widths, .strides = strides, .first = UINT64_MAX};
    ck_assert_int_eq(sl_kernels_gather(gpu.kernels, gpu.stream, &box, &err), 0);
    gpu_close(&gpu);
}

SL_TEST(boxes_that_leave_their_memory_are_refused)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    uint64_t in = gpu_address(gpu_memory(&gpu, MIB)), out = gpu_address(gpu_memory(&gpu, MIB));
    const struct {
        uint64_t first, widths[2], strides[2], begin, count, out_bytes;
        unsigned item, rank;
    } wrong[] = {
        {0, {10, 10}, {40, 4}, 0, 101, 1000, 4, 2}, /* more items than there are */
        {0, {10, 10}, {40, 4}, 100, 1, 1000, 4, 2},
        {0, {10, 10}, {40, 4}, UINT64_MAX, 2, 1000, 4, 2},
        {0, {10, 10}, {40, 4}, 0, 100, 399, 4, 2}, /* no room for them */
        {1, {10, 10}, {40, 4}, 0, 1, 1000, 4, 2},  /* the last one ends behind the memory */
        {401, {1, 1}, {0, 0}, 0, 1, 1000, 4, 2},
        {UINT64_MAX, {1, 1}, {0, 0}, 0, 1, 1000, 4, 2},
        {0, {2, 1}, {UINT64_MAX, 0}, 0, 1, 1000, 4, 2},
        {0, {UINT64_MAX, 2}, {0, 0}, 0, 1, 1000, 4, 2},
        {0, {3, 3}, {UINT64_MAX / 2, UINT64_MAX / 2}, 0, 1, 1000, 4, 2},
        {0, {10, 10}, {40, 4}, 0, 1, 1000, 0, 2},
        {0, {10, 10}, {40, 4}, 0, 1, 1000, 17, 2},
        {0, {10, 10}, {40, 4}, 0, 1, 1000, 4, 65},
    };
    for (unsigned i = 0; i < SL_COUNT(wrong); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_gather_box box = {.in = in,
                                    .in_bytes = 400,
                                    .first = wrong[i].first,
                                    .item_bytes = wrong[i].item,
                                    .rank = wrong[i].rank,
                                    .widths = wrong[i].widths,
                                    .strides = wrong[i].strides,
                                    .begin = wrong[i].begin,
                                    .count = wrong[i].count,
                                    .out = out,
                                    .out_bytes = wrong[i].out_bytes};
        ck_assert_msg(sl_kernels_gather(gpu.kernels, gpu.stream, &box, &err) == -1, "row %u", i);
        ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    }
    gpu_close(&gpu);
}

/* The host's own reader of views, over the same bytes. */
SL_TEST(a_transposed_slice_equals_what_the_reader_gives)
{
    enum { ROWS = 70, COLUMNS = 90, ITEM = 4, BYTES = ROWS * COLUMNS * ITEM };
    struct gpu_case gpu;
    struct sl_err err = SL_ERR_INIT;
    struct sl_store *store;
    struct sl_source *source;
    char *key;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    uint8_t *stored = gpu_tail(&gpu, 0, BYTES);
    gpu_random(stored, BYTES);
    ck_assert_int_eq(sl_memory_put("view", stored, BYTES, &err), 0);
    ck_assert_int_eq(sl_store_open("memory:view", NULL, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &source, &err), 0);
    free(key);
    uint64_t shape[] = {COLUMNS, ROWS}, strides[] = {1, COLUMNS};
    struct sl_tensor tensor = {.name = "view", .name_bytes = 4, .dtype = SL_DTYPE_F32, .rank = 2};
    tensor.shape = shape, tensor.strides = strides, tensor.end = BYTES, tensor.swap_bytes = 4;
    struct sl_slice slice = {.begin = {3, 10}, .end = {85, 61}};
    struct sl_strided *strided = sl_strided_new(source, &tensor, &slice, &err);
    ck_assert_ptr_nonnull(strided);
    uint64_t bytes = sl_strided_bytes(strided), widths[] = {82, 51}, steps[] = {4, COLUMNS * 4};
    uint8_t *wanted = malloc(bytes), *out = gpu_tail(&gpu, 1, bytes);
    ck_assert_int_eq(sl_strided_read(strided, 0, bytes, wanted, &err), 0);
    struct sl_gather_box box = {.in = gpu_address(stored),
                                .in_bytes = BYTES,
                                .first = 3 * 4 + 10 * COLUMNS * 4,
                                .item_bytes = 4,
                                .swap_bytes = 4,
                                .rank = 2,
                                .widths = widths,
                                .strides = steps,
                                .count = bytes / 4,
                                .out = gpu_address(out),
                                .out_bytes = bytes};
    ck_assert_int_eq(sl_kernels_gather(gpu.kernels, gpu.stream, &box, &err), 0);
    gpu_wait(&gpu);
    ck_assert_mem_eq(out, wanted, bytes);
    free(wanted);
    sl_strided_free(strided);
    sl_source_free(source);
    sl_store_free(store);
    sl_memory_clear();
    gpu_close(&gpu);
}

/* ---- images and the driver ------------------------------------------------------------------- */

SL_TEST(the_image_of_the_same_family_is_taken_else_the_newest_ptx)
{
    static const uint8_t none[1];
    static const struct sl_kernel_image images[] = {
        {"compute_75", 75, true, none, none}, {"sm_80", 80, false, none, none},
        {"sm_90", 90, false, none, none},     {"compute_80", 80, true, none, none},
        {"sm_86", 86, false, none, none},
    };
    static const struct {
        int major, minor;
        const char *name;
    } wanted[] = {
        {7, 0, NULL},    {7, 5, "compute_75"}, {8, 0, "sm_80"},       {8, 6, "sm_86"},
        {8, 9, "sm_86"}, {9, 0, "sm_90"},      {10, 0, "compute_80"}, {12, 0, "compute_80"},
    };
    fake_images_set(images, SL_COUNT(images));
    for (unsigned i = 0; i < SL_COUNT(wanted); i++) {
        const struct sl_kernel_image *image = sl_kernel_image_for(wanted[i].major, wanted[i].minor);
        if (wanted[i].name)
            ck_assert_str_eq(image ? image->name : "none", wanted[i].name);
        else
            ck_assert_ptr_null(image);
    }
    fake_images_set(NULL, 0);
}

SL_TEST(images_of_the_build_are_what_their_names_say)
{
    size_t count;
    const struct sl_kernel_image *images = sl_kernel_images(&count);
    if (count == 0)
        ck_assert_msg(strncmp(sl_kernel_images_text(), "none: ", 6) == 0, "%s",
                      sl_kernel_images_text());
    for (size_t i = 0; i < count; i++) {
        ck_assert_ptr_nonnull(strstr(sl_kernel_images_text(), images[i].name));
        ck_assert_uint_gt((size_t)(images[i].end - images[i].data), 1000);
        ck_assert_int_eq(*images[i].end, 0);
        if (images[i].ptx)
            ck_assert_ptr_nonnull(strstr((const char *)images[i].data, ".entry sl_cast("));
        else
            ck_assert_mem_eq(images[i].data, "\177ELF", 4);
    }
}

/* A cubin in a form that came after the driver. */
SL_TEST(a_refused_cubin_gives_way_to_ptx)
{
    static const uint8_t none[] = "\177ELF";
    static const struct sl_kernel_image images[] = {{"sm_80", 80, false, none, none + 4},
                                                    {"sm_90", 90, false, none, none + 4},
                                                    {"compute_80", 80, true, none, none + 4}};
    struct gpu_case gpu;
    struct sl_err err = SL_ERR_INIT;
    gpu_open_bare(&gpu);
    fake_images_set(images, SL_COUNT(images));
    fake->fail_call("cuModuleLoadData", 1, SL_CUDA_NO_BINARY_FOR_GPU);
    gpu.kernels = sl_kernels_load(gpu.cuda, &gpu.device, &err);
    ck_assert_msg(gpu.kernels != NULL, "%s", err.message);
    ck_assert_uint_eq(fake->calls("cuModuleLoadData"), 2);
    fake->fail_call("cuModuleLoadData", 1, SL_CUDA_OUT_OF_MEMORY); /* which PTX would not mend */
    ck_assert_ptr_null(sl_kernels_load(gpu.cuda, &gpu.device, &err));
    ck_assert_uint_eq(fake->calls("cuModuleLoadData"), 3);
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

SL_TEST(a_gpu_without_an_image_is_told)
{
    static const uint8_t none[1];
    static const struct sl_kernel_image later = {"sm_120", 120, false, none, none};
    struct gpu_case gpu;
    struct sl_err err = SL_ERR_INIT;
    gpu_open_bare(&gpu);
    fake_images_set(&later, 0);
    ck_assert_ptr_null(sl_kernels_load(gpu.cuda, &gpu.device, &err));
    ck_assert_int_eq(err.kind, SL_E_GPU);
    ck_assert_ptr_nonnull(strstr(err.message, "build it after scripts/cuda-compiler"));
    fake_images_set(&later, 1);
    ck_assert_ptr_null(sl_kernels_load(gpu.cuda, &gpu.device, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "compute capability"));
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

SL_TEST(every_failing_call_of_the_driver_is_an_error_and_leaves_nothing)
{
    static const char *const calls[] = {"cuModuleLoadData", "cuModuleGetFunction"};
    struct gpu_case gpu;
    gpu_open(&gpu);
    for (unsigned c = 0; c < SL_COUNT(calls); c++)
        for (unsigned nth = 1; nth <= (c ? 7 : 1); nth++) {
            struct sl_err err = SL_ERR_INIT;
            fake->fail_call(calls[c], nth, SL_CUDA_OUT_OF_MEMORY);
            ck_assert_ptr_null(sl_kernels_load(gpu.cuda, &gpu.device, &err));
            ck_assert_int_eq(err.kind, SL_E_GPU);
            ck_assert_ptr_nonnull(strstr(err.message, "kernel"));
        }
    for (unsigned nth = 1; nth <= 1; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        ck_assert_ptr_null(sl_kernels_load(gpu.cuda, &gpu.device, &err));
        sl_alloc_fail_at(0);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    uint64_t at = gpu_address(gpu_memory(&gpu, MIB));
    struct sl_err err = SL_ERR_INIT;
    fake->fail_call("cuLaunchKernel", 1, SL_CUDA_LAUNCH_FAILED);
    ck_assert_int_eq(sl_kernels_cast(gpu.kernels, gpu.stream, SL_DTYPE_F32, SL_DTYPE_BF16,
                                     SL_CAST_IEEE, at, at + 4096, 10, &err),
                     -1);
    ck_assert_int_eq(err.kind, SL_E_GPU);
    ck_assert_ptr_nonnull(strstr(err.message, "sl_cast"));
    fake->reset();
    gpu_close(&gpu);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
