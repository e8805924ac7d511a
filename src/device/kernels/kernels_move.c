/*
 * Casts and gathers. A box is made simple before it goes to the device: dimensions of one step
 * vanish, those that follow each other in memory become one, and what lies together in the
 * innermost is moved in items of up to sixteen bytes. All of the box is checked here, so that the
 * kernel's own bound is only a second lock.
 */
#include <inttypes.h>

#include "kernels_launch.h"

enum { CAST_GROUP = 8 /* elements a thread takes at once */, ITEM_BYTES_MAX = 16 };

/* ---- cast ------------------------------------------------------------------------------------ */

static int type_of(enum sl_dtype dtype)
{
    switch (dtype) {
    case SL_DTYPE_F64:
        return SL_K_F64;
    case SL_DTYPE_F32:
        return SL_K_F32;
    case SL_DTYPE_F16:
        return SL_K_F16;
    case SL_DTYPE_BF16:
        return SL_K_BF16;
    case SL_DTYPE_F8_E4M3:
        return SL_K_F8_E4M3;
    case SL_DTYPE_F8_E5M2:
        return SL_K_F8_E5M2;
    case SL_DTYPE_F8_E4M3FNUZ:
        return SL_K_F8_E4M3FNUZ;
    case SL_DTYPE_F8_E5M2FNUZ:
        return SL_K_F8_E5M2FNUZ;
    default:
        return -1;
    }
}

static int copy(struct sl_kernels *kernels, struct sl_cuda_stream *stream, uint64_t in,
                uint64_t out, uint64_t bytes, struct sl_err *err)
{
    struct sl_cuda_err driver;
    int result = in == out ? 0 : kernels->cuda->copy_on_device(out, in, bytes, stream);
    if (sl_cuda_check(kernels->cuda, result, &driver, "copy %" PRIu64 " bytes on the GPU", bytes) <
        0)
        return sl_fail(err, SL_E_GPU, "%s", driver.message);
    return 0;
}

int sl_kernels_cast(struct sl_kernels *kernels, struct sl_cuda_stream *stream, enum sl_dtype from,
                    enum sl_dtype to, enum sl_cast_overflow overflow, uint64_t in, uint64_t out,
                    uint64_t count, struct sl_err *err)
{
    const char *from_name = sl_dtype_row(from)->name, *to_name = sl_dtype_row(to)->name;
    if (type_of(from) < 0 || type_of(to) < 0)
        return sl_fail(err, SL_E_INTERNAL, "no cast from %s to %s", from_name, to_name);
    uint64_t in_size = sl_dtype_row(from)->bits / 8, out_size = sl_dtype_row(to)->bits / 8;
    uint64_t in_bytes, out_bytes, end;
    if (__builtin_mul_overflow(count, in_size, &in_bytes) ||
        __builtin_mul_overflow(count, out_size, &out_bytes) ||
        __builtin_add_overflow(in, in_bytes, &end) || __builtin_add_overflow(out, out_bytes, &end))
        return sl_fail(err, SL_E_INTERNAL, "cast of %" PRIu64 " elements of %s", count, from_name);
    bool in_place = in == out && in_size == out_size;
    if (!in_place && sl_kernel_overlap(in, in_bytes, out, out_bytes))
        return sl_fail(err, SL_E_INTERNAL, "cast from %s to %s into its own source", from_name,
                       to_name);
    if (count == 0)
        return 0;
    if (from == to)
        return copy(kernels, stream, in, out, in_bytes, err);
    struct sl_cast_args args = {.in = in,
                                .out = out,
                                .count = count,
                                .from = (uint32_t)type_of(from),
                                .to = (uint32_t)type_of(to),
                                .saturate = overflow == SL_CAST_SATURATE};
    /* The last, less than a group, are one thread's each. */
    uint64_t jobs = SL_MAX(count / CAST_GROUP, (uint64_t)CAST_GROUP);
    return sl_kernel_launch(kernels, stream, SL_KERNEL_cast,
                            sl_kernel_blocks(kernels, SL_KERNEL_cast, jobs), &args, err);
}

/* ---- gather ---------------------------------------------------------------------------------- */

static int out_of_bounds(const struct sl_gather_box *box, struct sl_err *err)
{
    return sl_fail(err, SL_E_INTERNAL,
                   "gather of items %" PRIu64 " to %" PRIu64 " + %" PRIu64 " from %" PRIu64
                   " bytes reaches out of them",
                   box->begin, box->begin, box->count, box->in_bytes);
}

