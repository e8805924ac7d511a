/*
 * The entry of a transparency log, checked without asking the log: what it signs are its promise
 * (Rekor before version 2) and the root of its tree at some moment, a checkpoint, to which the
 * entry's hashes must lead.
 *
 * https://github.com/sigstore/protobuf-specs (sigstore_rekor.proto); signed notes and checkpoints:
 * https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint; trees: RFC 9162 section 2.1.
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <sodium.h>

#include "keyless_parts.h"

enum {
    BODY_BYTES_MAX = 1024 * 1024,
    SIGNATURE_BYTES_MAX = 4096,
    PROOF_HASHES_MAX = 64,
    NOTE_LINE_BYTES_MAX = 4096,
};

/* ---- the entry ------------------------------------------------------------------------------- */

static const struct sl_trusted_log *find_log(const struct sl_trusted_root *root, const uint8_t *id,
                                             size_t bytes)
{
    for (size_t i = 0; i < root->log_count; i++)
        if (root->logs[i].id_bytes == bytes && memcmp(root->logs[i].id, id, bytes) == 0)
            return &root->logs[i];
    return NULL;
}

static int take_log(const struct sl_trusted_root *root, struct sl_rekor_entry *entry,
                    struct sl_err *err)
{
    uint8_t id[SL_LOG_ID_BYTES_MAX];
    char hex[2 * SL_LOG_ID_BYTES_MAX + 1];
    size_t bytes;
    const char *text = sl_json_get_string(json_object_get(entry->json, "logId"), "keyId");
    if (!sl_sigstore_base64(text, id, sizeof(id), &bytes))
        return sl_signature_fail(err, "the log entry does not say of which log it is");
    sl_hex(id, bytes, hex);
    entry->log = find_log(root, id, bytes);
    if (!entry->log)
        return sl_signature_fail(err, "the signature's log '%.16s…' is not in the trusted root",
                                 hex);
    if (!entry->log->key)
        return sl_signature_fail(err,
                                 "the signature's log '%.16s…' has a key of a kind that is "
                                 "not known here",
                                 hex);
    return 0;
}

static int take_body(struct sl_rekor_entry *entry, struct sl_err *err)
{
    const char *text = sl_json_get_string(entry->json, "canonicalizedBody");
    size_t room = text ? strlen(text) / 4 * 3 : 0;
    if (room && room <= BODY_BYTES_MAX) {
        entry->body.data = sl_alloc(room, err);
        if (!entry->body.data)
            return -1;
        if (sl_sigstore_base64(text, entry->body.data, room, &entry->body.bytes))
            return 0;
    }
    return sl_signature_fail(err, "the log entry's body is not base64 of at most 1 MiB");
}

int sl_rekor_open(const struct sl_trusted_root *root, const json_t *entries,
                  struct sl_rekor_entry *entry, struct sl_err *err)
{
    *entry = (struct sl_rekor_entry){0};
    size_t count = json_array_size(entries);
    if (!count)
        return sl_signature_fail(err, "the signature is not in a transparency log: the bundle has "
                                      "no entry of one");
    if (count > 1)
        return sl_signature_fail(err, "the bundle has %zu log entries instead of one", count);
    entry->json = json_array_get(entries, 0);
    const json_t *kind = json_object_get(entry->json, "kindVersion");
    entry->kind = sl_json_get_string(kind, "kind");
    entry->version = sl_json_get_string(kind, "version");
    if (!entry->kind || !entry->version)
        return sl_signature_fail(err, "the log entry does not say of which kind it is");
    if (take_body(entry, err) < 0)
        return -1;
    return take_log(root, entry, err);
}

void sl_rekor_release(struct sl_rekor_entry *entry)
{
    free(entry->body.data);
    *entry = (struct sl_rekor_entry){0};
}

/* ---- the promise ----------------------------------------------------------------------------- */

