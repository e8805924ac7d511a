/*
 * sluice for other programs: open models wherever they are, read all or parts of their tensors,
 * write new ones; and use models that a daemon of this machine keeps in shared memory.
 *
 *     struct sluice_error error;
 *     struct sluice_source *source;
 *     struct sluice_tensor tensor = {.size = sizeof(tensor)};
 *     if (sluice_open("s3://models/gpt-j-6b/", NULL, &source, &error) < 0 ||
 *         sluice_source_find(source, "lm_head.weight", 0, &tensor, &error) < 0)
 *         …error.message
 *     struct sluice_read read = {.size = sizeof(read), .number = tensor.number,
 *                                .to = memory, .bytes = tensor.bytes};
 *     if (sluice_read(source, &read, 1, NULL, &error) < 0)
 *         …
 *     sluice_close(source);
 *
 * Two libraries have this header. libsluice.so has all of it, and sluice_edit.h, which changes
 * files where they lie. libsluice-attach.so needs libc and nothing else, and has what stands
 * between "attach" and "open" below, and sluice_version(); programs link with one of the two.
 *
 * The protocol of attaching is in docs/pool-protocol.md. A model can be attached to while it is
 * being loaded: sluice_wait() returns as soon as a tensor is in place and checked. The memory is
 * shared and read-only.
 *
 * Memory of a GPU is had in the same way, with .device = "cuda:0": NVIDIA's driver is opened at run
 * time then, and a process that names no GPU never touches it. The GPU's primary context, which
 * CUDA's runtime uses too, is retained until sluice_detach(); whichever context a caller has
 * current stays so. Call it first after a fork(), as everything of CUDA. sluice_detach() and
 * sluice_deposit_end() wait for work of that context, and of the one that their thread has, before
 * they unmap what it may read; work in other contexts must have ended before.
 *
 * Functions return 0, or -1 with an error; error may be NULL. A struct whose first member is `size`
 * is set to its own sizeof by the caller: members are only ever added at its end. SLUICE_USAGE: the
 * size is that of none, or `flags` has one that the library does not know. A cancel_fd is a
 * descriptor that becomes readable: SLUICE_CANCELED; 0 or less is none, everywhere. In options a
 * timeout_ms of 0 or less means no limit; as an argument a negative one means that, and 0 means not
 * to wait. C++ has sluice_read_t and sluice_dlpack_t, whose structs share their names with
 * functions. Different models, deposits, sources and writers may be used by different threads at
 * once; of one model or source, all but sluice_detach() and sluice_close() may be. Nothing here
 * raises signals or prints.
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
    char code[32];     /* "exists", "busy", "stale" of deposits …, or ""; ends with a NUL */
    char message[732]; /* one line */
};

/** "0.1.0"; borrowed for ever. */
SLUICE_API const char *sluice_version(void);

/* ---- attach ---------------------------------------------------------------------------------- */

struct sluice_model;

enum {
    SLUICE_PRESENT_ONLY = 1, /* do not begin a load */
    SLUICE_PRIVATE = 2,      /* the memory may be written, each tensor after sluice_wait(): what is
                                written is copied, page by page, and seen by nobody else */
    SLUICE_KEEP_FDS = 4,     /* keep the slabs' descriptors, for sluice_slab() */
    SLUICE_REGISTER = 8,     /* of memory of the host: pin it, read-only, with the driver of the GPU
                                whose context is current, else of the first one, so that copies to
                                any GPU are asynchronous and as fast as the link. Costs time for
                                each GiB, and memory that cannot be moved. Not with
                                SLUICE_PRIVATE. Many drivers refuse: sluice_model_info() says so
                                then (unpinned), and sluice_copy() is the way */
};
struct sluice_attach_options {
    size_t size;
    const char *model;  /* its name in the pool, or a URI that the daemon allows */
    const char *socket; /* NULL: $SLUICE_POOL_SOCKET, else /run/sluice/pool.sock */
    const char *key;    /* of a derived model; NULL: the model as it was loaded */
    const char *device; /* NULL: "host"; a GPU's name, as of sluice_device() */
    const char *client; /* who asks, for people; NULL: the program's name */
    uint32_t flags;
    int32_t timeout_ms; /* until the daemon knows what is in the model, its start included where
                           nobody listens at the socket yet; 0 or less: no limit, but then a daemon
                           that is not there is an error at once */
    int32_t cancel_fd;
};
/**
 * Blocks until the daemon has read the model's index. Texts of the options are borrowed for the
 * call. *model is the caller's until sluice_detach(), and the lease lasts as long. Errors:
 * SLUICE_USAGE (names that are too long, flags that do not go together), SLUICE_AUTH (the socket's
 * mode), SLUICE_NETWORK, SLUICE_TIMEOUT, SLUICE_CANCELED; SLUICE_GPU: no driver, no such GPU, the
 * model is on another one, or the driver fails; SLUICE_NO_SPACE: no memory, addresses or
 * descriptors left; SLUICE_INTEGRITY, SLUICE_FORMAT, SLUICE_INTERNAL: the daemon's answer is not to
 * be trusted; and the daemon's own, such as SLUICE_NOT_FOUND, or those of a load that fails.
 */
