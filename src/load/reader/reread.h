/*
 * What came wrong, once more: the bytes of a range alone, on a connection that nobody used before,
 * since the way of the bytes may be what is wrong.
 */
#ifndef SL_REREAD_H
#define SL_REREAD_H

#include "fetch.h"
#include "plan.h"
#include "source.h"
#include "thread.h"

enum { SL_REREAD_TRIES_MAX = 3 /* after the first, until a load gives up */ };

struct sl_reread {
    const struct sl_cancel *cancel, *stop; /* either ends it; may be NULL */
    /** Takes the bytes, in order; -1 ends it. */
    int (*take)(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err);
    void *arg;
    enum sl_vouch vouch; /* sl_fetch_vouch() */
};
/**
 * Read bytes [begin, end) of a source once more, on a connection of its own.
 *
 * @begin, end  in the source.
 * @again       who takes them, and what ends it; borrowed for the call.
 * @return      0, or -1: errors as of a fetch, SL_E_CANCELED, or what take() says.
 *
 * Blocks; any thread but those of a poll().
 */
int sl_reread_range(struct sl_source *source, uint64_t begin, uint64_t end,
                    const struct sl_reread *again, struct sl_err *err);

/** The error of an encrypted piece that does not match its MAC: -1. opened: others did with this
 * key; else the key may be to blame, and small pieces are read to find out, which
 * blocks. SL_E_INTEGRITY, code E_DECRYPT. */
int sl_reread_blame(const struct sl_target *target, uint64_t number, bool opened,
                    struct sl_err *err);

#endif
