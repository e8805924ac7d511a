/*
 * latest.json. The signature is over a few lines made from what matters, key and content together:
 * a signed set of another key does not pass for this one. It stands in the same object, so that
 * name and signature are written in one step.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crypt.h"
#include "hash.h"
#include "minisign_secret.h"
#include "sets_parts.h"

static const char MEMBER[] = "sluice_engine_caches";
enum { FORMAT = 1 };

void sl_sets_name_release(struct sl_sets_name *name)
{
    free(name->facts);
    free(name->signature);
    name->facts = name->signature = NULL;
}

/* ---- reading and writing --------------------------------------------------------------------- */

static int refuse(const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_FORMAT,
                   "its latest.json is not one of engine caches: %s; save the set again with "
                   "`sluice caches save --replace`",
                   why);
}

static bool take_hex(const json_t *object, const char *member, char text[65])
{
    uint8_t bytes[32];
    const char *value = sl_json_get_string(object, member);
    if (!value || sl_unhex(value, bytes, sizeof(bytes)) < 0)
        return false;
    sl_hex(bytes, sizeof(bytes), text);
    return true;
}

static int take_members(const json_t *object, struct sl_sets_name *name, struct sl_err *err)
{
    const char *signature = sl_json_get_string(object, "minisign");
    const json_t *facts = json_object_get(object, "facts");
    if (sl_json_get_uint(object, MEMBER, 0) != FORMAT)
        return refuse("it is not of version 1", err);
    if (!take_hex(object, "key", name->key) || !take_hex(object, "sha256", name->sha256))
        return refuse("'key' or 'sha256' is not 64 hex digits", err);
    name->bytes = sl_json_get_uint(object, "bytes", 0);
    name->files = sl_json_get_uint(object, "files", 0);
    name->created_seconds = sl_json_get_uint(object, "created_seconds", 0);
    if (!name->bytes || name->bytes > SL_SETS_BLOB_BYTES_MAX)
        return refuse("'bytes' is nothing, or more than 16 GiB", err);
    if (signature && !(name->signature = sl_strdup(signature, err)))
        return -1;
    name->facts = json_is_object(facts) ? json_dumps(facts, JSON_COMPACT) : NULL;
    return name->facts ? 0 : refuse("it has no 'facts'", err);
}

int sl_sets_name_parse(const char *text, size_t bytes, struct sl_sets_name *name,
                       struct sl_err *err)
{
    *name = (struct sl_sets_name){.bytes = 0};
    json_t *object = sl_json_parse(text, bytes, "latest.json", err);
    if (!object)
        return -1;
    int done = take_members(object, name, err);
    json_decref(object);
    if (done < 0)
        sl_sets_name_release(name);
    return done;
}

int sl_sets_name_write(const struct sl_sets_name *name, struct sl_buf *text, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SL_SETS_NAME_BYTES_MAX);
    char now[SL_TIME_TEXT];
    sl_json_object(&json);
    sl_json_key_uint(&json, MEMBER, FORMAT);
    sl_json_key_string(&json, "key", name->key);
    sl_json_key_string(&json, "sha256", name->sha256);
    sl_json_key_uint(&json, "bytes", name->bytes);
    sl_json_key_uint(&json, "files", name->files);
    sl_json_key_string(&json, "created", sl_json_time(now));
    sl_json_key_uint(&json, "created_seconds", name->created_seconds);
    if (name->signature)
        sl_json_key_string(&json, "minisign", name->signature);
    sl_json_end(&json);
    const char *written = sl_json_text(&json, err);
    /* The facts are JSON already: they go before the last brace. */
    int done = written ? sl_buf_printf(text, err, "%.*s,\"facts\":%s}\n", (int)strlen(written) - 1,
                                       written, name->facts)
                       : -1;
    sl_json_release(&json);
    return done;
}

/* ---- signatures ------------------------------------------------------------------------------ */

static int signed_text(const struct sl_sets_name *name, struct sl_buf *text, struct sl_err *err)
{
    return sl_buf_printf(text, err,
                         "sluice engine caches %d\nkey %s\nsha256 %s\nbytes %" PRIu64 "\n", FORMAT,
                         name->key, name->sha256, name->bytes);
}

static int read_key(const struct sl_spec_sets *sets, struct sl_minisign_key *key,
                    struct sl_err *err)
{
    if (sets->public_key)
        return sl_minisign_key_parse(sets->public_key, strlen(sets->public_key), key, err);
    sl_autobuf text = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    if (sl_buf_read_file(&text, sets->public_key_file, err) < 0)
        return -1;
    return sl_minisign_key_parse(sl_buf_string(&text), text.used, key, err) < 0
               ? sl_wrap(err, "'%s'", sets->public_key_file)
               : 0;
}

static int check_signature(const struct sl_sets_name *name, const struct sl_minisign_key *key,
                           struct sl_err *err)
{
    struct sl_minisign_signature signature;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_autobuf text = SL_BUF_INIT(1024);
    if (!name->signature)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "it is not signed: save it with 'secretKeyFile', or write 'trust: "
                            "store' if only you can write to 'url'");
    if (sl_minisign_parse(name->signature, strlen(name->signature), key, &signature, err) < 0 ||
        signed_text(name, &text, err) < 0 ||
        sl_digest_of(SL_HASH_BLAKE2B, NULL, 0, text.data, text.used, digest, err) < 0)
        return -1;
    if (signature.prehashed
            ? sl_minisign_matches(key->key, signature.signature, digest, sizeof(digest))
            : sl_minisign_matches(key->key, signature.signature, text.data, text.used))
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "its signature is of something else: it was changed; look at who can write "
                        "there");
}

int sl_sets_name_judge(const struct sl_sets_name *name, const struct sl_spec_sets *sets,
                       const char *key, struct sl_err *err)
{
    struct sl_minisign_key signer;
    if (strcmp(name->key, key) != 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "it is the set of another key (%.16s): it was put in a wrong place",
                            name->key);
    if (sets->trust == SL_SETS_STORE)
        return 0;
    if (sl_crypt_init(err) < 0 || read_key(sets, &signer, err) < 0)
        return -1;
    return check_signature(name, &signer, err);
}

int sl_sets_name_sign(struct sl_sets_name *name, const struct sl_spec_sets *sets,
                      struct sl_err *err)
{
    if (!sets->secret_key_file)
        return 0;
    sl_autosecretbuf file = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    sl_autobuf text = SL_BUF_INIT(1024), signature = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    char comment[128];
    struct sl_minisign_secret secret = {{0}, {0}};
    if (sl_crypt_init(err) < 0 || sl_buf_read_file(&file, sets->secret_key_file, err) < 0)
        return -1;
    if (sl_minisign_secret_is_locked(file.data, file.used))
        return sl_fail(err, SL_E_USAGE,
                       "the key in '%s' has a password, which cannot be entered here: make one "
                       "with `minisign -G -W`, or take the password away with `minisign -C -W`",
                       sets->secret_key_file);
    snprintf(comment, sizeof(comment), "timestamp:%" PRIu64 "\tfile:%s", name->created_seconds,
             name->key);
    int done = sl_minisign_secret_parse(file.data, file.used, NULL, NULL, &secret, err);
    if (done < 0)
        sl_wrap(err, "'%s'", sets->secret_key_file);
    else
        done = signed_text(name, &text, err) < 0 ||
                       sl_minisign_sign(&secret, text.data, text.used, comment, &signature, err) < 0
                   ? -1
                   : 0;
    sl_minisign_secret_release(&secret);
    name->signature = done == 0 ? sl_buf_steal(&signature, err) : NULL;
    return name->signature ? 0 : -1;
}
