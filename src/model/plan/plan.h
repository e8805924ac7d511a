/*
 * Spec and indexes in, ranges out: which bytes of which object go where. No tensor data is read.
 *
 * An *extent* is a range of an object with a place to go. A *range* is what one request fetches:
 * neighbouring extents with small gaps merged, large ones cut, so every extent belongs to exactly
 * one range. A *check* is a hash that must match.
 *
 * A plan is made by one thread and then read by any, but for what sl_plan_stages() and a load's
 * begin() note in it. What it points to is its own, or of the indexes of its sources, until
 * sl_plan_free().
 */
#ifndef SL_PLAN_H
#define SL_PLAN_H

#include <pthread.h>
#include <stdint.h>

#include "check.h"
#include "concurrency.h"
#include "fetch.h"
#include "index.h"
#include "json.h"
#include "layout.h"
#include "signed_by.h"
#include "sink.h"
#include "spec.h"

struct sl_extent {
    uint64_t begin, end; /* in the source */
    uint32_t source;     /* plan->sources */
    uint32_t file;       /* plan->files */
    uint64_t file_offset;
    uint32_t target; /* number + 1 in plan->targets of bytes that change on their way: decrypted,
                        cast, cut; see mapping.h. 0: they land as they are */
};
struct sl_range {
    uint64_t begin, end;
    uint32_t source;
    uint32_t extent_first, extent_count; /* sorted by begin; bytes between them are discarded */
};
/** Bytes that the plan itself supplies (a new header, a small file): written before reading begins.
 */
struct sl_literal {
    uint32_t file;
    uint64_t file_offset;
    const uint8_t *data; /* owned by the plan */
    uint64_t bytes;
};
/**
 * A header that lies before a tensor's data but holds their hashes, as in .tensors files: written
 * as soon as all of them have landed and are hashed.
 */
struct sl_deferred_header {
    uint32_t file;
    const struct sl_layout_header *header; /* owned by the plan; the data begin where it ends */
    uint64_t bytes;                        /* of data, at least 1 */
};
struct sl_plan_file {
    char *name;
    uint64_t bytes;
    /* SHA-256 over the objects that it is made of, what becomes of them and how they are checked:
     * files of equal identities, of whatever plans, hold equal bytes. */
    uint8_t identity[32];
    bool identified; /* else it is like no other */
};
/** How an object's bytes are told from those of another version. */
enum sl_plan_version {
    SL_PLAN_VERSION_NONE,  /* nothing: no plan is like this one */
    SL_PLAN_VERSION_STORE, /* the store */
    SL_PLAN_VERSION_HASH,  /* hashes that the user gave, over all that is read */
};
struct sl_plan_source {
    struct sl_source *source;
    struct sl_index *index; /* NULL: verbatim bytes only */
    const char *name;
    enum sl_plan_version version;
    bool pinned;  /* hashes that the user gave, or a sidecar has, cover all that is read of it */
    bool checked; /* the store reads through caches, and checks cover all that is read of it */
    bool sampled; /* they do not: it may come through caches, and samples are compared */
};
/** A tensor as it will lie in the published files, for the manifest. */
struct sl_plan_tensor {
    const struct sl_tensor *tensor;
    uint32_t file;
    uint64_t file_offset;
};

/**
 * A tensor that was selected, as it will be written. `out` has its new name, path, role, dtype,
 * shape and bytes; of its other members only meta counts. from is cut to the slice, then cast.
 */
struct sl_target {
    struct sl_tensor out; /* first: a pointer to it is one to the target */
    const struct sl_tensor *from;
    struct sl_index *index;       /* where from is in */
    uint32_t source;              /* of plan->sources: from's object */
    const struct sl_slice *slice; /* NULL: the whole tensor */
    int overflow;                 /* enum sl_cast_overflow, of a cast */
};

