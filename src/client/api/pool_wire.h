/*
 * The pool's bytes: packets of the socket, the index, the progress page. Everything is little-
 * endian and naturally aligned, so these structs are the layouts; docs/pool-protocol.md describes
 * them for people who write in another language. Server and client share this header and nothing
 * else. It knows nothing but libc. Values alone: whoever has a packet, an index or a page says who
 * may touch it. Ages are in the units of their names, sizes in bytes.
 */
#ifndef SL_POOL_WIRE_H
#define SL_POOL_WIRE_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the pool's structs are written for little-endian machines"
#endif

#define SL_WIRE_SOCKET_PATH "/run/sluice/pool.sock" /* where a client looks if it is not told */

enum {
    SL_WIRE_VERSION = 1,
    SL_WIRE_PACKET_BYTES = 65536, /* largest packet, either way */
    SL_WIRE_FDS_MAX = 253,        /* of a packet: SCM_MAX_FD of the kernel */
    SL_WIRE_SLABS_MAX = 4096,     /* of a model */
    SL_WIRE_MODEL_BYTES = 1024,   /* longest model text: a name or a URI */
    SL_WIRE_KEY_BYTES = 4096,
    SL_WIRE_DEVICE_BYTES = 64,
    SL_WIRE_CLIENT_BYTES = 63, /* longest name of a client */
    SL_WIRE_CODE_BYTES = 32,
    SL_WIRE_TEXT_BYTES = 1024, /* longest message of an error */
    SL_WIRE_HOLDERS_MAX = 256, /* told of one model */
    SL_WIRE_ALIGN = 256,       /* tensors begin at multiples of this in their slab */
};
#define SL_WIRE_MAGIC 0x31504c53u /* "SLP1" */

/** An answer has the type of its request with this bit; an error is this bit alone. */
enum {
    SL_WIRE_ANSWER = 0x8000,
    SL_WIRE_ERROR = 0x8000,
};
enum sl_wire_type {
    SL_WIRE_HELLO = 1,
    SL_WIRE_ATTACH = 2,
    SL_WIRE_SLABS = 3, /* answers only: the rest of an attach's slabs */
    SL_WIRE_DETACH = 4,
    SL_WIRE_LIST = 5,
    SL_WIRE_STAT = 6,
    SL_WIRE_EVICT = 7,
    SL_WIRE_DEPOSIT = 8,
    SL_WIRE_DEPOSIT_SLABS = 9,
    SL_WIRE_COMMIT = 10,
    SL_WIRE_ABORT = 11,
};

/** Every packet begins so. */
struct sl_wire_head {
    uint32_t bytes;    /* of the whole packet, this included */
    uint16_t type;     /* enum sl_wire_type */
    uint16_t reserved; /* 0 */
    uint32_t serial;   /* chosen by the client, repeated in the answer */
    uint32_t zero;     /* 0 */
};

struct sl_wire_hello {
    struct sl_wire_head head;
    uint32_t magic;
    uint16_t version_min, version_max;
    uint32_t name_bytes;
    uint32_t reserved;
    /* name */
};
enum { SL_WIRE_MAY_ATTACH = 1, SL_WIRE_MAY_DEPOSIT = 2, SL_WIRE_MAY_EVICT = 4 };
struct sl_wire_welcome {
    struct sl_wire_head head;
    uint16_t version; /* that is spoken from now on */
    uint16_t leases_max;
    uint32_t rights; /* SL_WIRE_MAY_… */
    uint32_t name_bytes;
    uint32_t reserved;
    /* name: "sluice 0.1.0" */
};

