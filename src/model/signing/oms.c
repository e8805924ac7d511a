/*
 * The bundle is verified, and then the very bytes that were signed are parsed: what a stranger
 * wrote never reaches this parser. Still every name, number and hash is judged, since whoever
 * signs can be wrong, and the root digest is made anew in the order in which the resources stand.
 * Then they are sorted, so that duplicates are neighbours and ranges follow one another.
 */
#include "oms.h"

#include <inttypes.h>
#include <stdio.h>

#include "bundle_parts.h"
#include "lower_bound.h"

enum { NAME_BYTES_MAX = 4096, IGNORED_MAX = 10000 };
#define SHARD_BYTES_MAX (1ull << 53) /* the numbers of JSON are exact so far */

static const char OLD_PREDICATE[] = "https://model_signing/Digests/v0.1";

void sl_oms_free(struct sl_oms *oms)
{
    if (!oms)
        return;
    for (size_t i = 0; i < oms->resource_count; i++)
        free(oms->resources[i].name);
    for (size_t i = 0; i < oms->ignored_count; i++)
        free(oms->ignored[i]);
    free(oms->resources);
    free(oms->ignored);
    sl_signing_signer_release(&oms->signer);
    free(oms);
}

static int refuse(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the signed statement is not one of a model: %s", why);
}

static int refuse_name(const char *name, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "the signed statement is not one of a model: its resource '%.200s' %s",
                        name, why);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* What is wrong with a path, or NULL. `bytes` bytes; JSON has seen to UTF-8. */
static const char *path_fault(const char *path, size_t bytes)
{
    if (bytes > NAME_BYTES_MAX)
        return "has a name of more than 4096 bytes";
    for (size_t at = 0; at <= bytes;) {
        const char *slash = memchr(path + at, '/', bytes - at);
        size_t part = slash ? (size_t)(slash - path) - at : bytes - at;
        if (part == 0)
            return "has a name that is absolute, or with an empty part";
        if ((part == 1 && path[at] == '.') || (part == 2 && memcmp(path + at, "..", 2) == 0))
            return "has a name with a part . or ..";
        at += part + 1;
    }
    return NULL;
}

/* A number as it is written by everybody: digits without a zero in front. */
static bool take_number(const char **text, uint64_t *value)
{
    const char *begin = *text;
    return sl_take_digits(text, value) && (*begin != '0' || *text == begin + 1) &&
           *value != UINT64_MAX;
}

/* PATH:START:END, the last two colons count: cuts the name and sets the range. */
static bool cut_range(struct sl_oms_resource *resource)
{
    char *last = strrchr(resource->name, ':');
    if (!last)
        return false;
    *last = 0;
    char *first = strrchr(resource->name, ':');
    *last = ':';
    if (!first)
        return false;
    const char *at = first + 1;
    bool good = take_number(&at, &resource->start) && *at == ':' && (at++, true) &&
                take_number(&at, &resource->end) && *at == 0 && resource->end > resource->start;
    if (good)
        *first = 0;
    return good;
}

static int take_name(struct sl_oms *oms, const json_t *from, struct sl_oms_resource *resource,
                     struct sl_err *err)
{
    const char *name = sl_json_get_string(from, "name");
    if (!name)
        return refuse("a resource has no name", err);
    resource->end = UINT64_MAX;
    resource->name = sl_strdup(name, err);
    if (!resource->name)
        return -1;
    if (oms->shards && !cut_range(resource))
        return refuse_name(name, "is not named FILE:START:END, as ranges are", err);
    if (strcmp(resource->name, ".") == 0) { /* before 1.0: the file itself */
        oms->single = true;
        return 0;
    }
    const char *fault = path_fault(resource->name, strlen(resource->name));
    return fault ? refuse_name(name, fault, err) : 0;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* "sha256", or for ranges "sha256-sharded-1000", too. */
static int take_kind(const struct sl_oms *oms, const json_t *from, struct sl_oms_resource *resource,
                     struct sl_err *err)
{
    static const struct {
        const char *name;
        enum sl_hash_kind kind;
    } kinds[] = {{"sha256", SL_HASH_SHA256}, {"blake2b", SL_HASH_BLAKE2B}};
    const char *algorithm = sl_json_get_string(from, "algorithm");
    char sharded[64];
    if (!algorithm)
        return refuse_name(resource->name, "has no algorithm", err);
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        snprintf(sharded, sizeof(sharded), "%s-sharded-%" PRIu64, kinds[i].name, oms->shard_bytes);
        resource->kind = kinds[i].kind;
        if (strcmp(algorithm, kinds[i].name) == 0 ||
            (oms->shards && strcmp(algorithm, sharded) == 0))
            return 0;
        if (strncmp(algorithm, sharded, strlen(kinds[i].name) + strlen("-sharded-")) == 0)
            return refuse_name(resource->name, "is hashed in ranges of another size", err);
    }
    return sl_fail(err, SL_E_FORMAT,
                   "'%.200s' is signed with the hash %.64s, which is not supported: have it signed "
                   "with sha256 or blake2b",
                   resource->name, algorithm);
}

