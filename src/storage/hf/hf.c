/*
 * Repositories and buckets of a Hugging Face hub, read over http_channel.c.
 *
 * A revision is made a commit by one request, and everything after it names that commit, so nothing
 * that is read can change: the commit is the pin of all objects. A file's bytes are asked for at
 * the hub, which leads to a signed link of another host for whatever is large; http_object.c asks
 * once a file and again when the link has expired. Hashes come with the tree, or for a file that
 * was named alone, with the hub's answer.
 *
 * A file of a bucket may be replaced at any time, and its URL stays the same. The Xet hash is its
 * pin: Xet is asked for that, and a link counts only where the hub says with it that it leads
 * there. Links are kept by URL and pin, so that one of an older file is not taken for a newer.
 */
#include <stdio.h>
#include <string.h>

#include "hf_store.h"
#include "thread.h"
#include "xet_channel.h"

static const char hub[] = "https://huggingface.co";

static const struct sl_option hf_rows[] = {
    SL_OPTION(sl_hf_options, endpoint, STRING, "",
              "URL of the hub or of a mirror; empty: HF_ENDPOINT, https://huggingface.co",
              .value = "URL"),
    SL_OPTION(sl_hf_options, token_file, STRING, "",
              "file with the token; empty: HF_TOKEN, the file HF_TOKEN_PATH, HF_HOME/token",
              .value = "FILE"),
    SL_OPTION(
        sl_hf_options, xet, CHOICE, "auto",
        "read files that are on Xet from there: auto goes back to plain links where that does not "
        "work, on fails then, off never does. HF_HUB_DISABLE_XET, and source.through but for "
        "buckets, are off for auto",
        .choices = "auto|on|off"),
    SL_OPTION_END,
};
const struct sl_option_table sl_hf_table = {"hf", sizeof(struct sl_hf_options), hf_rows};

/* ---- the store ------------------------------------------------------------------------------- */

static int hf_check(const char *uri, struct sl_err *err)
{
    struct sl_hf_uri parts;
    int result = sl_hf_uri_parse(uri, &parts, err);
    sl_hf_uri_release(&parts);
    return result;
}

int sl_hf_open_endpoint(struct sl_http_base *base, const char *url, const char *from,
                        char **endpoint, struct sl_err *err)
{
    size_t bytes = strlen(url);
    while (bytes && url[bytes - 1] == '/')
        bytes--;
    sl_autofree char *trimmed = sl_strndup(url, bytes, err);
    if (!trimmed)
        return -1;
    if (strcspn(trimmed, "?#") < bytes)
        return sl_fail(err, SL_E_USAGE, "%s: the URL of a hub must have no query", from);
    if (sl_http_base_open(base, trimmed, err) < 0)
        return sl_wrap(err, "%s", from);
    if (!base->url.userinfo) /* a login of .netrc would stand in the token's place */
        free(sl_steal(&base->login));
    char *text = *endpoint = sl_url_format(&base->url, false, err);
    for (bytes = text ? strlen(text) : 0; bytes && text[bytes - 1] == '/';)
        text[--bytes] = 0;
    return text ? 0 : -1;
}

static int find_endpoint(struct sl_hf *hf, const struct sl_hf_options *options, struct sl_err *err)
{
    const char *from = "source.hf.endpoint", *url = options ? options->endpoint : NULL;
    if (!url || !*url) {
        from = "HF_ENDPOINT";
        url = getenv(from);
    }
    return sl_hf_open_endpoint(&hf->http, url && *url ? url : hub, from, &hf->endpoint, err);
}

