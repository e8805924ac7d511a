/* Between the files of the pickle machine. */
#ifndef SL_PICKLE_PARTS_H
#define SL_PICKLE_PARTS_H

#include "pickle.h"

enum { SL_PICKLE_MARKS_MAX = 1000 };

struct sl_pickle {
    const struct sl_pickle_rules *rules;
    struct sl_arena *arena;
    struct sl_pickle_node *containers;
    size_t nodes;
    uint64_t charged, items; /* bytes of memory; values in containers */
    uint64_t read;           /* bytes of the pickles before this one */
    struct sl_pickle_node none, yes, no;
    /* one pickle */
    const uint8_t *data;
    size_t bytes, at;
    struct sl_pickle_node **stack, **memo;
    size_t height, stack_capacity, memo_end, memo_capacity, memo_used;
    size_t marks[SL_PICKLE_MARKS_MAX], mark_count;
    bool stopped;
    const struct sl_pickle_node *text; /* the last that was read: most are keys */
};

/** Fail with a code and where the machine stands; -1. */
int sl_pickle_fail(const struct sl_pickle *pickle, const char *code, const char *why,
                   struct sl_err *err);
/** The same with pkl.limit. */
int sl_pickle_limit(const struct sl_pickle *pickle, const char *what, struct sl_err *err);
/** The next bytes, NULL with pkl.truncated. */
const uint8_t *sl_pickle_take(struct sl_pickle *pickle, uint64_t bytes, struct sl_err *err);
/** A little-endian number of 1 to 8 bytes. */
int sl_pickle_take_number(struct sl_pickle *pickle, unsigned bytes, uint64_t *value,
                          struct sl_err *err);
/** Up to a line feed, which is taken too. */
const char *sl_pickle_take_line(struct sl_pickle *pickle, size_t *bytes, struct sl_err *err);
/** A NULL node is a failure that was reported. */
int sl_pickle_push(struct sl_pickle *pickle, struct sl_pickle_node *node, struct sl_err *err);
/** Opcodes of numbers. */
int sl_pickle_op_number(struct sl_pickle *pickle, uint8_t op, struct sl_err *err);
/** Text (kind X), bytes (B), or a Python 2 string (U), which is text if it can be. */
int sl_pickle_op_string(struct sl_pickle *pickle, uint8_t kind, unsigned length_bytes,
                        struct sl_err *err);

#endif
