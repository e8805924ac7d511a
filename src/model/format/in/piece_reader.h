/* Encrypted data as plaintext, any range of them; for the files of this folder. */
#ifndef SL_PIECE_READER_H
#define SL_PIECE_READER_H

#include "index.h"

/** Plaintext that was decrypted for its neighbours' sake; all zeros to begin with. */
struct sl_piece_reader {
    struct {
        const struct sl_crypt *of; /* whose data; NULL: nothing is held */
        uint64_t begin, end;
        uint8_t *data;
        size_t room;
    } block;
    struct { /* a piece too large for memory, checked once: MACs of its windows under a key of ours
              */
        const struct sl_crypt *of;
        uint64_t number;
        uint8_t *macs, key[SL_KEY_BYTES];
        size_t count, capacity;
    } huge;
};
void sl_piece_reader_release(struct sl_piece_reader *reader);

/**
 * Read plaintext of an encrypted tensor's data. Only bytes of whole pieces that were checked are
 * given out; pieces beyond 16 MiB are read twice, in bounded memory.
 *
 * @index       unlocked; the tensor's.
 * @source      of the tensor's object.
 * @begin, end  of the plaintext; end <= tensor->bytes.
 * @out         out: end - begin bytes. On failure nothing of the tensor is there.
 * @return      0, or -1: E_DECRYPT as sl_tensor_blame(); as sl_source_read().
 */
int sl_piece_reader_read(struct sl_piece_reader *reader, const struct sl_index *index,
                         struct sl_source *source, const struct sl_tensor *tensor, uint64_t begin,
                         uint64_t end, uint8_t *out, struct sl_err *err);

#endif
