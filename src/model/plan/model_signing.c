/*
 * Signed models (docs/signing.md): a bundle that names every file of a model with a hash of it, or
 * of each of its ranges. It is read and verified as soon as the listing is known, and says no
 * before any other object is opened. What it knows of ranges goes where sidecars go (sidecars.c),
 * what it knows of whole objects where verify.sha256 goes: from there on nobody knows of
 * signatures.
 *
 * What a registry has may be signed as a manifest instead, which names all files by digests.
 *
 * A node may have a rule for models below a URI. Then one bundle must satisfy both: it is by whom
 * the rule names and by whom the spec names, if it names anybody, and objects that it does not name
 * are allowed where both allow them. So a spec can ask for more, and never for less.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cosign.h"
#include "format.h"
#include "hash.h"
#include "log.h"
#include "metrics.h"
#include "oms.h"
#include "plan_parts.h"
#include "sidecar.h"
#include "stores.h"
#include "thread.h"
#include "uri_text.h"
#include "verify.h"

enum { NAMED_MAX = 10, TRUST_BYTES_MAX = 4 * 1024 * 1024 };

struct sl_plan_signature {
    struct sl_oms *oms;              /* NULL: a manifest is signed, which has all digests */
    struct sl_signing_signer signer; /* of the manifest */
    char *file;                      /* for people */
    bool strangers_allowed;
    size_t resources, loaded, strangers;
};

void sl_plan_signature_free(struct sl_plan_signature *signature)
{
    if (!signature)
        return;
    sl_oms_free(signature->oms);
    sl_signing_signer_release(&signature->signer);
    free(signature->file);
    free(signature);
}

struct sl_signed_by sl_plan_signed_by(const struct sl_plan *plan)
{
    const struct sl_plan_signature *signature = plan->own->signature;
    struct sl_signed_by signed_by = {.at = 0};
    if (!signature)
        return signed_by;
    const struct sl_signing_signer *signer =
        signature->oms ? &signature->oms->signer : &signature->signer;
    snprintf(signed_by.by, sizeof(signed_by.by), "%s", signer->who ? signer->who : "");
    snprintf(signed_by.file, sizeof(signed_by.file), "%s", signature->file);
    signed_by.at = signer->signed_at;
    signed_by.resources = signature->resources;
    signed_by.loaded = signature->loaded;
    signed_by.strangers = signature->strangers;
    return signed_by;
}

/* ---- who may have signed --------------------------------------------------------------------- */

struct trust {
    struct sl_signing_trust base;
    struct sl_buf text; /* of the file that it is made of */
};

static int read_trust(const struct sl_spec_model_signing *from, struct trust *trust,
                      struct sl_err *err)
{
    const struct {
        const char *path, *key;
        enum sl_signing_method method;
        const char **text;
    } files[] = {
        {from->public_key_file, "publicKeyFile", SL_SIGNED_KEY, &trust->base.keys_pem},
        {from->certificates.ca_file, "certificates.caFile", SL_SIGNED_CERTIFICATE,
         &trust->base.ca_pem},
        {from->keyless.trusted_root_file, "keyless.trustedRootFile", SL_SIGNED_KEYLESS,
         &trust->base.trusted_root_json},
    };
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        if (!files[i].path)
            continue;
        trust->base.method = files[i].method;
        if (sl_buf_read_file(&trust->text, files[i].path, err) < 0)
            return sl_wrap(err, "verify.modelSigning.%s", files[i].key);
        *files[i].text = sl_buf_string(&trust->text);
    }
    trust->base.subject = from->certificates.subject;
    trust->base.allow_expired = from->certificates.expired;
    trust->base.identity = from->keyless.identity;
    trust->base.issuer = from->keyless.issuer;
    return 0;
}

/* What is signed: a bundle's text, or what a registry keeps beside a manifest. */
struct evidence {
    struct sl_buf text;
    struct sl_store_signatures found;
    bool manifest;
};