/** Most bytes of a plan's files together: 1 EiB as for one object, so that sums fit in 64 bits. */
static const uint64_t SL_PLAN_BYTES_MAX = 1152921504606846976;
/** Limits of the pool's index, which tells clients of slabs (docs/pool-protocol.md). */
enum { SL_SLABS_RANK_MAX = 64, SL_SLABS_FILES_MAX = 4096, SL_SLABS_INDEX_BYTES_MAX = 256 << 20 };

/** Cost of slices along inner dimensions, as far as is known before anything is read. */
struct sl_plan_cost {
    uint64_t requests, bytes;
};
struct sl_plan_rows {
    uint64_t rows;                            /* runs of bytes that the slices take; 0: none */
    struct sl_plan_cost least, whole, wanted; /* a request a row; whole spans; what is weighed */
};

struct sl_mapping;
struct sl_plan {
    struct sl_target *targets; /* layouts other than verbatim: what the spec's `tensors` selects */
    size_t target_count;
    struct sl_mapping *mappings;         /* one a target, once the files are laid out; else NULL */
    const struct sl_meta_pair *metadata; /* that goes with them; borrowed from an index */
    size_t metadata_count;
    struct sl_plan_source *sources;
    size_t source_count;
    struct sl_plan_file *files;
    size_t file_count;
    struct sl_extent *extents;
    size_t extent_count;
    struct sl_range *ranges; /* in the order of fetching: small files first, then file order */
    size_t range_count;
    struct sl_literal *literals;
    size_t literal_count;
    struct sl_deferred_header *deferred_headers; /* layout tensorizer */
    size_t deferred_header_count;
    struct sl_check *checks;
    size_t check_count;
    struct sl_plan_tensor *tensors;
    size_t tensor_count;
    size_t sidecar_count; /* objects that are checked by one, see sidecars.c */
    uint64_t fetch_bytes; /* over the network, gaps included, but for those of rows */
    struct sl_plan_rows rows;
    struct sl_weigh weigh;   /* worth of a request, and why */
    struct sl_fixed fixed;   /* of the spec: what of the load is pinned */
    uint64_t skipped_bytes;  /* of the objects, not fetched */
    uint64_t sink_bytes;     /* at the destination */
    uint64_t unhashed_bytes; /* fetched bytes that no check covers */
    uint64_t index_requests, index_bytes;
    size_t unusual_count; /* objects of a repository that hold the same weights in other forms and
                             were left out, since the spec chooses nothing */
    uint64_t unusual_bytes;
    uint64_t range_bytes; /* chosen */
    struct sl_connections connections;
    size_t unversioned;   /* sources of SL_PLAN_VERSION_NONE */
    bool doubtful;        /* the store gives some source no version */
    uint8_t identity[32]; /* SHA-256 over versions, extents, files: equal plans give equal bytes;
                             with unversioned sources no two plans are equal */
    uint8_t asked[32];    /* SHA-256 over what a listing says of every object and over what the spec
                             wants of them: equal ones give equal plans */
    bool asked_known; /* the listing gives every object a version, and they were so when opened */
    bool there;       /* output->there() said so: nothing was opened, and the rest is empty */
    struct sl_plan_own *own;
};

/** How what is read shall lie in the plan's files. A spec says it for a directory, see
 * sl_plan_output_of_spec(); who reads for something else says it himself. */
struct sl_plan_output {
    enum sl_sink_layout layout; /* other than verbatim: the tensors that the spec selects */
    uint64_t part_bytes;        /* safetensors: largest file; slabs: a slab's bytes */
    uint64_t align_bytes;       /* tensorizer: where data begin, a power of two; 0: as they come */
    /** Is what this plan will be there already? Then no object is opened. NULL: no. */
    bool (*there)(const uint8_t asked[32], void *arg);
    void *there_arg;
    const char *cache; /* of verbatim: NULL, or the directory that becomes a cache of the hub's
                          client: the objects lie in its folders, or in those of one repository if
                          the directory is called like it ("models--ORG--NAME") */
};
/** fetch_bytes, with what will be fetched of rows as they are weighed. */
struct sl_plan;
uint64_t sl_plan_expected_bytes(const struct sl_plan *plan);
/** What is left of unhashed_bytes when all has been read: whole objects may have been checked as
 * they came (sl_source_delivery()). */