static int take_digest(const json_t *from, struct sl_oms_resource *resource, struct sl_err *err)
{
    const char *digest = sl_json_get_string(from, "digest");
    if (!digest || sl_unhex(digest, resource->digest, sl_hash_bytes(resource->kind)) < 0)
        return refuse_name(resource->name, "has no digest as long as its hash, in hex", err);
    return 0;
}

static int check_root(const json_t *subject, const struct sl_oms *oms, struct sl_err *err)
{
    const char *root =
        sl_json_get_string(json_object_get(json_array_get(subject, 0), "digest"), "sha256");
    uint8_t claimed[32], made[32];
    if (!root || sl_unhex(root, claimed, sizeof(claimed)) < 0)
        return refuse("its subject has no sha256 digest", err);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    for (size_t i = 0; i < oms->resource_count; i++)
        sl_sha256_update(sha, oms->resources[i].digest, sl_hash_bytes(oms->resources[i].kind));
    sl_sha256_finish(sha, made);
    return memcmp(claimed, made, sizeof(made)) == 0
               ? 0
               : refuse("its subject's digest is not that of its resources", err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct sl_oms_resource *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->start > y->start) - (x->start < y->start);
}

void sl_oms_sort(struct sl_oms *oms)
{
    if (oms->resource_count)
        qsort(oms->resources, oms->resource_count, sizeof(*oms->resources), by_name);
}

/* Sorted: no name twice, ranges of one size that follow one another from 0. */
static int check_order(const struct sl_oms *oms, struct sl_err *err)
{
    const struct sl_oms_resource *last = NULL;
    for (size_t i = 0; i < oms->resource_count; i++) {
        const struct sl_oms_resource *now = &oms->resources[i];
        bool same = last && strcmp(last->name, now->name) == 0;
        if (same && last->start == now->start)
            return refuse_name(now->name, "is there twice", err);
        if (oms->single && strcmp(now->name, ".") != 0)
            return refuse("it names both a single file and files of a folder", err);
        if (oms->shards && (now->start != (same ? last->end : 0) ||
                            (same && last->end - last->start != oms->shard_bytes) ||
                            now->end - now->start > oms->shard_bytes))
            return refuse_name(now->name,
                               "has ranges that are not all of the shard's size, one after another",
                               err);
        last = now;
    }
    return 0;
}

static int take_resources(const json_t *predicate, struct sl_oms *oms, struct sl_err *err)
{
    const json_t *list = json_object_get(predicate, "resources");
    size_t count = json_array_size(list);
    if (count == 0)
        return refuse("it lists no resources", err);
    oms->resources = sl_alloc_array(count, sizeof(*oms->resources), err);
    if (!oms->resources)
        return -1;
    for (size_t i = 0; i < count; i++) {
        const json_t *from = json_array_get(list, i);
        struct sl_oms_resource *resource = &oms->resources[oms->resource_count++];
        if (take_name(oms, from, resource, err) < 0 || take_kind(oms, from, resource, err) < 0 ||
            take_digest(from, resource, err) < 0)
            return -1;
    }
    return 0;
}

static int take_ignored(const json_t *serialization, struct sl_oms *oms, struct sl_err *err)
{
    const json_t *list = json_object_get(serialization, "ignore_paths");
    size_t count = json_array_size(list);
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || count > IGNORED_MAX)
        return refuse("its ignore_paths are not a list of up to 10000", err);
    oms->ignored = sl_alloc_array(count, sizeof(*oms->ignored), err);
    if (!oms->ignored)
        return -1;
    while (oms->ignored_count < count) {
        const char *path = json_string_value(json_array_get(list, oms->ignored_count));
        if (!path)
            return refuse("its ignore_paths are not all text", err);
        oms->ignored[oms->ignored_count] = sl_strdup(path, err);
        if (!oms->ignored[oms->ignored_count])
            return -1;
        oms->ignored_count++;
    }
    return 0;
}

/* The reference writes 1000.0, the specification 1000. */
static int take_shard_size(const json_t *serialization, struct sl_oms *oms, struct sl_err *err)
{
    double size = json_number_value(json_object_get(serialization, "shard_size"));
    if (!(size >= 1 && size < (double)SHARD_BYTES_MAX) || size != (double)(uint64_t)size)
        return refuse("its shard_size is not a whole number of bytes", err);
    oms->shards = true;
    oms->shard_bytes = (uint64_t)size;
    return 0;
}

static int take_serialization(const json_t *serialization, struct sl_oms *oms, struct sl_err *err)
{
    const char *method = sl_json_get_string(serialization, "method");
    oms->links = json_is_true(json_object_get(serialization, "allow_symlinks"));
    if (!method)
        return refuse("it does not say how files were hashed", err);
    if (strcmp(method, "shards") == 0) {
        if (take_shard_size(serialization, oms, err) < 0)
            return -1;
    } else if (strcmp(method, "files") != 0) {
        return sl_fail(err, SL_E_FORMAT,
                       "the model is signed by the method '%.64s', which is not supported: have it "
                       "signed by files or shards",
                       method);
    }
    return take_ignored(serialization, oms, err);
}

