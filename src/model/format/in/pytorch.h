/* Between the files of the PyTorch reader. Sections are those of the formats' page. */
#ifndef SL_PYTORCH_H
#define SL_PYTORCH_H

#include "layout.h"
#include "pickle.h"

enum { SL_PYTORCH_KEY_BYTES_MAX = 20 };

/** The format's name. */
#define SL_PYTORCH "pytorch"

/** Kinds of SL_PICKLE_OTHER nodes. */
enum sl_pytorch_what {
    SL_PYTORCH_STORAGE, /* data: struct sl_pytorch_storage */
    SL_PYTORCH_TENSOR,  /* data: struct sl_pytorch_tensor */
    SL_PYTORCH_KIND,    /* text: a kind of tensor that cannot be read, or NULL: of no interest */
};

/** A storage as a persistent id names it. */
struct sl_pytorch_storage {
    char key[SL_PYTORCH_KEY_BYTES_MAX + 1];
    const char *class_name;
    enum sl_dtype dtype; /* NONE: untyped bytes, or quantized */
    unsigned item_bytes;
    uint64_t count, begin;            /* begin: in the object, once it is known */
    const struct sl_index_hash *hash; /* of all its bytes; NULL: none came with it */
};

/** A tensor over a storage; the numbers are checked when its name is known. */
struct sl_pytorch_tensor {
    struct sl_pytorch_storage *storage;
    enum sl_dtype dtype; /* NONE: refused, for its kind */
    const char *kind;
    const struct sl_pickle_node *offset, *shape, *strides;
    const uint64_t *sizes,
        *steps; /* shape and strides once they were read: it may have many names */
};

/** All of a file while it is read. */
struct sl_pytorch {
    struct sl_index *index;
    struct sl_pickle *pickle;
    struct sl_pytorch_storage **storages; /* as they come; sorted by sl_pytorch_storages() */
    size_t storage_count, storage_capacity;
    bool legacy, big_endian;
    bool quick;            /* places are computed where they can be; nobody reads the tensors */
    uint64_t object_bytes; /* of the archive or stream */
};
void sl_pytorch_release(struct sl_pytorch *torch);

/** The names that a pickle of torch.save may use (sections 4 to 6); arg is the struct sl_pytorch.
 */
extern const struct sl_pickle_rules sl_pytorch_rules;

/**
 * Sort the storages by key and check that a key is always the same storage: then equal ones are
 * neighbours. Code pt.storage-type.
 */
int sl_pytorch_storages(struct sl_pytorch *torch, struct sl_err *err);
/** Bytes of a storage. */
uint64_t sl_pytorch_storage_bytes(const struct sl_pytorch_storage *storage);

/** Walk the result and add every tensor to the index (sections 7 and 8). */
int sl_pytorch_tensors(struct sl_pytorch *torch, struct sl_pickle_node *root, struct sl_err *err);

/** The checksum that the directory has of an entry, owned by the index. NULL: it has none, or with
 * err filled no memory. */
struct sl_zip_entry;
const struct sl_index_hash *
sl_pytorch_entry_hash(struct sl_index *index, const struct sl_zip_entry *entry, struct sl_err *err);
/** For loads of whole files: the entries of an archive, with the checksums that they have; of no
 * tensors where nothing has one. Consumes the source. */
int sl_pytorch_parts(struct sl_source *source, struct sl_index **index, struct sl_err *err);

struct sl_zip_window;
/**
 * Read the one tensor that torch.save wrote as an archive within an object. Its places are the
 * object's.
 *
 * @source  the object.
 * @window  where the archive lies in it.
 * @index   what the tensor points to lives with it; it has no tensors, and has none then.
 * @tensor  out: without a name.
 * @return  0, or -1: SL_E_FORMAT, code pt.tensor if it is not one tensor, or another one of the
 *          format's; as sl_source_read().
 */
int sl_pytorch_piece(struct sl_source *source, const struct sl_zip_window *window,
                     struct sl_index *index, struct sl_tensor *tensor, struct sl_err *err);

/** The stream of five pickles before 1.6 (section 10). */
int sl_pytorch_legacy(struct sl_pytorch *torch, struct sl_err *err);

#endif