/* By whom one of these names. The first that says so is kept. */
static int verify_by(const struct sl_spec_model_signing *from, const struct evidence *evidence,
                     struct sl_plan_signature *signature, struct sl_err *err)
{
    struct trust trust = {.text = SL_BUF_INIT(TRUST_BYTES_MAX)};
    struct sl_signing_signer signer = {.who = NULL};
    SL_AUTO(sl_oms) oms = NULL;
    int done = read_trust(from, &trust, err);
    if (done == 0 && evidence->manifest)
        done = sl_cosign_verify(&evidence->found, &trust.base, sl_wall_seconds(), &signer, err);
    else if (done == 0)
        done = sl_oms_open(evidence->text.data, evidence->text.used, &trust.base, sl_wall_seconds(),
                           &oms, err);
    sl_buf_release(&trust.text);
    if (done < 0)
        return -1;
    if (oms ? oms->signer.expired : signer.expired)
        sl_log(SL_LOG_WARN,
               "signature '%s': the certificate of %s was valid once and is not any more",
               signature->file, oms ? oms->signer.who : signer.who);
    if (oms && !signature->oms)
        signature->oms = sl_steal(&oms);
    if (signer.who && !signature->signer.who)
        signature->signer = signer;
    else
        sl_signing_signer_release(&signer);
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* "../model.sig": of the folder of the model, or above it. A folder of this machine may be named
 * without its slash. */
static char *climb(const struct sl_plan_own *own, const char *file, struct sl_err *err)
{
    const struct sl_store_traits *traits = sl_store_traits(own->store);
    const char *uri = traits->local ? sl_store_uri(own->store) : own->spec->source.uri;
    const char *root = strstr(uri, "://");
    size_t least = root ? (size_t)(root + 3 - uri) : 0;
    size_t bytes = strcspn(uri, traits->urls ? "?#" : "");
    while (bytes > least && uri[bytes - 1] != '/')
        bytes--;
    for (; strncmp(file, "../", 3) == 0; file += 3) {
        while (bytes > least && uri[bytes - 1] == '/')
            bytes--;
        while (bytes > least && uri[bytes - 1] != '/')
            bytes--;
    }
    if (bytes > least)
        return sl_asprintf(err, "%.*s%s", (int)bytes, uri, file);
    sl_fail(err, SL_E_USAGE, "verify.modelSigning.file: nothing lies so far above '%s'", uri);
    return NULL;
}

static int read_source(struct sl_plan *plan, struct sl_source *source, struct sl_buf *text,
                       struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_BUNDLE_BYTES_MAX)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "'%s' is not a signature of a model: it has %" PRIu64
                            " bytes, at most 64 MiB are taken",
                            sl_source_uri(source), bytes);
    return sl_plan_read_text(plan, source, text, err);
}

static int read_named(struct sl_plan *plan, struct sl_store *store, const char *name,
                      const char *file, struct sl_buf *text, struct sl_err *err)
{
    enum { HEAD = 256 * 1024 };
    SL_AUTO(sl_source) source = NULL;
    if (sl_source_open(store, name, HEAD, &source, err) == 0)
        return read_source(plan, source, text, err);
    if (err->kind == SL_E_NOT_FOUND)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the model is not signed: there is no '%s'; sign it with `sluice sign "
                            "--format oms`, or say in verify.modelSigning.file where it is",
                            file);
    return sl_wrap(err, "cannot read the signature '%s'", file);
}

/* Elsewhere: nothing of how this model is read counts there but the options of its stores. */
static int read_elsewhere(struct sl_plan *plan, const char *uri, const char *file,
                          const struct sl_source_config *config, struct sl_buf *text,
                          struct sl_err *err)
{
    struct sl_source_config plain = *config;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    plain.beneath_bytes = 0;
    plain.preconnect = 0;
    plain.hold_bytes = 0;
    plain.through = (struct sl_through_options){0};
    if (sl_store_open(uri, &plain, &store, &key, err) < 0)
        return sl_wrap(err, "verify.modelSigning.file");
    if (!*key)
        return sl_fail(err, SL_E_USAGE, "verify.modelSigning.file: '%s' is a folder", file);
    return read_named(plan, store, key, file, text, err);
}

