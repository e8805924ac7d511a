/*
 * Keys given to an index, and what is said of a piece that does not open.
 *
 * The format does not say which key a file was made with, so a wrong key and a damaged piece look
 * alike: a MAC that does not agree. They differ in the other pieces. With a wrong key none opens;
 * so a few small ones are tried before the key or the data are blamed.
 */
#include <inttypes.h>
#include <string.h>

#include "index.h"
#include "names.h"
#include "tensor_reader.h"

enum {
    DERIVATIONS_MAX = 16, /* of one file: each may take 2 GiB and a minute; writers use one */
    PROBES_MAX = 3,
    PROBE_BYTES_MAX = 4 * 1024 * 1024,
};

bool sl_tensor_waits_for_key(const struct sl_tensor *tensor)
{
    return tensor->refused && strcmp(tensor->refused_code, "E_KEY_REQUIRED") == 0;
}

/* A set of encrypted files may hold one that is not: it would pass for one of them. */
static int check_plain(const struct sl_index *index, const struct sl_tensor *tensor,
                       struct sl_err *err)
{
    if (tensor->encrypted || tensor->refused || tensor->begin == tensor->end)
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "E_NOT_ENCRYPTED",
                        "tensor '%.*s' lies in '%s', which is not encrypted as the others are",
                        SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                        index->source_names[tensor->source]);
}

/* The derivations of one file, and their keys. */
struct derivations {
    uint32_t source;
    unsigned count;
    const struct sl_kdf *kdfs[DERIVATIONS_MAX]; /* NULL: none */
    const uint8_t *keys[DERIVATIONS_MAX];
};

static bool same_kdf(const struct sl_kdf *a, const struct sl_kdf *b)
{
    return a == b || (a && b && a->opslimit == b->opslimit && a->memlimit == b->memlimit &&
                      a->alg == b->alg && a->salt_bytes == b->salt_bytes &&
                      memcmp(a->salt, b->salt, sizeof(a->salt)) == 0);
}

static const uint8_t *find_key(struct derivations *known, struct sl_keys *keys,
                               const struct sl_kdf *kdf, struct sl_err *err)
{
    for (unsigned i = known->count; i-- > 0;) /* the last one is nearly always it */
        if (same_kdf(known->kdfs[i], kdf))
            return known->keys[i];
    if (known->count == DERIVATIONS_MAX) {
        sl_fail_code(err, SL_E_FORMAT, "E_KDF", "more than %d different key derivations in a file",
                     DERIVATIONS_MAX);
        return NULL;
    }
    const uint8_t *key = sl_keys_find(keys, kdf, err);
    if (key) {
        known->kdfs[known->count] = kdf;
        known->keys[known->count++] = key;
    }
    return key;
}

static int unlock(struct sl_index *index, struct sl_keys *keys, struct sl_err *err)
{
    struct derivations known = {0};
    for (size_t i = 0; i < index->tensor_count; i++) {
        struct sl_tensor *tensor = &index->tensors[i];
        if (check_plain(index, tensor, err) < 0)
            return -1;
        if (tensor->source != known.source)
            known = (struct derivations){.source = tensor->source};
        if (!tensor->encrypted)
            continue;
        tensor->key = find_key(&known, keys, tensor->crypt->kdf, err);
        if (!tensor->key)
            return sl_wrap(err, "tensor '%.*s'", SL_NAME_ARGS(tensor->name, tensor->name_bytes));
    }
    for (size_t i = 0; i < index->tensor_count; i++)
        if (sl_tensor_waits_for_key(&index->tensors[i]))
            index->tensors[i].refused = 0;
    return 0;
}

int sl_index_unlock(struct sl_index *index, struct sl_keys *keys, struct sl_err *err)
{
    const char *uri = sl_source_uri(index->sources[0]);
    if (keys && !index->encrypted)
        return sl_fail_code(err, SL_E_USAGE, "E_NOT_ENCRYPTED",
                            "'%s' is not encrypted, but a key was given: leave the key out if "
                            "that is how it should be",
                            uri);
    if (!keys && index->encrypted)
        return sl_fail_code(err, SL_E_AUTH, "E_KEY_REQUIRED",
                            "'%s' is encrypted: give its key with --key-file or its passphrase "
                            "with --passphrase-file",
                            uri);
    if (keys && unlock(index, keys, err) < 0)
        return sl_wrap(err, "cannot decrypt '%s'", uri);
    return 0;
}

