/*
 * Fetching the tensor headers. Where each lies follows from the metadata (check 15 demands that it
 * fills the space in front of its data), so all are fetched with few requests instead of walking
 * from one to the next.
 *
 * Tensors are taken in windows of a few MiB of headers, in the order of the metadata, so that
 * memory is bounded and the first broken tensor is the one that is named. A header that could not
 * belong to its tensor is not read beyond its length field. Their lengths are claims of the file,
 * which may be holes: they are added up before the first is read.
 */
#include <stdlib.h>
#include <string.h>

#include "gather.h"
#include "layout.h"
#include "tensorizer.h"

enum {
    WINDOW_BYTES = 8 * 1024 * 1024,
    WINDOW_TENSORS = 65536,
    LENGTH_FIELD_BYTES = 8,
};

struct window {
    struct sl_index *index;
    struct sl_tzr_file *file;
    const struct sl_tzr_entry *entries;
    size_t first, last;
    size_t *bytes; /* of each header, as far as it is read */
    struct sl_gather_item *items;
    uint8_t *data;
};

/* Checks 13 and 14: is the place of the tensor possible? */
static int check_place(const struct sl_tzr_file *file, const struct sl_tzr_entry *entry,
                       struct sl_err *err)
{
    uint64_t size = file->object_bytes, end;
    if (entry->header_offset < SL_TZR_METADATA_AT + file->metadata_bytes ||
        entry->header_offset > size || entry->data_offset < entry->header_offset ||
        entry->data_length > INT64_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_OFFSET",
                            "tensor '%.*s' cannot lie at %" PRIu64 " (header) and %" PRIu64
                            " (data)",
                            SL_TZR_NAME(entry), entry->header_offset, entry->data_offset);
    if (entry->data_offset > size ||
        __builtin_add_overflow(entry->data_offset, entry->data_length, &end) || end > size)
        return entry->data_length <= size
                   ? sl_fail_code(err, SL_E_FORMAT, "E_TRUNCATED",
                                  "tensor '%.*s' ends at byte %" PRIu64 ", the file at %" PRIu64
                                  ": it is cut off",
                                  SL_TZR_NAME(entry), entry->data_offset + entry->data_length, size)
                   : sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                                  "tensor '%.*s' has %" PRIu64
                                  " bytes of data in a file of %" PRIu64,
                                  SL_TZR_NAME(entry), entry->data_length, size);
    if (size - entry->header_offset < LENGTH_FIELD_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "E_TRUNCATED",
                            "the file ends inside the header of tensor '%.*s'", SL_TZR_NAME(entry));
    return 0;
}

/* How much of a header is read. */
static size_t wanted_bytes(const struct sl_tzr_file *file, const struct sl_tzr_entry *entry)
{
    uint64_t bytes = entry->data_offset - entry->header_offset;
    if (bytes > SL_TZR_HEADER_BYTES_MAX + (file->encrypted ? entry->data_length / 1000 : 0))
        return LENGTH_FIELD_BYTES;
    return SL_MAX(bytes, (uint64_t)LENGTH_FIELD_BYTES);
}

/* Take as many tensors as fit, up to one whose place is impossible. */
static size_t size_window(struct window *window, size_t limit)
{
    size_t total = 0;
    for (window->last = window->first; window->last < limit; window->last++) {
        size_t bytes = wanted_bytes(window->file, &window->entries[window->last]);
        bool full = total + bytes > WINDOW_BYTES || window->last - window->first == WINDOW_TENSORS;
        if (window->last > window->first && full)
            break;
        total += bytes;
    }
    return total;
}

