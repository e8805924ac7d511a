/*
 * libsluice: use models that a sluice daemon of this machine keeps in shared memory.
 *
 *     struct sluice_error error;
 *     struct sluice_model *model;
 *     const struct sluice_attach_options options = {.size = sizeof(options), .model = "gpt-j-6b"};
 *     if (sluice_attach(&options, &model, &error) < 0)
 *         …error.message
 *     struct sluice_tensor tensor = {.size = sizeof(tensor)};
 *     sluice_find(model, "lm_head.weight", &tensor, &error);
 *     sluice_wait(model, tensor.number, -1, -1, &error);
 *     …tensor.data, tensor.bytes
 *     sluice_detach(model);
 *
 * It needs libc and nothing else; the protocol is written down in docs/pool-protocol.md. A model
 * can be attached to while it is still being loaded: sluice_wait() returns as soon as a tensor is
 * in place and checked. The memory is shared and read-only.
 *
 * Memory of a GPU is had in the same way, with .device = "cuda:0": NVIDIA's driver is opened at run
 * time then, and a process that names no GPU never touches it. The GPU's primary context, which
 * CUDA's runtime uses too, is retained until sluice_detach(); whichever context a caller has
 * current stays so. Call it first after a fork(), as everything of CUDA.
 *
 * Functions return 0, or -1 with an error; error may be NULL. A struct whose first member is `size`
 * is set to its own sizeof by the caller: members are only ever added at its end. Different models
 * and deposits may be used by different threads at once; of one model, everything but
 * sluice_detach() may be called by several threads at once. Nothing here raises signals or prints.
 */
#ifndef SL_SLUICE_H
#define SL_SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

/** What failed; the numbers are the program's exit codes. */
enum sluice_error_kind {
    SLUICE_INTERNAL = 1,
    SLUICE_USAGE = 2,
    SLUICE_AUTH = 3,
    SLUICE_NOT_FOUND = 4,
    SLUICE_INTEGRITY = 5,
    SLUICE_NO_SPACE = 6,
    SLUICE_NETWORK = 7, /* also: the daemon is not there, or has gone */
    SLUICE_TIMEOUT = 8,
    SLUICE_GPU = 9,
    SLUICE_FORMAT = 10,
    SLUICE_CANCELED = 11,
};
struct sluice_error {
    int32_t kind;
    char code[32];     /* "exists", "busy", "stale" of deposits …, or "" */
    char message[732]; /* one line */
};

/** "0.1.0"; borrowed for ever. */
SLUICE_API const char *sluice_version(void);

/* ---- attach ---------------------------------------------------------------------------------- */

struct sluice_model;

enum {
    SLUICE_PRESENT_ONLY = 1, /* do not begin a load */
    SLUICE_PRIVATE = 2,      /* the memory may be written: what is written is copied, page by page,
                                and seen by nobody else */
    SLUICE_KEEP_FDS = 4,     /* keep the slabs' descriptors, for sluice_slab() */
    SLUICE_REGISTER = 8,     /* of memory of the host: pin it, read-only, with the driver of the GPU
                                whose context is current, else of the first one, so that copies to
                                any GPU are asynchronous and as fast as the link. Costs time for
                                each GiB, and memory that cannot be moved. Not with
                                SLUICE_PRIVATE */
};
struct sluice_attach_options {
    size_t size;
    const char *model;  /* its name in the pool, or a URI that the daemon allows */
    const char *socket; /* NULL: $SLUICE_POOL_SOCKET, else /run/sluice/pool.sock */
    const char *key;    /* of a derived model; NULL: the model as it was loaded */
    const char *device; /* NULL: "host"; "cuda:0": a GPU, as this process counts them */
    const char *client; /* who asks, for people; NULL: the program's name */
    uint32_t flags;
    int32_t timeout_ms; /* until the daemon knows what is in the model; 0 or less: no limit */
    int32_t cancel_fd;  /* becomes readable: SLUICE_CANCELED; 0 or less: none */
};
/** Blocks until the daemon has read the model's index. The lease lasts until sluice_detach().
 * SLUICE_GPU: no driver, no such GPU, the model is on another one, or the driver fails. */
