/*
 * Hashes of a load, checked while its bytes are on their way.
 *
 * Readers feed every piece that has landed, in any order, each byte once. CRC checks are computed
 * piece by piece from the hot buffer and combined. SHA-256 and BLAKE2b need their bytes in order: a
 * check that lies within one piece is hashed there and then, larger ones are followed by hashing
 * threads, which read the landed bytes back.
 */
#ifndef SL_VERIFY_H
#define SL_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "check.h"
#include "err.h"
#include "mem.h"
#include "progress.h"

struct sl_verify_config {
    /** Read landed bytes back. Any thread. */
    int (*read)(void *arg, uint32_t file, uint64_t offset, void *data, size_t bytes,
                struct sl_err *err);
    /** Not asked: its bytes lie there already, and agreed with it when they came. NULL: all are. */
    bool (*passes)(void *arg, const struct sl_check *check);
    /** A check did not match; called once for each, from the thread that found it. May be NULL. */
    void (*mismatch)(void *arg, const struct sl_check *check);
    /** A check agreed; once for each, from the thread that found it. May be NULL. */
    void (*agreed)(void *arg, const struct sl_check *check);
    /**
     * A check that is SL_REPAIR_FETCH did not match: have its bytes fetched again and then call
     * sl_verify_settle(). -1: it cannot be done. From the thread that found it; NULL: never.
     */
    int (*repair)(void *arg, const struct sl_check *check, struct sl_err *err);
    /** The hash of a check that is `computed`; from the thread that finished it. -1 fails the load.
     */
    int (*computed)(void *arg, const struct sl_check *check, const uint8_t *digest,
                    struct sl_err *err);
    /** Of the source of a check that has `delivery`, after some of its bytes have landed. Any
     * thread; NULL: unchecked. */
    enum sl_delivery (*delivery)(void *arg, const struct sl_check *check);
    void *arg;
    struct sl_progress *progress; /* may be NULL */
    unsigned threads;             /* hashing threads at most; 0: one a processor, at most 8 */
};

/** Bytes that have landed, and all that is known of them. */
struct sl_verify_bytes {
    uint32_t source;
    uint64_t begin, bytes;
    const void *data;       /* NULL: what checks need is read back */
    const uint32_t *crc32c; /* of all of them; NULL: not known */
    bool placed;            /* the next two say where the first landed, or would without a cast */
    uint32_t file;
    uint64_t file_offset;
};

struct sl_verify;
/**
 * Make what compares hashes as bytes land.
 *
 * @checks  `count` of them; borrowed until the free. They may overlap.
 * @config  copied.
 * @return  NULL: SL_E_NO_SPACE.
 */
struct sl_verify *sl_verify_new(const struct sl_check *checks, size_t count,
                                const struct sl_verify_config *config, struct sl_err *err);
/** Ends the hashing threads, in the middle of their work too, and waits for them. NULL is fine. */
void sl_verify_free(struct sl_verify *verify);
SL_AUTO_DEFINE(sl_verify)
/**
 * Tell that bytes have landed: they are committed to the sink.
 *
 * @source  number of the source that they are of.
 * @begin   where they begin in it.
 * @data    `bytes` bytes; borrowed for the call, which hashes and may read back.
 * @return  0, or -1 if a check failed, here or in another thread before: SL_E_INTEGRITY, code
 *          E_HASH_ and the hash's name in capitals (E_HASH_CRC32), or E_SIGNATURE. Any thread.
 */
int sl_verify_feed(struct sl_verify *verify, uint32_t source, uint64_t begin, const void *data,
                   size_t bytes, struct sl_err *err);
/**
 * As sl_verify_feed(), of bytes that landed in an earlier, interrupted load: what checks need is
 * read back.
 *
 * @source  number of the source that they are of.
 * @begin   where they begin in it.
 * @bytes   how many.
 * @return  0, or -1: the same, or they cannot be read. Any thread.
 */
int sl_verify_feed_landed(struct sl_verify *verify, uint32_t source, uint64_t begin, uint64_t bytes,
                          struct sl_err *err);
/** A repair that config.repair began has ended: why is NULL if the check is right. Any thread. */
void sl_verify_settle(struct sl_verify *verify, const struct sl_check *check,
                      const struct sl_err *why);
/** As these two for bytes of which more is known. Checks that are `placed` see only such that
 * landed in their place. */
int sl_verify_take(struct sl_verify *verify, const struct sl_verify_bytes *landed,
                   struct sl_err *err);
/** The CRC of all bytes of a check whose crc_on is the device, without its prefix: as if they had
 * been fed. Once for each, before sl_verify_finish(); any thread. */
void sl_verify_take_crc(struct sl_verify *verify, const struct sl_check *check, uint32_t crc);
/** For a check that is done elsewhere: is this the hash, or one that its signature is of? */
bool sl_verify_agrees(const struct sl_check *check, const uint8_t digest[SL_HASH_BYTES_MAX]);
/** Its failure: -1, SL_E_INTEGRITY. Any thread. */
int sl_verify_mismatch(const struct sl_check *check, const uint8_t digest[SL_HASH_BYTES_MAX],
                       struct sl_err *err);
/** Everything was fed: block until every check is done. cancel may be NULL. -1: the first failure,
 * as of sl_verify_feed(), or SL_E_CANCELED. */
struct sl_cancel;
int sl_verify_finish(struct sl_verify *verify, const struct sl_cancel *cancel, struct sl_err *err);

#endif