SLUICE_API int sluice_attach(const struct sluice_attach_options *options,
                             struct sluice_model **model, struct sluice_error *error);
/** Unmap everything and end the lease; NULL is fine. What tensors pointed to is gone. With several
 * owners (sluice_hold(), sluice_dlpack()) the last call does it. */
SLUICE_API void sluice_detach(struct sluice_model *model);
/** One more owner, who calls sluice_detach() once more. Any thread. */
SLUICE_API void sluice_hold(struct sluice_model *model);

struct sluice_model_info {
    size_t size;
    const char *name, *key; /* borrowed from the model */
    uint8_t identity[32];   /* equal for equal bytes in equal places */
    uint64_t tensor_count;  /* data files included */
    uint64_t ready_count;
    uint64_t bytes, slab_count;
    int32_t state;  /* 0 loading, 1 ready, 2 failed */
    int32_t device; /* of its tensors: the GPU's ordinal in this process; -1: the host */
    uint64_t meta_count;
    const char *unpinned; /* SLUICE_REGISTER was asked for and the memory is not pinned: why, in one
                             line; NULL else. Borrowed from the model */
};
/** As it is now; never blocks. bytes: of all slabs. */
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
    /* Of opened models (sluice_source_tensor()), and of those that are written: */
    const char *file; /* a local file whose bytes from offset on these are; NULL: there is none */
    uint32_t object;  /* which of the source's objects it is in */
    uint32_t role;    /* of .tensors files: enum sluice_role */
    uint32_t module;  /* of .tensors files: the module's number */
    uint32_t path_count;     /* parts of its name: sluice_source_path() */
    int32_t encrypted, meta; /* 1: it is; a meta tensor has no data, and reads as zeros */
    int32_t refused; /* enum sluice_error_kind: listed, but reading it fails so; 0: readable */
    const char *refused_why; /* "" if it is readable */
};
enum sluice_role { SLUICE_ROLE_ENTRY, SLUICE_ROLE_PARAMETER, SLUICE_ROLE_BUFFER };
/** By number, 0 to tensor_count less one: SLUICE_USAGE beyond. Never blocks. Pointers in it are the
 * model's, until it is detached from. */
SLUICE_API int sluice_tensor_at(const struct sluice_model *model, uint64_t number,
                                struct sluice_tensor *tensor, struct sluice_error *error);
/** By name. SLUICE_NOT_FOUND; SLUICE_NO_SPACE: the first call sorts the names and found no memory
 * for that. */
SLUICE_API int sluice_find(struct sluice_model *model, const char *name,
                           struct sluice_tensor *tensor, struct sluice_error *error);
/**
 * What the model's files say of themselves, such as the "format" of safetensors: pairs of texts, 0
 * to meta_count (sluice_model_info) less one, borrowed from the model. A text may hold any byte; a
 * NUL ends it, which its bytes do not count. Beyond: SLUICE_USAGE. Never blocks.
 */
struct sluice_meta {
    size_t size;
    const char *key, *value;
    uint64_t key_bytes, value_bytes;
};
SLUICE_API int sluice_meta_at(const struct sluice_model *model, uint64_t number,
                              struct sluice_meta *meta, struct sluice_error *error);
/** 1: it can be read. 0: not yet. -1: it will never be. Never blocks. */
SLUICE_API int sluice_ready(const struct sluice_model *model, uint64_t number);
/**
 * Block until a tensor can be read.
 *
 * @number      of the tensor.
 * @timeout_ms  negative: no limit; else SLUICE_TIMEOUT.
 * @cancel_fd   SLUICE_CANCELED within a tenth of a second after it became readable.
 * @return      0, or -1 with the load's own error if it failed, SLUICE_NETWORK if the daemon has
 *              gone before, SLUICE_USAGE if there is no such tensor, SLUICE_NO_SPACE of a first
 *              call with SLUICE_PRIVATE that found no memory.
 */
SLUICE_API int sluice_wait(const struct sluice_model *model, uint64_t number, int timeout_ms,
                           int cancel_fd, struct sluice_error *error);
/** As sluice_wait(), where a model that was attached to with SLUICE_PRIVATE will not be written
 * there: sluice_wait() also waits for what lies on the same pages, which a write would hide. */
