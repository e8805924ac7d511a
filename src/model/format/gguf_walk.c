/*
 * The header of a GGUF file has no length field, and vocabularies make it megabytes long. It is
 * walked through a window: the first is what opening the object has brought, the next ones are
 * large because a request costs more than bytes. A jump over an array drops the window; the next
 * one begins where the walk goes on, so a long array may cost no transfer at all.
 */
#include <inttypes.h>

#include "buf.h"
#include "format.h"
#include "gguf.h"

enum { SECOND_WINDOW_BYTES = 8 * 1024 * 1024, WINDOW_BYTES_MAX = 32 * 1024 * 1024 };

void sl_gguf_walk_release(struct sl_gguf_walk *walk)
{
    free(walk->window);
    walk->window = NULL;
}

static int truncated(const struct sl_gguf_walk *walk, const char *what, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "gg.truncated",
                        "the file ends at byte %" PRIu64 ", inside %s: it is cut off",
                        walk->object_bytes, what);
}

/* Are so many more bytes of a header possible? */
static int check_room(const struct sl_gguf_walk *walk, uint64_t bytes, const char *what,
                      struct sl_err *err)
{
    if (bytes > walk->object_bytes - walk->at)
        return truncated(walk, what, err);
    if (walk->at + bytes > SL_GGUF_HEADER_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.limit", "a header of more than %d bytes",
                            SL_GGUF_HEADER_BYTES_MAX);
    return 0;
}

/* The next window, from where the walk stands. */
static int move_window(struct sl_gguf_walk *walk, struct sl_err *err)
{
    size_t bytes = WINDOW_BYTES_MAX;
    if (walk->window_bytes == 0)
        bytes = SL_INDEX_HEAD_BYTES;
    else if (walk->window_bytes <= SL_INDEX_HEAD_BYTES)
        bytes = SECOND_WINDOW_BYTES;
    bytes = SL_MIN(walk->object_bytes - walk->at, bytes);
    free(walk->window);
    walk->window = (uint8_t *)sl_format_read(walk->source, walk->at, bytes, err);
    if (!walk->window)
        return -1;
    walk->window_begin = walk->at;
    walk->window_bytes = bytes;
    return 0;
}

const uint8_t *sl_gguf_take(struct sl_gguf_walk *walk, size_t bytes, const char *what,
                            struct sl_err *err)
{
    if (check_room(walk, bytes, what, err) < 0)
        return NULL;
    uint64_t window_end = walk->window_begin + walk->window_bytes;
    if ((!walk->window || walk->at + bytes > window_end) && move_window(walk, err) < 0)
        return NULL;
    const uint8_t *data = walk->window + (walk->at - walk->window_begin);
    walk->at += bytes;
    return data;
}

int sl_gguf_take_u32(struct sl_gguf_walk *walk, const char *what, uint32_t *value,
                     struct sl_err *err)
{
    const uint8_t *data = sl_gguf_take(walk, sizeof(*value), what, err);
    if (!data)
        return -1;
    *value = sl_get_le32(data);
    return 0;
}

int sl_gguf_take_u64(struct sl_gguf_walk *walk, const char *what, uint64_t *value,
                     struct sl_err *err)
{
    const uint8_t *data = sl_gguf_take(walk, sizeof(*value), what, err);
    if (!data)
        return -1;
    *value = sl_get_le64(data);
    return 0;
}

int sl_gguf_take_length(struct sl_gguf_walk *walk, const char *what, uint64_t *bytes,
                        struct sl_err *err)
{
    if (sl_gguf_take_u64(walk, what, bytes, err) < 0)
        return -1;
    if (*bytes > SL_GGUF_LENGTH_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.limit", "%s of %" PRIu64 " bytes, limit %d", what,
                            *bytes, SL_GGUF_LENGTH_MAX);
    return check_room(walk, *bytes, what, err);
}

int sl_gguf_skip(struct sl_gguf_walk *walk, uint64_t bytes, const char *what, struct sl_err *err)
{
    if (check_room(walk, bytes, what, err) < 0)
        return -1;
    walk->at += bytes;
    return 0;
}
