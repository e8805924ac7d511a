/*
 * What a format implements: one file and one row of formats.def each. Rows are constants; their
 * functions may be called by several threads, each with its own source. What reads a source blocks,
 * and fails with the errors of sl_source_read() too. Everything that is read is hostile.
 */
#ifndef SL_FORMAT_H
#define SL_FORMAT_H

#include "index.h"

/** Facts of an object before anything is parsed. */
struct sl_format_head {
    const uint8_t *data; /* its first bytes */
    size_t bytes;        /* at most SL_FORMAT_PROBE_BYTES */
    uint64_t object_bytes;
    const char *name;
};
enum { SL_FORMAT_PROBE_BYTES = 512 };

enum { SL_FORMAT_SUFFIXES_MAX = 6, SL_FORMAT_UNREAD_MAX = 8 };

struct sl_format {
    const char *name;
    /** How its objects are called, up to a NULL. Decides for objects that are too broken to be
     * recognised, and which objects of a listing are worth a look. */
    const char *suffixes[SL_FORMAT_SUFFIXES_MAX + 1];
    bool ambiguous; /* other data is called so too: a name alone makes no model */
    const char *ambiguous_suffix,
        *hint; /* what is called so is likely a model only with this in its name, too */
    const char *states[SL_FORMAT_SUFFIXES_MAX + 1]; /* how files begin that are saved in this format
                                                       beside a model and are none; up to a NULL */
    const char *stem;  /* usual name of its writers' models, where that is not "model" */
    bool tensors_only; /* loads of whole files do not look for tensors: what is refused there may
                          be fine for whoever wants the file */
    bool fallback;     /* left out where the same weights lie beside in another format */
    bool encrypts;     /* its tensors may be encrypted */
    const char *index_suffix; /* of an index of such objects (shard_index.c); NULL: none */
    const char *index_name;   /* the whole name of such an index, in its folder; NULL: none */
    /* Codes of what a newer or another writer may write, up to a NULL: it cannot be read, and may
     * be fine as a file. */
    const char *unread[SL_FORMAT_UNREAD_MAX + 1];
    /** Do the first bytes look like this format? No judgement about the rest. */
    bool (*probe)(const struct sl_format_head *head);
    /**
     * Index the object. The source is consumed, also on failure. SL_E_FORMAT with a code of the
     * format. 0 with *index NULL: after a closer look this is not a format that is read.
     */
    int (*index)(struct sl_source *source, struct sl_index **index, struct sl_err *err);
    /** The same for who only shows what there is, where that may take fewer requests
     * (index->outline tells); else NULL. */
    int (*outline)(struct sl_source *source, struct sl_index **index, struct sl_err *err);
    /** With tensors_only: an index of the object's parts that have hashes, or of no tensors. */
    int (*parts)(struct sl_source *source, struct sl_index **index, struct sl_err *err);
    /** The same for loads of whole files, where that differs; else NULL. */
    int (*index_files)(struct sl_source *source, struct sl_index **index, struct sl_err *err);
    /** For objects that say themselves which part of a set they are (index->part); else NULL. As
     * sl_format_part_name() and sl_format_check_sets(), for indexes of this format. */
    char *(*part_name)(const struct sl_index *index, uint32_t number, struct sl_err *err);
    int (*check_sets)(const struct sl_index *const *indexes, size_t count, struct sl_err *err);
};
#define SL_FORMAT(name, help) extern const struct sl_format sl_##name##_format;
#include "formats.def"
#undef SL_FORMAT

/** The row that an index->format names; NULL if none. */
const struct sl_format *sl_format_by_name(const char *name);

/** A new index of this format with its first source, which is consumed, also on failure. The
 * caller's. SL_E_NO_SPACE. */
struct sl_index *sl_format_begin(const char *format, struct sl_source *source, struct sl_err *err);

/**
 * Bytes [begin, begin + bytes) in one buffer, with at most one request: what the opened source
 * holds already is not fetched again. One byte more, 0, follows. NULL on failure; free() it.
 */
char *sl_format_read(struct sl_source *source, uint64_t begin, size_t bytes, struct sl_err *err);

/** Is it what a Mac writes beside a file: "._NAME", with no bytes of its own format? Archives and
 * uploads made there have them. */
bool sl_format_is_fork(const char *name);
/** Does the name end like this? Never of such a file. Any thread, like what is below but
 * recognise(). */
bool sl_format_has_suffix(const char *name, const char *suffix);

/** What is known of an object before anything is parsed: its first bytes, into data. */
int sl_format_read_head(struct sl_source *source, uint8_t data[SL_FORMAT_PROBE_BYTES],
                        struct sl_format_head *head, struct sl_err *err);
/** Which format do the first bytes say? NULL: none, or with err filled that they cannot be read. */
const struct sl_format *sl_format_recognise(struct sl_source *source, struct sl_err *err);
/** How many bytes of the name's end say that it is an index of the format's objects; 0: nothing
 * does. */
size_t sl_format_index_ending(const struct sl_format *format, const char *name);
/** The format of the shards whose index is called so; NULL if the name does not say. */
const struct sl_format *sl_format_of_index(const char *name);
/** The format that the end of an object's name says, or of its shards if it is an index; or NULL.
 * stem_bytes (may be NULL): of the name without that end, also of other names with a dot. */
const struct sl_format *sl_format_of_name(const char *name, size_t *stem_bytes);

#endif