SLUICE_API int sluice_attach(const struct sluice_attach_options *options,
                             struct sluice_model **model, struct sluice_error *error);
/** Unmap everything and end the lease; NULL is fine. What tensors pointed to is gone. */
SLUICE_API void sluice_detach(struct sluice_model *model);

struct sluice_model_info {
    size_t size;
    const char *name, *key; /* borrowed from the model */
    uint8_t identity[32];   /* equal for equal bytes in equal places */
    uint64_t tensor_count;  /* data files included */
    uint64_t ready_count;
    uint64_t bytes, slab_count;
    int32_t state;  /* 0 loading, 1 ready, 2 failed */
    int32_t device; /* of its tensors: the GPU's ordinal in this process; -1: the host */
};
SLUICE_API void sluice_model_info(const struct sluice_model *model, struct sluice_model_info *info);

enum { SLUICE_KIND_TENSOR = 1, SLUICE_KIND_FILE = 2 };
struct sluice_tensor {
    size_t size;
    uint64_t number;  /* below tensor_count */
    const char *name; /* borrowed from the model; may hold any byte, a NUL ends it */
    uint64_t name_bytes;
    const char *dtype;                /* "BF16"; "" of files */
    const uint64_t *shape;            /* rank numbers */
    const uint64_t *strides;          /* rank numbers, in elements; NULL: row by row */
    uint32_t rank;                    /* 1 for files: their bytes */
    uint32_t kind;                    /* a tensor, or a data file such as config.json */
    uint8_t dlpack_code, dlpack_bits; /* DLDataType; bits 0: DLPack has no such type */
    uint16_t dlpack_lanes;
    uint32_t block_elements, block_bytes; /* of quantised types; 1 element, else. 0: an element is
                                             less than a byte */
    uint32_t slab;
    uint64_t offset; /* in its slab: a multiple of 256 */
    uint64_t bytes;
    const void *data; /* NULL if it has no bytes. Not to be read before it is ready. On a GPU it is
                         a device pointer: for kernels and copies on any stream, as soon as it is
                         ready; a write is an error of the GPU, which ends the context */
    int32_t device;   /* the GPU's ordinal in this process; -1: the host, as data files always */
};
SLUICE_API int sluice_tensor_at(const struct sluice_model *model, uint64_t number,
                                struct sluice_tensor *tensor, struct sluice_error *error);
/** By name. SLUICE_NOT_FOUND. */
SLUICE_API int sluice_find(struct sluice_model *model, const char *name,
                           struct sluice_tensor *tensor, struct sluice_error *error);
/** 1: it can be read. 0: not yet. -1: it will never be. Never blocks. */
SLUICE_API int sluice_ready(const struct sluice_model *model, uint64_t number);
/**
 * Block until it can be read: -1 with the load's own error if it failed, SLUICE_NETWORK if the
 * daemon has gone before, SLUICE_TIMEOUT (timeout_ms negative: no limit), SLUICE_CANCELED within a
 * tenth of a second after cancel_fd (-1: none) became readable.
 */
SLUICE_API int sluice_wait(const struct sluice_model *model, uint64_t number, int timeout_ms,
                           int cancel_fd, struct sluice_error *error);
/** The same for all of it. */
SLUICE_API int sluice_wait_all(const struct sluice_model *model, int timeout_ms, int cancel_fd,
                               struct sluice_error *error);

/** A slab: to register it with a driver in a way of one's own, say; on a GPU a device pointer. fd
 * is -1 without SLUICE_KEEP_FDS; both are the model's. */
SLUICE_API int sluice_slab(const struct sluice_model *model, uint64_t number, const void **data,
                           uint64_t *bytes, int *fd, struct sluice_error *error);
/** The descriptor whose closing ends the lease: for who hands the lease on to another program. */
SLUICE_API int sluice_lease_fd(const struct sluice_model *model);

