/*
 * What kernels are called with, the same bytes on both sides: addresses of the device as numbers,
 * sizes of 64 bits, and the bounds of everything that a kernel touches. The launcher (kernels.h)
 * fills these in and checks them; nobody else needs them. Structs are copied with the launch; what
 * they name stays until the stream has passed it.
 */
#ifndef SL_KERNEL_ARGS_H
#define SL_KERNEL_ARGS_H

#include "device.h"

/** A thread's place: thread `thread` of `threads` in block `block` of `blocks`. */
struct sl_where {
    uint32_t thread, threads;
    uint64_t block, blocks;
};

/** For kernels whose threads share nothing. */
struct sl_no_shared {
    uint32_t unused;
};

/* ---- cast ------------------------------------------------------------------------------------ */

/** Element types as kernels count them. */
enum sl_kernel_type {
    SL_K_F64,
    SL_K_F32,
    SL_K_F16,
    SL_K_BF16,
    SL_K_F8_E4M3,
    SL_K_F8_E5M2,
    SL_K_F8_E4M3FNUZ,
    SL_K_F8_E5M2FNUZ,
};

struct sl_cast_args {
    uint64_t in, out, count; /* elements */
    uint32_t from, to;       /* enum sl_kernel_type */
    uint32_t saturate, unused;
};

/* ---- gather ---------------------------------------------------------------------------------- */

enum { SL_GATHER_RANK_MAX = 64 };

struct sl_gather_dimension {
    uint64_t width, stride; /* bytes from one step to the next in `in` */
};

/** Items number [begin, begin + count) of a box, counted row-major, to out, one after another. */
struct sl_gather_args {
    uint64_t in, in_bytes, out;
    uint64_t first; /* where item 0 lies in `in` */
    uint64_t begin, count;
    uint32_t item; /* bytes of an item: 1 to 16 */
    uint32_t swap; /* its bytes are reversed in parts of so many; 0 or 1: they are not */
    uint32_t rank;
    uint32_t narrow; /* all numbers of items fit into 32 bits: division is faster */
    struct sl_gather_dimension dimensions[SL_GATHER_RANK_MAX]; /* the outermost first */
};

/* ---- CRC32 ----------------------------------------------------------------------------------- */

enum { SL_CRC_THREADS = 256, SL_CRC_LEVELS = 8 };

/** CRCs of 32 bits of equal chunks of a range; powers of x are modulo the polynomial. */
struct sl_crc_args {
    uint64_t in, bytes, chunk_bytes; /* only the last chunk may be shorter; none is empty */
    uint64_t out;                    /* a 32-bit word for each chunk */
    uint32_t polynomial;             /* reflected */
    uint32_t row;                    /* x^(32 * SL_CRC_THREADS) */
    uint32_t level[SL_CRC_LEVELS];   /* x^(32 * 2^k) */
    uint32_t begun_full, begun_last; /* all ones * x^(8 * bytes of a full chunk; of the last) */
};

/** From the CRCs of chunks to that of all, in one block. */
struct sl_crc_join_args {
    uint64_t crcs, count; /* of chunks; at least 1 */
    uint64_t out;         /* one 32-bit word */
    uint32_t polynomial;
    uint32_t full, last;           /* x^(8 * bytes of a full chunk; of the last) */
    uint32_t level[SL_CRC_LEVELS]; /* full^(chunks of a thread * 2^k) */
    uint32_t unused;
};

/* ---- XSalsa20-Poly1305 ----------------------------------------------------------------------- */

enum {
    SL_BOX_THREADS = 256,
    SL_BOX_UNIT = 64,           /* bytes: a block of Salsa20, four of Poly1305 */
    SL_BOX_SEGMENT_UNITS = 512, /* units that a block of threads takes: few, so that two pieces
                                   already keep a large GPU busy */
    SL_BOX_LIMBS = 5,
    SL_BOX_POWERS = 12, /* r^(2^k), up to that of a segment: 2048 blocks of Poly1305 */
};

/** Derived from key and nonce for one piece; scratch memory, wiped at the end. */
struct sl_box_key {
    uint32_t subkey[8], nonce[2];
    uint32_t pad[4]; /* added to the MAC */
    uint32_t power[SL_BOX_POWERS][SL_BOX_LIMBS];
    uint32_t unused;
};
/** A segment's share of its piece's MAC. */
struct sl_box_sum {
    uint32_t limb[SL_BOX_LIMBS];
};
/** box_check's verdict on a piece; 0: it was not checked. */
enum sl_box_verdict { SL_BOX_GOOD = 1, SL_BOX_BAD = 2 };

/** Pieces of ciphertext, one after another, that become plaintext in place. */
struct sl_box_args {
    uint64_t data, bytes, piece_bytes; /* only the last piece may be shorter */
    uint64_t pieces;
    uint64_t segments;    /* of a full piece */
    uint64_t first_block; /* number of the launch's first block, of pieces * segments */
    uint64_t macs;        /* 16 bytes a piece */
    uint64_t keys, sums;  /* scratch: a struct sl_box_key a piece; a struct sl_box_sum a segment */
    uint64_t verdicts;    /* a 32-bit word a piece */
    uint32_t key[8];
    uint32_t nonce[6]; /* of the first piece */
};

#endif