static int refuse_offline(const char *uri, struct sl_err *err)
{
    static const char *const names[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (sl_hf_variable_is_true(names[i]))
            return sl_fail(err, SL_E_NOT_FOUND,
                           "cannot open '%.300s': %s is set, so no hub is asked: unset it for "
                           "sluice (engines that read what it publishes may keep it)",
                           uri, names[i]);
    return 0;
}

static enum sl_delivery delivery(const struct sl_source *source)
{
    const struct sl_hf *hf = source->store->impl;
    return sl_xet_delivery(hf->xet, source->version.pin, source->name);
}

/* Caches have nothing of Xet: its links are signed for one range of a xorb each, and not for the
 * blocks that caches keep. They have what the hub's own links lead to, which its SHA-256 checks;
 * buckets list none. */
static bool wants_links(const struct sl_hf *hf)
{
    const struct sl_source_config *config = &hf->store->config;
    return sl_hf_variable_is_true("HF_HUB_DISABLE_XET") ||
           (config->through.count && !config->no_mirrors && !hf->uri.bucket);
}

/* Without it the store is read by plain HTTP. */
static int open_xet(struct sl_hf *hf, const struct sl_hf_options *options, struct sl_err *err)
{
    enum sl_xet_mode mode = options ? (enum sl_xet_mode)options->xet : SL_XET_AUTO;
    if (mode == SL_XET_OFF || (mode == SL_XET_AUTO && wants_links(hf))) {
        hf->store->transport = &sl_http_transport;
        return 0;
    }
    hf->store->advice.delivery = delivery;
    hf->xet = sl_xet_new(hf, mode, err);
    return hf->xet ? 0 : -1;
}

static void find_cache(struct sl_hf *hf)
{
    struct sl_cache_place *cache = &hf->cache;
    const char *kind = *hf->uri.kind ? hf->uri.kind : "models/";
    size_t org = strcspn(hf->uri.repo, "/");
    if (hf->uri.bucket)
        return; /* the hub's client looks for none there */
    *cache = (struct sl_cache_place){.revision = hf->uri.revision, .below = hf->folder};
    snprintf(cache->folder, sizeof(cache->folder), "%.*s--%.*s--%s", (int)strcspn(kind, "/"), kind,
             (int)org, hf->uri.repo, hf->uri.repo + org + 1);
    hf->store->advice.cache = cache;
}

static int hf_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_hf_options *options = sl_source_options(&store->config, &sl_hf_table);
    struct sl_hf *hf = store->impl = sl_alloc(sizeof(*hf), err);
    if (!hf)
        return -1;
    hf->store = store;
    hf->http.section = "source.hf";
    hf->http.windows = true;
    hf->http.refuse = sl_hf_refuse_answer;
    pthread_mutex_init(&hf->locked.mutex, NULL);
    if (sl_hf_uri_parse(uri, &hf->uri, err) < 0 || refuse_offline(uri, err) < 0 ||
        find_endpoint(hf, options, err) < 0 ||
        sl_repository_split(store, uri, hf->uri.path, &hf->folder, key, err) < 0)
        return -1;
    find_cache(hf);
    return sl_hf_find_token(hf, options, err) < 0 ? -1 : open_xet(hf, options, err);
}

static void hf_close(struct sl_store *store)
{
    struct sl_hf *hf = store->impl;
    if (!hf)
        return;
    sl_xet_free(hf->xet);
    if (hf->http.url.host)
        sl_http_base_close(&hf->http);
    sl_hf_uri_release(&hf->uri);
    sl_hf_files_release(&hf->locked.files);
    sl_hf_forget_token(hf);
    free(hf->endpoint);
    free(hf->folder);
    pthread_mutex_destroy(&hf->locked.mutex);
    free(hf);
}

void sl_hf_describe_hub(const char *endpoint, const char *token_from,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    sl_autofree char *token = sl_asprintf(NULL, "a token from %s", token_from ? token_from : "");
    row(arg, "endpoint", endpoint);
    row(arg, "credentials", token && token_from ? token : "no token: public repositories only");
}