SLUICE_API int sluice_wait_read(const struct sluice_model *model, uint64_t number, int timeout_ms,
                                int cancel_fd, struct sluice_error *error);
/** As sluice_wait(), for all of the model. */
SLUICE_API int sluice_wait_all(const struct sluice_model *model, int timeout_ms, int cancel_fd,
                               struct sluice_error *error);

/**
 * Tell where a slab is: to register it with a driver, say. Never blocks.
 *
 * @number  0 to slab_count less one; SLUICE_USAGE beyond.
 * @data    out: its memory, the model's; on a GPU a device pointer.
 * @bytes   out: its length.
 * @fd      out: its descriptor, the model's; -1 without SLUICE_KEEP_FDS.
 */
SLUICE_API int sluice_slab(const struct sluice_model *model, uint64_t number, const void **data,
                           uint64_t *bytes, int *fd, struct sluice_error *error);
/**
 * Copy bytes of a model on the host, attached to with SLUICE_REGISTER, to a GPU.
 *
 * @to      a device pointer.
 * @from    `bytes` bytes in the model's memory, ready.
 * @stream  a CUstream (NULL: the default one) of the context that is current, else of the primary
 *          one of the GPU that SLUICE_REGISTER took.
 * @return  0, or -1: SLUICE_USAGE (not in its memory), SLUICE_GPU, SLUICE_NO_SPACE.
 *
 * Pinned memory is copied by the driver alone. Other memory goes through pinned pieces of this
 * call's own, one being written while the other is copied: several threads are several times as
 * fast. It returns when the last copy has begun; the memory stays until sluice_detach(), which
 * waits for it. Any thread.
 */
SLUICE_API int sluice_copy(struct sluice_model *model, uint64_t to, const void *from,
                           uint64_t bytes, void *stream, struct sluice_error *error);
/** The number, as this process counts, of the GPU with this name: "cuda:1", or a UUID as nvidia-smi
 * prints it. SLUICE_USAGE: it is not such a name; SLUICE_GPU. Any thread; asks the driver. */
SLUICE_API int sluice_device(const char *name, int32_t *ordinal, struct sluice_error *error);
/** The model's descriptor whose closing ends the lease: for who hands a copy (dup()) on. */
SLUICE_API int sluice_lease_fd(const struct sluice_model *model);

/* ---- deposit --------------------------------------------------------------------------------- */

/** A derived model in the making: tensors that were made from a model of the pool, published under
 * a key that says how. For one thread at a time; not after a fork(): SLUICE_USAGE, "forked". */
struct sluice_deposit;
struct sluice_deposit_options {
    size_t size;
    const char *model; /* that it was made from */
    const char *key;   /* everything that must be equal for the tensors to be of use */
    const char *socket, *device, *client;
    uint8_t identity[32]; /* of the model that it was made from: sluice_model_info */
    uint64_t bytes;       /* of all tensors, at most; each is rounded up to 256. On a GPU so much is
                             taken at once, rounded up to what its memory comes in (2 MiB) */
    int32_t timeout_ms;   /* from sluice_deposit_begin() to the end of the commit, the time of the
                             writing included; 0 or less: no limit */
    int32_t cancel_fd;    /* as of sluice_attach(); open until the deposit ends */
};
/**
 * Ask for room. SLUICE_INTEGRITY with code "stale" if the source has changed, "exists" if there is
 * one with this key (attach to it), "busy" if somebody else is depositing it; otherwise errors are
 * those of sluice_attach(), and SLUICE_USAGE is a key that is missing, too. Blocks until the daemon
 * has answered. Texts are borrowed; *deposit is the caller's until sluice_deposit_end().
 */
SLUICE_API int sluice_deposit_begin(const struct sluice_deposit_options *options,
                                    struct sluice_deposit **deposit, struct sluice_error *error);
/**
 * Make room for a tensor. Does not ask the daemon.
 *
 * @name     copied, as are dtype, shape and strides.
 * @shape    `rank` sizes.
 * @strides  `rank` of them, in elements; NULL: row by row.
 * @bytes    of the tensor, as type and shape give them.
 * @data     out: so many writable bytes, 256-byte aligned, until the commit, and readable ones
 *           from then on until sluice_deposit_end(). On the host they are zeroed; on a GPU it is a
 *           device pointer to who knows what; NULL where bytes is 0.
 * @return   0, or -1: SLUICE_USAGE: the deposit is over, or a type or shape that does not give
 *           these bytes; SLUICE_NO_SPACE: more than was announced, or no memory; SLUICE_GPU.
 */
SLUICE_API int sluice_deposit_add(struct sluice_deposit *deposit, const char *name,
                                  const char *dtype, uint32_t rank, const uint64_t *shape,
                                  const uint64_t *strides, uint64_t bytes, void **data,
                                  struct sluice_error *error);