uint64_t sl_plan_unhashed(const struct sl_plan *plan);
/** What a load does with wrong bytes of each source, which decides who may send them: of a
 * cryptographic hash of all of it, of hashes of all its ranges, or of less. free() it.
 * SL_E_NO_SPACE.
 */
enum sl_vouch *sl_plan_vouches(const struct sl_plan *plan, struct sl_err *err);
/** How long rows are, on average; there are some. */
uint64_t sl_plan_row_bytes(const struct sl_plan *plan);
/** The values of sink.tmpfs: layout, shardBytes and alignBytes. */
struct sl_plan_output sl_plan_output_of_spec(const struct sl_spec *spec);

/** What config.hold_bytes may be for a load of the whole model: 128 MiB, or readers.memoryBytes if
 * that is less; 0 where only some of its tensors are read. */
uint64_t sl_plan_may_hold(const struct sl_spec *spec, enum sl_sink_layout layout);

/**
 * Open the store, list or open the objects, read indexes, select tensors, lay out, cut and order
 * ranges.
 *
 * @spec    borrowed until the plan is freed. Its own sink is not looked at.
 * @output  what files are made of it; copied.
 * @config  as of sl_store_open().
 * @plan    out: the caller's; it owns store and sources.
 * @return  0, or -1: SL_E_FORMAT for hostile names and for broken files of a known format; with
 *          layout verbatim and hashes off such a file is plain data, with a warning.
 *          SL_E_INTEGRITY for `hashes: require` with unhashed bytes, or what a signature or
 *          sidecar denies. SL_E_USAGE, SL_E_AUTH, SL_E_NOT_FOUND, SL_E_NO_SPACE, SL_E_NET,
 *          SL_E_CANCELED.
 *
 * Blocks.
 */
int sl_plan_make(const struct sl_spec *spec, const struct sl_plan_output *output,
                 const struct sl_source_config *config, struct sl_plan **plan, struct sl_err *err);
/**
 * Find out how many bytes the objects have that a spec is about, by the store's listing or its
 * first answer: about what a load fetches.
 *
 * @config  as of sl_store_open().
 * @bytes   out: 0 where that takes more than a listing (objects that name others, stores that read
 *          objects to list them).
 * @return  0, or -1 with errors of the store. Blocks.
 */
int sl_plan_measure(const struct sl_spec *spec, const struct sl_source_config *config,
                    uint64_t *bytes, struct sl_err *err);
/**
 * Make the first half of a plan, for callers that lay out and read by themselves: sources (opened,
 * indexed, unlocked) and targets, with their keys; no files, extents, checks. Sources without an
 * index are data files that go along (config.json).
 *
 * Arguments and errors are those of sl_plan_make(). Blocks.
 */
int sl_plan_make_targets(const struct sl_spec *spec, const struct sl_source_config *config,
                         struct sl_plan **plan, struct sl_err *err);
/**
 * As sl_plan_make_targets(), for callers that show what there is before they read: tensors that
 * cannot be read are targets, too. The identity is of the objects.
 *
 * @as_files  no targets at all, objects alone.
 * @plan      out: may be set after a failure, too; free it.
 */
int sl_plan_make_listed(const struct sl_spec *spec, bool as_files,
                        const struct sl_source_config *config, struct sl_plan **plan,
                        struct sl_err *err);

/**
 * Make a plan of an index that was put together by hand. Targets are what the spec selects;
 * metadata are the index's, as they are.
 *
 * @store, index  the plan's, also on failure, as the index's one source is.
 * @plan          out: the caller's.
 */
int sl_plan_make_given(const struct sl_spec *spec, struct sl_store *store, struct sl_index *index,
                       struct sl_plan **plan, struct sl_err *err);