/* ---- who is to blame ------------------------------------------------------------------------- */

/* A piece that might open. */
struct probe {
    const struct sl_tensor *tensor;
    uint64_t number, begin, end; /* in its source */
};

static struct probe probe_of(const struct sl_tensor *tensor, uint64_t number)
{
    uint64_t begin = tensor->begin + number * tensor->crypt->piece_bytes,
             left = tensor->end - begin;
    return (struct probe){tensor, number, begin, begin + SL_MIN(left, tensor->crypt->piece_bytes)};
}

/* Keep the smallest ones, sorted. */
static void consider(struct probe probes[PROBES_MAX + 1], unsigned *count, struct probe probe)
{
    if (probe.end - probe.begin > PROBE_BYTES_MAX)
        return;
    unsigned at = *count;
    for (; at > 0 && probes[at - 1].end - probes[at - 1].begin > probe.end - probe.begin; at--)
        probes[at] = probes[at - 1];
    probes[at] = probe;
    *count = SL_MIN(*count + 1, (unsigned)PROBES_MAX);
}

/* First and last pieces of all tensors but the one that failed. */
static unsigned choose(const struct sl_index *index, const struct sl_tensor *failed,
                       uint64_t failed_number, struct probe probes[PROBES_MAX + 1])
{
    unsigned count = 0;
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct sl_tensor *tensor = &index->tensors[i];
        uint64_t last = tensor->crypt ? tensor->crypt->mac_count - 1 : 0;
        if (!tensor->key)
            continue;
        bool same = tensor->crypt == failed->crypt;
        if (!same || last != failed_number)
            consider(probes, &count, probe_of(tensor, last));
        if (last > 0 && (!same || failed_number != 0))
            consider(probes, &count, probe_of(tensor, 0));
    }
    return count;
}

/* 1: it opens, 0: it does not, -1: it cannot be read. */
static int try_probe(const struct sl_index *index, const struct probe *probe)
{
    const struct sl_crypt *crypt = probe->tensor->crypt;
    size_t bytes = probe->end - probe->begin;
    SL_AUTO(sl_source) source = sl_index_clone_source(index, probe->tensor->source, NULL);
    sl_autofree uint8_t *data = sl_alloc(bytes, NULL);
    if (!source || !data || sl_source_read(source, probe->begin, data, bytes, NULL) < 0)
        return -1;
    struct sl_opening opening;
    sl_opening_begin(&opening, probe->tensor->key, crypt->nonce, probe->number);
    sl_opening_update(&opening, data, NULL, bytes);
    return sl_opening_end(&opening, crypt->macs + probe->number * SL_MAC_BYTES);
}

int sl_tensor_blame(const struct sl_index *index, const struct sl_tensor *tensor, uint64_t number,
                    struct sl_err *err)
{
    struct probe probes[PROBES_MAX + 1], failed = probe_of(tensor, number);
    unsigned count = choose(index, tensor, number, probes);
    bool opened = false, tried = false;
    for (unsigned i = 0; i < count && !opened; i++) {
        int result = try_probe(index, &probes[i]);
        opened = result > 0;
        tried = tried || result >= 0;
    }
    const char *verdict =
        opened  ? "others open with this key, so the data or their headers are damaged"
        : tried ? "nor do others: the key or passphrase is probably wrong"
                : "and there is nothing to compare with: the key or passphrase is wrong, or the "
                  "data are damaged";
    return sl_fail_code(err, SL_E_INTEGRITY, "E_DECRYPT",
                        "tensor '%.*s' cannot be decrypted: piece %" PRIu64 " of %" PRIu64
                        " (bytes %" PRIu64 " to %" PRIu64 " of '%s') does not match its MAC; %s",
                        SL_NAME_ARGS(tensor->name, tensor->name_bytes), number + 1,
                        tensor->crypt->mac_count, failed.begin, failed.end,
                        index->source_names[tensor->source], verdict);
}

struct sl_source *sl_index_clone_source(const struct sl_index *index, uint32_t number,
                                        struct sl_err *err)
{
    const struct sl_source *source = index->sources[number];
    struct sl_source *clone = NULL;
    sl_source_known(sl_source_store(source), sl_source_name(source), sl_source_bytes(source),
                    sl_source_version(source), &clone, err);
    if (clone)
        sl_source_set_verifier(clone, sl_source_verifier(source));
    return clone;
}
