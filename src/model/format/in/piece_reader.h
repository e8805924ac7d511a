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
 * Plaintext bytes [begin, end) of an unlocked encrypted tensor's data into out; end <=
 * tensor->bytes. On failure nothing of it is in out. E_DECRYPT as sl_tensor_blame(). Only whole
 * pieces are given out; those beyond 16 MiB are read twice, in bounded memory.
 */
int sl_piece_reader_read(struct sl_piece_reader *reader, const struct sl_index *index,
                         struct sl_source *source, const struct sl_tensor *tensor, uint64_t begin,
                         uint64_t end, uint8_t *out, struct sl_err *err);

#endif
