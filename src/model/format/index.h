/*
 * Where tensors lie inside objects. A format turns a source into an index; the index knows names,
 * dtypes, shapes, byte ranges and hashes, and nothing of networks.
 *
 * While it is made an index is one thread's; then several may read it, but for sl_index_find() and
 * sl_index_unlock(). What reads its sources blocks, and fails with the errors of sl_source_read()
 * too; without memory it is SL_E_NO_SPACE everywhere.
 */
#ifndef SL_INDEX_H
#define SL_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "crypt.h"
#include "dtype.h"
#include "err.h"
#include "keys.h"
#include "mem.h"
#include "source.h"

/** A hash that came with a tensor: over `prefix` (bytes of its header, prepared) and then the
 * tensor's stored bytes. */
struct sl_index_hash {
    bool sha256;           /* else CRC32 */
    uint8_t expected[32];  /* CRC32: first four, big-endian */
    const uint8_t *prefix; /* owned by the index; may be shared by the hashes of one tensor */
    size_t prefix_bytes;
};

/** One component of a tensor's path: a string, or a list index. */
struct sl_path_part {
    const char *text; /* NULL: number counts */
    size_t text_bytes;
    uint64_t number;
};

/** A tensor's role in its module; only .tensors files say it. */
enum sl_tensor_role { SL_ROLE_ENTRY, SL_ROLE_PARAMETER, SL_ROLE_BUFFER };

struct sl_tensor_chunk;
struct sl_tensor {
    const char *name; /* for people and filters: plain name, or parts joined with '.'; may hold any
                         byte but is NUL-terminated */
    size_t name_bytes;
    const struct sl_path_part *path;
    unsigned path_count;
    enum sl_dtype dtype;
    const char *dtype_name; /* canonical spelling, also of opaque types */
    unsigned rank;
    const uint64_t *shape;
    uint64_t bytes;      /* plaintext, row-major: product of shape and item size */
    uint32_t source;     /* which of index->sources */
    uint64_t begin, end; /* stored range in that source; empty for meta and zero-element tensors */
    const uint64_t *strides; /* elements per step of each dimension, when they do not lie row by
                                row: [begin, end) is then all that they span. NULL: contiguous */
    unsigned swap_bytes; /* elements (halves of complex ones) are stored big-endian: so many bytes
                            change places each; 0: little-endian */
    const struct sl_tensor_chunk *chunks; /* each element is in exactly one of these: [begin, end)
                                             is empty. NULL: it lies in one place */
    size_t chunk_count;
    enum sl_tensor_role role;
    uint16_t module_index; /* .tensors: number of the module; else 0 */
    bool meta;             /* no stored bytes although bytes > 0: reads as zeros */
    bool part;             /* no tensor of a model: bytes of the object that may have a hash */
    bool encrypted;        /* [begin, end) holds ciphertext of the same length; its hashes are over
                              the plaintext */
    const struct sl_crypt *crypt; /* encrypted: how; else NULL */
    const uint8_t *key; /* encrypted: SL_KEY_BYTES, set by sl_index_unlock(); owned by the keys */
    const struct sl_index_hash *hashes; /* with begin == end they are over the prefix alone */
    unsigned hash_count;
    int refused; /* listed but cannot be read: the enum sl_err_kind, 0 if readable */
    const char *refused_code, *refused_why;
};

/** A box of a tensor that lies elsewhere, as a tensor of its own: of the same name, dtype and rank,
 * not empty, stored in any way but in chunks or encrypted. */
struct sl_tensor_chunk {
    const uint64_t *at; /* where it begins in each dimension */
    struct sl_tensor tensor;
};

struct sl_meta_pair {
    const char *key, *value;
};

/** What GGUF says of a model under one key. */
struct sl_index_value {
    const char *key;        /* printable ASCII */
    uint32_t type, element; /* numbers of the format; element: of an array */
    uint64_t count;         /* elements of an array; else 1 */
    uint64_t begin, bytes;  /* where it lies in the first source, without its lengths */
    const uint8_t *data;    /* its bytes; NULL: it is too long to be kept */
};

/** Which part of a split set an object says it is. */
struct sl_index_part {
    uint32_t number, count; /* number from 0; count 0: no part of a set */
    uint32_t tensors;       /* of the whole set */
};

struct sl_index {
    const char *format;      /* row of formats.def: "safetensors" */
    unsigned format_version; /* tensorizer's and GGUF's; 0 where there is none */
    bool encrypted;
    bool outline; /* names, types, shapes and places only: tensors cannot be read */
    bool files;   /* for a load of whole files: an unknown type is noted in unread, not refused */
    const char *unread; /* why nobody is offered its tensors, though nothing is wrong with its
                           bytes; NULL: they are */
    struct sl_index_part part;
    struct sl_source *
        *sources; /* the objects it was read from: [0] first; shards follow. Owned by the index */
    char **source_names; /* relative names */
    size_t source_count, source_capacity;
    struct sl_tensor *tensors; /* in file order */
    size_t tensor_count, tensor_capacity;
    struct sl_meta_pair *metadata; /* safetensors' __metadata__ */
    size_t metadata_count, metadata_capacity;
    struct sl_index_value *values; /* GGUF's keys */
    size_t value_count, value_capacity;
    struct sl_arena *arena; /* everything the tensors point to */
    uint32_t *by_name;      /* tensors sorted by name, made by the first sl_index_find() */
    size_t by_name_count;
    bool view; /* all but the arena and the order by name are another index's */
};

