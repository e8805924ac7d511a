/*
 * Whom a Sigstore trusts, public or private. The file is the operator's, who got it by TUF or by
 * hand; what is wrong with it is said as of a spec. A key of a kind that OpenSSL does not know
 * makes its log useless, not the file: the next log of the public Sigstore may have such a key.
 */
#include <openssl/err.h>
#include <openssl/x509.h>
#include <time.h>

#include "keyless_parts.h"

enum { KEY_BYTES_MAX = 4 * 1024 };
static const char TYPE[] = "application/vnd.dev.sigstore.trustedroot";

bool sl_trusted_covers(const struct sl_trusted_period *period, int64_t at)
{
    return period->start <= at && at <= period->end;
}

static int wrong(struct sl_err *err, const char *list, size_t place, const char *why)
{
    return sl_fail(err, SL_E_USAGE, "the trusted root: %s[%zu]: %s", list, place, why);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* A timestamp of protobuf's JSON, which ends in Z; part of a second does not count. */
static bool read_time(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest)
        return false;
    *seconds = (int64_t)timegm(&tm);
    if (*rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    return strcmp(rest, "Z") == 0;
}

/* Without a start or an end there is no such limit. */
static bool read_period(const json_t *holder, struct sl_trusted_period *period)
{
    const json_t *valid = json_object_get(holder, "validFor");
    const json_t *start = json_object_get(valid, "start"), *end = json_object_get(valid, "end");
    *period = (struct sl_trusted_period){INT64_MIN, INT64_MAX};
    if ((valid && !json_is_object(valid)) || (start && !json_is_string(start)) ||
        (end && !json_is_string(end)))
        return false;
    return (!start || read_time(json_string_value(start), &period->start)) &&
           (!end || read_time(json_string_value(end), &period->end));
}

/* ---- authorities ----------------------------------------------------------------------------- */

static bool add_certificate(STACK_OF(X509) * chain, const json_t *item)
{
    uint8_t der[SL_CERTIFICATE_BYTES_MAX];
    size_t bytes;
    X509 *certificate = NULL;
    if (sl_sigstore_base64(sl_json_get_string(item, "rawBytes"), der, sizeof(der), &bytes)) {
        const unsigned char *at = der;
        certificate = d2i_X509(NULL, &at, (long)bytes);
        if (certificate && at != der + bytes) {
            X509_free(certificate);
            certificate = NULL;
        }
    }
    ERR_clear_error();
    if (certificate && sk_X509_push(chain, certificate) > 0)
        return true;
    X509_free(certificate);
    return false;
}

static int read_authority(const json_t *item, const char *list, size_t place, void *out,
                          struct sl_err *err)
{
    struct sl_trusted_authority *authority = out;
    const json_t *chain = json_object_get(json_object_get(item, "certChain"), "certificates");
    size_t count = json_array_size(chain);
    if (!read_period(item, &authority->valid))
        return wrong(err, list, place, "validFor is not two times in UTC");
    if (!count || count > SL_TRUSTED_CHAIN_MAX)
        return wrong(err, list, place, "certChain has no certificates, or more than 8");
    authority->chain = sk_X509_new_null();
    if (!authority->chain)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    for (size_t i = 0; i < count; i++)
        if (!add_certificate(authority->chain, json_array_get(chain, i)))
            return wrong(err, list, place, "a certificate cannot be read");
    return 0;
}

static void release_authorities(struct sl_trusted_authority *authorities, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sk_X509_pop_free(authorities[i].chain, X509_free);
    free(authorities);
}

/* ---- logs ------------------------------------------------------------------------------------ */

static int read_key(const json_t *key, const char *list, size_t place, struct sl_trusted_log *log,
                    struct sl_err *err)
{
    uint8_t der[KEY_BYTES_MAX];
    size_t bytes;
    if (!sl_sigstore_base64(sl_json_get_string(key, "rawBytes"), der, sizeof(der), &bytes))
        return wrong(err, list, place, "publicKey.rawBytes is not base64 of a key");
    const unsigned char *at = der;
    log->key = d2i_PUBKEY(NULL, &at, (long)bytes);
    ERR_clear_error();
    return sl_digest_of(SL_HASH_SHA256, NULL, 0, der, bytes, log->own, err);
}

static int read_log(const json_t *item, const char *list, size_t place, void *out,
                    struct sl_err *err)
{
    struct sl_trusted_log *log = out;
    const json_t *key = json_object_get(item, "publicKey");
    const char *id = sl_json_get_string(json_object_get(item, "logId"), "keyId");
    const char *hash = sl_json_get_string(item, "hashAlgorithm");
    if (hash && strcmp(hash, "SHA2_256") != 0)
        return wrong(err, list, place, "hashAlgorithm is not SHA2_256");
    if (!read_period(key, &log->valid))
        return wrong(err, list, place, "validFor is not two times in UTC");
    if (read_key(key, list, place, log, err) < 0)
        return -1;
    if (!sl_sigstore_base64(id, log->id, sizeof(log->id), &log->id_bytes) || log->id_bytes < 4)
        return wrong(err, list, place, "logId.keyId is not base64 of 4 to 64 bytes");
    return 0;
}

static void release_logs(struct sl_trusted_log *logs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        EVP_PKEY_free(logs[i].key);
    free(logs);
}

/* ---- the file -------------------------------------------------------------------------------- */

struct listing {
    const char *name;
    size_t item_bytes;
    void **items;
    size_t *count;
    int (*read)(const json_t *item, const char *list, size_t place, void *out, struct sl_err *err);
};

static int read_list(const json_t *document, const struct listing *list, struct sl_err *err)
{
    const json_t *items = json_object_get(document, list->name);
    size_t count = json_array_size(items);
    if ((items && !json_is_array(items)) || count > SL_TRUSTED_ITEMS_MAX)
        return sl_fail(err, SL_E_USAGE, "the trusted root: %s is not a list of at most %d",
                       list->name, SL_TRUSTED_ITEMS_MAX);
    *list->items = sl_alloc_array(count + 1, list->item_bytes, err);
    if (!*list->items)
        return -1;
    for (size_t i = 0; i < count; i++) {
        *list->count = i + 1; /* what is half read is released, too */
        if (list->read(json_array_get(items, i), list->name, i,
                       (char *)*list->items + i * list->item_bytes, err) < 0)
            return -1;
    }
    return 0;
}

static int read_root(const json_t *document, struct sl_trusted_root *root, struct sl_err *err)
{
    const struct listing lists[] = {
        {"certificateAuthorities", sizeof(*root->cas), (void **)&root->cas, &root->ca_count,
         read_authority},
        {"timestampAuthorities", sizeof(*root->tsas), (void **)&root->tsas, &root->tsa_count,
         read_authority},
        {"tlogs", sizeof(*root->logs), (void **)&root->logs, &root->log_count, read_log},
        {"ctlogs", sizeof(*root->ct_logs), (void **)&root->ct_logs, &root->ct_log_count, read_log},
    };
    const char *type = sl_json_get_string(document, "mediaType");
    if (!type || strncmp(type, TYPE, strlen(TYPE)) != 0)
        return sl_fail(err, SL_E_USAGE,
                       "the trusted root: it is not a trusted_root.json of Sigstore: its mediaType "
                       "does not begin with %s",
                       TYPE);
    for (size_t i = 0; i < SL_COUNT(lists); i++)
        if (read_list(document, &lists[i], err) < 0)
            return -1;
    return 0;
}

int sl_trusted_root_parse(const char *text, struct sl_trusted_root **root, struct sl_err *err)
{
    SL_AUTO(sl_trusted_root) made = sl_alloc(sizeof(*made), err);
    json_t *document = made ? sl_json_parse(text, strlen(text), "the trusted root", err) : NULL;
    if (!document) {
        if (err && err->kind == SL_E_FORMAT)
            err->kind = SL_E_USAGE;
        return -1;
    }
    int result = read_root(document, made, err);
    json_decref(document);
    if (result == 0)
        *root = sl_steal(&made);
    return result;
}

void sl_trusted_root_free(struct sl_trusted_root *root)
{
    if (!root)
        return;
    release_authorities(root->cas, root->ca_count);
    release_authorities(root->tsas, root->tsa_count);
    release_logs(root->logs, root->log_count);
    release_logs(root->ct_logs, root->ct_log_count);
    free(root);
}
