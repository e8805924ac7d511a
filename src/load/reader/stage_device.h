/*
 * Between the reader and the device whose memory bytes land in, where the plan leaves stages to it
 * (plan/stages.h). What is not the device's the reader does before bytes go into the sink.
 *
 * Of one run the reader calls begin(), finish() when all has been read, and end() in any case, all
 * from the thread that called sl_reader_run(). Between begin() and finish() its threads, which do
 * not wait for each other, call cast(); events come from any thread until sl_reader_run() returns.
 * Only plans that are read without a journal may leave anything to a device, since nothing vouches
 * for what it did.
 *
 * What becomes of a stage:
 *  - decryption (mapping->decrypt_on): ciphertext goes into the sink as it came, and landed() tells
 *    of it in whole pieces. To open and check them, and to fetch again what does not open, is the
 *    device's affair; the run ends without waiting for it.
 *  - casts (mapping->cast_on): bytes go to cast() instead of the sink.
 *  - CRCs (check->crc_on): the device computes them over what landed, and tells the result. To
 *    compare it, and to fetch again what is wrong, is the reader's.
 *
 * Errors: those of cast() and finish() fail the run. A device that fails elsewhere fails the sink,
 * whose next call says so, and whoever waits for the device after the run.
 */
#ifndef SL_STAGE_DEVICE_H
#define SL_STAGE_DEVICE_H

#include "check.h"
#include "err.h"
#include "mapping.h"

/** Told while a run goes on. Any thread; must not wait for the reader. */
struct sl_stage_events {
    /** These bytes of a file are in the sink and as they will be, or as the device wants them; but
     * not checked yet: each byte that a range or a block brings, once. */
    void (*landed)(void *arg, uint32_t file, uint64_t offset, uint64_t bytes);
    /** A check of the plan agreed. Those that are `ordered` agreed before their last bytes landed,
     * and are not told. */
    void (*agreed)(void *arg, const struct sl_check *check);
    void *arg;
};

/** Where a device tells what came out; the reader's, from begin() to end(). */
struct sl_stage_results {
    /** The CRC of all bytes of a check that is the device's, without its prefix. Once for each; any
     * thread, but not while holding a lock that landed(), agreed() or cast() takes: agreed() may
     * be called from within. */
    void (*crc)(void *arg, const struct sl_check *check, uint32_t crc);
    void *arg;
};

/** Borrowed by the reader for a run. With `events` alone it is who follows a run. */
struct sl_stage_device {
    struct sl_stage_events events;
    /** Bytes of whole elements, as they are before the cast (their own order, decrypted, cut); the
     * first becomes what lies at `offset` of the mapping's file. Borrowed for the call, which may
     * block as a sink does. NULL: no cast is the device's. */
    int (*cast)(void *arg, const struct sl_mapping *mapping, uint64_t offset, const uint8_t *data,
                uint64_t bytes, struct sl_err *err);
    /* The rest may be NULL if no check is the device's. */
    void (*begin)(void *arg, const struct sl_stage_results *results);
    /** Wait until the CRCs of all that has landed were told; or the device's failure, or
     * SL_E_CANCELED. What is fetched again may still be landing. */
    int (*finish)(void *arg, struct sl_err *err);
    /** When it returns no call of the results is under way, and none comes any more. */
    void (*end)(void *arg);
    void *arg; /* of these four */
};

#endif