/* Canonical JSON (RFC 8785) of these four members, whose texts need no escapes. */
static int put_promised(const struct sl_rekor_entry *entry, uint64_t integrated, uint64_t index,
                        struct sl_buf *text, struct sl_err *err)
{
    char id[2 * SL_LOG_ID_BYTES_MAX + 1];
    size_t bytes = sodium_base64_ENCODED_LEN(entry->body.bytes, sodium_base64_VARIANT_ORIGINAL);
    sl_autofree char *body = sl_alloc(bytes, err);
    if (!body)
        return -1;
    sodium_bin2base64(body, bytes, entry->body.data, entry->body.bytes,
                      sodium_base64_VARIANT_ORIGINAL);
    sl_hex(entry->log->id, entry->log->id_bytes, id);
    return sl_buf_printf(text, err,
                         "{\"body\":\"%s\",\"integratedTime\":%" PRIu64
                         ",\"logID\":\"%s\",\"logIndex\":%" PRIu64 "}",
                         body, integrated, id, index);
}

int sl_rekor_check_promise(const struct sl_rekor_entry *entry, struct sl_signing_times *times,
                           struct sl_err *err)
{
    const json_t *promise = json_object_get(entry->json, "inclusionPromise");
    uint8_t signature[SIGNATURE_BYTES_MAX];
    size_t bytes;
    uint64_t integrated, index;
    if (!promise || json_is_null(promise))
        return 0;
    sl_autobuf text = SL_BUF_INIT(2 * BODY_BYTES_MAX);
    bool read = sl_sigstore_number(entry->json, "integratedTime", &integrated) && integrated &&
                sl_sigstore_number(entry->json, "logIndex", &index) &&
                sl_sigstore_base64(sl_json_get_string(promise, "signedEntryTimestamp"), signature,
                                   sizeof(signature), &bytes);
    if (read && put_promised(entry, integrated, index, &text, err) < 0)
        return -1;
    if (!read || !sl_sigstore_signed_by(entry->log->key, signature, bytes, text.data, text.used))
        return sl_signature_fail(err, "the promise of the log (signedEntryTimestamp) is not signed "
                                      "by it");
    times->at[times->count++] = (int64_t)integrated;
    return 0;
}

/* ---- the tree -------------------------------------------------------------------------------- */

static void join(const uint8_t left[32], const uint8_t right[32], uint8_t out[32])
{
    uint8_t both[65] = {1};
    memcpy(both + 1, left, 32);
    memcpy(both + 33, right, 32);
    EVP_Digest(both, sizeof(both), out, NULL, EVP_sha256(), NULL);
}

/* RFC 9162 section 2.1.3.2: is a leaf's hash at `index` of a tree of `size` leaves? proof: `count`
 * hashes, from the leaf up; computed: out, the root that they lead to. false: they are too many or
 * too few, or index is outside of the tree. */
static bool merkle_root(uint64_t index, uint64_t size, const uint8_t leaf[32], const uint8_t *proof,
                        size_t count, uint8_t computed[32])
{
    if (index >= size)
        return false;
    uint64_t node = index, last = size - 1;
    memcpy(computed, leaf, 32);
    for (size_t i = 0; i < count; i++) {
        if (!last)
            return false;
        if (node & 1 || node == last) {
            join(proof + 32 * i, computed, computed);
            for (; node && !(node & 1); node >>= 1)
                last >>= 1;
        } else {
            join(computed, proof + 32 * i, computed);
        }
        node >>= 1;
        last >>= 1;
    }
    return last == 0;
}

/* SHA-256 of 0 and the body. */
static int hash_leaf(const struct sl_der *body, uint8_t leaf[SL_HASH_BYTES_MAX], struct sl_err *err)
{
    static const uint8_t mark = 0;
    return sl_digest_of(SL_HASH_SHA256, &mark, 1, body->data, body->bytes, leaf, err);
}

static bool read_hash(const char *text, uint8_t hash[32])
{
    size_t bytes;
    return sl_sigstore_base64(text, hash, 32, &bytes) && bytes == 32;
}