static bool is_elsewhere(const char *file)
{
    return *file == '/' || strstr(file, "://") || strncmp(file, "../", 3) == 0;
}

static int read_bundle(struct sl_plan *plan, const char *file,
                       const struct sl_source_config *config, struct sl_buf *text,
                       struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    if (!is_elsewhere(file))
        return sl_name_check(file, strlen(file), err) < 0
                   ? sl_wrap(err, "verify.modelSigning.file")
                   : read_named(plan, own->store, file, own->signature->file, text, err);
    sl_autofree char *uri = *file == '.' ? climb(own, file, err) : NULL;
    if (*file == '.' && !uri)
        return -1;
    return read_elsewhere(plan, uri ? uri : file, own->signature->file, config, text, err);
}

/* ---- what it names --------------------------------------------------------------------------- */

static const char *name_of(const struct sl_plan *plan, const char *name)
{
    const struct sl_plan_own *own = plan->own;
    return own->signature->oms->single && own->single ? "." : name;
}

/* Empty objects have no ranges, and nothing that could be changed. */
static bool is_signed(const struct sl_plan *plan, const char *name, uint64_t bytes)
{
    const struct sl_oms *oms = plan->own->signature->oms;
    size_t count;
    return sl_oms_find(oms, name_of(plan, name), &count) || (oms->shards && !bytes);
}

/* Whoever signed has said of some paths that they may hold anything. */
static bool is_allowed(const struct sl_plan *plan, const char *name, uint64_t bytes)
{
    return is_signed(plan, name, bytes) || sl_oms_ignores(plan->own->signature->oms, name);
}

/* Names for a message, as many as are worth it. */
struct naming {
    char text[640];
    size_t count;
};

static void name_one(struct naming *naming, const char *name)
{
    size_t used = strlen(naming->text);
    if (naming->count++ < NAMED_MAX && used + 64 < sizeof(naming->text))
        snprintf(naming->text + used, sizeof(naming->text) - used, "%s'%.120s'", used ? ", " : "",
                 name);
}

static int refuse_strangers(const struct naming *naming, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the signature does not name %s%s: these %zu were not signed; leave them "
                        "out with source.exclude, sign the model again, or set "
                        "verify.modelSigning.unsigned to 'allow'",
                        naming->text, naming->count > NAMED_MAX ? ", …" : "", naming->count);
}

static bool is_candidate(const struct sl_plan_own *own, const char *name)
{
    size_t first = 0, end = own->candidate_count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        int order = strcmp(own->candidates[middle].name, name);
        if (order == 0)
            return true;
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return false;
}

/* Resources are sorted by name. Of one object that was asked for, others were not. */
static int find_missing(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    struct sl_plan_signature *signature = own->signature;
    const struct sl_oms *oms = signature->oms;
    struct naming missing = {.count = 0};
    for (size_t i = 0; i < oms->resource_count; i++) {
        const char *name = oms->resources[i].name;
        if (i && strcmp(oms->resources[i - 1].name, name) == 0)
            continue;
        signature->resources++;
        if (!own->single && !is_candidate(own, name) && !sl_plan_left_out(own, name))
            name_one(&missing, name);
    }
    if (!missing.count)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the signature names %s%s, which %s not there: a signed model is loaded "
                        "whole, or without what source.include and source.exclude leave out",
                        missing.text, missing.count > NAMED_MAX ? ", …" : "",
                        missing.count == 1 ? "is" : "are");
}

