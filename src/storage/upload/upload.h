/*
 * Where a new object goes: a file, an S3 key, an HTTP URL, keys of Redis. The counterpart of a
 * source. Bytes are written at their places and nothing of the object is visible before
 * sl_upload_finish(); whatever ends before leaves nothing behind: no half file, no unfinished
 * multipart upload, no keys. One thread opens, finishes and frees; only sl_upload_write() and
 * _admit() are for several. Errors are the first one of the store (SL_E_NET, SL_E_AUTH,
 * SL_E_NO_SPACE …), and SL_E_CANCELED.
 */
#ifndef SL_UPLOAD_H
#define SL_UPLOAD_H

#include "source.h"

struct sl_upload_config {
    const struct sl_source_config
        *source;  /* credentials, TLS, stalls, attempts, cancel; borrowed */
    bool replace; /* an object that is there is replaced; else SL_E_USAGE, before the first byte */
    uint64_t memory_bytes; /* 0: 128 MiB. Bound on bytes that are held for parts on their way */
    unsigned connections;  /* 0: auto. Parts in flight */
    uint64_t part_bytes;   /* 0: as memory allows. Of parts; S3 takes no less than 5 MiB */
    int mode; /* of files; 0: that of the file that is replaced, else 0644 less the umask */
};

/** One object in the making; sl_upload_open() begins it (stores.h). */
struct sl_upload;
/** Aborts what is not finished, which may block for a request. NULL is fine. */
void sl_upload_free(struct sl_upload *upload);
SL_AUTO_DEFINE(sl_upload)
/**
 * Write bytes [offset, offset + bytes); each byte of the object exactly once, from any thread.
 *
 * @data    copied or sent before it returns.
 * @return  0, or -1; the first failure of a part fails every later call.
 *
 * Small holes (a header that is known later) may be filled at the end: a part is held until it is
 * complete. Blocks only in sl_upload_admit() and, with in_order, while the network takes the
 * bytes.
 */
int sl_upload_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                    struct sl_err *err);
/** Before fetching more: wait while too many complete parts are on their way. Any thread. */
int sl_upload_admit(struct sl_upload *upload, struct sl_err *err);
/** Every byte was written: make the object visible, in one step. Blocks until it is. SL_E_INTERNAL:
 * a byte is missing. */
int sl_upload_finish(struct sl_upload *upload, struct sl_err *err);

#endif