/** Empty; format is borrowed for good (a row's name). */
struct sl_index *sl_index_new(const char *format, struct sl_err *err);
/** Its sources go with it. NULL is fine. */
void sl_index_free(struct sl_index *index);
SL_AUTO_DEFINE(sl_index)
/** The same tensors and sources, with memory of its own: for what is planned of an index that
 * others use meanwhile. Free it before the index. NULL: SL_E_NO_SPACE. Any thread. */
struct sl_index *sl_index_view(const struct sl_index *index, struct sl_err *err);
/** Zeroed memory that lives as long as the index, for what tensors point to. */
void *sl_index_alloc(struct sl_index *index, size_t bytes, struct sl_err *err);
/** The source becomes the index's, also on failure. Returns its number or -1. */
int sl_index_add_source(struct sl_index *index, struct sl_source *source, struct sl_err *err);
/** A zeroed tensor at the end; valid until the next call. */
struct sl_tensor *sl_index_add_tensor(struct sl_index *index, struct sl_err *err);
/**
 * Find a tensor by its exact name.
 *
 * @name    `name_bytes` bytes. If several have it (.tensors may hold the paths ["a.b"] and
 *          ["a","b"]), the first in file order is found.
 * @return  the index's. NULL: SL_E_NOT_FOUND; SL_E_NO_SPACE: nobody knows.
 *
 * The first call sorts: one thread at a time.
 */
const struct sl_tensor *sl_index_find(struct sl_index *index, const char *name, size_t name_bytes,
                                      struct sl_err *err);
/** Sort names for sl_index_find(), which then returns NULL for absent names alone. SL_E_NO_SPACE.
 */
int sl_index_sort_names(struct sl_index *index, struct sl_err *err);

/**
 * Give an index the keys for its tensors, or none (NULL): every index must pass here before tensors
 * are read. An encrypted file without keys is E_KEY_REQUIRED and keys for a plain one
 * E_NOT_ENCRYPTED (SL_E_AUTH and SL_E_USAGE), even if all tensors are meta; E_KDF as
 * sl_keys_find(). Keys are derived here, once for each derivation; the keys must outlive the index.
 * Indexes that are listed only (`inspect`, what libsluice opens without a key) need not pass: their
 * encrypted tensors stay refused with E_KEY_REQUIRED.
 */
int sl_index_unlock(struct sl_index *index, struct sl_keys *keys, struct sl_err *err);
/** Is it encrypted, and its index did not get a key? */
bool sl_tensor_waits_for_key(const struct sl_tensor *tensor);

/** How many bytes to ask for when opening an object whose format is not known: one request indexes
 * most files. */
enum { SL_INDEX_HEAD_BYTES = 128 * 1024 };

/** free() this memory with the index. On failure it stays the caller's. */
int sl_index_keep(struct sl_index *index, void *memory, struct sl_err *err);
/**
 * Set the tensor's name and its path of one part.
 *
 * @tensor  of this index.
 * @name    `name_bytes` bytes, borrowed: they live as long as the index.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_index_plain_name(struct sl_index *index, struct sl_tensor *tensor, const char *name,
                        size_t name_bytes, struct sl_err *err);
/** Both texts are borrowed and live as long as the index. */
int sl_index_add_meta(struct sl_index *index, const char *key, const char *value,
                      struct sl_err *err);
/**
 * Tell what the sources have, and what was read of them so far.
 *
 * @object_bytes  out: length of all sources.
 * @requests      out: made for them.
 * @bytes         out: received for them.
 */
void sl_index_counts(const struct sl_index *index, uint64_t *object_bytes, uint64_t *requests,
                     uint64_t *bytes);

/**
 * Find the format from the first bytes (and, for *.index.json, that it is a JSON object with
 * weight_map) and index the object. The source is consumed, also on failure. *index is NULL, with
 * 0, if the bytes are of no format that is read (verbatim data). SL_E_FORMAT with the format's own
 * code for a file that is of a format but breaks its rules.
 */
int sl_format_index(struct sl_source *source, struct sl_index **index, struct sl_err *err);
/**
 * As sl_format_index(), for loads of whole files, whose hashes count. What is cut off, empty, a
 * pointer or a page is refused; what is merely unknown (a type, a version) is not.
 *
 * @name   one that says model decides for bytes that are not recognised; may be NULL.
 * @index  out: index->unread says what is unknown in it. NULL, with a warning, where there is
 *         none; PyTorch: of parts, NULL where nothing has a hash.
 */
int sl_format_index_files(struct sl_source *source, const char *name, struct sl_index **index,
                          struct sl_err *err);
