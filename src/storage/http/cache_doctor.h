/*
 * What the settings of a cache lack (source.through), found by asking it for small ranges of one
 * object.
 *
 * Whether an answer came from the cache's own store is told by requests that the origin refuses:
 * without credentials, or, where it asks for none, for an object that is not there. Versions are
 * made up, each for one question, so nothing is left behind by a name that a load asks for.
 */
#ifndef SL_CACHE_DOCTOR_H
#define SL_CACHE_DOCTOR_H

#include "source.h"

enum sl_cache_lack {
#define CACHE_LACK(id, text) SL_CACHE_LACK_##id,
#include "cache_lacks.def"
#undef CACHE_LACK
    SL_CACHE_LACK_COUNT,
};
/** Behind "it". A constant. */
const char *sl_cache_lack_text(enum sl_cache_lack lack);

struct sl_cache_findings {
    bool lacks[SL_CACHE_LACK_COUNT];
    int status;  /* of REFUSES and UPSTREAM: what it answered; 0: none */
    bool hidden; /* without TLS it may not see these requests (a token, a link): it was not asked */
    bool open;   /* the origin refuses nothing, so whose an answer was is not known */
};
/**
 * Ask a cache for ranges of one object, and judge its answers.
 *
 * @source       opened, and not empty.
 * @via          of the cache: "http://host:port".
 * @block_bytes  as the through has it.
 * @findings     out.
 * @return       0, or -1: the cache, or the origin, cannot be reached or broke off; SL_E_CANCELED,
 *               SL_E_NO_SPACE.
 *
 * Blocks; some seconds at most where the cache answers.
 */
int sl_cache_doctor(struct sl_source *source, const char *via, uint64_t block_bytes,
                    struct sl_cache_findings *findings, struct sl_err *err);
/** Are the bytes of the source read by HTTP ranges, so that a cache may be asked? */
bool sl_cache_doctor_can(const struct sl_source *source);

#endif
