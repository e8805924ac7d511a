/*
 * SHA-256 of tensors, streamed: one pass feeds the digest that is asked for and the hashes that the
 * tensor came with, which also cover its header (the prefix). At most one CRC32 and one SHA-256 run
 * beside it however many hashes are stored. Neighbouring tensors share a request. Encrypted bytes
 * are decrypted on the way; no digest is told before every MAC of its tensor agreed.
 */
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "gather.h"
#include "hash.h"
#include "index.h"
#include "names.h"
#include "strided.h"
#include "tensor_reader.h"

enum { ZERO_BYTES = 64 * 1024, PLAIN_BYTES = 64 * 1024 };

/* One tensor on its way. */
struct digester {
    const struct sl_tensor *tensor;
    struct sl_sha256 *sha,
        *stored; /* stored: over prefix and bytes, NULL if no SHA-256 came with it */
    uint32_t crc;
    struct sl_opening opening; /* encrypted: the piece that data byte `at` lies in */
    uint64_t at;
    uint8_t *plain; /* PLAIN_BYTES */
};

static int refusal(const struct sl_tensor *tensor, struct sl_err *err)
{
    return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                        "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                        tensor->refused_why);
}

static void digester_release(struct digester *digester)
{
    sl_sha256_free(digester->sha);
    sl_sha256_free(digester->stored);
    sl_opening_release(&digester->opening);
    if (digester->plain)
        sl_crypt_wipe(digester->plain, PLAIN_BYTES);
    free(digester->plain);
    memset(digester, 0, sizeof(*digester));
}

static int digester_begin(struct digester *digester, const struct sl_tensor *tensor, bool verify,
                          struct sl_err *err)
{
    memset(digester, 0, sizeof(*digester));
    digester->tensor = tensor;
    digester->sha = sl_sha256_new(err);
    if (tensor->encrypted)
        digester->plain = sl_alloc(PLAIN_BYTES, err);
    if (!digester->sha || (tensor->encrypted && !digester->plain))
        return -1;
    for (unsigned i = 0; i < tensor->hash_count && verify; i++) {
        const struct sl_index_hash *hash = &tensor->hashes[i];
        if (!hash->sha256) {
            digester->crc = sl_crc32(0, hash->prefix, hash->prefix_bytes);
        } else if (!digester->stored) {
            digester->stored = sl_sha256_new(err);
            if (!digester->stored)
                return -1;
            sl_sha256_update(digester->stored, hash->prefix, hash->prefix_bytes);
        }
    }
    return 0;
}

static void digester_add(struct digester *digester, const uint8_t *data, size_t bytes)
{
    sl_sha256_update(digester->sha, data, bytes);
    if (digester->stored)
        sl_sha256_update(digester->stored, data, bytes);
    if (digester->tensor->hash_count)
        digester->crc = sl_crc32(digester->crc, data, bytes);
}

/* Ciphertext, in order. */
static int digester_decrypt(struct digester *digester, const struct sl_index *index,
                            const uint8_t *data, size_t bytes, struct sl_err *err)
{
    const struct sl_tensor *tensor = digester->tensor;
    const struct sl_crypt *crypt = tensor->crypt;
    while (bytes > 0) {
        uint64_t number = digester->at / crypt->piece_bytes, begin = number * crypt->piece_bytes;
        uint64_t end = begin + SL_MIN(crypt->piece_bytes, tensor->bytes - begin);
        size_t step = SL_MIN(SL_MIN(bytes, (size_t)PLAIN_BYTES), end - digester->at);
        if (digester->at == begin)
            sl_opening_begin(&digester->opening, tensor->key, crypt->nonce, number);
        sl_opening_update(&digester->opening, data, digester->plain, step);
        digester_add(digester, digester->plain, step);
        digester->at += step;
        data += step;
        bytes -= step;
        if (digester->at == end &&
            !sl_opening_end(&digester->opening, crypt->macs + number * SL_MAC_BYTES))
            return sl_tensor_blame(index, tensor, number, err);
    }
    return 0;
}

static int check_hash(const struct sl_tensor *tensor, const struct sl_index_hash *hash,
                      const uint8_t *actual, struct sl_err *err)
{
    size_t bytes = hash->sha256 ? 32 : 4;
    if (memcmp(hash->expected, actual, bytes) == 0)
        return 0;
    char expected_hex[65], actual_hex[65];
    sl_hex(hash->expected, bytes, expected_hex);
    sl_hex(actual, bytes, actual_hex);
    return sl_fail_code(err, SL_E_INTEGRITY, hash->sha256 ? "E_HASH_SHA256" : "E_HASH_CRC32",
                        "%s '%.*s': its %s is %s, the file says %s: the bytes are damaged; store "
                        "the file again",
                        tensor->part ? "entry" : "tensor",
                        SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                        hash->sha256 ? "SHA-256" : "CRC32", actual_hex, expected_hex);
}

