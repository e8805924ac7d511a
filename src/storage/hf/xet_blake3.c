/*
 * Eight chunks of 1 KiB, or eight pairs of nodes, are hashed side by side, one in each lane of a
 * vector; what is left over, and the root, is hashed alone. Levels are made one after another:
 * pairing neighbours and carrying an odd last one up gives the tree of the specification. Loops
 * over vectors are unrolled, since only then do these stay in registers: that takes a quarter less
 * time.
 *
 * Words are little-endian, as on every processor that sluice is built for.
 */
#include "xet_blake3.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum {
    CHUNK_BYTES = 1024,
    BLOCK_BYTES = 64,
    LANES = 8,
    TOGETHER_LEAST = 3, /* fewer are hashed one by one */
    ROUNDS = 7,
    NODES_MAX = SL_BLAKE3_INPUT_MAX / CHUNK_BYTES,
    CHUNK_START = 1,
    CHUNK_END = 2,
    PARENT = 4,
    ROOT = 8,
    KEYED = 16,
};
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as they lie");

typedef uint32_t lanes __attribute__((vector_size(32)));
typedef uint8_t octets __attribute__((vector_size(32)));
#define INLINE static inline __attribute__((always_inline))

static const uint32_t iv[4] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a};
static const uint8_t schedule[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
    {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
    {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
};

#define ROTATE(x, n) ((x) >> (n) | (x) << (32 - (n)))
#define MIX(turn, a, b, c, d, x, y)                                                                \
    do {                                                                                           \
        v[a] += v[b] + (x);                                                                        \
        v[d] = turn(v[d] ^ v[a], 16);                                                              \
        v[c] += v[d];                                                                              \
        v[b] = ROTATE(v[b] ^ v[c], 12);                                                            \
        v[a] += v[b] + (y);                                                                        \
        v[d] = turn(v[d] ^ v[a], 8);                                                               \
        v[c] += v[d];                                                                              \
        v[b] = ROTATE(v[b] ^ v[c], 7);                                                             \
    } while (0)
#define ROUND(turn, s)                                                                             \
    do {                                                                                           \
        MIX(turn, 0, 4, 8, 12, m[(s)[0]], m[(s)[1]]);                                              \
        MIX(turn, 1, 5, 9, 13, m[(s)[2]], m[(s)[3]]);                                              \
        MIX(turn, 2, 6, 10, 14, m[(s)[4]], m[(s)[5]]);                                             \
        MIX(turn, 3, 7, 11, 15, m[(s)[6]], m[(s)[7]]);                                             \
        MIX(turn, 0, 5, 10, 15, m[(s)[8]], m[(s)[9]]);                                             \
        MIX(turn, 1, 6, 11, 12, m[(s)[10]], m[(s)[11]]);                                           \
        MIX(turn, 2, 7, 8, 13, m[(s)[12]], m[(s)[13]]);                                            \
        MIX(turn, 3, 4, 9, 14, m[(s)[14]], m[(s)[15]]);                                            \
    } while (0)

/* ---- one ------------------------------------------------------------------------------------- */

static void compress(uint32_t h[8], const uint8_t *block, uint32_t bytes, uint64_t counter,
                     uint32_t flags)
{
    uint32_t m[16] = {0}, v[16];
    memcpy(m, block, bytes);
    memcpy(v, h, 32);
    memcpy(v + 8, iv, 16);
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = bytes;
    v[15] = flags;
    for (unsigned r = 0; r < ROUNDS; r++)
        ROUND(ROTATE, schedule[r]);
    for (unsigned i = 0; i < 8; i++)
        h[i] = v[i] ^ v[i + 8];
}

/* A chunk of any length, an empty one too. root: ROOT or 0. */
static void hash_chunk(const uint8_t *key, const uint8_t *data, size_t bytes, uint64_t counter,
                       uint32_t root, uint8_t *out)
{
    uint32_t h[8], flags = KEYED | CHUNK_START;
    memcpy(h, key, sizeof(h));
    for (; bytes > BLOCK_BYTES; data += BLOCK_BYTES, bytes -= BLOCK_BYTES) {
        compress(h, data, BLOCK_BYTES, counter, flags);
        flags = KEYED;
    }
    compress(h, data, (uint32_t)bytes, counter, flags | CHUNK_END | root);
    memcpy(out, h, sizeof(h));
}

static void hash_parent(const uint8_t *key, const uint8_t *pair, uint32_t root, uint8_t *out)
{
    uint32_t h[8];
    memcpy(h, key, sizeof(h));
    compress(h, pair, BLOCK_BYTES, 0, KEYED | PARENT | root);
    memcpy(out, h, sizeof(h));
}

/* ---- eight side by side ---------------------------------------------------------------------- */

/* Eight inputs that lie `stride` bytes apart, of `blocks` whole blocks each. */
struct batch {
    const uint8_t *key, *data;
    size_t stride, blocks;
    uint64_t counter; /* of the first; counts says whether it grows */
    bool counts;
    uint32_t flags, first_flags, last_flags;
};

#define LOW(x, y)     __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(x, y)    __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW2(x, y)    __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(x, y)   __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#define FIRSTS(x, y)  __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define SECONDS(x, y) __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)

/* Rows become columns. */
INLINE void transpose(lanes r[LANES])
{
    lanes a[LANES], b[LANES];
#pragma GCC unroll 8
    for (unsigned i = 0; i < LANES; i += 2) {
        a[i] = LOW(r[i], r[i + 1]);
        a[i + 1] = HIGH(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < LANES; i += 4) {
        b[i] = LOW2(a[i], a[i + 2]);
        b[i + 1] = HIGH2(a[i], a[i + 2]);
        b[i + 2] = LOW2(a[i + 1], a[i + 3]);
        b[i + 3] = HIGH2(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 4; i++) {
        r[i] = FIRSTS(b[i], b[i + 4]);
        r[i + 4] = SECONDS(b[i], b[i + 4]);
    }
}

INLINE void load_blocks(const struct batch *batch, size_t block, lanes m[16])
{
#pragma GCC unroll 8
    for (unsigned i = 0; i < LANES; i++) {
        const uint8_t *at = batch->data + i * batch->stride + block * BLOCK_BYTES;
        memcpy(&m[i], at, sizeof(lanes));
        memcpy(&m[i + LANES], at + sizeof(lanes), sizeof(lanes));
    }
    transpose(m);
    transpose(m + LANES);
}

/* By 16 or 8 bits. Where bytes can be shuffled that is one instruction instead of three. */
#define SHUFFLE(x, ...) ((lanes)__builtin_shufflevector((octets)(x), (octets)(x), __VA_ARGS__))
#define BY_16(x)                                                                                   \
    SHUFFLE(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 18, 19, 16, 17, 22, 23, 20,   \
            21, 26, 27, 24, 25, 30, 31, 28, 29)
#define BY_8(x)                                                                                    \
    SHUFFLE(x, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 17, 18, 19, 16, 21, 22, 23,   \
            20, 25, 26, 27, 24, 29, 30, 31, 28)
#define TURN(x, n) (!shuffles ? ROTATE(x, n) : (n) == 16 ? BY_16(x) : BY_8(x))

INLINE void hash_lanes(const struct batch *batch, bool shuffles, uint8_t *out)
{
    lanes h[8], m[16], v[16] = {{0}}, low = {0}, high = {0};
    uint32_t key[8];
    memcpy(key, batch->key, sizeof(key));
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        uint64_t counter = batch->counter + (batch->counts ? i : 0);
        h[i] = (lanes){0} + key[i];
        low[i] = (uint32_t)counter;
        high[i] = (uint32_t)(counter >> 32);
    }
    for (size_t block = 0; block < batch->blocks; block++) {
        uint32_t flags = batch->flags | (block ? 0 : batch->first_flags) |
                         (block + 1 == batch->blocks ? batch->last_flags : 0);
        load_blocks(batch, block, m);
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++)
            v[i] = h[i];
#pragma GCC unroll 8
        for (unsigned i = 0; i < 4; i++)
            v[i + 8] = (lanes){0} + iv[i];
        v[12] = low;
        v[13] = high;
        v[14] = (lanes){0} + BLOCK_BYTES;
        v[15] = (lanes){0} + flags;
#pragma GCC unroll 7
        for (unsigned r = 0; r < ROUNDS; r++)
            ROUND(TURN, schedule[r]);
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++)
            h[i] = v[i] ^ v[i + 8];
    }
    transpose(h);
    memcpy(out, h, sizeof(h));
}

static void hash_portable(const struct batch *batch, uint8_t *out)
{
    hash_lanes(batch, false, out);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void hash_avx2(const struct batch *batch, uint8_t *out)
{
    hash_lanes(batch, true, out);
}

/* The same width, but a rotation is one instruction. */
__attribute__((target("avx512f,avx512vl"))) static void hash_avx512(const struct batch *batch,
                                                                    uint8_t *out)
{
    hash_lanes(batch, false, out);
}

static void hash_eight(const struct batch *batch, uint8_t *out)
{
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512f"))
        hash_avx512(batch, out);
    else if (__builtin_cpu_supports("avx2"))
        hash_avx2(batch, out);
    else
        hash_portable(batch, out);
}
#else
static void hash_eight(const struct batch *batch, uint8_t *out)
{
    hash_portable(batch, out);
}
#endif

/* ---- the tree -------------------------------------------------------------------------------- */

static void hash_eight_chunks(const uint8_t *key, const uint8_t *data, size_t first, uint8_t *nodes)
{
    hash_eight(&(struct batch){.key = key,
                               .data = data + first * CHUNK_BYTES,
                               .stride = CHUNK_BYTES,
                               .blocks = CHUNK_BYTES / BLOCK_BYTES,
                               .counter = first,
                               .counts = true,
                               .flags = KEYED,
                               .first_flags = CHUNK_START,
                               .last_flags = CHUNK_END},
               nodes + first * SL_BLAKE3_BYTES);
}

/* The first level: how many nodes there are. More than one. Eight at once take little longer than
 * one alone, so the last ones are hashed with some that were hashed before. */
static size_t hash_chunks(const uint8_t *key, const uint8_t *data, size_t bytes,
                          uint8_t nodes[NODES_MAX * SL_BLAKE3_BYTES])
{
    size_t whole = bytes / CHUNK_BYTES, i = 0;
    for (; i + LANES <= whole; i += LANES)
        hash_eight_chunks(key, data, i, nodes);
    if (i && whole - i >= TOGETHER_LEAST) {
        hash_eight_chunks(key, data, whole - LANES, nodes);
        i = whole;
    }
    for (; i * CHUNK_BYTES < bytes; i++)
        hash_chunk(key, data + i * CHUNK_BYTES,
                   bytes - i * CHUNK_BYTES < CHUNK_BYTES ? bytes - i * CHUNK_BYTES : CHUNK_BYTES, i,
                   0, nodes + i * SL_BLAKE3_BYTES);
    return i;
}

static void hash_eight_pairs(const uint8_t *key, const uint8_t *pairs, uint8_t *out)
{
    hash_eight(
        &(struct batch){
            .key = key, .data = pairs, .stride = BLOCK_BYTES, .blocks = 1, .flags = KEYED | PARENT},
        out);
}

/* Fewer than eight: zeros stand in for the others. */
static void hash_few_pairs(const uint8_t *key, const uint8_t *pairs, size_t count, uint8_t *out)
{
    uint8_t in[LANES * BLOCK_BYTES] = {0}, made[LANES * SL_BLAKE3_BYTES];
    memcpy(in, pairs, count * BLOCK_BYTES);
    hash_eight_pairs(key, in, made);
    memcpy(out, made, count * SL_BLAKE3_BYTES);
}

/* The next level, in place of this one. */
static size_t hash_level(const uint8_t *key, uint8_t *nodes, size_t count)
{
    size_t pairs = count / 2, i = 0;
    for (; i + LANES <= pairs; i += LANES)
        hash_eight_pairs(key, nodes + i * BLOCK_BYTES, nodes + i * SL_BLAKE3_BYTES);
    if (pairs - i >= TOGETHER_LEAST) {
        hash_few_pairs(key, nodes + i * BLOCK_BYTES, pairs - i, nodes + i * SL_BLAKE3_BYTES);
        i = pairs;
    }
    for (; i < pairs; i++)
        hash_parent(key, nodes + i * BLOCK_BYTES, 0, nodes + i * SL_BLAKE3_BYTES);
    if (count % 2)
        memmove(nodes + pairs * SL_BLAKE3_BYTES, nodes + (count - 1) * SL_BLAKE3_BYTES,
                SL_BLAKE3_BYTES);
    return pairs + count % 2;
}

void sl_blake3_keyed(const uint8_t key[SL_BLAKE3_BYTES], const void *data, size_t bytes,
                     uint8_t hash[SL_BLAKE3_BYTES])
{
    uint8_t nodes[NODES_MAX * SL_BLAKE3_BYTES] __attribute__((aligned(32)));
    assert(bytes <= SL_BLAKE3_INPUT_MAX);
    if (bytes <= CHUNK_BYTES) {
        hash_chunk(key, data, bytes, 0, ROOT, hash);
        return;
    }
    size_t count = hash_chunks(key, data, bytes, nodes);
    while (count > 2)
        count = hash_level(key, nodes, count);
    hash_parent(key, nodes, ROOT, hash);
}
