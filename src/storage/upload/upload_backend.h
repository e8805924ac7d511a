/*
 * How a kind of store is written to: sl_store_kind.upload. Called only by upload.c, which checks
 * arguments, counts bytes, remembers the first failure and looks at cancellation, once for all of
 * them.
 */
#ifndef SL_UPLOAD_BACKEND_H
#define SL_UPLOAD_BACKEND_H

#include <pthread.h>

#include "store_kind.h"
#include "upload.h"

struct sl_upload {
    const struct sl_store_kind *kind;
    const struct sl_upload_ops *ops; /* the kind's */
    char *uri; /* for people, without user, password and query; open() may replace it */
    uint64_t bytes;
    struct sl_upload_config config; /* memory_bytes is filled in; connections may be 0 */
    struct sl_source_config source; /* what config.source points to: never NULL */
    void *impl;                     /* of the kind; zeroed before open() */
    bool finished;
    struct sl_counter written;
    struct {
        pthread_mutex_t mutex;
        struct sl_err failed; /* the first failure; kind SL_OK: none */
    } locked;
};

/** Each blocks as long as the store takes; -1 comes with the error. */
struct sl_upload_ops {
    bool in_order; /* bytes must come in order, by one thread at a time */
    /**
     * Refuse what can be refused before the first byte: a URI that cannot be written, an object
     * that is there and not to be replaced, no room, no credentials. May use the network. What it
     * took is given back by close(), after a failure too.
     */
    int (*open)(struct sl_upload *upload, const char *uri, struct sl_err *err);
    /** A range within the object, at least 1 byte; from several threads at once unless in_order. */
    int (*write)(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                 struct sl_err *err);
    /** NULL: there is nothing to wait for. Must return without waiting while nothing but another
     * write can make room. */
    int (*admit)(struct sl_upload *upload, struct sl_err *err);
    /** All bytes were written: send the rest and make the object visible. */
    int (*finish)(struct sl_upload *upload, struct sl_err *err);
    /** Unless upload->finished: leave nothing behind. impl may be NULL or half-built. Cancellation
     * may be raised: what the clean-up waits for has its own, short limit. */
    void (*close)(struct sl_upload *upload);
    /** Remove the object of a URI; one that is not there is fine. NULL: nothing can be removed. */
    int (*remove)(const struct sl_store_kind *kind, const char *uri,
                  const struct sl_source_config *config, struct sl_err *err);
};

/**
 * As sl_upload_open(), of a kind that is known already.
 *
 * @kind    one that can be written to.
 * @uri     checked before.
 * @bytes   of the object.
 * @config  copied, with what it points to borrowed; NULL: defaults.
 * @upload  out: the caller's; NULL after a failure.
 * @return  as there.
 */
int sl_upload_open_kind(const struct sl_store_kind *kind, const char *uri, uint64_t bytes,
                        const struct sl_upload_config *config, struct sl_upload **upload,
                        struct sl_err *err);
/** Does it name an object, as far as its end tells? SL_E_USAGE. */
int sl_upload_check_uri(const char *uri, struct sl_err *err);

#endif
