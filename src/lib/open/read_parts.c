/*
 * From what a caller asks to what is planned. A tensor, or a slice without steps, is one piece,
 * which lands in the caller's memory. A slice with steps becomes pieces of its own where much lies
 * between its steps; where little does, that is fetched too, some MiB at a time, and the elements
 * are taken out of it.
 */
#include <inttypes.h>
#include <string.h>

#include "dtype.h"
#include "names.h"
#include "reading.h"
#include "tensor_reader.h"

enum {
    BETWEEN_BYTES_MAX = 16 * 1024 * 1024, /* of one piece with steps, where it can be parted */
    GAP_BYTES = 64 * 1024,                /* between steps: more than a request costs */
    PIECES_MAX = 512 * 1024,
};

/* ---- measures -------------------------------------------------------------------------------- */

/* A tensor or data file as an array. */
struct form {
    const struct sl_target *target; /* NULL: a data file */
    const uint64_t *shape;
    unsigned rank;
    struct sl_dtype_row type;
};

static struct form form_of(const struct sluice_source *source, uint64_t number)
{
    struct form form = {.target = sl_open_target(source, number)};
    form.shape = sl_open_shape(source, number, &form.rank);
    form.type = *sl_dtype_row(form.target ? form.target->out.dtype : SL_DTYPE_U8);
    return form;
}

static uint64_t step_of(const struct sluice_range *range)
{
    return range->step ? range->step : 1;
}

static uint64_t count_of(const struct sluice_range *range)
{
    uint64_t span = range->stop > range->start ? range->stop - range->start : 0;
    return span / step_of(range) + (span % step_of(range) != 0);
}

/* Bytes of so many elements of the last dimension. */
static uint64_t bytes_of(const struct form *form, uint64_t elements)
{
    return form->type.block > 1
               ? elements / form->type.block * (form->type.bits / 8)
               : elements / 8 * form->type.bits + elements % 8 * form->type.bits / 8;
}

/* Bytes of one step of a dimension. */
static uint64_t stride_of(const struct form *form, unsigned dimension)
{
    uint64_t elements = 1;
    for (unsigned d = dimension + 1; d < form->rank; d++)
        elements *= form->shape[d];
    return bytes_of(form, elements);
}

static int fail_range(const struct form *form, unsigned d, const struct sluice_range *range,
                      struct sl_err *err)
{
    const struct sl_tensor *out = form->target ? &form->target->out : NULL;
    return sl_fail(err, SL_E_USAGE,
                   "elements %" PRIu64 " to %" PRIu64 " leave dimension %u of '%.*s', which has "
                   "size %" PRIu64,
                   range->start, range->stop, d,
                   SL_NAME_ARGS(out ? out->name : "the file", out ? out->name_bytes : 8),
                   form->shape[d]);
}

/* Is what one step of a dimension takes, and what it passes over, whole bytes and blocks? */
static bool is_whole(const struct form *form, const struct sluice_range *ranges, unsigned dimension)
{
    uint64_t all = 1, taken = 1;
    for (unsigned d = dimension + 1; d < form->rank; d++) {
        all *= form->shape[d];
        taken *= count_of(&ranges[d]);
    }
    if (form->type.block > 1)
        return dimension + 1 < form->rank;
    return all % 8 * form->type.bits % 8 == 0 && taken % 8 * form->type.bits % 8 == 0;
}

static int check_ranges(const struct form *form, const struct sluice_range *ranges,
                        struct sl_err *err)
{
    if (form->rank > SL_SLICE_RANK_MAX)
        return sl_fail(err, SL_E_USAGE, "a tensor of %u dimensions cannot be sliced: at most %d",
                       form->rank, SL_SLICE_RANK_MAX);
    for (unsigned d = 0; d < form->rank; d++) {
        const struct sluice_range *range = &ranges[d];
        if (range->start > range->stop || range->stop > form->shape[d])
            return fail_range(form, d, range, err);
        if (step_of(range) > 1 && count_of(range) > 1 && !is_whole(form, ranges, d))
            return sl_fail_code(
                err, SL_E_FORMAT, form->type.block > 1 ? "gg.block" : "st.misaligned",
                "elements of %s share bytes or blocks, so that steps cannot part them",
                form->type.name);
    }
    return 0;
}

/* The smallest slice without steps that has all of it. */
static struct sl_slice cover_of(const struct form *form, const struct sluice_range *ranges)
{
    struct sl_slice slice = {0};
    for (unsigned d = 0; d < form->rank; d++) {
        uint64_t count = count_of(&ranges[d]);
        slice.begin[d] = ranges[d].start;
        slice.end[d] =
            count ? ranges[d].start + (count - 1) * step_of(&ranges[d]) + 1 : ranges[d].start;
    }
    return slice;
}