/* The zeros of a meta tensor; its hashes do not cover them. */
static int add_zeros(struct digester *digester, struct sl_cancel *cancel, struct sl_err *err)
{
    static const uint8_t zeros[ZERO_BYTES];
    const struct sl_tensor *tensor = digester->tensor;
    if (tensor->bytes > SL_META_DIGEST_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                            "tensor '%.*s' has no data and stands for more than 1 GiB of zeros, "
                            "which are not hashed",
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes));
    for (uint64_t left = tensor->bytes; left > 0;) {
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        size_t piece = SL_MIN(left, (uint64_t)ZERO_BYTES);
        sl_sha256_update(digester->sha, zeros, piece);
        left -= piece;
    }
    return 0;
}

static int digester_end(struct digester *digester, bool verify, bool zeros,
                        struct sl_cancel *cancel, uint8_t digest[32], struct sl_err *err)
{
    const struct sl_tensor *tensor = digester->tensor;
    uint8_t sha[32], crc[SL_HASH_BYTES_MAX];
    sl_crc_digest(SL_HASH_CRC32, digester->crc, crc);
    if (digester->stored)
        sl_sha256_finish(digester->stored, sha);
    for (unsigned i = 0; i < tensor->hash_count && verify; i++)
        if (check_hash(tensor, &tensor->hashes[i], tensor->hashes[i].sha256 ? sha : crc, err) < 0)
            return -1;
    if (tensor->meta && zeros && add_zeros(digester, cancel, err) < 0)
        return -1;
    sl_sha256_finish(digester->sha, digest);
    return 0;
}

/* ---- one run of neighbours ------------------------------------------------------------------- */

/* Tensors in the order of their bytes, and where the stream is. */
struct walk {
    const struct sl_index *index;
    const struct sl_tensor **sorted;
    size_t count, next;
    uint64_t at;
    struct sl_cancel *cancel;
    bool verify, zeros, open; /* zeros: of meta tensors; open: digester holds sorted[next] */
    struct digester digester;
    int (*each)(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                struct sl_err *err);
    void *arg;
};

static int finish_tensor(struct walk *walk, struct sl_err *err)
{
    uint8_t digest[32];
    const struct sl_tensor *tensor = walk->sorted[walk->next];
    int result =
        digester_end(&walk->digester, walk->verify, walk->zeros, walk->cancel, digest, err);
    if (result == 0)
        result = walk->each(walk->arg, tensor, tensor->meta && !walk->zeros ? NULL : digest, err);
    digester_release(&walk->digester);
    walk->open = false;
    walk->next++;
    return result;
}

/* Bytes of the stream; what lies between tensors is dropped. */
static int take_piece(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct walk *walk = arg;
    uint64_t end = walk->at + bytes;
    while (walk->next < walk->count && walk->sorted[walk->next]->begin < end) {
        const struct sl_tensor *tensor = walk->sorted[walk->next];
        if (!walk->open && digester_begin(&walk->digester, tensor, walk->verify, err) < 0)
            return -1;
        walk->open = true;
        uint64_t from = SL_MAX(walk->at, tensor->begin), to = SL_MIN(end, tensor->end);
        const uint8_t *bytes_of_it = data + (from - walk->at);
        if (from < to && !tensor->encrypted)
            digester_add(&walk->digester, bytes_of_it, to - from);
        else if (from < to &&
                 digester_decrypt(&walk->digester, walk->index, bytes_of_it, to - from, err) < 0)
            return -1;
        if (tensor->end > end)
            break;
        if (finish_tensor(walk, err) < 0)
            return -1;
    }
    walk->at = end;
    return 0;
}

/* The end of a run: tensors without bytes that stand there. */
static int finish_empty(struct walk *walk, struct sl_err *err)
{
    while (walk->next < walk->count) {
        if (digester_begin(&walk->digester, walk->sorted[walk->next], walk->verify, err) < 0 ||
            finish_tensor(walk, err) < 0)
            return -1;
    }
    return 0;
}

static int add_stored(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    (void)err;
    digester_add(arg, data, bytes);
    return 0;
}