/* What is listed and was used. A signature of minisign signs what lies beside it. */
static bool is_used(const struct sl_plan_own *own, const char *name, const char *file)
{
    static const char MINISIGN[] = ".minisig";
    size_t bytes = strlen(name), suffix = sizeof(MINISIGN) - 1;
    if (strcmp(name, file) == 0)
        return true;
    if (!sl_plan_is_signed(own->spec) || !sl_format_has_suffix(name, MINISIGN) || bytes == suffix)
        return false;
    sl_autofree char *owner = sl_strndup(name, bytes - suffix, NULL);
    return owner && is_candidate(own, owner);
}

static int set_aside(struct sl_plan *plan, const char *file, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    size_t kept = 0;
    sl_autofree bool *used = sl_alloc_array(own->candidate_count + 1, sizeof(*used), err);
    if (!used)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        used[i] = !own->single && is_used(own, own->candidates[i].name, file);
    for (size_t i = 0; i < own->candidate_count; i++)
        if (used[i])
            sl_candidate_release(&own->candidates[i]);
        else
            own->candidates[kept++] = own->candidates[i];
    own->candidate_count = kept;
    if (kept)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND, "nothing lies below '%s' but signatures",
                   sl_store_uri(own->store));
}

/* Before anything is opened: sidecars leave later, and where tensors are picked so may others. */
static int judge_listing(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    bool sidecars = own->spec->verify.sidecar != SL_SIDECAR_OFF;
    struct naming strangers = {.count = 0};
    if (own->picks || own->single || own->signature->strangers_allowed)
        return 0;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_candidate *candidate = &own->candidates[i];
        if (!is_allowed(plan, candidate->name, candidate->bytes) &&
            !(sidecars && sl_format_has_suffix(candidate->name, SL_SIDECAR_SUFFIX)))
            name_one(&strangers, candidate->name);
    }
    return strangers.count ? refuse_strangers(&strangers, err) : 0;
}

/* ---- reading it ------------------------------------------------------------------------------ */

static int refuse_parts(const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    const struct sl_oms *oms = own->signature->oms;
    if ((oms && oms->shards) || !(own->picks || own->lists))
        return 0;
    if (own->lists)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' signs whole files, and parts of them are read: load the model with "
                       "`sluice load` or sluice_pull(), or use a signature of ranges (`sluice sign "
                       "--format oms --shard-bytes 16MiB`)",
                       own->signature->file);
    return sl_fail(err, SL_E_USAGE,
                   "'%s' signs whole files, but only tensors of them are read: use 'layout: "
                   "verbatim', or a signature of ranges (`sluice sign --format oms --shard-bytes "
                   "16MiB`)",
                   own->signature->file);
}

/* By whom the node's rule names, and by whom the spec names. */
static int verify(struct sl_plan_signature *signature, const struct sl_spec *spec,
                  const struct evidence *evidence, struct sl_err *err)
{
    const struct sl_spec_model_signing *wanted[] = {&spec->verify.rule,
                                                    &spec->verify.model_signing};
    signature->strangers_allowed = true;
    for (size_t i = 0; i < SL_COUNT(wanted); i++) {
        if (!sl_spec_signing_is_set(wanted[i]))
            continue;
        if (verify_by(wanted[i], evidence, signature, err) < 0)
            return sl_wrap(err, "signature '%s'%s", signature->file,
                           i == 0 ? ", by the rule of this node" : "");
        signature->strangers_allowed &= wanted[i]->strangers == SL_STRANGERS_ALLOW;
    }
    return 0;
}

/* The rule's place counts where the spec has none of its own. */
static const char *file_of(const struct sl_spec *spec)
{
    const struct sl_spec_model_signing *own = &spec->verify.model_signing,
                                       *rule = &spec->verify.rule;
    bool named = sl_spec_signing_is_set(own) && strcmp(own->file, SL_OMS_FILE_NAME) != 0;
    return named || !sl_spec_signing_is_set(rule) ? own->file : rule->file;
}

/* Of a registry, where no other file is named and none lies among the model's. */
static bool is_by_manifest(const struct sl_plan_own *own, const char *file)
{
    return sl_store_traits(own->store)->signatures && strcmp(file, SL_OMS_FILE_NAME) == 0 &&
           !is_candidate(own, file);
}

