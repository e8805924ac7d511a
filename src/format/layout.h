/* How to lay out a new object: from names, dtypes and shapes to header bytes and a place for each
 * tensor. */
#ifndef SL_LAYOUT_H
#define SL_LAYOUT_H

#include "buf.h"
#include "index.h"

struct sl_layout_place {
    const struct sl_tensor *tensor;
    uint32_t file;   /* of the layout's files */
    uint64_t offset; /* in that file */
};
struct sl_layout_file {
    char *name; /* model.safetensors, model-00001-of-00003.safetensors, model.safetensors.index.json
                 */
    uint64_t bytes;
    struct sl_buf head; /* its first bytes, written as they are; for the index file: all of it */
};
struct sl_layout {
    struct sl_layout_file *files;
    size_t file_count;
    struct sl_layout_place *places;
    size_t place_count;
};
void sl_layout_free(struct sl_layout *layout);
SL_AUTO_DEFINE(sl_layout)
/**
 * Lay out tensors as safetensors: one file, or shards of at most shard_bytes (0: one file) with
 * model.safetensors.index.json. Order and padding as formats' section 6 (dtype descending, then
 * name; 8 + N a multiple of 8, here of 64). A dtype without a safetensors name, a rank over 64, a
 * duplicate name is SL_E_FORMAT naming the tensor. Tensors are borrowed.
 */
int sl_safetensors_layout(const struct sl_tensor *const *tensors, size_t count,
                          const struct sl_meta_pair *metadata, size_t metadata_count,
                          uint64_t shard_bytes, struct sl_layout **layout, struct sl_err *err);
#endif
