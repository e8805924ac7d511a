/*
 * A blob that can only be read in order, since it is packed or its server knows no ranges: bytes
 * are read from the nearest place before the ones that are wanted, unpacked, and passed over until
 * those come. It stays where a range has ended, in mid-answer too, so that the next range goes on
 * there. One thread at a time; nothing blocks.
 */
#ifndef SL_OCI_STREAM_H
#define SL_OCI_STREAM_H

#include "oci_store.h"

struct sl_oci_stream;
/** SL_E_NO_SPACE. */
struct sl_oci_stream *sl_oci_stream_new(struct sl_err *err);
void sl_oci_stream_free(struct sl_oci_stream *stream);

/** A stretch to read: [begin, end) of an unpacked blob. */
struct sl_oci_stretch {
    const struct sl_oci_piece *piece; /* digest and packing */
    const struct sl_oci_layer *layer; /* with its points; NULL: none are known */
    uint64_t begin, end;
    uint64_t of; /* bytes of the blob; 0: its first answer will tell */
    bool whole;  /* ask for all of it: there are no ranges */
    unsigned hedge;
    struct sl_channel *http;
    struct sl_source *blob; /* for requests; its length, where `of` is 0, is learned. Borrowed */
};
/** Go there. No request yet. SL_E_NO_SPACE. */
int sl_oci_stream_start(struct sl_oci_stream *stream, const struct sl_oci_stretch *stretch,
                        struct sl_err *err);
/**
 * Take what has come, as sl_transport.channel_read().
 *
 * @data, bytes  room for what comes.
 * @got          out: how many came.
 * @return       the state of the stretch. WAIT may only mean that it worked for long enough: then
 *               its poll asks to be called at once.
 */
enum sl_io_state sl_oci_stream_read(struct sl_oci_stream *stream, void *data, size_t bytes,
                                    size_t *got, struct sl_err *err);
int sl_oci_stream_poll(struct sl_oci_stream *stream, struct pollfd fds[SL_IO_POLL_MAX],
                       uint64_t *deadline_ns);
/** Drop the request in hand; what was unpacked so far counts. */
void sl_oci_stream_abort(struct sl_oci_stream *stream);

#endif