/** Where its memory is: the GPU's ordinal in this process; -1: the host. */
SLUICE_API int sluice_deposit_device(const struct sluice_deposit *deposit);
/**
 * Seal what was written and publish it: others can attach when this returns. On a GPU it waits for
 * work as sluice_detach() does, and the tensors are mapped read-only from then on, here and by who
 * attaches with this library; nothing keeps another program from writing to them. Blocks until the
 * daemon has checked it. After any error the deposit is over; SLUICE_TIMEOUT and SLUICE_CANCELED
 * are of the options' limits, SLUICE_NETWORK is a daemon that has gone.
 */
SLUICE_API int sluice_deposit_commit(struct sluice_deposit *deposit, struct sluice_error *error);
/** What was not committed is withdrawn. The memory stays until sluice_deposit_end(). */
SLUICE_API void sluice_deposit_abort(struct sluice_deposit *deposit);
/** Free everything; what was not committed is dropped. NULL is fine. Memory that sluice_dlpack()
 * gave to consumers stays until the last of them is done. */
SLUICE_API void sluice_deposit_end(struct sluice_deposit *deposit);

/* ---- memory ---------------------------------------------------------------------------------- */

/** Memory with owners: what sluice_map() gives, and room to read tensors into that consumers of
 * DLPack may keep. Its members are read, never written; data is NULL if it has no bytes. */
struct sluice_memory {
    void *data;
    uint64_t bytes;
};
/** Zeroed, page-aligned memory of this process. SLUICE_NO_SPACE. */
SLUICE_API int sluice_memory_new(uint64_t bytes, struct sluice_memory **memory,
                                 struct sluice_error *error);
/** One more owner, who calls sluice_unmap() once more. Any thread. */
SLUICE_API void sluice_memory_hold(struct sluice_memory *memory);
/** The last owner's call gives it back; NULL is fine. Any thread, also after sluice_close(). */
SLUICE_API void sluice_unmap(struct sluice_memory *memory);

/* ---- DLPack ---------------------------------------------------------------------------------- */

enum { SLUICE_DLPACK_READ_ONLY = 1, SLUICE_DLPACK_VERSIONED = 2 /* version 1.0 of its structs */ };
struct sluice_dlpack {
    size_t size;
    struct sluice_model
        *model; /* at most one of these, and of memory: whose it is. It gets one more owner */
    struct sluice_deposit *deposit; /* until the consumer has called the deleter */
    void *data;
    int32_t device_type, device_id; /* DLDevice */
    uint8_t code, bits;             /* DLDataType */
    uint16_t lanes;
    uint32_t rank, flags;
    const int64_t *shape, *strides; /* rank numbers each, strides in elements; copied */
    struct sluice_memory *memory;   /* the third that it may be of; data is in it */
};
/**
 * A DLManagedTensor, or a DLManagedTensorVersioned, for the consumer, who calls its deleter once,
 * from any thread and at any time until the process ends. NULL: SLUICE_USAGE, SLUICE_NO_SPACE.
 * Never blocks. The structs are DLPack's: github.com/dmlc/dlpack, dlpack.h of version 1.0.
 */
SLUICE_API void *sluice_dlpack(const struct sluice_dlpack *tensor, struct sluice_error *error);
/** CPython's functions of these names (docs.python.org/3/c-api/capsule.html), which libsluice is
 * not linked to. They are the same for all interpreters of a process, and kept. */
struct sluice_python {
    void *(*capsule_new)(void *pointer, const char *name, void (*destructor)(void *capsule));
    int (*capsule_is_valid)(void *capsule, const char *name);
    void *(*capsule_get_pointer)(void *capsule, const char *name);
};
/** The same in a new capsule, as `__dlpack__()` gives it; the caller is an attached thread (holds
 * the GIL). NULL with an error of ours, or with Python's own where it could make none. */
SLUICE_API void *sluice_python_capsule(const struct sluice_python *functions,
                                       const struct sluice_dlpack *tensor,
                                       struct sluice_error *error);

/* ---- for people ------------------------------------------------------------------------------ */

/* Each of the three connects anew (socket NULL: as in sluice_attach_options) and blocks for at most
 * 30 seconds: SLUICE_TIMEOUT. SLUICE_NETWORK, SLUICE_AUTH: of the socket; SLUICE_USAGE: of the
 * names; SLUICE_INTERNAL: an answer that cannot be read; and the daemon's own. Any thread. */

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
/**
 * Tell every model of a pool.
 *
 * @socket  as of struct sluice_attach_options.
 * @each    gets one row after another, with `arg`; other than 0 stops.
 */
SLUICE_API int sluice_list(const char *socket, int (*each)(void *arg, const struct sluice_row *row),
                           void *arg, struct sluice_error *error);
