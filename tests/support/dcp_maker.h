/* Distributed checkpoints by hand, right or wrong. */
#ifndef SL_DCP_MAKER_H
#define SL_DCP_MAKER_H

#include "buf.h"

/** A chunk of a tensor of rank 2, and its archive. */
struct dcp_made_chunk {
    const char *at, *size; /* numbers in decimal, "0 3" */
    const char *path;      /* NULL: "__0_0.distcp" */
    const char *offset;    /* in decimal; NULL: where its archive is */
    const char *length;    /* the same */
    const char *stored;    /* the shape that the archive has; NULL: size */
    const char *storage;   /* NULL: "FloatStorage" */
    const char *strides;   /* NULL: row by row */
    const char *extension; /* NULL: none */
    bool lost;             /* storage_data does not know it */
};
struct dcp_made {
    const char *shape;               /* "4 3" */
    const char *dtype;               /* NULL: "float32" */
    const char *layout;              /* NULL: "torch.strided" */
    const char *opcodes;             /* of the value of planner_data; NULL: "N" */
    size_t opcode_bytes;             /* 0: a text */
    struct dcp_made_chunk chunks[4]; /* up to one without a size */
};
/** Tensor 't', element i of a chunk is (float)i. Both buffers are empty at first; release them. The
 * files of all paths are the same. */
void dcp_make(const struct dcp_made *made, struct sl_buf *metadata, struct sl_buf *file);

#endif
