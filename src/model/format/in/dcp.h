/* Between the files of the reader of torch's distributed checkpoints. */
#ifndef SL_DCP_H
#define SL_DCP_H

#include "index.h"

/** A chunk of a tensor, and the archive of torch.save that holds it. */
struct sl_dcp_chunk {
    uint32_t tensor;            /* of index->tensors */
    const uint64_t *at, *shape; /* rank numbers each; no dimension is empty */
    const char *file;           /* a path below the folder */
    uint64_t begin, bytes;      /* of the archive in it */
    struct sl_tensor_chunk *slot;
};

/** The content of .metadata. Names, numbers and paths lie in the index. */
struct sl_dcp {
    struct sl_index *index;
    struct sl_dcp_chunk *chunks; /* chunks of one tensor follow each other */
    size_t chunk_count, chunk_capacity;
    size_t other_count; /* entries that are no tensors */
    const char *other;  /* the first one's name */
};

/**
 * Read the pickle: tensors with name, dtype and shape into the index, its chunks into dcp.
 * SL_E_FORMAT, codes pkl.*, dcp.metadata, dcp.path, dcp.extension, dcp.unsupported.
 */
int sl_dcp_metadata(struct sl_dcp *dcp, const void *data, size_t bytes, struct sl_err *err);

#endif
