/* Models of one tensor whose headers claim what a test chooses; what is claimed is holes. */
#ifndef SL_CLAIM_MAKER_H
#define SL_CLAIM_MAKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLAIM_METADATA_BYTES = 4096, CLAIM_HEADER_AT = 73 + CLAIM_METADATA_BYTES };

/** A .tensors file of data version 5, of bytes in one dimension. Zeroed by nobody: begin with
 * claim_tensorizer. */
struct claim_tensorizer {
    uint64_t count, metadata_bytes; /* as the file's header says them */
    uint64_t header_at;             /* as the metadata say it; it lies at CLAIM_HEADER_AT */
    uint64_t header_bytes;          /* with zeros behind its fields */
    uint64_t shape, data_bytes;
};
extern const struct claim_tensorizer claim_tensorizer;
/** Make the file; true: it is as long as all this wants. */
bool claim_tensorizer_file(const char *name, const struct claim_tensorizer *wanted);
/** Its bytes in front of the data, or of what is long of its header: the first CLAIM_HEADER_AT,
 * then the tensor's header. Returns how many; at most 16 KiB. */
size_t claim_tensorizer_head(const struct claim_tensorizer *wanted, uint8_t *data);
/** So many tensors t0, t1, … one behind the other, each as asked for. */
void claim_headers_file(const char *name, unsigned count, const struct claim_tensorizer *wanted);

/** A checkpoint of torch.save with one tensor of bytes. Fields that say something are what the
 * file says beside the truth. */
struct claim_pytorch {
    uint64_t gap;             /* holes behind the pickle */
    uint64_t storage;         /* bytes of the storage that are there, and that its entry says */
    uint64_t directory_holes; /* holes behind the directory's entries that count as its own */
    const uint64_t *said_entry_bytes, *said_entry_at, *said_directory_at, *said_directory_bytes,
        *said_count;
    uint64_t elements, shape, stride, offset; /* in the pickle */
    bool minus_one;                           /* write UINT64_MAX in it as -1 */
};
extern const struct claim_pytorch claim_pytorch;
bool claim_pytorch_file(const char *name, const struct claim_pytorch *wanted);

#endif