static int check_proof(const struct sl_rekor_entry *entry, const json_t *proof, uint64_t size,
                       const uint8_t root[32], struct sl_err *err)
{
    const json_t *items = json_object_get(proof, "hashes");
    uint8_t hashes[PROOF_HASHES_MAX * 32], leaf[SL_HASH_BYTES_MAX], computed[32];
    size_t count = json_array_size(items);
    uint64_t index;
    bool good = (!items || json_is_array(items)) && count <= PROOF_HASHES_MAX &&
                sl_sigstore_number(proof, "logIndex", &index);
    for (size_t i = 0; good && i < count; i++)
        good = read_hash(json_string_value(json_array_get(items, i)), hashes + 32 * i);
    if (!good)
        return sl_signature_fail(err, "the inclusion proof of the log entry cannot be read");
    if (hash_leaf(&entry->body, leaf, err) < 0)
        return -1;
    if (!merkle_root(index, size, leaf, hashes, count, computed) || memcmp(computed, root, 32) != 0)
        return sl_signature_fail(err, "the signature is not in the log: its inclusion proof does "
                                      "not lead to the log's root");
    return 0;
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* "— NAME BASE64": 4 bytes of the key's id, then a signature. */
static bool is_signed_line(const struct sl_trusted_log *log, const char *line, size_t bytes,
                           const void *text, size_t text_bytes)
{
    static const char dash[] = "\xe2\x80\x94 ";
    uint8_t signature[SIGNATURE_BYTES_MAX];
    size_t signed_bytes;
    char copy[NOTE_LINE_BYTES_MAX];
    if (bytes >= sizeof(copy) || bytes < strlen(dash) || memcmp(line, dash, strlen(dash)) != 0)
        return false;
    memcpy(copy, line, bytes);
    copy[bytes] = 0;
    const char *space = strrchr(copy, ' ');
    return sl_sigstore_base64(space + 1, signature, sizeof(signature), &signed_bytes) &&
           signed_bytes > 4 && memcmp(signature, log->id, 4) == 0 &&
           sl_sigstore_signed_by(log->key, signature + 4, signed_bytes - 4, text, text_bytes);
}

/* The lines behind the blank one; one of them must be the log's, others are of witnesses. */
static bool is_signed_note(const struct sl_trusted_log *log, const char *note, size_t text_bytes)
{
    for (const char *line = note + text_bytes + 1; *line;) {
        size_t bytes = strcspn(line, "\n");
        if (is_signed_line(log, line, bytes, note, text_bytes))
            return true;
        line += bytes + (line[bytes] == '\n');
    }
    return false;
}

/* Behind the origin's line: the size in decimal, the root in base64. */
static bool is_of_tree(const char *note, uint64_t size, const uint8_t root[32])
{
    char line[64];
    uint8_t said_root[32];
    uint64_t said;
    const char *at = strchr(note, '\n') + 1;
    if (!sl_take_digits(&at, &said) || *at++ != '\n' || said != size)
        return false;
    size_t bytes = strcspn(at, "\n");
    if (bytes >= sizeof(line))
        return false;
    memcpy(line, at, bytes);
    line[bytes] = 0;
    return read_hash(line, said_root) && memcmp(said_root, root, 32) == 0;
}

static int check_checkpoint(const struct sl_rekor_entry *entry, const json_t *proof, uint64_t size,
                            const uint8_t root[32], struct sl_err *err)
{
    const char *note = sl_json_get_string(json_object_get(proof, "checkpoint"), "envelope");
    const char *blank = note ? strstr(note, "\n\n") : NULL;
    if (!blank || strchr(note, '\n') == blank)
        return sl_signature_fail(err, "the log entry has no checkpoint of its log");
    if (!is_signed_note(entry->log, note, (size_t)(blank - note) + 1))
        return sl_signature_fail(err, "the checkpoint is not signed by the log");
    if (!is_of_tree(note, size, root))
        return sl_signature_fail(err, "the checkpoint is of another tree than the inclusion proof");
    return 0;
}

int sl_rekor_check_inclusion(const struct sl_rekor_entry *entry,
                             const struct sl_signing_times *times, struct sl_err *err)
{
    const json_t *proof = json_object_get(entry->json, "inclusionProof");
    uint8_t root[32];
    uint64_t size;
    if (!proof || json_is_null(proof))
        return sl_signature_fail(err, "the log entry has no inclusion proof: sign it again with a "
                                      "present release of its tool");
    if (!sl_sigstore_number(proof, "treeSize", &size) ||
        !read_hash(sl_json_get_string(proof, "rootHash"), root))
        return sl_signature_fail(err, "the inclusion proof of the log entry cannot be read");
    if (check_proof(entry, proof, size, root, err) < 0 ||
        check_checkpoint(entry, proof, size, root, err) < 0)
        return -1;
    for (size_t i = 0; i < times->count; i++)
        if (!sl_trusted_covers(&entry->log->valid, times->at[i]))
            return sl_signature_fail(err, "the signature's log was not in use when it was signed: "
                                          "validFor of the trusted root");
    return 0;
}