static void hf_describe(struct sl_store *store,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    const struct sl_hf *hf = store->impl;
    sl_hf_describe_hub(hf->endpoint, hf->token_from, row, arg);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* source->impl: the file at the commit, or of the content, that the source is pinned to. */
static int find_object(struct sl_source *source, struct sl_err *err)
{
    struct sl_hf *hf = source->store->impl;
    const char *pin = source->version.pin;
    bool bucket = hf->uri.bucket;
    sl_autofree char *folder = sl_url_encode(hf->folder, true, err);
    sl_autofree char *name = folder ? sl_url_encode(source->name, true, err) : NULL;
    sl_autofree char *url =
        name ? sl_asprintf(err, "%s/%s%s/resolve/%s%s%s%s%s%s", hf->endpoint, hf->uri.kind,
                           hf->uri.repo, bucket ? "" : pin, bucket ? "" : "/", folder, name,
                           bucket ? "#" : "", bucket ? pin : "")
             : NULL;
    source->impl = url ? sl_http_base_object(&hf->http, url, err) : NULL;
    return source->impl ? 0 : -1;
}

static int hf_locate(struct sl_source *source, struct sl_err *err)
{
    source->uri = sl_asprintf(err, "%s%s", source->store->uri, source->name);
    if (!source->uri)
        return -1;
    return source->version.pin[0] ? find_object(source, err) : 0;
}

static int hf_resolve(struct sl_source *source, struct sl_err *err)
{
    struct sl_hf *hf = source->store->impl;
    char commit[SL_HF_COMMIT_BYTES];
    if (hf->uri.bucket)
        return sl_hf_find_in_bucket(source, err) < 0 ? -1 : find_object(source, err);
    if (sl_hf_commit(hf, commit, err) < 0)
        return -1;
    memcpy(source->version.pin, commit, SL_HF_COMMIT_BYTES);
    return find_object(source, err);
}

/* ---- answers --------------------------------------------------------------------------------- */

static int check_commit(const struct sl_source *source, const struct sl_exchange *exchange,
                        struct sl_err *err)
{
    const char *commit = sl_exchange_header(exchange, "X-Repo-Commit");
    if (!commit || strcmp(commit, source->version.pin) == 0)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "the hub answers for commit %.40s instead of %.40s", commit,
                        source->version.pin);
}

/* Does the hub say which content of a bucket's file it gives, and is it the source's? `own`: nobody
 * else says so. */
static int check_content(const struct sl_source *source, const struct sl_exchange *exchange,
                         bool own, struct sl_err *err)
{
    const char *hash = sl_exchange_header(exchange, "X-Xet-Hash");
    if (!hash && own) {
        sl_fail_code(err, SL_E_NET, "unversioned",
                     "the hub does not say which content of the file it gives: X-Xet-Hash is "
                     "missing");
        if (err)
            err->retryable = false;
        return -1;
    }
    if (!hash || strcmp(hash, source->version.pin) == 0)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "it was replaced meanwhile: the hub has content %.64s instead of %.64s",
                        hash, source->version.pin);
}

static bool is_of_hub(const struct sl_hf *hf, const char *text)
{
    sl_autourl url = {0};
    return sl_url_parse(text, &url, NULL) == 0 && sl_url_same_origin(&url, &hf->http.url);
}

/* A hash in a header, as an ETag: quoted, perhaps weak. Nothing if it is another kind of text. */
static int set_hash(struct sl_source *source, const char *etag, bool lfs, struct sl_err *err)
{
    struct sl_checksums sums = {.count = 1};
    struct sl_checksum *sum = &sums.items[0];
    char hex[2 * 32 + 1];
    sum->kind = lfs ? SL_HASH_SHA256 : SL_HASH_SHA1;
    sum->git = !lfs;
    size_t bytes = lfs ? 32 : 20;
    if (!etag || source->opened || source->checksums)
        return 0;
    etag += strncmp(etag, "W/", 2) == 0 ? 2 : 0;
    etag += *etag == '"';
    if (strcspn(etag, "\"") != 2 * bytes)
        return 0;
    memcpy(hex, etag, 2 * bytes);
    hex[2 * bytes] = 0;
    if (sl_unhex(hex, sum->value, bytes) < 0)
        return 0;
    return sl_source_set_checksums(source, &sums, err);
}

