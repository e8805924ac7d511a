/* Tensors that are put together of boxes: which elements of which box go where. Computation alone.
 */
#ifndef SL_CHUNKED_H
#define SL_CHUNKED_H

#include "index.h"

/**
 * The largest box of elements that follow each other in the row-major order of a tensor, or of a
 * slice of it (NULL: all), from element number `element` of that order on.
 *
 * @most    at least 1, and no more than there are.
 * @box     out: in the tensor's coordinates.
 * @return  how many elements it has, at most `most`.
 */
uint64_t sl_chunked_box(const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t element, uint64_t most, struct sl_slice *box);

/** The part of a box that lies in the chunk. */
struct sl_chunked_part {
    struct sl_slice slice; /* in the coordinates of the chunk */
    uint64_t elements;     /* of it */
    uint64_t run;          /* so many of them follow each other in the box, too */
    uint64_t first;        /* the first one's number in the box */
};
/** false: nothing. */
bool sl_chunked_part(const struct sl_tensor_chunk *chunk, const struct sl_slice *box,
                     struct sl_chunked_part *part);
/**
 * Copy the elements of a part to their places in the box.
 *
 * @chunk, box  as of sl_chunked_part(), which made the part.
 * @item        bytes of an element.
 * @from        the part's elements, row by row.
 * @to          room for the box, row by row; only the part's places are written.
 */
void sl_chunked_scatter(const struct sl_tensor_chunk *chunk, const struct sl_slice *box,
                        const struct sl_chunked_part *part, size_t item, const uint8_t *from,
                        uint8_t *to);

/**
 * Do the chunks lie within the tensor, and is each of its elements in exactly one?
 *
 * @chunks  `count` of them, of the tensor's rank, none empty; sorted here.
 * @work    comparisons that may still be made, of all tensors of a file.
 * @return  0, or -1: SL_E_FORMAT, codes chunk.bounds, chunk.overlap, chunk.gap, chunk.limit.
 */
int sl_chunked_check(const struct sl_tensor *tensor, struct sl_tensor_chunk *chunks, size_t count,
                     uint64_t *work, struct sl_err *err);

#endif