static int refuse_old(struct sl_err *err)
{
    return sl_fail(
        err, SL_E_FORMAT,
        "signed by model-signing 0.2, whose signatures are not supported: sign again with "
        "version 1.1 or later");
}

/* A member that must have this text; another one is of a version that came later. */
static int check_version(const json_t *document, const char *key, const char *known,
                         struct sl_err *err)
{
    const char *text = sl_json_get_string(document, key);
    if (!text)
        return refuse("it is not an in-toto statement", err);
    if (strcmp(text, known) == 0)
        return 0;
    if (strcmp(text, OLD_PREDICATE) == 0)
        return refuse_old(err);
    return sl_fail(err, SL_E_FORMAT,
                   "the signed statement has the %s '%.200s', only %s is supported: update sluice, "
                   "or have the model signed again",
                   key, text, known);
}

static int take_statement(const json_t *document, struct sl_oms *oms, struct sl_err *err)
{
    const json_t *subject = json_object_get(document, "subject"),
                 *predicate = json_object_get(document, "predicate");
    if (check_version(document, "_type", SL_OMS_STATEMENT, err) < 0 ||
        check_version(document, "predicateType", SL_OMS_PREDICATE, err) < 0)
        return -1;
    if (json_array_size(subject) != 1)
        return refuse("it must have exactly one subject", err);
    if (take_serialization(json_object_get(predicate, "serialization"), oms, err) < 0 ||
        take_resources(predicate, oms, err) < 0 || check_root(subject, oms, err) < 0)
        return -1;
    sl_oms_sort(oms);
    return check_order(oms, err);
}

int sl_oms_peek(const struct sl_bundle *bundle, struct sl_oms **oms, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    json_t *document =
        sl_json_parse((const char *)bundle->payload.data, bundle->payload.bytes, "its JSON", &why);
    if (!document)
        return why.kind == SL_E_NO_SPACE ? sl_fail(err, why.kind, "%s", why.message)
                                         : refuse(why.message, err);
    SL_AUTO(sl_oms) made = sl_alloc(sizeof(*made), err);
    int done = made ? take_statement(document, made, err) : -1;
    json_decref(document);
    if (done == 0)
        *oms = sl_steal(&made);
    return done;
}

/* Releases before 0.3 signed something else by mistake: not changed, but too old. Looked at after
 * the refusal, for its words alone. */
static bool is_too_old(const struct sl_bundle *bundle)
{
    return memmem(bundle->payload.data, bundle->payload.bytes, OLD_PREDICATE,
                  strlen(OLD_PREDICATE)) != NULL;
}

int sl_oms_open(const char *text, size_t bytes, const struct sl_signing_trust *trust, int64_t now,
                struct sl_oms **oms, struct sl_err *err)
{
    struct sl_bundle *bundle = NULL;
    struct sl_signing_signer signer = {0};
    SL_AUTO(sl_oms) made = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (sl_bundle_parse(text, bytes, &bundle, err) < 0)
        return -1;
    int done = sl_bundle_verify(bundle, trust, now, &signer, &why);
    if (done < 0 && why.kind == SL_E_INTEGRITY && is_too_old(bundle))
        refuse_old(err);
    else if (done < 0)
        sl_fail_code(err, why.kind, why.code, "%s", why.message);
    else
        done = sl_oms_peek(bundle, &made, err);
    sl_bundle_free(bundle);
    if (done < 0) {
        sl_signing_signer_release(&signer);
        return -1;
    }
    made->signer = signer;
    *oms = sl_steal(&made);
    return 0;
}

/* ---- questions ------------------------------------------------------------------------------- */

static bool is_below(const char *name, const char *path)
{
    size_t bytes = strlen(path);
    return strncmp(name, path, bytes) == 0 && (name[bytes] == 0 || name[bytes] == '/');
}

bool sl_oms_ignores(const struct sl_oms *oms, const char *name)
{
    static const char *const git[] = {".git", ".gitattributes", ".github", ".gitignore"};
    for (size_t i = 0; i < SL_COUNT(git); i++)
        if (is_below(name, git[i]))
            return true;
    for (size_t i = 0; i < oms->ignored_count; i++)
        if (*oms->ignored[i] && is_below(name, oms->ignored[i]))
            return true;
    return false;
}

const struct sl_oms_resource *sl_oms_find(const struct sl_oms *oms, const char *name, size_t *count)
{
    const struct sl_oms_resource *all = oms->resources;
    size_t first = SL_LOWER_BOUND(i, oms->resource_count, strcmp(all[i].name, name) < 0);
    *count = 0;
    while (first + *count < oms->resource_count && strcmp(all[first + *count].name, name) == 0)
        ++*count;
    return *count ? &all[first] : NULL;
}