/**
 * Index a model in several files by the index that names them, whatever that one is called.
 *
 * @files  for a load of whole files; else for its tensors.
 * @there  a missing file or tensor is a warning, no error.
 * @index  out: NULL, with 0, if one of the files has an unknown format; with `files` also if the
 *         source is other JSON under a name that no format reserves for indexes.
 *
 * Errors and ownership are those of sl_format_index().
 */
int sl_format_index_shards(struct sl_source *source, bool files, bool there,
                           struct sl_index **index, struct sl_err *err);
/**
 * As sl_format_index(), refusing unknown bytes, too: SL_E_FORMAT, code "E_UNKNOWN".
 *
 * @name_hint  decides between formats for files too short to have a magic, so that what is cut off
 *             is refused with its format's code; may be NULL.
 */
int sl_format_index_strict(struct sl_source *source, const char *name_hint, struct sl_index **index,
                           struct sl_err *err);

/**
 * As sl_format_index_strict() for who only shows what there is: where the rest would take many
 * requests, an outline.
 */
int sl_format_outline(struct sl_source *source, const char *name_hint, struct sl_index **index,
                      struct sl_err *err);

/**
 * The name of part `number` (from 0) of the set that the index is a part of, after its own name;
 * free() it. NULL with gg.split if its name is not part's.
 */
char *sl_format_part_name(const struct sl_index *index, uint32_t number, struct sl_err *err);

/** Is every set whole that one of these is a part of? SL_E_FORMAT, code gg.split; others may be
 * among them. */
int sl_format_check_sets(const struct sl_index *const *indexes, size_t count, struct sl_err *err);

/** Meanings of the end of an object's name. */
enum sl_format_says {
    SL_SAYS_NOTHING,
    SL_SAYS_STATE,   /* saved beside a model in its format, and no part of it: optimizer.pt */
    SL_SAYS_PERHAPS, /* other data is called so too: .bin */
    SL_SAYS_LIKELY,  /* rarely anything but tensors: .pt, pytorch_model.bin */
    SL_SAYS_MODEL,   /* an object of tensors */
    SL_SAYS_INDEX,   /* an index that names objects of tensors: .safetensors.index.json */
};
enum sl_format_says sl_format_name_says(const char *name);

enum { SL_META_DIGEST_BYTES_MAX = 1024 * 1024 * 1024 };

/**
 * Hash a tensor's plaintext by SHA-256: row-major, little-endian; zeros for meta tensors, at most
 * SL_META_DIGEST_BYTES_MAX of them.
 *
 * @verify  check the hashes that it came with first.
 * @digest  out.
 * @return  0, or -1: SL_E_INTEGRITY, code E_HASH_CRC32 or E_HASH_SHA256, naming the tensor. A
 *          refused tensor fails with its own kind and code.
 *
 * Reads in bounded memory.
 */
int sl_tensor_digest(struct sl_index *index, const struct sl_tensor *tensor, bool verify,
                     uint8_t digest[32], struct sl_err *err);

/**
 * Hash every tensor that is not refused, as sl_tensor_digest(), in the order of the bytes, with
 * few requests.
 *
 * @verify  check the hashes that they came with first.
 * @each    gets one after another, and returns -1 (err filled) to stop. The digest of a meta
 *          tensor, of which a file of a few bytes may have any number of any size, is NULL; its
 *          hashes are checked.
 * @arg     for each().
 */
int sl_index_digest(struct sl_index *index, bool verify,
                    int (*each)(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                                struct sl_err *err),
                    void *arg, struct sl_err *err);

enum { SL_SLICE_RANK_MAX = 64 };
/** Half-open ranges per dimension. */
struct sl_slice {
    uint64_t begin[SL_SLICE_RANK_MAX], end[SL_SLICE_RANK_MAX];
};
/**
 * Read "NAME[0:4,:,2:]" against a tensor: a range "a:b", "a:", ":b", ":" or an index "a" (the
 * range a:a+1) for each dimension from the first; dimensions that are not named are whole.
 *
 * @slice   out: nothing is to be released.
 * @return  0, or -1: SL_E_USAGE for a text that is not a slice; SL_E_FORMAT, code "st.slice", for
 *          too many ranges or one beyond the dimension.
 */
int sl_slice_parse(const char *text, const struct sl_tensor *tensor, struct sl_slice *slice,
                   struct sl_err *err);
/** How many bytes of text are the NAME of "NAME[…]": all before the last '[' if the text ends in
 * ']', else all. */
size_t sl_slice_name_bytes(const char *text);
/**
 * As sl_tensor_digest() for a part, fetching only what it needs. Hashes that came with the tensor
 * are not checked.
 *
 * @slice   of sl_slice_parse().
 * @digest  out: SHA-256.
 * @return  0, or -1: SL_E_FORMAT, st.misaligned if a run is not a whole number of bytes, gg.block
 *          if it parts a block, E_LENGTH for more than SL_META_DIGEST_BYTES_MAX of a meta tensor. A
 *          refused tensor fails with its own kind and code.
 */
int sl_slice_digest(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, uint8_t digest[32], struct sl_err *err);

#endif