/* The hashes of such a tensor are over its bytes as they lie: they are read for that alone. */
static int check_stored(struct sl_index *index, const struct sl_tensor *tensor, struct sl_err *err)
{
    uint8_t unused[32];
    struct digester digester;
    struct sl_source *source = index->sources[tensor->source];
    int done = digester_begin(&digester, tensor, true, err);
    if (done == 0)
        done = sl_gather_stream(source, tensor->begin, tensor->end, add_stored, &digester, err);
    if (done == 0)
        done = digester_end(&digester, true, true, NULL, unused, err);
    digester_release(&digester);
    return done;
}

/* Are the bytes of the file something else than those of the tensor? */
static bool is_composed(const struct sl_tensor *tensor)
{
    return tensor->chunks || sl_is_strided(tensor);
}

static int hash_composed(struct sl_index *index, const struct sl_tensor *tensor, bool verify,
                         struct sl_sha256 *sha, struct sl_err *err)
{
    if (verify && tensor->hash_count && check_stored(index, tensor, err) < 0)
        return -1;
    for (size_t i = 0; verify && i < tensor->chunk_count; i++)
        if (tensor->chunks[i].tensor.hash_count &&
            check_stored(index, &tensor->chunks[i].tensor, err) < 0)
            return -1;
    return tensor->chunks ? sl_tensor_hash(index, tensor, NULL, sha, err)
                          : sl_strided_hash(index, tensor, NULL, sha, err);
}

/* One whose stored bytes are not its plaintext. */
static int digest_composed(struct sl_index *index, struct walk *walk, struct sl_err *err)
{
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha || hash_composed(index, walk->sorted[0], walk->verify, sha, err) < 0)
        return -1;
    sl_sha256_finish(sha, digest);
    return walk->each(walk->arg, walk->sorted[0], digest, err);
}

/* sorted[0 .. count) follow each other in one source. */
static int digest_run(struct sl_index *index, struct walk *walk, struct sl_err *err)
{
    const struct sl_tensor *first = walk->sorted[0];
    uint64_t end = first->end;
    for (size_t i = 1; i < walk->count; i++)
        end = SL_MAX(end, walk->sorted[i]->end);
    if (is_composed(first))
        return digest_composed(index, walk, err);
    walk->next = 0;
    walk->cancel = sl_store_cancel(sl_source_store(index->sources[first->source]));
    walk->at = first->begin;
    int result =
        sl_gather_stream(index->sources[first->source], first->begin, end, take_piece, walk, err);
    if (result == 0)
        result = finish_empty(walk, err);
    digester_release(&walk->digester);
    walk->open = false;
    return result;
}

static int by_place(const void *a, const void *b)
{
    const struct sl_tensor *x = *(const struct sl_tensor *const *)a,
                           *y = *(const struct sl_tensor *const *)b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* How many of sorted[0 .. count) one request serves. */
static size_t run_length(const struct sl_tensor *const *sorted, size_t count)
{
    size_t length = 1;
    if (is_composed(sorted[0]))
        return 1;
    while (length < count && !is_composed(sorted[length]) &&
           sorted[length]->source == sorted[0]->source &&
           sorted[length]->begin >= sorted[length - 1]->end &&
           sorted[length]->begin - sorted[length - 1]->end <= SL_GATHER_GAP_BYTES)
        length++;
    return length;
}

int sl_index_digest(struct sl_index *index, bool verify,
                    int (*each)(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                                struct sl_err *err),
                    void *arg, struct sl_err *err)
{
    sl_autofree const struct sl_tensor **sorted =
        sl_alloc_array(index->tensor_count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    size_t count = 0;
    for (size_t i = 0; i < index->tensor_count; i++)
        if (!index->tensors[i].refused)
            sorted[count++] = &index->tensors[i];
    if (count > 1)
        qsort(sorted, count, sizeof(*sorted), by_place);
    for (size_t done = 0; done < count;) {
        struct walk walk = {
            .index = index, .sorted = sorted + done, .verify = verify, .each = each, .arg = arg};
        walk.count = run_length(sorted + done, count - done);
        if (digest_run(index, &walk, err) < 0)
            return -1;
        done += walk.count;
    }
    return 0;
}

static int keep_digest(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                       struct sl_err *err)
{
    (void)tensor;
    (void)err;
    memcpy(arg, digest, 32);
    return 0;
}

int sl_tensor_digest(struct sl_index *index, const struct sl_tensor *tensor, bool verify,
                     uint8_t digest[32], struct sl_err *err)
{
    if (tensor->refused)
        return refusal(tensor, err);
    struct walk walk = {.index = index,
                        .sorted = &tensor,
                        .count = 1,
                        .verify = verify,
                        .zeros = true,
                        .each = keep_digest,
                        .arg = digest};
    return digest_run(index, &walk, err);
}
