/*
 * What a range of a file is made of: the answer of Xet's reconstruction call, in its first version.
 * https://huggingface.co/docs/xet (API). Fuzzed.
 */
#ifndef SL_XET_PLAN_H
#define SL_XET_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/** Bytes of a xorb that one request brings, whole: its signature covers them all. */
struct sl_xet_entry {
    char *url;                       /* signed, a secret */
    uint64_t begin, end;             /* of the xorb */
    uint32_t first_chunk, end_chunk; /* of the xorb */
    uint32_t uses;                   /* terms that need it */
};
/** Chunks that follow one another in the file. */
struct sl_xet_term {
    uint32_t entry;
    uint32_t first_chunk, end_chunk;
    uint64_t bytes; /* unpacked */
};
struct sl_xet_plan {
    uint64_t skip; /* of the first term's bytes */
    struct sl_xet_entry *entries;
    struct sl_xet_term *terms;
    uint32_t entry_count, term_count;
};

/**
 * Read an answer.
 *
 * @text, bytes  its body.
 * @wanted       bytes of the file that were asked for; it must have no less.
 * @plan         out: release it, after a failure too.
 * @return       0, or -1 with SL_E_FORMAT, code "xet", or SL_E_NO_SPACE.
 *
 * Any thread; one at a time, and the others wait.
 */
int sl_xet_plan_parse(const char *text, size_t bytes, uint64_t wanted, struct sl_xet_plan *plan,
                      struct sl_err *err);
/** Zeroed ones are fine. */
void sl_xet_plan_release(struct sl_xet_plan *plan);

#endif
