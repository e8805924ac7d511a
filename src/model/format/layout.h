/* How to lay out a new object: from names, dtypes and shapes to header bytes and a place for each
 * tensor. Nothing is read or written: any thread. What is laid out is for one thread at a time. */
#ifndef SL_LAYOUT_H
#define SL_LAYOUT_H

#include "buf.h"
#include "index.h"

/**
 * The header of one tensor of a .tensors file, whose hashes, nonce and MACs are not known before
 * its data were seen: whoever writes the data fills them in and then writes the header.
 */
struct sl_layout_header {
    uint64_t offset; /* in the file; the data begin where it ends */
    uint8_t *data;   /* owned by the layout; hash values, nonce and MACs are zero so far */
    size_t bytes;
    const uint8_t *prefix; /* begin of what both hashes cover, before the data's plaintext */
    size_t prefix_bytes;
    size_t crc32_at, sha256_at; /* where the values go in data (CRC32 as u32, little-endian); 0:
                                   it has none. Hashes of tensors without data, and of meta ones
                                   that became a zero, are filled in */
    size_t nonce_at, macs_at;   /* encrypted: 24 bytes, mac_count * 16 bytes; else 0 */
    uint64_t mac_count, piece_bytes;
};
/** Put the hashes where the header has them; those of tensors without data are there already. */
void sl_layout_header_hashes(struct sl_layout_header *header, uint32_t crc32,
                             const uint8_t sha256[32]);

struct sl_layout_place {
    const struct sl_tensor *tensor;
    uint32_t file;                   /* of the layout's files */
    uint64_t offset;                 /* in that file */
    uint64_t bytes;                  /* of data there: tensor->bytes, 0 if a meta tensor stays so */
    struct sl_layout_header *header; /* .tensors; else NULL */
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
    struct sl_arena *arena; /* the headers and what they point to */
};
/** NULL is fine. */
void sl_layout_free(struct sl_layout *layout);
SL_AUTO_DEFINE(sl_layout)
/**
 * Lay out tensors as safetensors. Order: dtype descending, then name. Padding: 8 + N a
 * multiple of 8, here of 64.
 *
 * @tensors      `count` of them; borrowed as long as the layout lives.
 * @metadata     `metadata_count` pairs; borrowed for the call.
 * @shard_bytes  0: one file; else shards of at most so many bytes, with
 *               model.safetensors.index.json.
 * @layout       out: the caller's.
 * @return       0, or -1: SL_E_FORMAT, naming the tensor, for a dtype without a safetensors name,
 *               a rank over 64, a duplicate name; SL_E_NO_SPACE.
 */
int sl_safetensors_layout(const struct sl_tensor *const *tensors, size_t count,
                          const struct sl_meta_pair *metadata, size_t metadata_count,
                          uint64_t shard_bytes, struct sl_layout **layout, struct sl_err *err);
enum { SL_SAFETENSORS_JSON_BYTES_MAX = 100 * 1000 * 1000 }; /* the library's own limit */
/**
 * Make the head of a file with these tensors one after another: length, JSON, and blanks up to a
 * multiple of 8.
 *
 * @tensors   `count` of them, as they will lie; borrowed for the call.
 * @metadata  `metadata_count` pairs; borrowed for the call.
 * @head      empty when given; gets the text. The caller frees it, after a failure too.
 * @return    0, or -1: as sl_safetensors_layout().
 */
int sl_safetensors_head(const struct sl_tensor *const *tensors, size_t count,
                        const struct sl_meta_pair *metadata, size_t metadata_count,
                        struct sl_buf *head, struct sl_err *err);
struct sl_safetensors_options {
    uint64_t shard_bytes;
    const char *stem; /* of the names, instead of "model"; NULL: that */
    bool parts;       /* STEM-part-0.safetensors and so on, as engines call the files of ranks */
    bool bare; /* nothing that the format does not ask for, which is padding to 64 and "format":
                  "pt" where there are no metadata */
};
/**
 * As sl_safetensors_layout(), in other ways.
 *
 * @tensors   `count` of them; borrowed as long as the layout lives.
 * @metadata  `metadata_count` pairs; borrowed for the call.
 * @options   borrowed for the call.
 * @layout    out: the caller's.
 * @return    0, or -1: the same; SL_E_USAGE: too many shards.
 */
int sl_safetensors_layout_as(const struct sl_tensor *const *tensors, size_t count,
                             const struct sl_meta_pair *metadata, size_t metadata_count,
                             const struct sl_safetensors_options *options,
                             struct sl_layout **layout, struct sl_err *err);

enum {
    SL_TENSORIZER_ALIGN_MAX = 1024 * 1024,
    SL_TENSORIZER_HEADERS_BYTES_MAX = 512 * 1024 * 1024, /* of all tensors; they are kept */
};
struct sl_tensorizer_options {
    bool encrypt;
    const struct sl_kdf *kdf; /* encrypt with a passphrase: stored in every header; else NULL */
    uint64_t piece_bytes;     /* 0: SL_PIECE_BYTES; a multiple of 64, at least 1024 */
    uint64_t align;   /* data begin at multiples of this (slack, section 8.1): a power of two, at
                         most SL_TENSORIZER_ALIGN_MAX; 0: wherever their header ends */
    const char *name; /* of the file; NULL: "model.tensors" */
};
/**
 * Lay out tensors as one .tensors file, in their order, bit for bit as the reference writer does:
 * lowest data version that fits, 256 KiB of metadata or more where it must be, a terminator (the
 * last 8 bytes of the file, zero). Meta tensors stay meta (0-dimensional ones become a zero with
 * data). A path of one text is a plain name, any other a JSON name of an entry.
 *
 * @tensors  `count` of them; borrowed as long as the layout lives.
 * @options  NULL: all zero; borrowed for the call.
 * @layout   out: the caller's.
 * @return   0, or -1: SL_E_FORMAT, with the format's code, names a tensor that cannot be written:
 *           E_DTYPE, E_METADATA (rank over 64, too many tensors), E_NAME, E_DUPLICATE; E_EMPTY
 *           without tensors. SL_E_USAGE for options out of their range.
 */
int sl_tensorizer_layout(const struct sl_tensor *const *tensors, size_t count,
                         const struct sl_tensorizer_options *options, struct sl_layout **layout,
                         struct sl_err *err);

enum { SL_PYTORCH_PICKLE_BYTES_MAX = 64 * 1024 * 1024 };
/** The typed storage of torch whose elements these are: "FloatStorage", a constant. NULL: there is
 * none. */
const char *sl_pytorch_storage_class(enum sl_dtype dtype);

#endif