enum {
    SL_WIRE_PRESENT_ONLY = 1, /* do not begin a load: an error if it is not in memory or loading */
};
struct sl_wire_attach {
    struct sl_wire_head head;
    uint32_t flags;
    uint32_t reserved2;
    uint16_t model_bytes, key_bytes, device_bytes, reserved;
    /* model, key, device */
};
/** Descriptors: index, progress page, the first slabs_here slabs. */
struct sl_wire_attached {
    struct sl_wire_head head;
    uint64_t lease;
    uint64_t index_bytes;
    uint64_t page_bytes;
    uint32_t tensor_count, slab_count;
    uint32_t slabs_here;
    uint32_t state; /* enum sl_wire_state when it was sent */
    uint8_t identity[32];
};
/** Descriptors: `count` slabs from `first` on. */
struct sl_wire_slabs {
    struct sl_wire_head head;
    uint64_t id; /* the lease; of a request: the deposit */
    uint32_t first, count;
};
/** Detach, abort; the answer to a deposit and to its slabs. */
struct sl_wire_id {
    struct sl_wire_head head;
    uint64_t id;
};
/** List: rows from number `id` on; the answer has the number to go on with, 0 at the end. */
struct sl_wire_listed {
    struct sl_wire_head head;
    uint64_t next;
    uint32_t count;
    uint32_t reserved;
    /* rows */
};
enum sl_wire_state {
    SL_WIRE_LOADING = 0,
    SL_WIRE_READY = 1,
    SL_WIRE_FAILED = 2,
    SL_WIRE_ABSENT = 3
};
enum { SL_WIRE_PINNED = 1, SL_WIRE_OWNED = 2 };
struct sl_wire_row {
    uint32_t bytes; /* of the row with its texts and padding to 8 */
    uint32_t state;
    uint32_t flags; /* SL_WIRE_PINNED, SL_WIRE_OWNED */
    uint32_t tensor_count, ready_count;
    uint32_t slab_count, lease_count;
    uint32_t owner; /* with SL_WIRE_OWNED: the user who deposited it */
    uint64_t memory_bytes, bytes_done;
    uint64_t age_seconds;  /* since it was made */
    uint64_t idle_seconds; /* since a lease began or ended; UINT64_MAX: none did */
    uint8_t identity[32];
    uint16_t name_bytes, key_bytes, device_bytes, memory_text_bytes;
    uint16_t error_bytes, reserved2, reserved3, reserved4;
    /* name, key, device, kind of memory, error */
};
/** Stat and evict. */
struct sl_wire_ask {
    struct sl_wire_head head;
    uint16_t model_bytes, key_bytes;
    uint32_t reserved;
    /* model, key */
};
struct sl_wire_stated {
    struct sl_wire_head head;
    uint32_t holder_count;
    uint32_t reserved;
    /* one sl_wire_row, then the holders */
};
struct sl_wire_holder {
    uint64_t lease;
    uint64_t age_ms;
    int32_t pid;
    uint32_t uid, gid;
    uint32_t name_bytes; /* at most SL_WIRE_CLIENT_BYTES */
    char name[64];
};
struct sl_wire_evicted {
    struct sl_wire_head head;
    uint64_t bytes;
};
struct sl_wire_deposit {
    struct sl_wire_head head;
    uint64_t bytes; /* of all slabs, at most */
    uint8_t identity[32];
    uint16_t model_bytes, key_bytes, device_bytes, reserved;
    /* model, key, device */
};
/** Descriptor: the index, a memfd that is sealed. */
struct sl_wire_commit {
    struct sl_wire_head head;
    uint64_t id;
    uint64_t index_bytes;
};
struct sl_wire_error {
    struct sl_wire_head head;
    uint32_t kind; /* the exit code of the error's kind: docs/reference/errors.md */
    uint32_t text_bytes;
    char code[SL_WIRE_CODE_BYTES]; /* NUL-padded; "exists", "busy", "" … */
    /* text */
};

/* ---- the index ------------------------------------------------------------------------------- */

