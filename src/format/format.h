/* What a format implements: one file and one row of formats.def each. */
#ifndef SL_FORMAT_H
#define SL_FORMAT_H

#include "index.h"

/** What is known of an object before anything is parsed. */
struct sl_format_head {
    const uint8_t *data; /* its first bytes */
    size_t bytes;        /* at most SL_FORMAT_PROBE_BYTES */
    uint64_t object_bytes;
    const char *name;
};
enum { SL_FORMAT_PROBE_BYTES = 64 };

struct sl_format {
    const char *name;
    const char
        *suffix; /* of names; decides only for objects that are too broken to be recognised */
    /** Do the first bytes look like this format? No judgement about the rest. */
    bool (*probe)(const struct sl_format_head *head);
    /**
     * Index the object. The source is consumed, also on failure. SL_E_FORMAT with a code of the
     * format. 0 with *index NULL: after a closer look this is no format that is read.
     */
    int (*index)(struct sl_source *source, struct sl_index **index, struct sl_err *err);
};
#define SL_FORMAT(name, help) extern const struct sl_format sl_##name##_format;
#include "formats.def"
#undef SL_FORMAT

/** A new index of this format with its first source, which is consumed, also on failure. */
struct sl_index *sl_format_begin(const char *format, struct sl_source *source, struct sl_err *err);

/**
 * Bytes [begin, begin + bytes) in one buffer, with at most one request: what the opened source
 * holds already is not fetched again. One byte more, 0, follows. NULL on failure; free() it.
 */
char *sl_format_read(struct sl_source *source, uint64_t begin, size_t bytes, struct sl_err *err);

/** Does the name end like this? */
bool sl_format_has_suffix(const char *name, const char *suffix);

#endif
