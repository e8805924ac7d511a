/*
 * A content store of Xet on two range servers: the one that is asked what a file is made of, and
 * the host of signed URLs, with xorbs that the test makes from bytes: chunks of many sizes, in all
 * schemes, each kept once. What shall go wrong is said here, or by the servers' own scripts.
 */
#ifndef SL_XET_STORE_H
#define SL_XET_STORE_H

#include <stdbool.h>

#include "range_server.h"
#include "xet_hash.h"

/** Set what is not const between requests. */
struct sl_xet_store {
    struct sl_server *cas, *cdn;
    char file_hash[SL_XET_HASH_TEXT];
    unsigned asked;         /* about ranges, right ones */
    unsigned signatures;    /* given, one an answer; each is in its URLs */
    unsigned oldest_signed; /* older ones have expired */
    unsigned oldest_token;  /* "xet-N" of older ones is refused */
    unsigned leaked_tokens; /* requests for xorbs with Authorization, or questions with the hub's */
    const char *answer;     /* instead of every answer about a range */
    int refuse_status;      /* of so many questions that come next */
    unsigned refuse_times;
    bool shares_nothing; /* before the put: xorbs hold this file alone */
    unsigned heals_at;   /* before the answer of this number sl_xet_store_heal(); 0: never */
    struct sl_xet_layout *layout;
};

void sl_xet_store_start(struct sl_xet_store *store);
void sl_xet_store_stop(struct sl_xet_store *store);
/** The one file of it; data is borrowed until the stop. */
void sl_xet_store_put(struct sl_xet_store *store, const uint8_t *data, size_t bytes);
/** Change the last byte of a chunk that is kept as it is, so that nothing but hashes tells; of a
 * compressed one: break it. */
void sl_xet_store_spoil(struct sl_xet_store *store, bool compressed);
/** What was spoilt is right again. */
void sl_xet_store_heal(struct sl_xet_store *store);
/** Requests for xorbs. */
unsigned sl_xet_store_fetched(struct sl_xet_store *store);

/** One chunk as xorbs hold it: header and data; scheme 0, 1, 2. Appended to `out`, which has room;
 * how many bytes. */
size_t sl_xet_pack(unsigned scheme, const uint8_t *raw, size_t bytes, uint8_t *out);

#endif