/**
 * Tell one model, and who holds it.
 *
 * @socket  as of struct sluice_attach_options.
 * @key     of a derived model; NULL: as it was loaded.
 * @row     gets the model, with `arg`; may be NULL. Other than 0 stops.
 * @holder  gets one holder after another; may be NULL.
 * @return  0, or -1 with SLUICE_NOT_FOUND, too.
 */
SLUICE_API int sluice_stat(const char *socket, const char *model, const char *key,
                           int (*row)(void *arg, const struct sluice_row *row),
                           int (*holder)(void *arg, const struct sluice_holder *holder), void *arg,
                           struct sluice_error *error);
/**
 * Take a model that nobody holds out of memory.
 *
 * @key    of a derived model; NULL: as it was loaded.
 * @bytes  out: what it had; may be NULL.
 */
SLUICE_API int sluice_evict(const char *socket, const char *model, const char *key, uint64_t *bytes,
                            struct sluice_error *error);

/* ---- open ------------------------------------------------------------------------------------ */

/** A model that was opened: names, types, shapes and places are known, tensors are not read. */
struct sluice_source;

/* Callbacks run on the thread that called or on one of the library's, one at a time for each call,
 * and must not call back with the same source or writer. What they return: 0 goes on; anything
 * else ends the call with SLUICE_CANCELED. */
typedef int (*sluice_progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total);

enum sluice_verify {
    SLUICE_VERIFY_DEFAULT, /* as the spec says, else the cheapest hash that covers every byte */
    SLUICE_VERIFY_REQUIRE, /* the same, and what has no hash is refused */
    SLUICE_VERIFY_OFF,     /* hashes are not looked at; MACs of encrypted tensors always are */
    SLUICE_VERIFY_ALL,     /* every hash that is there */
};
/** A key for encrypted .tensors files: 32 bytes, or a passphrase. Copied, and wiped in the end. */
struct sluice_key {
    size_t size;
    const void *key; /* 32 bytes; NULL: the passphrase counts */
    const void *passphrase;
    uint64_t passphrase_bytes;
    /* How a passphrase makes a key, for what is written; a file that is read says it itself. */
    uint64_t opslimit; /* passes of Argon2id, 1 to 16; 0: 3 */
    uint64_t memlimit; /* bytes of memory, 8 KiB to 2 GiB; 0: 256 MiB */
    const void *salt;  /* 16 bytes; NULL: random ones for each file */
};
/** The 32 bytes that a passphrase and a salt make; derived is the caller's to wipe. Any thread;
 * blocks. SLUICE_USAGE: no passphrase, no salt, limits out of their range. SLUICE_NO_SPACE. */
SLUICE_API int sluice_key_derive(const struct sluice_key *key, uint8_t derived[32],
                                 struct sluice_error *error);
enum {
    SLUICE_AS_FILES = 1, /* objects are not looked into: each is one SLUICE_KIND_FILE */
    SLUICE_WHOLE = 2, /* all of it will be read, and soon: of objects that are read in many places
                         to open them, as a .tensors file is, up to 128 MiB come at once, in few
                         requests, and are kept until sluice_source_forget() or sluice_close() */
};
struct sluice_open_options {
    size_t size;
    const char *spec; /* YAML: what a model's spec (docs/reference/spec.md) may say beside its URI,
                         such as "source: {s3: {endpoint: …}}\ntensors: {cast: {F32: BF16}}\n".
                         Credentials are found as the program finds them, unless it says so */
    const struct sluice_key *key; /* NULL: as the spec says; without one it is only listed */
    uint32_t verify;              /* enum sluice_verify */
    uint32_t flags;
    int32_t timeout_ms; /* of sluice_open() alone; 0 or less: no limit */
    int32_t cancel_fd;
    sluice_progress progress; /* of sluice_open() and sluice_pull(): ten times a second */
    void *arg;                /* of progress */
};
/**
 * Open a model by its URI, a path, or a folder of several objects. Asks the store for versions and
 * reads headers, nothing else. Blocks.
 *
 * @options  may be NULL; what it points to is borrowed for the call.
 * @source   out: the caller's until sluice_close(). Every later read is of this version,
 *           SLUICE_INTEGRITY (code "changed") if the object is another one by then.
 * @return   0, or -1 with errors of the program (docs/reference/errors.md), any but SLUICE_GPU.
 */
SLUICE_API int sluice_open(const char *uri, const struct sluice_open_options *options,
                           struct sluice_source **source, struct sluice_error *error);
/** The last owner's call gives everything back; NULL is fine. No other call may be going on. */
SLUICE_API void sluice_close(struct sluice_source *source);
/** One more owner, who calls sluice_close() once more. Any thread. */
SLUICE_API void sluice_source_hold(struct sluice_source *source);
/** Give back what SLUICE_WHOLE keeps; who reads it later asks the store. No other call may be going
 * on. */