static int read_manifest(struct sl_plan *plan, struct evidence *evidence, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (sl_store_signatures(own->store, &evidence->found, err) < 0)
        return sl_wrap(err, "cannot read the signatures of '%s'", sl_store_uri(own->store));
    free(own->signature->file);
    own->signature->file = sl_strdup(evidence->found.digest, err);
    return own->signature->file ? 0 : -1;
}

static int read_evidence(struct sl_plan *plan, const char *file,
                         const struct sl_source_config *config, struct evidence *evidence,
                         struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    evidence->manifest = is_by_manifest(own, file);
    int done = evidence->manifest ? read_manifest(plan, evidence, err)
                                  : read_bundle(plan, file, config, &evidence->text, err);
    return done < 0 ? -1 : verify(own->signature, own->spec, evidence, err);
}

static int read_signature(struct sl_plan *plan, const struct sl_source_config *config,
                          struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct evidence evidence = {.text = SL_BUF_INIT(SL_BUNDLE_BYTES_MAX + 1)};
    const char *file = file_of(own->spec);
    own->signature = sl_alloc(sizeof(*own->signature), err);
    if (!own->signature || !(own->signature->file = sl_uri_sanitize(file, err)))
        return -1;
    int done = read_evidence(plan, file, config, &evidence, err);
    sl_buf_release(&evidence.text);
    sl_store_signatures_release(&evidence.found);
    if (done < 0 || refuse_parts(plan, err) < 0 ||
        (own->signature->oms && find_missing(plan, err) < 0) || set_aside(plan, file, err) < 0)
        return -1;
    return own->signature->oms ? judge_listing(plan, err) : 0;
}

/* What was refused for its signature; that a server does not answer is something else. */
static int count(int done, const struct sl_err *why, struct sl_err *err)
{
    if (done < 0 && (why->kind == SL_E_INTEGRITY || why->kind == SL_E_FORMAT))
        sl_metric_add(SL_M_SIGNATURES_REFUSED, 1);
    if (done < 0 && err)
        *err = *why;
    return done;
}

int sl_plan_read_signature(struct sl_plan *plan, const struct sl_source_config *config,
                           struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (!sl_spec_is_signed(plan->own->spec))
        return 0;
    return count(read_signature(plan, config, &why), &why, err);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Its ranges have no gaps, and begin at 0: sl_oms_open() has seen to that. */
static int take_ranges(struct sl_plan *plan, uint32_t number, const struct sl_oms_resource *first,
                       size_t count, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    const char *name = plan->sources[number].name;
    uint64_t bytes = sl_source_bytes(plan->sources[number].source);
    if (first[count - 1].end != bytes)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "object '%s' has %" PRIu64 " bytes, but %" PRIu64 " were signed", name,
                            bytes, first[count - 1].end);
    SL_AUTO(sl_sidecar)
    sidecar = sl_sidecar_new(name, bytes, own->signature->oms->shard_bytes, err);
    if (!sidecar)
        return -1;
    if (sidecar->range_count != count)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the signature has %zu ranges of '%s', and %zu were expected", count,
                            name, sidecar->range_count);
    sidecar->of_signature = true;
    sidecar->blake2b = first->kind == SL_HASH_BLAKE2B;
    for (size_t i = 0; i < count; i++) {
        if (first[i].kind != first->kind)
            return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                                "the ranges of '%s' are signed by hashes of two kinds", name);
        memcpy(sidecar->ranges[i].blake2b, first[i].digest, sl_hash_bytes(first->kind));
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    own->sidecars[number] = sl_steal(&sidecar);
    return 0;
}