static int fetch_window(struct window *window, size_t total, struct sl_err *err)
{
    size_t count = window->last - window->first;
    window->bytes = sl_alloc_array(count, sizeof(*window->bytes), err);
    window->items = sl_alloc_array(count, sizeof(*window->items), err);
    window->data = sl_alloc(total, err);
    if (!window->bytes || !window->items || !window->data)
        return -1;
    uint8_t *data = window->data;
    for (size_t i = 0; i < count; i++) {
        const struct sl_tzr_entry *entry = &window->entries[window->first + i];
        window->bytes[i] = wanted_bytes(window->file, entry);
        window->items[i] = (struct sl_gather_item){entry->header_offset,
                                                   entry->header_offset + window->bytes[i], data};
        data += window->bytes[i];
    }
    return sl_gather(window->index->sources[0], window->items, count, err);
}

static int check_window(const struct window *window, struct sl_err *err)
{
    const uint8_t *data = window->data;
    for (size_t i = 0; i < window->last - window->first; i++) {
        if (sl_tzr_header(window->index, window->file, &window->entries[window->first + i], data,
                          window->bytes[i], err) < 0)
            return -1;
        data += window->bytes[i];
    }
    return 0;
}

static int do_window(struct window *window, size_t limit, struct sl_err *err)
{
    size_t total = size_window(window, limit);
    int result = fetch_window(window, total, err);
    if (result == 0)
        result = check_window(window, err);
    free(window->bytes);
    free(window->items);
    free(window->data);
    window->bytes = NULL;
    window->items = NULL;
    window->data = NULL;
    window->first = window->last;
    return result;
}

/* ---- overlaps -------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_tzr_entry *x = *(const struct sl_tzr_entry *const *)a;
    const struct sl_tzr_entry *y = *(const struct sl_tzr_entry *const *)b;
    return (x->header_offset > y->header_offset) - (x->header_offset < y->header_offset);
}

/* Section 9.5: no tensor lies in another one. */
static int check_overlaps(const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    sl_autofree const struct sl_tzr_entry **sorted = sl_alloc_array(count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &entries[i];
    qsort(sorted, count, sizeof(*sorted), by_place);
    for (size_t i = 1; i < count; i++)
        if (sorted[i]->header_offset < sorted[i - 1]->data_offset + sorted[i - 1]->data_length)
            return sl_fail_code(err, SL_E_FORMAT, "E_OFFSET",
                                "tensor '%.*s' lies inside another one", SL_TZR_NAME(sorted[i]));
    return 0;
}

/* ---- without headers ------------------------------------------------------------------------- */

size_t sl_tzr_header_runs(const struct sl_tzr_entry *entries, size_t count)
{
    size_t runs = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = entries[i].header_offset;
        runs += i == 0 || begin < end || begin - end > SL_GATHER_GAP_BYTES;
        end = entries[i].data_offset;
    }
    return runs;
}

int sl_tzr_outline(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (check_place(file, &entries[i], err) < 0 ||
            sl_tzr_outline_tensor(index, file, &entries[i], err) < 0)
            return -1;
    return check_overlaps(entries, count, err);
}

/* What all of them together would keep. */
static int check_total(const struct sl_tzr_file *file, const struct sl_tzr_entry *entries,
                       size_t count, struct sl_err *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total = sl_add_capped(total, wanted_bytes(file, &entries[i]));
    if (total <= SL_TENSORIZER_HEADERS_BYTES_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "E_HEADER",
                        "its %zu tensor headers have %" PRIu64
                        " bytes together, limit %d: write it with less alignment",
                        count, total, SL_TENSORIZER_HEADERS_BYTES_MAX);
}

/* ---- all of it ------------------------------------------------------------------------------- */

int sl_tzr_headers(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    struct sl_err place_error = SL_ERR_INIT;
    size_t possible = 0; /* tensors before the first impossible one: their errors come first */
    while (possible < count && check_place(file, &entries[possible], &place_error) == 0)
        possible++;
    if (check_total(file, entries, possible, err) < 0)
        return -1;
    struct window window = {.index = index, .file = file, .entries = entries};
    while (window.first < possible)
        if (do_window(&window, possible, err) < 0)
            return -1;
    if (possible < count) {
        if (err)
            *err = place_error;
        return -1;
    }
    return check_overlaps(entries, count, err);
}