/* Every item of the box lies in its memory, and those that are wanted are there. */
static int check_box(const struct sl_gather_box *box, struct sl_err *err)
{
    uint64_t items = 1, last = box->first, bytes, end, reach;
    bool bad_item = box->item_bytes < 1 || box->item_bytes > ITEM_BYTES_MAX ||
                    (box->swap_bytes > 1 && box->item_bytes % box->swap_bytes != 0);
    if (bad_item || box->rank > SL_GATHER_RANK_MAX)
        return sl_fail(err, SL_E_INTERNAL, "gather of items of %u bytes in %u dimensions",
                       box->item_bytes, box->rank);
    if (box->count == 0)
        return 0;
    for (unsigned i = 0; i < box->rank; i++) {
        uint64_t width = box->widths[i];
        if (__builtin_mul_overflow(items, width, &items))
            return out_of_bounds(box, err);
        if (width > 1 && (__builtin_mul_overflow(width - 1, box->strides[i], &reach) ||
                          __builtin_add_overflow(last, reach, &last)))
            return out_of_bounds(box, err);
    }
    if (__builtin_add_overflow(box->begin, box->count, &end) || end > items ||
        __builtin_mul_overflow(box->count, (uint64_t)box->item_bytes, &bytes) ||
        bytes > box->out_bytes)
        return out_of_bounds(box, err);
    if (last > box->in_bytes || box->in_bytes - last < box->item_bytes)
        return out_of_bounds(box, err);
    if (sl_kernel_overlap(box->in, box->in_bytes, box->out, bytes))
        return sl_fail(err, SL_E_INTERNAL, "gather into its own source");
    return 0;
}

/* Dimensions that count something; one that goes on where the next one ends is one with it. */
static void merge(const struct sl_gather_box *box, struct sl_gather_args *args)
{
    for (unsigned i = 0; i < box->rank; i++) {
        struct sl_gather_dimension *last = &args->dimensions[args->rank - (args->rank > 0)];
        uint64_t width = box->widths[i], stride = box->strides[i], whole;
        if (width == 1)
            continue;
        if (args->rank > 0 && !__builtin_mul_overflow(width, stride, &whole) &&
            last->stride == whole) {
            last->width *= width;
            last->stride = stride;
            continue;
        }
        args->dimensions[args->rank++] = (struct sl_gather_dimension){width, stride};
    }
}

/* Could items be twice as large? What lies side by side is then moved at once. */
static bool can_double(const struct sl_gather_args *args)
{
    if (args->rank == 0 || args->swap > 1 || args->item > ITEM_BYTES_MAX / 2)
        return false;
    const struct sl_gather_dimension *inner = &args->dimensions[args->rank - 1];
    uint64_t all = args->in | args->out | args->first;
    for (unsigned i = 0; i + 1 < args->rank; i++)
        all |= args->dimensions[i].stride;
    return inner->stride == args->item && inner->width % 2 == 0 && args->begin % 2 == 0 &&
           args->count % 2 == 0 && all % (2 * args->item) == 0;
}

static void widen_items(struct sl_gather_args *args)
{
    while (can_double(args)) {
        struct sl_gather_dimension *inner = &args->dimensions[args->rank - 1];
        args->item *= 2;
        args->begin /= 2;
        args->count /= 2;
        inner->width /= 2;
        inner->stride *= 2;
        if (inner->width == 1)
            args->rank--;
    }
}

int sl_kernels_gather(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                      const struct sl_gather_box *box, struct sl_err *err)
{
    if (check_box(box, err) < 0)
        return -1;
    if (box->count == 0)
        return 0;
    struct sl_gather_args args = {.in = box->in,
                                  .in_bytes = box->in_bytes,
                                  .out = box->out,
                                  .first = box->first,
                                  .begin = box->begin,
                                  .count = box->count,
                                  .item = box->item_bytes,
                                  .swap = box->swap_bytes};
    merge(box, &args);
    bool plain = args.swap <= 1 &&
                 (args.rank == 0 || (args.rank == 1 && args.dimensions[0].stride == args.item));
    if (plain)
        return copy(kernels, stream, args.in + args.first + args.begin * args.item, args.out,
                    args.count * args.item, err);
    widen_items(&args);
    args.narrow = args.begin + args.count <= UINT32_MAX;
    return sl_kernel_launch(kernels, stream, SL_KERNEL_gather,
                            sl_kernel_blocks(kernels, SL_KERNEL_gather, args.count), &args, err);
}