SLUICE_API void sluice_source_forget(struct sluice_source *source);
/** Every call that reads from it, now or later, ends with SLUICE_CANCELED. Any thread. */
SLUICE_API void sluice_cancel(struct sluice_source *source);

struct sluice_source_info {
    size_t size;
    const char *uri;       /* without secrets; borrowed from the source, as all its texts */
    const char *format;    /* of its first object that has tensors: "safetensors"; else "" */
    uint64_t tensor_count; /* data files included, which come last */
    uint64_t meta_count, object_count;
    uint64_t bytes;       /* of all tensors and data files, as they are read */
    uint8_t identity[32]; /* equal for equal versions of equal objects */
    uint32_t format_version;
    int32_t encrypted;                /* 1: at least one tensor is */
    int32_t versioned;                /* 0: the store tells some object's versions not apart */
    uint64_t requests, bytes_fetched; /* so far, of this source: retries included */
    uint64_t value_count;             /* of sluice_source_value() */
};
/** Never blocks. */
SLUICE_API void sluice_source_info(const struct sluice_source *source,
                                   struct sluice_source_info *info);
/** By number, 0 to tensor_count less one: tensors in the order of the objects, then data files.
 * SLUICE_USAGE beyond. data is NULL; offset is its place in its object (0: its bytes do not lie
 * there as they are read), and `file` is set where that is a local file. Pointers in it are the
 * source's. Never blocks. */
SLUICE_API int sluice_source_tensor(const struct sluice_source *source, uint64_t number,
                                    struct sluice_tensor *tensor, struct sluice_error *error);
/**
 * Find a tensor by its name. Never blocks.
 *
 * @name        of the tensor: the first one, if several have it. Else SLUICE_NOT_FOUND.
 * @name_bytes  of the name; 0: up to its NUL.
 * @tensor      out: as of sluice_source_tensor().
 */
SLUICE_API int sluice_source_find(const struct sluice_source *source, const char *name,
                                  uint64_t name_bytes, struct sluice_tensor *tensor,
                                  struct sluice_error *error);
/** As sluice_meta_at(): 0 to meta_count less one. */
SLUICE_API int sluice_source_meta(const struct sluice_source *source, uint64_t number,
                                  struct sluice_meta *meta, struct sluice_error *error);
/** Types of values, as GGUF numbers them. */
enum sluice_value_type {
    SLUICE_VALUE_U8,
    SLUICE_VALUE_I8,
    SLUICE_VALUE_U16,
    SLUICE_VALUE_I16,
    SLUICE_VALUE_U32,
    SLUICE_VALUE_I32,
    SLUICE_VALUE_F32,
    SLUICE_VALUE_BOOL, /* a byte, 0 or 1 */
    SLUICE_VALUE_TEXT, /* any bytes, often UTF-8, without a NUL behind them */
    SLUICE_VALUE_ARRAY,
    SLUICE_VALUE_U64,
    SLUICE_VALUE_I64,
    SLUICE_VALUE_F64
};
/**
 * What the first object that has tensors says under one key: a text of safetensors' metadata, or a
 * value of GGUF of any type. Numbers are little-endian. The elements of an array follow each other:
 * numbers as they are; a text after its length, a u64; an array after the type of its elements, a
 * u32, and their number, a u64.
 */
struct sluice_value {
    size_t size;
    const char *key;             /* the source's, as data is; ends with a NUL */
    uint32_t type, element_type; /* enum sluice_value_type; element_type: of an array */
    uint64_t count;   /* elements of an array, which each take at least a byte of `bytes`; else 1 */
    uint64_t bytes;   /* of the value; at most 512 MiB */
    const void *data; /* so many bytes; NULL: too many to be kept, sluice_source_value_read() */
};
/** By number, 0 to value_count (sluice_source_info) less one, in the file's order. SLUICE_USAGE
 * beyond. Never blocks. */
SLUICE_API int sluice_source_value(const struct sluice_source *source, uint64_t number,
                                   struct sluice_value *value, struct sluice_error *error);
/**
 * Read all bytes of a value, also one that is kept.
 *
 * @to         so many bytes as sluice_source_value() says.
 * @cancel_fd  readable: SLUICE_CANCELED, and so is every later call that reads from the source; 0
 *             or less: none.
 * @return     0, or -1 with errors of the store; SLUICE_INTEGRITY, code "changed": of the object is
 *             another version there now.
 *
 * Blocks. Any thread; one at a time for a source.
 */
SLUICE_API int sluice_source_value_read(struct sluice_source *source, uint64_t number, void *to,
                                        int cancel_fd, struct sluice_error *error);