/* Does the hub say that the file is on Xet, and is that used? SL_E_NET, code SL_HF_ON_XET, then. */
static int turn_to_xet(const struct sl_hf *hf, const struct sl_source *source,
                       const struct sl_exchange *exchange, struct sl_err *err)
{
    const char *hash = sl_exchange_header(exchange, "X-Xet-Hash");
    const char *size = sl_exchange_header(exchange, "X-Linked-Size");
    uint64_t bytes;
    if (!hf->xet || source->opened || !hash || !size || !sl_take_digits(&size, &bytes) || *size)
        return 0;
    if (sl_xet_note(hf->xet, source->version.pin, source->name, hash, bytes, err) < 0)
        return -1;
    if (sl_xet_find(hf->xet, source->version.pin, source->name, false))
        return sl_fail_code(err, SL_E_NET, SL_HF_ON_XET, "it is on Xet");
    sl_xet_read_elsewhere(hf->xet, source->version.pin, source->name);
    return 0;
}

static int redirect(struct sl_source *source, const struct sl_exchange *exchange, const char *from,
                    const char *to, struct sl_err *err)
{
    struct sl_hf *hf = source->store->impl;
    if (hf->uri.bucket) {
        if (is_of_hub(hf, from) && check_content(source, exchange, !is_of_hub(hf, to), err) < 0)
            return -1;
    } else if (check_commit(source, exchange, err) < 0 ||
               set_hash(source, sl_exchange_header(exchange, "X-Linked-Etag"), true, err) < 0 ||
               turn_to_xet(hf, source, exchange, err) < 0) {
        return -1;
    }
    return sl_http_redirect(&hf->http, source->impl, from, to, sl_exchange_status(exchange), err);
}

/* The hub itself answers with the bytes of small files; other hosts have ETags of their own. */
static int answered(struct sl_source *source, const struct sl_exchange *exchange,
                    struct sl_version *version, struct sl_err *err)
{
    (void)version;
    if (!sl_exchange_header(exchange, "X-Repo-Commit"))
        return 0;
    if (check_commit(source, exchange, err) < 0)
        return sl_wrap(err, "cannot read '%.300s'", source->uri);
    return set_hash(source, sl_exchange_header(exchange, "ETag"), false, err);
}

static int check(struct sl_source *source, const struct sl_exchange *exchange, const char *url,
                 struct sl_err *err)
{
    const struct sl_hf *hf = source->store->impl;
    if (!hf->uri.bucket || !is_of_hub(hf, url) || check_content(source, exchange, true, err) == 0)
        return 0;
    return sl_wrap(err, "cannot read '%.300s'", source->uri);
}

static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    char what[400];
    (void)body;
    (void)body_bytes;
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    const struct sl_hf_refusal refusal = {
        .status = sl_exchange_status(exchange),
        .code = sl_exchange_header(exchange, "X-Error-Code"),
        .message = sl_exchange_header(exchange, "X-Error-Message"),
        .rate_limit = sl_exchange_header(exchange, "RateLimit"),
        .retry_after = sl_exchange_header(exchange, "Retry-After"),
    };
    return sl_hf_refuse(source->store->impl, &refusal, what, err);
}

static const struct sl_http_hooks hooks = {.prepare = sl_http_plain_prepare,
                                           .refuse = refuse,
                                           .redirect = redirect,
                                           .answered = answered,
                                           .check = check};

const struct sl_store_kind sl_hf_store = {
    .name = "hf",
    .schemes = {"hf"},
    .example = "hf://org/name@revision/file",
    .help = "a repository of Hugging Face or of a mirror: hf://ORG/NAME[@REVISION][/PATH]; a "
            "bucket: hf://buckets/ORG/NAME[/PATH]",
    .options = &sl_hf_table,
    .options_help = "Hugging Face hubs",
    .login = "set HF_TOKEN",
    .traits = {.listing = true, .folders = true, .repository = true},
    .open = hf_open,
    .close = hf_close,
    .locate = hf_locate,
    .transport = &sl_hf_transport,
    .hooks = &hooks,
    .check = hf_check,
    .list = sl_hf_list,
    .resolve = hf_resolve,
    .recover = sl_http_plain_recover,
    .describe = hf_describe,
};
