/* The inside of an upload to S3, shared by upload_s3.c (one PUT), upload_s3_multi.c (parts)
 * and upload_s3_reveal.c (what is there, proofs, the request that makes it visible). */
#ifndef SL_UPLOAD_S3_H
#define SL_UPLOAD_S3_H

#include "s3_store.h"
#include "upload_backend.h"
#include "upload_parts.h"

enum { SL_S3_WHAT_BYTES = 400, SL_S3_ETAG_BYTES = 128, SL_S3_ANSWER_BYTES_MAX = 64 * 1024 };

/** A part that the store has. */
struct sl_s3_part {
    char etag[SL_S3_ETAG_BYTES]; /* as sent, with quotes */
    uint64_t crc;                /* CRC-64/NVME */
};

struct sl_s3_upload {
    struct sl_upload *upload;
    struct sl_store *store;
    struct sl_s3 *s3;
    char *key;
    char what[SL_S3_WHAT_BYTES]; /* "cannot write 's3://b/k'" */
    bool tls;
    bool checksums;   /* the store is given CRC-64/NVME */
    bool conditional; /* what makes the object visible says If-None-Match: * */
    uint8_t *whole;   /* an object of one part; else NULL: */
    uint64_t part_bytes, part_count;
    struct sl_parts *parts;
    char *id;                /* of the multipart upload, percent-encoded; NULL: none is open */
    struct sl_s3_part *done; /* part_count of them; each is written by one thread */
};

/** What goes with a body so that the store notices damage: the signature over its SHA-256 on plain
 * connections, a checksum or MD5 within TLS. */
struct sl_s3_proof {
    char payload[65];
    uint64_t crc;
    char text[32]; /* the header's value */
    struct sl_sigv4_header header;
    size_t count; /* 0 or 1 */
};
/**
 * Make the proof of a body.
 *
 * @data, bytes  the body.
 * @proof        out: not to be copied, since its header's value lies in it.
 * @return       0, or -1: the crypto library has no such hash.
 */
int sl_s3_prove(const struct sl_s3_upload *s3u, const void *data, size_t bytes,
                struct sl_s3_proof *proof, struct sl_err *err);
/** Base64 of the big-endian number, as S3 writes checksums. */
void sl_s3_crc_text(uint64_t crc, char text[32]);
/** Base64 of the MD5, as Content-MD5 has it. SL_E_INTERNAL where the crypto library has none. */
int sl_s3_md5_text(const void *data, size_t bytes, char text[32], struct sl_err *err);

/** SL_E_USAGE, code "exists", if there is an object of this name. Blocks. */
int sl_s3_refuse_existing(struct sl_s3_upload *s3u, struct sl_exchange *exchange,
                          struct sl_err *err);

/** How the object must look in the store: for answers that were lost. */
struct sl_s3_expected {
    char crc[32], etag[SL_S3_ETAG_BYTES];
};
/**
 * Send the call that makes the object visible: conditional, where a store without conditions is
 * asked beforehand, and where an answer was lost, by looking whether the object is there as
 * expected.
 *
 * @exchange  to go by; the caller's.
 * @call      with at most SL_S3_MORE_MAX - 2 headers of its own in call->more, which is changed:
 *            not to be used again.
 * @expected  how the object must look.
 * @return    0, or -1: SL_E_USAGE, code "exists", if there is another; else as sl_s3_call().
 *
 * Blocks.
 */
int sl_s3_reveal(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_s3_call *call,
                 const struct sl_s3_expected *expected, struct sl_err *err);

/** Begin a multipart upload; part_bytes is set. */
int sl_s3_multi_open(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_err *err);
int sl_s3_multi_finish(struct sl_s3_upload *s3u, struct sl_err *err);
/** Stop sending, free what was taken; unless finished, tell the store to forget the parts. */
void sl_s3_multi_close(struct sl_s3_upload *s3u);

#endif