/* What a caller's slice has; ranges of the tensor's rank. shape may be NULL. SL_E_USAGE. */
static int measure(const struct sluice_source *source, uint64_t number,
                   const struct sluice_range *ranges, uint64_t *shape, uint64_t *bytes,
                   struct sl_err *err)
{
    struct form form = form_of(source, number);
    if (check_ranges(&form, ranges, err) < 0)
        return -1;
    uint64_t elements = 1;
    for (unsigned d = 0; d < form.rank; d++) {
        uint64_t count = count_of(&ranges[d]);
        elements *= count; /* the whole has a size, so no part overflows */
        if (shape)
            shape[d] = count;
    }
    *bytes = bytes_of(&form, elements);
    if (!form.target || !elements || form.target->from->dtype != form.target->out.dtype)
        return 0;
    struct sl_slice cover = cover_of(&form, ranges);
    return sl_slice_check(&form.target->out, &cover, err);
}

int sluice_slice(const struct sluice_source *source, uint64_t number,
                 const struct sluice_range *slice, uint64_t *shape, uint64_t *bytes,
                 struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    if (sl_open_check_number(source, number, &err) < 0 ||
        measure(source, number, slice, shape, bytes, &err) < 0)
        return sl_open_fail(error, &err);
    return 0;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A slice that is parted: dimensions before `at` are down to one index each. */
struct parting {
    struct sl_reading *reading;
    size_t read;
    struct form form;
    const struct sluice_range *ranges;
    struct sl_slice slice;              /* as it is parted so far, without steps */
    uint64_t count[SL_SLICE_RANK_MAX];  /* of elements that are taken */
    uint64_t stride[SL_SLICE_RANK_MAX]; /* bytes, in the tensor */
    uint64_t taken[SL_SLICE_RANK_MAX];  /* bytes of one step, in the caller's memory */
};

static struct sl_piece *add_piece(struct sl_reading *reading, size_t read, uint8_t *to,
                                  struct sl_err *err)
{
    if (reading->piece_count >= PIECES_MAX) {
        sl_fail_code(err, SL_E_FORMAT, "size",
                     "what is read would lie in more than %d places: read less at a time",
                     PIECES_MAX);
        return NULL;
    }
    if (sl_grow(&reading->pieces, &reading->piece_capacity, reading->piece_count + 1,
                sizeof(*reading->pieces), err) < 0)
        return NULL;
    struct sl_piece *piece = &reading->pieces[reading->piece_count++];
    *piece = (struct sl_piece){.read = read, .to = to, .aside = reading->device != NULL};
    reading->pieces_left[read]++;
    return piece;
}

static bool has_steps(const struct parting *parting, unsigned at)
{
    for (unsigned d = at; d < parting->form.rank; d++)
        if (parting->count[d] > 1 && step_of(&parting->ranges[d]) > 1)
            return true;
    return false;
}

/* Does so much lie between the steps of this dimension, or of one within it, that it is left out?
 */
static bool has_gaps(const struct parting *parting, unsigned at)
{
    for (unsigned d = at; d < parting->form.rank; d++)
        if (parting->count[d] > 1 &&
            (step_of(&parting->ranges[d]) - 1) * parting->stride[d] >= GAP_BYTES)
            return true;
    return false;
}

/* Bytes of the slice from this dimension on, of one index of those before it. */
static uint64_t between_bytes(const struct parting *parting, unsigned at)
{
    uint64_t elements = 1;
    for (unsigned d = at; d < parting->form.rank; d++)
        elements *= parting->slice.end[d] - parting->slice.begin[d];
    return bytes_of(&parting->form, elements);
}

static void describe_steps(const struct parting *parting, struct sl_piece *piece)
{
    piece->steps = piece->aside = true;
    piece->rank = parting->form.rank;
    for (unsigned d = 0; d < piece->rank; d++) {
        uint64_t step = step_of(&parting->ranges[d]);
        piece->step[d] = piece->slice.end[d] - piece->slice.begin[d] > 1 ? step : 1;
        if (piece->step[d] > 1)
            piece->last = d;
    }
    uint64_t elements = 1;
    for (unsigned d = piece->last + 1; d < piece->rank; d++)
        elements *= piece->slice.end[d] - piece->slice.begin[d];
    piece->run_bytes = bytes_of(&parting->form, elements);
}

static int emit(struct parting *parting, unsigned at, uint8_t *to, struct sl_err *err)
{
    struct sl_piece *piece = add_piece(parting->reading, parting->read, to, err);
    if (!piece)
        return -1;
    piece->slice = parting->slice;
    piece->bytes = between_bytes(parting, 0);
    if (has_steps(parting, at))
        describe_steps(parting, piece);
    return 0;
}

static int part(struct parting *parting, unsigned at, uint8_t *to, struct sl_err *err);

/* Indexes [first, first + many) of those of a dimension that are taken. */
static void narrow(struct parting *parting, unsigned at, uint64_t first, uint64_t many)
{
    const struct sluice_range *range = &parting->ranges[at];
    parting->slice.begin[at] = range->start + first * step_of(range);
    parting->slice.end[at] = parting->slice.begin[at] + (many - 1) * step_of(range) + 1;
    parting->count[at] = many;
}

static int part_dimension(struct parting *parting, unsigned at, uint64_t many, uint8_t *to,
                          struct sl_err *err)
{
    struct sl_slice slice = parting->slice;
    uint64_t count = parting->count[at];
    int done = 0;
    for (uint64_t first = 0; first < count && done == 0; first += many) {
        uint64_t now = SL_MIN(many, count - first);
        uint8_t *there = to + first * parting->taken[at];
        narrow(parting, at, first, now);
        done = many == 1 ? part(parting, at + 1, there, err) : emit(parting, at, there, err);
    }
    parting->slice = slice;
    parting->count[at] = count;
    return done;
}

static int part(struct parting *parting, unsigned at, uint8_t *to, struct sl_err *err)
{
    bool gaps = has_gaps(parting, at);
    if (!has_steps(parting, at) || (!gaps && between_bytes(parting, at) <= BETWEEN_BYTES_MAX))
        return emit(parting, at, to, err);
    uint64_t each = between_bytes(parting, at + 1) * step_of(&parting->ranges[at]);
    uint64_t many = gaps || each == 0 ? 1 : SL_MAX(BETWEEN_BYTES_MAX / each, 1u);
    return part_dimension(parting, at, many, to, err);
}

static int part_slice(struct sl_reading *reading, size_t number, struct sl_err *err)
{
    const struct sluice_read *read = &reading->reads[number];
    struct parting parting = {.reading = reading,
                              .read = number,
                              .form = form_of(reading->source, read->number),
                              .ranges = read->slice};
    uint64_t elements = 1;
    parting.slice = cover_of(&parting.form, read->slice);
    for (unsigned d = parting.form.rank; d-- > 0;) {
        parting.count[d] = count_of(&read->slice[d]);
        parting.stride[d] = stride_of(&parting.form, d);
        parting.taken[d] = bytes_of(&parting.form, elements);
        elements *= parting.count[d];
    }
    return elements ? part(&parting, 0, read->to, err) : 0;
}

/* ---- reads ----------------------------------------------------------------------------------- */

static int check_read(const struct sl_reading *reading, size_t number, struct sl_err *err)
{
    const struct sluice_read *read = &reading->reads[number];
    uint64_t bytes;
    if (sl_open_check_number(reading->source, read->number, err) < 0)
        return -1;
    if (!read->slice)
        bytes = sl_open_bytes(reading->source, read->number);
    else if (measure(reading->source, read->number, read->slice, NULL, &bytes, err) < 0)
        return -1;
    if (bytes != read->bytes || (bytes && !read->to))
        return sl_fail(err, SL_E_USAGE,
                       "read %zu is of %" PRIu64 " bytes, and there is memory for %" PRIu64, number,
                       bytes, read->to ? read->bytes : 0);
    return 0;
}

static int zero(const struct sl_reading *reading, const struct sluice_read *read,
                struct sl_err *err)
{
    if (reading->device)
        return sl_read_device_zero(reading->device, read->to, read->bytes, err);
    if (read->bytes)
        memset(read->to, 0, read->bytes);
    return 0;
}

static int part_read(struct sl_reading *reading, size_t number, struct sl_err *err)
{
    const struct sluice_read *read = &reading->reads[number];
    if (check_read(reading, number, err) < 0)
        return -1;
    reading->bytes_total = sl_add_capped(reading->bytes_total, read->bytes);
    const struct sl_target *target = sl_open_target(reading->source, read->number);
    if (target && target->from->meta && zero(reading, read, err) < 0)
        return -1;
    if (read->slice)
        return part_slice(reading, number, err);
    struct sl_piece *piece = add_piece(reading, number, read->to, err);
    if (!piece)
        return -1;
    piece->whole = true;
    piece->bytes = read->bytes;
    return 0;
}

int sl_reading_part(struct sl_reading *reading, struct sl_err *err)
{
    for (size_t i = 0; i < reading->count; i++)
        if (part_read(reading, i, err) < 0)
            return -1;
    return 0;
}

/* ---- elements -------------------------------------------------------------------------------- */

struct taking {
    const struct sl_piece *piece;
    uint64_t stride[SL_SLICE_RANK_MAX]; /* bytes of one step of the file */
    uint8_t *to;
};

static void take(struct taking *taking, unsigned d, const uint8_t *from)
{
    const struct sl_piece *piece = taking->piece;
    uint64_t size = piece->slice.end[d] - piece->slice.begin[d];
    for (uint64_t i = 0; i < size; i += piece->step[d]) {
        const uint8_t *at = from + i * taking->stride[d];
        if (d < piece->last) {
            take(taking, d + 1, at);
            continue;
        }
        memcpy(taking->to, at, piece->run_bytes);
        taking->to += piece->run_bytes;
    }
}

uint8_t *sl_piece_take_out(const struct sl_piece *piece, uint8_t *to)
{
    struct taking taking = {.piece = piece, .to = to};
    uint64_t each = piece->run_bytes;
    for (unsigned d = piece->last + 1; d-- > 0;) {
        taking.stride[d] = each;
        each *= piece->slice.end[d] - piece->slice.begin[d];
    }
    take(&taking, 0, piece->between);
    return taking.to;
}