/** A hash that the file has of a tensor: over `prefix` and its plaintext. */
struct sluice_hash {
    size_t size;
    const char *kind; /* "crc32" (4 bytes, the highest first) or "sha256" */
    const uint8_t *value;
    uint32_t value_bytes;
    const uint8_t *prefix;
    uint64_t prefix_bytes;
};
/**
 * Tell a hash of a tensor. Never blocks.
 *
 * @number  of the tensor.
 * @which   from 0 on. SLUICE_NOT_FOUND: it has no so many.
 * @hash    out: its pointers are the source's.
 */
SLUICE_API int sluice_source_hash(const struct sluice_source *source, uint64_t number,
                                  uint32_t which, struct sluice_hash *hash,
                                  struct sluice_error *error);
/** One part of a tensor's name in .tensors files, which may be a list: text, or an index. */
struct sluice_path_part {
    size_t size;
    const char *text; /* NULL: index counts */
    uint64_t text_bytes, index;
};
/**
 * Tell one part of a tensor's name. Never blocks.
 *
 * @number  of the tensor.
 * @which   0 to tensor.path_count less one; else SLUICE_NOT_FOUND.
 * @part    out: its text is the source's.
 */
SLUICE_API int sluice_source_path(const struct sluice_source *source, uint64_t number,
                                  uint32_t which, struct sluice_path_part *part,
                                  struct sluice_error *error);

/* ---- read ------------------------------------------------------------------------------------ */

/** Elements start, start + step, … below stop, at most the dimension's size; step 0 is 1 */
struct sluice_range {
    uint64_t start, stop, step;
};
struct sluice_read {
    size_t size;                      /* equal for all of an array */
    uint64_t number;                  /* of a tensor or data file */
    const struct sluice_range *slice; /* one a dimension (tensor.rank); NULL: all of it */
    void *to;                         /* the caller's, written row by row, little-endian; best at a
                                         multiple of 64 bytes */
    uint64_t bytes;                   /* exactly what is read: see sluice_slice() */
};
/**
 * Tell what a slice has. Never blocks.
 *
 * @number  of the tensor.
 * @slice   a range for each dimension.
 * @shape   out: rank numbers; may be NULL.
 * @bytes   out: its length.
 * @return  0, or -1: SLUICE_USAGE: a range that leaves its dimension; SLUICE_FORMAT: it would part
 *          a byte or a block of its type.
 */
SLUICE_API int sluice_slice(const struct sluice_source *source, uint64_t number,
                            const struct sluice_range *slice, uint64_t *shape, uint64_t *bytes,
                            struct sluice_error *error);
struct sluice_read_options {
    size_t size;
    int32_t timeout_ms; /* 0 or less: no limit */
    int32_t cancel_fd;
    sluice_progress progress;
    /* reads[index] is whole, checked as below, and the caller's. In any order; each read once */
    int (*done)(void *arg, uint64_t index);
    void *arg;          /* of both */
    const char *device; /* a GPU's name (sluice_device()): `to` of each read is a device pointer
                           of its primary context, which nothing else uses meanwhile. NULL: host */
};
/**
 * Read many tensors, or parts of them, into the caller's memory: side by side over as many
 * connections as pay, ranges that lie together by one request, slow requests sent again, decrypted
 * and cast as the source was opened. Blocks.
 *
 * @reads    of any order; they may overlap in the source, but not in memory.
 * @count    of reads.
 * @options  may be NULL.
 * @return   0, or -1 with errors of any kind: then nothing in the memory is to be trusted but that
 *           of reads that were done() before.
 *
 * What is for a GPU is checked on the host first.
 *
 * What is checked: of a tensor that is read whole, what verify says. Of a slice no hash can be
 * told, since hashes are over whole tensors; but decryption checks every piece that it touches, and
 * where the object has a sidecar (docs/sidecars.md), whatever ranges of it are read whole are
 * checked. With SLUICE_VERIFY_REQUIRE a slice of what is neither is refused. Only the rows that a
 * slice takes are fetched, and gaps between them that cost less than a request.
 */
SLUICE_API int sluice_read(struct sluice_source *source, const struct sluice_read *reads,
                           size_t count, const struct sluice_read_options *options,
                           struct sluice_error *error);
/**
 * Give all of one tensor as memory that may be written and that nobody else sees.
 *
 * @number   of the tensor.
 * @options  as of sluice_read(), without done(); may be NULL.
 * @memory   out: the caller's until sluice_unmap().
 * @return   0, or -1 as sluice_read().
 *
 * Where its bytes lie in a local file as they are read (tensor.file), it is a mapping of the file,
 * copied page by page when written: nothing is read or checked, and a program that changes the
 * file in place changes what was not written to yet. Otherwise the tensor is read: also where the
 * file has a sidecar, or SLUICE_VERIFY_REQUIRE wants a hash.
 */