#define SL_WIRE_INDEX_MAGIC 0x5849504c53ull /* "SLPIX" and three zeros */
enum {
    SL_WIRE_INDEX_VERSION = 1,
    SL_WIRE_INDEX_BYTES_MAX = 256 * 1024 * 1024,
    SL_WIRE_RANK_MAX = 64,
};
struct sl_wire_index {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes; /* of this struct: later versions append */
    uint64_t index_bytes;  /* of everything */
    uint32_t tensor_count, slab_count, meta_count, tensor_row_bytes;
    uint64_t slabs_at, tensors_at, metas_at, numbers_at, texts_at; /* from the index's begin */
    uint64_t number_count, text_bytes;
    uint64_t data_bytes; /* of all tensors */
    uint8_t identity[32];
    uint32_t name_at, name_bytes, key_at, key_bytes; /* in the texts */
};
enum { SL_WIRE_SLAB_MEMFD = 1, SL_WIRE_SLAB_TMPFS = 2, SL_WIRE_SLAB_DEVICE = 3 };
struct sl_wire_index_slab {
    uint64_t bytes;
    uint32_t kind; /* sealed memfd, file of a tmpfs, memory of a GPU */
    uint32_t reserved;
    uint8_t device[16]; /* UUID of the GPU, else zeros */
};
enum { SL_WIRE_TENSOR = 1, SL_WIRE_FILE = 2 };
enum { SL_WIRE_STRIDED = 1 };
struct sl_wire_index_tensor {
    uint32_t name_at, name_bytes;   /* in the texts; a name may hold any byte */
    uint32_t dtype_at, dtype_bytes; /* "BF16"; "" for files */
    uint8_t kind;  /* SL_WIRE_TENSOR, SL_WIRE_FILE: a data file such as config.json */
    uint8_t flags; /* SL_WIRE_STRIDED: `rank` strides follow the shape in the numbers */
    uint8_t dlpack_code, dlpack_bits; /* bits 0: DLPack has no such type */
    uint16_t dlpack_lanes;
    uint16_t rank;
    uint32_t slab;
    uint32_t block_elements, block_bytes; /* elements, and their bytes: 1 element but for quantised
                                             types; 0, 0: smaller than a byte */
    uint32_t reserved;
    uint64_t numbers_at; /* number of the first of its numbers */
    uint64_t offset;     /* in its slab: a multiple of SL_WIRE_ALIGN */
    uint64_t bytes;
};
struct sl_wire_index_meta {
    uint32_t key_at, key_bytes, value_at, value_bytes;
};

/* ---- the progress page ----------------------------------------------------------------------- */

#define SL_WIRE_PAGE_MAGIC 0x4750504c53ull /* "SLPPG" and three zeros */
enum { SL_WIRE_PAGE_HEADER_BYTES = 1024, SL_WIRE_PAGE_TEXT_BYTES = 768 };
enum { SL_WORD_LOADING = 0, SL_WORD_READY = 1, SL_WORD_FAILED = 2 };
struct sl_wire_page {
    uint64_t magic;
    uint32_t version; /* SL_WIRE_INDEX_VERSION */
    uint32_t header_bytes;
    uint32_t count;       /* of words */
    uint32_t state;       /* enum sl_wire_state; woken */
    uint32_t ready_count; /* of words that are 1; woken */
    uint32_t error_kind;
    uint64_t bytes_done;
    uint8_t reserved[216];
    char error_code[SL_WIRE_CODE_BYTES];
    char error_text[SL_WIRE_PAGE_TEXT_BYTES - SL_WIRE_CODE_BYTES]; /* set before state, NUL-ended */
    uint32_t words[]; /* SL_WORD_…, one a tensor, in the index's order; each is woken */
};

#define SL_WIRE_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)
SL_WIRE_SIZE(sl_wire_head, 16);
SL_WIRE_SIZE(sl_wire_hello, 32);
SL_WIRE_SIZE(sl_wire_welcome, 32);
SL_WIRE_SIZE(sl_wire_attach, 32);
SL_WIRE_SIZE(sl_wire_attached, 88);
SL_WIRE_SIZE(sl_wire_slabs, 32);
SL_WIRE_SIZE(sl_wire_id, 24);
SL_WIRE_SIZE(sl_wire_listed, 32);
SL_WIRE_SIZE(sl_wire_row, 112);
SL_WIRE_SIZE(sl_wire_ask, 24);
SL_WIRE_SIZE(sl_wire_stated, 24);
SL_WIRE_SIZE(sl_wire_holder, 96);
SL_WIRE_SIZE(sl_wire_evicted, 24);
SL_WIRE_SIZE(sl_wire_deposit, 64);
SL_WIRE_SIZE(sl_wire_commit, 32);
SL_WIRE_SIZE(sl_wire_error, 56);
SL_WIRE_SIZE(sl_wire_index, 152);
SL_WIRE_SIZE(sl_wire_index_slab, 32);
SL_WIRE_SIZE(sl_wire_index_tensor, 64);
SL_WIRE_SIZE(sl_wire_index_meta, 16);
SL_WIRE_SIZE(sl_wire_page, SL_WIRE_PAGE_HEADER_BYTES);

#endif
