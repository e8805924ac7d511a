/*
 * Hashes of Xet: of chunks, of files, and how they are written.
 *
 * A file's hash is the root of a tree over the hashes of its chunks, so it can be computed when
 * every chunk has been seen, in any order. https://huggingface.co/docs/xet (hashing). Any thread.
 */
#ifndef SL_XET_HASH_H
#define SL_XET_HASH_H

#include <stdbool.h>

#include "err.h"
#include "xet_blake3.h"

enum { SL_XET_HASH_BYTES = SL_BLAKE3_BYTES, SL_XET_HASH_TEXT = 2 * SL_XET_HASH_BYTES + 1 };

/** A node of the tree: a chunk, or some of them. */
struct sl_xet_node {
    uint8_t hash[SL_XET_HASH_BYTES];
    uint64_t bytes;
};

/** bytes: at most SL_BLAKE3_INPUT_MAX. */
void sl_xet_chunk_hash(const void *data, size_t bytes, uint8_t hash[SL_XET_HASH_BYTES]);
/** Of a file's chunks in their order; zeros for none. The nodes are used up. */
void sl_xet_file_hash(struct sl_xet_node *nodes, size_t count, uint8_t hash[SL_XET_HASH_BYTES]);

/** As Xet writes it: each eight bytes as one number. */
void sl_xet_hash_text(const uint8_t hash[SL_XET_HASH_BYTES], char text[SL_XET_HASH_TEXT]);
/** Is it such a text, in small letters? */
bool sl_xet_is_hash(const char *text);

#endif