static int cover(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    struct sl_plan_signature *signature = own->signature;
    struct naming strangers = {.count = 0};
    size_t count;
    if (signature->oms->shards && sl_plan_make_sidecar_room(plan, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const char *name = plan->sources[i].name;
        const struct sl_oms_resource *found =
            sl_oms_find(signature->oms, name_of(plan, name), &count);
        uint64_t bytes = sl_source_bytes(plan->sources[i].source);
        signature->strangers += !is_signed(plan, name, bytes);
        if (!is_allowed(plan, name, bytes))
            name_one(&strangers, name);
        signature->loaded += found != NULL;
        if (found && signature->oms->shards && take_ranges(plan, i, found, count, err) < 0)
            return -1;
    }
    if (strangers.count && !signature->strangers_allowed)
        return refuse_strangers(&strangers, err);
    if (strangers.count)
        sl_log(SL_LOG_WARN,
               "%zu of the objects of '%s' %s not in its signature, and taken as they come: %s%s",
               strangers.count, sl_plan_uri(plan), strangers.count == 1 ? "is" : "are",
               strangers.text, strangers.count > NAMED_MAX ? ", …" : "");
    return 0;
}

/* Its digest in the manifest; NULL: it lies in a layer with others, or has none of its own. */
static const struct sl_checksum *digest_of(const struct sl_plan *plan, uint32_t number)
{
    const struct sl_checksums *sums = sl_source_known_checksums(plan->sources[number].source);
    for (unsigned i = 0; sums && i < sums->count; i++)
        if (sums->items[i].kind == SL_HASH_SHA256 && !sums->items[i].git)
            return &sums->items[i];
    return NULL;
}

static int cover_by_manifest(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_signature *signature = plan->own->signature;
    struct naming bare = {.count = 0};
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (!digest_of(plan, i))
            name_one(&bare, plan->sources[i].name);
    signature->resources = signature->loaded = plan->source_count;
    if (!bare.count)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the manifest is signed, and has no digest for %s%s: raise "
                        "source.oci.checkLayersUpTo, or sign the model with `sluice sign --format "
                        "oms`",
                        bare.text, bare.count > NAMED_MAX ? ", …" : "");
}

int sl_plan_cover_by_signature(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (!plan->own->signature)
        return 0;
    if ((plan->own->signature->oms ? cover(plan, &why) : cover_by_manifest(plan, &why)) < 0)
        return count(-1, &why, err);
    sl_metric_add(SL_M_SIGNATURES_RIGHT, 1);
    return 0;
}

/* ---- hashes of whole objects ----------------------------------------------------------------- */

/* Layout verbatim: each object is the file of its number. */
static int check_source(struct sl_plan *plan, uint32_t number, enum sl_hash_kind kind,
                        const uint8_t *expected, struct sl_err *err)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    struct sl_check check = {.kind = kind,
                             .source = number,
                             .file = number,
                             .end = sl_source_bytes(plan->sources[number].source),
                             .of_signature = true,
                             .given = true};
    memcpy(check.expected, expected, sl_hash_bytes(kind));
    if (sl_plan_object_text(plan, plan->sources[number].name, &check.what, err) < 0)
        return -1;
    if (!check.end &&
        (sl_digest_of(kind, NULL, 0, "", 0, digest, err) < 0 ||
         (!sl_verify_agrees(&check, digest) && sl_verify_mismatch(&check, digest, err) < 0)))
        return -1;
    plan->own->covered[number] = check.end;
    return sl_plan_add_check(plan, &check, err);
}

int sl_plan_check_by_signature(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_signature *signature = plan->own->signature;
    const struct sl_oms *oms = signature ? signature->oms : NULL;
    size_t count;
    for (uint32_t i = 0; signature && !(oms && oms->shards) && i < plan->source_count; i++) {
        const struct sl_oms_resource *found =
            oms ? sl_oms_find(oms, name_of(plan, plan->sources[i].name), &count) : NULL;
        const struct sl_checksum *sum = oms ? NULL : digest_of(plan, i);
        if ((found && check_source(plan, i, found->kind, found->digest, err) < 0) ||
            (sum && check_source(plan, i, sum->kind, sum->value, err) < 0))
            return -1;
    }
    return 0;
}