SLUICE_API int sluice_map(struct sluice_source *source, uint64_t number,
                          const struct sluice_read_options *options, struct sluice_memory **memory,
                          struct sluice_error *error);
/** All objects, or what the spec makes of them, into a directory. Blocks. As `sluice load`. */
SLUICE_API int sluice_pull(const char *uri, const char *directory,
                           const struct sluice_open_options *options, struct sluice_error *error);

/**
 * What calls of this process wait for while nothing is reached there: "cannot connect to …; try 3,
 * going on until 12:00:59", the last of the last ten seconds, cut to bytes - 1 (at least 1). Its
 * number, from 1 on; 0 and "" where there is none. For programs that show it to a person. Any
 * thread; does not block.
 */
SLUICE_API uint64_t sluice_waits_for(char *text, size_t bytes);

/* ---- write ----------------------------------------------------------------------------------- */

/** A new model in the making. For one thread at a time. */
struct sluice_writer;
enum {
    SLUICE_REPLACE = 1,   /* what is at the destination */
    SLUICE_BORROW = 2,    /* data of tensors stay where they are and unchanged until
                             sluice_finish(): nothing is copied. Else they are copied, into a
                             temporary file without a name ($TMPDIR, else /var/tmp) */
    SLUICE_BARE_HEAD = 4, /* safetensors: byte for byte what the reference writes; else data begin
                             at a multiple of 64, and a head without metadata says "format": "pt" */
};
struct sluice_create_options {
    size_t size;
    const char *format; /* "tensorizer" or "safetensors"; NULL: as the URI's end says */
    const char *spec;   /* YAML as of sluice_open(): "source" says how the store is reached */
    const struct sluice_meta *metadata; /* safetensors'; SLUICE_USAGE for tensorizer */
    uint64_t metadata_count;
    const struct sluice_key *key; /* encrypt; tensorizer only. NULL: plain */
    uint64_t shard_bytes;         /* safetensors in a folder: of one file; 0: one file */
    uint64_t align;               /* tensorizer: data begin at multiples of it, a power of two */
    uint32_t flags;
    int32_t timeout_ms; /* of sluice_finish(); 0 or less: no limit */
    int32_t cancel_fd;  /* of sluice_finish(), open until then */
    sluice_progress progress;
    void *arg;
};
/** Begin a model at a URI that `sluice convert` writes to; a '/' at the end is a folder. Nothing is
 * written there before sluice_finish(): both formats begin with what is known last. Texts are
 * copied, a relative path is of the current folder. SLUICE_USAGE, SLUICE_NO_SPACE,
 * SLUICE_NOT_FOUND. */
SLUICE_API int sluice_create(const char *uri, const struct sluice_create_options *options,
                             struct sluice_writer **writer, struct sluice_error *error);
/**
 * One more tensor, or data file (kind SLUICE_KIND_FILE; only into a folder). Of *tensor count name,
 * name_bytes (0: up to its NUL), dtype, rank, shape, data, bytes, role, module, and kind (0 is a
 * tensor); strides must be NULL: row by row. data NULL with bytes that are not 0 is a meta tensor,
 * which tensorizer writes as such and safetensors as zeros. In .tensors files they keep their
 * order. A row of F4 is half as many F4_E2M1FN_X2 there, and the other way round in safetensors.
 * SLUICE_USAGE: a type or shape that does not give these bytes; two of one name are told by
 * sluice_finish().
 */
SLUICE_API int sluice_write(struct sluice_writer *writer, const struct sluice_tensor *tensor,
                            struct sluice_error *error);
/**
 * Write one more tensor as sluice_write() does, with a name of parts. For .tensors files only.
 *
 * @tensor      its name is not looked at.
 * @parts       of the name, as of sluice_source_path(): copied.
 * @part_count  of parts.
 */
SLUICE_API int sluice_write_path(struct sluice_writer *writer, const struct sluice_tensor *tensor,
                                 const struct sluice_path_part *parts, uint32_t part_count,
                                 struct sluice_error *error);
/** Write it all, hashed, encrypted if there is a key, and make it visible at once: after an error
 * nothing appears at the destination. Blocks. The writer is gone, however it ends. Errors as of
 * `sluice convert`. */
SLUICE_API int sluice_finish(struct sluice_writer *writer, struct sluice_error *error);
/** The writer is gone, and nothing was written. NULL is fine. */
SLUICE_API void sluice_abandon(struct sluice_writer *writer);

#ifdef __cplusplus
using sluice_dlpack_t = struct sluice_dlpack; /* functions have these names, too */
using sluice_read_t = struct sluice_read;
}
#endif

#endif