/* ---- deposit --------------------------------------------------------------------------------- */

/** A derived model in the making: tensors that were made from a model of the pool, published under
 * a key that says how. For one thread at a time. */
struct sluice_deposit;
struct sluice_deposit_options {
    size_t size;
    const char *model; /* that it was made from */
    const char *key;   /* everything that must be equal for the tensors to be of use */
    const char *socket, *device, *client;
    uint8_t identity[32]; /* of the model that it was made from: sluice_model_info */
    uint64_t bytes;       /* of all tensors, at most; each is rounded up to 256. On a GPU so much is
                             taken at once, rounded up to what its memory comes in (2 MiB) */
    int32_t timeout_ms;
    int32_t cancel_fd;
};
/**
 * Ask for room. SLUICE_INTEGRITY with code "stale" if the source has changed, "exists" if there is
 * one with this key (attach to it), "busy" if somebody else is depositing it.
 */
SLUICE_API int sluice_deposit_begin(const struct sluice_deposit_options *options,
                                    struct sluice_deposit **deposit, struct sluice_error *error);
/**
 * Room for a tensor: *data has `bytes` writable bytes, 256-byte aligned, until the commit, and
 * readable ones from then on until sluice_deposit_end(). On the host they are zeroed; on a GPU it
 * is a device pointer to who knows what. strides may be NULL.
 */
SLUICE_API int sluice_deposit_add(struct sluice_deposit *deposit, const char *name,
                                  const char *dtype, uint32_t rank, const uint64_t *shape,
                                  const uint64_t *strides, uint64_t bytes, void **data,
                                  struct sluice_error *error);
/** Where its memory is: the GPU's ordinal in this process; -1: the host. */
SLUICE_API int sluice_deposit_device(const struct sluice_deposit *deposit);
/**
 * Seal what was written and publish it: others can attach when this returns. On a GPU it waits for
 * everything that was enqueued before, and the tensors are mapped read-only from then on, here and
 * by who attaches with this library; nothing keeps another program from writing to them.
 */
SLUICE_API int sluice_deposit_commit(struct sluice_deposit *deposit, struct sluice_error *error);
/** Withdraw what was not committed; the memory stays until sluice_deposit_end(). */
SLUICE_API void sluice_deposit_abort(struct sluice_deposit *deposit);
/** Free everything; what was not committed is dropped. NULL is fine. */
SLUICE_API void sluice_deposit_end(struct sluice_deposit *deposit);

/* ---- for people ------------------------------------------------------------------------------ */

struct sluice_row {
    size_t size;
    const char *name, *key, *device, *memory, *error; /* borrowed for the call */
    int32_t state; /* 0 loading, 1 ready, 2 failed, 3 not in memory */
    int32_t pinned;
    uint32_t tensor_count, ready_count, slab_count, lease_count;
    uint64_t bytes, bytes_done, age_seconds;
    uint64_t idle_seconds; /* UINT64_MAX: never used */
    uint8_t identity[32];
    int64_t owner; /* of a derived model: the user who deposited it; else -1 */
};
struct sluice_holder {
    size_t size;
    uint64_t lease, age_ms;
    int32_t pid;
    uint32_t uid, gid;
    const char *name; /* borrowed for the call */
};
/** Every model of a pool; each() returns other than 0 to stop. */
SLUICE_API int sluice_list(const char *socket, int (*each)(void *arg, const struct sluice_row *row),
                           void *arg, struct sluice_error *error);
/** One model and who holds it; either callback may be NULL. */
SLUICE_API int sluice_stat(const char *socket, const char *model, const char *key,
                           int (*row)(void *arg, const struct sluice_row *row),
                           int (*holder)(void *arg, const struct sluice_holder *holder), void *arg,
                           struct sluice_error *error);
/** Take a model that nobody holds out of memory; *bytes (may be NULL): what it had. */
SLUICE_API int sluice_evict(const char *socket, const char *model, const char *key, uint64_t *bytes,
                            struct sluice_error *error);

#ifdef __cplusplus
}
#endif

#endif
