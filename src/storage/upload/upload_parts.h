/*
 * Bytes that come in any order become parts of equal size, and complete parts are sent by threads
 * of their own, several at once. For stores that take an object in parts. The limits are S3's:
 * docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
 */
#ifndef SL_UPLOAD_PARTS_H
#define SL_UPLOAD_PARTS_H

#include "mem.h"
#include "thread.h"

enum {
    SL_PARTS_MIB = 1024 * 1024,
    SL_PARTS_MAX = 10000, /* of one object, S3 */
    SL_PARTS_BYTES_MIN = 5 * SL_PARTS_MIB,
    SL_PARTS_THREADS_MAX = 32,
};

/** Bytes of every part but the last: 16 MiB to 64 MiB as memory allows (down to 5 MiB), more where
 * SL_PARTS_MAX of them would not hold the object. */
uint64_t sl_parts_size(uint64_t bytes, uint64_t memory_bytes);

struct sl_parts_config {
    uint64_t bytes, part_bytes; /* both at least 1 */
    uint64_t memory_bytes;      /* what is held of parts; at least two are */
    unsigned connections;       /* threads; 0: as memory allows, at most 8 */
    struct sl_cancel *cancel;   /* ends the waits of admit and finish; NULL: nothing does */
    void *arg;                  /* of the calls below */
    /** In each thread, first: what it sends with. stop is raised when the others have failed or
     * the upload is given up. NULL (err filled): the upload fails unless another thread has one. */
    void *(*begin)(void *arg, struct sl_cancel *stop, struct sl_err *err);
    /** One part, whole, numbered from 0 in order of offsets; parts complete in any order. Tries
     * again itself. */
    int (*send)(void *arg, void *channel, uint64_t number, const void *data, size_t bytes,
                struct sl_err *err);
    /** In each thread, last; channel is not NULL. */
    void (*end)(void *arg, void *channel);
};

struct sl_parts;
/** Copies the config; threads start with the first complete part. SL_E_NO_SPACE. */
struct sl_parts *sl_parts_new(const struct sl_parts_config *config, struct sl_err *err);
/** Stops what is being sent and joins the threads. NULL is fine. */
void sl_parts_free(struct sl_parts *parts);
SL_AUTO_DEFINE(sl_parts)
/**
 * As sl_upload_write(): from any thread; never blocks for the network.
 *
 * @offset       of the first byte in the object; all of them lie within it.
 * @data, bytes  copied.
 * @return       0, or -1 with the first failure.
 */
int sl_parts_write(struct sl_parts *parts, uint64_t offset, const void *data, size_t bytes,
                   struct sl_err *err);
/** As sl_upload_admit(): 0, or -1 with the first failure, or SL_E_CANCELED. */
int sl_parts_admit(struct sl_parts *parts, struct sl_err *err);
/** All bytes were written: wait until all parts are sent. -1 with the first failure, or
 * SL_E_CANCELED. */
int sl_parts_finish(struct sl_parts *parts, struct sl_err *err);

#endif
