/*
 * From a model in any format that is read to a new one: .tensors, plain or encrypted, or
 * safetensors; at a file, a store, a URL, Redis. Tensors are pulled block by block by several
 * threads, hashed, encrypted, and handed to an upload; memory does not grow with the model. Any
 * thread; everything that a config points to is borrowed for the call.
 */
#ifndef SL_CONVERT_H
#define SL_CONVERT_H

#include "layout.h"
#include "plan.h"
#include "progress.h"
#include "upload.h"

enum sl_convert_format { SL_CONVERT_TENSORIZER, SL_CONVERT_SAFETENSORS };

/** A model that no object holds: what who writes one anew has put together. */
struct sl_convert_given {
    struct sl_plan *plan;     /* sl_plan_make_given() */
    struct sl_source **files; /* data files, by their names; only into a folder */
    const char *const *names;
    size_t file_count;
};
struct sl_convert_config {
    /* All of the input: source, selection, names, casts, slices, keys; sink and listen do not
     * count. */
    const struct sl_spec *spec;
    const struct sl_convert_given *given; /* NULL: the spec's source is read */
    const char *to; /* URI of the new object, or of a folder (trailing '/': several files) */
    enum sl_convert_format format;
    uint64_t shard_bytes;           /* safetensors in a folder: 0 is one file */
    unsigned ranks;                 /* safetensors in a folder: so many times one file, each with
                                       that part of the tensors that the spec's tensors.shard says;
                                       0: the part of its rank alone, under the usual names */
    struct sl_keys *seal;           /* encrypt with these; NULL: plain */
    struct sl_kdf kdf;              /* seal has a passphrase: how its key is derived */
    uint64_t align;                 /* see struct sl_tensorizer_options */
    bool bare_head;                 /* see struct sl_safetensors_options */
    bool data_files;                /* config.json and the like go along; only into a folder */
    bool replace;                   /* the present content */
    bool encrypted_only;            /* the source must be an encrypted .tensors file … */
    bool plain_only;                /* … or one that is not */
    unsigned threads;               /* 0: one a processor, at most 8; more for remote sources */
    uint64_t block_bytes;           /* 0: 4 MiB. What a thread takes at a time; small in tests */
    struct sl_upload_config upload; /* connections and memory; the rest is filled in here */
    struct sl_cancel *cancel;
    struct sl_progress *progress; /* may be NULL; not finished here */
};
struct sl_convert_result {
    uint64_t tensors;       /* written */
    uint64_t objects;       /* read, data files included */
    uint64_t files;         /* written */
    uint64_t bytes_read;    /* of tensors' data, as they are in the source */
    uint64_t bytes_written; /* all files */
    uint64_t checks;        /* hashes that came with tensors, and agreed */
    double seconds;
};
/**
 * Convert one model. Blocks; cancel ends it within a second. Hashes that came with tensors are
 * checked on the way as spec->verify.hashes says: a wrong one is SL_E_INTEGRITY and nothing
 * appears at the destination. With in-order destinations .tensors are read twice: headers need
 * hashes, and come first.
 *
 * A folder whose models lie in several folders (unet/, vae/) is converted folder by folder, into a
 * folder. SL_E_USAGE for combinations that cannot be (shards of one object, two models into one).
 * Other errors as sl_plan_make_targets(), sl_tensor_read(), sl_tensorizer_layout() and the
 * upload's.
 */
int sl_convert_run(const struct sl_convert_config *config, struct sl_convert_result *result,
                   struct sl_err *err);

#endif