/** One file of a part: a target of an opened plan, or a slice of it; or bytes of an object. */
struct sl_plan_wanted {
    const struct sl_target *target; /* of that plan; NULL: bytes [begin, end) of `source` */
    const struct sl_slice *slice;   /* of the target as it is in `out`; NULL: all of it */
    uint32_t source;
    uint64_t begin, end;
};
/**
 * Make a plan to read some of what sl_plan_make_listed() has opened. There is no identity and no
 * sl_plan_tensor; bytes that are not of a target are checked by sidecars alone.
 *
 * @opened  its sources, store and keys are used; it outlives all its parts.
 * @wanted  `count` of them: wanted[i] is file i.
 * @lock    taken where the sources of `opened` are read.
 * @plan    out: the caller's.
 * @return  0, or -1: SL_E_USAGE for a slice that leaves its tensor; errors of refused tensors; as
 *          sl_plan_make().
 *
 * Any thread, several parts at a time, as long as nothing else is done with `opened`.
 */
int sl_plan_make_part(const struct sl_plan *opened, const struct sl_plan_wanted *wanted,
                      size_t count, pthread_mutex_t *lock, struct sl_plan **plan,
                      struct sl_err *err);
/** Waits for keys that are being derived. NULL is fine. */
void sl_plan_free(struct sl_plan *plan);
SL_AUTO_DEFINE(sl_plan)
/**
 * Keys that come from a passphrase are checked by sl_plan_make(), and derived only from begin() on,
 * aside; before tensors are read, await() them, which blocks. SL_E_NO_SPACE: no memory for it.
 * Without a passphrase all three do nothing.
 */
int sl_plan_begin_keys(const struct sl_plan *plan, struct sl_err *err);
bool sl_plan_keys_busy(const struct sl_plan *plan);
int sl_plan_await_keys(const struct sl_plan *plan, struct sl_err *err);
/** The sidecar of a source as it was found and judged, owned by the plan; NULL: none. */
struct sl_sidecar;
const struct sl_sidecar *sl_plan_sidecar(const struct sl_plan *plan, uint32_t source);
/**
 * Read bytes of a source once more, out of whole ranges that its sidecar found right, if it has one
 * of ranges up to 64 MiB.
 *
 * @number  of the source in the plan.
 * @begin   of the bytes in the source.
 * @to      out: `bytes` bytes.
 * @return  0, or -1: SL_E_INTEGRITY; as sl_source_read().
 *
 * One call at a time for a source; blocks.
 */
int sl_plan_read_proved(const struct sl_plan *plan, uint32_t number, uint64_t begin, void *to,
                        size_t bytes, struct sl_err *err);
/** Say so if there are unversioned sources; `so`: what follows for the caller, for people. */
void sl_plan_warn_of_versions(const struct sl_plan *plan, const char *so);
/** The files for a sink: free() them; their names belong to the plan. SL_E_NO_SPACE. */
struct sl_sink_file *sl_plan_sink_files(const struct sl_plan *plan, struct sl_err *err);
/** The object's or the prefix's URI without secrets; borrowed. */
const char *sl_plan_uri(const struct sl_plan *plan);
/** True if the list is empty (and empty_matches) or one of its patterns matches. */
bool sl_plan_matches(const struct sl_list *patterns, const char *name, bool empty_matches);
/** The public key of verify.minisign; the spec must name one. Reads its file. SL_E_USAGE,
 * SL_E_NOT_FOUND. */
struct sl_minisign_key;
int sl_plan_signer(const struct sl_spec *spec, struct sl_minisign_key *key, struct sl_err *err);
/** The model's verified signer; zeros if none was asked for. */
struct sl_signed_by sl_plan_signed_by(const struct sl_plan *plan);
/** The JSON of `sluice plan`, without what limits the destination (publish/room knows that). */
void sl_plan_json(struct sl_json *json, const struct sl_plan *plan);

#endif
