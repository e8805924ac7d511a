/*
 * Signatures of minisign: OBJECT.minisig beside each object. What is signed is the BLAKE2b-512 of
 * the object, so the signature is one more check, made while the bytes are on their way. Signatures
 * of the older kind are over the object itself: small objects are read here, and must come again
 * with the same hash.
 *
 * A signature that is itself loaded is held against the text that was judged; one that signs
 * nothing here is an object like any other, and needs its own.
 */
#include <inttypes.h>

#include "format.h"
#include "hash.h"
#include "minisign.h"
#include "plan_parts.h"
#include "verify.h"

static const char SUFFIX[] = ".minisig";
enum { LEGACY_BYTES_MAX = 64 * 1024 * 1024 };

/* ---- the key --------------------------------------------------------------------------------- */

int sl_plan_signer(const struct sl_spec *spec, struct sl_minisign_key *key, struct sl_err *err)
{
    const struct sl_spec_minisign *minisign = &spec->verify.minisign;
    if (minisign->public_key) {
        if (sl_minisign_key_parse(minisign->public_key, strlen(minisign->public_key), key, err) < 0)
            return sl_wrap(err, "verify.minisign.publicKey");
        return 0;
    }
    sl_autobuf text = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    if (sl_buf_read_file(&text, minisign->public_key_file, err) < 0)
        return sl_wrap(err, "verify.minisign.publicKeyFile");
    if (sl_minisign_key_parse(sl_buf_string(&text), text.used, key, err) < 0)
        return sl_wrap(err, "'%s'", minisign->public_key_file);
    return 0;
}

/* ---- one object ------------------------------------------------------------------------------ */

/* NAME.minisig, whole. */
static int fetch(struct sl_plan *plan, const char *name, struct sl_buf *text, struct sl_err *err)
{
    sl_autobuf path = SL_BUF_INIT(64 * 1024);
    SL_AUTO(sl_source) source = NULL;
    uint64_t bytes;
    if (sl_buf_printf(&path, err, "%s%s", name, SUFFIX) < 0)
        return -1;
    if (sl_source_open(plan->own->store, sl_buf_string(&path), SL_MINISIGN_FILE_BYTES_MAX, &source,
                       err) < 0) {
        if (err->kind == SL_E_NOT_FOUND)
            return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                                "object '%s' has no signature: there is no '%s' beside it; sign it "
                                "with `minisign -Sm %s`, or leave out verify.minisign",
                                name, sl_buf_string(&path), name);
        return sl_wrap(err, "cannot read the signature of '%s'", name);
    }
    bytes = sl_source_bytes(source);
    if (bytes > SL_MINISIGN_FILE_BYTES_MAX)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "'%s' is not a minisign signature: it has %" PRIu64 " bytes",
                            sl_buf_string(&path), bytes);
    return sl_plan_read_text(plan, source, text, err);
}

/* A signature over the object itself: check it, and remember what it was over. */
static int check_legacy(const struct sl_plan_source *object,
                        const struct sl_minisign_signature *signature,
                        const struct sl_minisign_key *key, struct sl_check *check,
                        struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(object->source);
    if (bytes > LEGACY_BYTES_MAX)
        return sl_fail_code(
            err, SL_E_INTEGRITY, "E_SIGNATURE",
            "the signature of '%s' is of the older kind, over the object itself, "
            "which must be in memory whole: at most 64 MiB are taken; sign it again "
            "with `minisign -S -H`",
            object->name);
    sl_autofree uint8_t *data = sl_alloc((size_t)bytes + 1, err);
    if (!data || sl_source_read(object->source, 0, data, (size_t)bytes, err) < 0 ||
        sl_digest_of(check->kind, NULL, 0, data, (size_t)bytes, check->expected, err) < 0)
        return -1;
    if (sl_minisign_matches(key->key, signature->signature, data, (size_t)bytes))
        return 0;
    check->signer = key->key;
    return sl_verify_mismatch(check, check->expected, err);
}

static int check_object(struct sl_plan *plan, struct sl_check *check,
                        const struct sl_minisign_key *key, const struct sl_buf *text,
                        struct sl_err *err)
{
    const struct sl_plan_source *object = &plan->sources[check->source];
    struct sl_minisign_signature signature;
    if (sl_minisign_parse(text->data, text->used, key, &signature, err) < 0)
        return sl_wrap(err, "'%s%s'", object->name, SUFFIX);
    check->kind = SL_HASH_BLAKE2B;
    if (!signature.prehashed)
        return check_legacy(object, &signature, key, check, err);
    check->signer = key->key;
    memcpy(check->expected, signature.signature, sizeof(signature.signature));
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* The number of an object of this name, the count of all if there is none. */
static uint32_t find(const struct sl_plan *plan, const char *name, size_t bytes)
{
    uint32_t i = 0;
    for (; i < plan->source_count; i++)
        if (strlen(plan->sources[i].name) == bytes &&
            memcmp(plan->sources[i].name, name, bytes) == 0)
            break;
    return (uint32_t)SL_MIN((size_t)i, plan->source_count);
}

static bool signs_another(const struct sl_plan *plan, const char *name)
{
    return sl_format_has_suffix(name, SUFFIX) &&
           find(plan, name, strlen(name) - strlen(SUFFIX)) < plan->source_count;
}

/* Layout verbatim: each object is the file of its number. */
static int begin_check(struct sl_plan *plan, uint32_t source, struct sl_check *check,
                       struct sl_err *err)
{
    *check = (struct sl_check){.source = source,
                               .file = source,
                               .end = sl_source_bytes(plan->sources[source].source),
                               .given = true};
    plan->own->covered[source] = check->end;
    return sl_plan_object_text(plan, plan->sources[source].name, &check->what, err);
}

static int check_signed(struct sl_plan *plan, uint32_t source, struct sl_err *err)
{
    const char *name = plan->sources[source].name;
    struct sl_check check, of_text;
    sl_autobuf text = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX + 1), path = SL_BUF_INIT(64 * 1024);
    if (fetch(plan, name, &text, err) < 0 || begin_check(plan, source, &check, err) < 0 ||
        check_object(plan, &check, plan->own->signer, &text, err) < 0 ||
        sl_plan_add_check(plan, &check, err) < 0 ||
        sl_buf_printf(&path, err, "%s%s", name, SUFFIX) < 0)
        return -1;
    uint32_t beside = find(plan, path.data, path.used);
    if (beside == plan->source_count)
        return 0;
    if (begin_check(plan, beside, &of_text, err) < 0)
        return -1;
    of_text.kind = SL_HASH_SHA256;
    if (sl_digest_of(of_text.kind, NULL, 0, text.data, text.used, of_text.expected, err) < 0)
        return -1;
    return sl_plan_add_check(plan, &of_text, err);
}

int sl_plan_read_signer(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (!sl_plan_is_signed(own->spec) || own->signer)
        return 0;
    own->signer = sl_alloc(sizeof(*own->signer), err);
    return own->signer ? sl_plan_signer(own->spec, own->signer, err) : -1;
}

int sl_plan_check_signatures(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (!sl_plan_is_signed(own->spec))
        return 0;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (!(own->authentic && own->authentic[i]) && !signs_another(plan, plan->sources[i].name) &&
            check_signed(plan, i, err) < 0)
            return -1;
    return 0;
}
