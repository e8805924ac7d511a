/*
 * Repositories of a ModelScope hub, read over http_channel.c.
 *
 * The hub's listing tells size and SHA-256 of each file, so it comes first: the SHA-256 is the pin
 * of an object, and what whole files are held to. A revision stays the name that was written, since
 * the hub knows no way to ask for a file at a commit; what changes in mid-load is noticed by
 * length, by the hash that the host of large files tells with each answer, and by the SHA-256 of
 * the whole. Large files lie behind links of another host, which http_object.c asks for once a file
 * and again when they have expired. Small ones come from the hub itself, which gives all of them
 * whatever range is asked for.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ms_store.h"
#include "thread.h"

enum { CUTS_BYTES_MAX = 64 * 1024 * 1024 }; /* what the hub has itself is smaller by far */
static const char hub[] = "https://www.modelscope.cn";
static const char hub_abroad[] = "https://www.modelscope.ai";

static const struct sl_option ms_rows[] = {
    SL_OPTION(sl_ms_options, endpoint, STRING, "",
              "URL of the hub or of a mirror; empty: MODELSCOPE_ENDPOINT, MODELSCOPE_DOMAIN, "
              "https://www.modelscope.cn",
              .value = "URL"),
    SL_OPTION(sl_ms_options, token_file, STRING, "",
              "file with the token; empty: MODELSCOPE_API_TOKEN", .value = "FILE"),
    SL_OPTION_END,
};
const struct sl_option_table sl_ms_table = {"ms", sizeof(struct sl_ms_options), ms_rows};

/* ---- the store ------------------------------------------------------------------------------- */

static int parse_uri(const char *uri, struct sl_hf_uri *parts, struct sl_err *err)
{
    const char *colon = strstr(uri, "://"), *rest = colon ? colon + 3 : "";
    *parts = (struct sl_hf_uri){.kind = ""};
    rest += strncmp(rest, "models/", 7) == 0 ? 7 : 0;
    return sl_hf_repository_parse(uri, rest, "master", parts, err);
}

static int ms_check(const char *uri, struct sl_err *err)
{
    struct sl_hf_uri parts;
    int result = parse_uri(uri, &parts, err);
    sl_hf_uri_release(&parts);
    return result;
}

/* The first of them that says anything, blanks left out. *url by malloc. */
static int find_variable(const char **from, char **url, struct sl_err *err)
{
    static const char *const names[] = {"MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct sl_err why = SL_ERR_INIT;
        *from = names[i];
        *url = sl_hf_variable_text(*from, &why);
        if (why.kind)
            return sl_fail(err, why.kind, "%s", why.message);
        if (*url)
            return 0;
    }
    *url = sl_strdup(sl_hf_variable_is_true("MODELSCOPE_PREFER_AI_SITE") ? hub_abroad : hub, err);
    return *url ? 0 : -1;
}

/* The variables may be a domain alone. */
static int find_endpoint(struct sl_ms *ms, const struct sl_ms_options *options, struct sl_err *err)
{
    const char *from = "source.ms.endpoint";
    if (options && options->endpoint && options->endpoint[0])
        return sl_hf_open_endpoint(&ms->http, options->endpoint, from, &ms->endpoint, err);
    sl_autofree char *text = NULL;
    if (find_variable(&from, &text, err) < 0)
        return -1;
    sl_autofree char *url = sl_asprintf(err, "%s%s", strstr(text, "://") ? "" : "https://", text);
    return url ? sl_hf_open_endpoint(&ms->http, url, from, &ms->endpoint, err) : -1;
}

static void forget_token(struct sl_ms *ms)
{
    if (ms->token)
        explicit_bzero(ms->token, strlen(ms->token));
    free(sl_steal(&ms->token));
    ms->token_from = NULL;
}

/* The client keeps a login as a pickle, which is a program: it is not read. */
static int find_token(struct sl_ms *ms, const struct sl_ms_options *options, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    bool given = options && options->token_file && options->token_file[0];
    if (!given)
        ms->token = sl_hf_variable_text("MODELSCOPE_API_TOKEN", &why);
    if (why.kind)
        return sl_fail(err, why.kind, "%s", why.message);
    if (!given && !ms->token)
        return 0;
    ms->token_from = given ? "source.ms.tokenFile" : "MODELSCOPE_API_TOKEN";
    int sent = sl_hf_may_send(&ms->http, ms->token_from, given, err);
    ms->withheld = sent == 0;
    if (sent <= 0) {
        forget_token(ms);
        return sent;
    }
    ms->http.bearer_token = ms->token;
    ms->http.bearer_token_file = given ? options->token_file : NULL;
    ms->http.bearer_from = ms->token_from;
    ms->http.bearer_cookie = "m_session_id";
    return 0;
}

static int ms_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_ms_options *options = sl_source_options(&store->config, &sl_ms_table);
    struct sl_ms *ms = store->impl = sl_alloc(sizeof(*ms), err);
    if (!ms)
        return -1;
    ms->store = store;
    ms->http.section = "source.ms";
    ms->http.refuse = sl_ms_refuse_answer;
    pthread_mutex_init(&ms->locked.mutex, NULL);
    if (parse_uri(uri, &ms->uri, err) < 0 || find_endpoint(ms, options, err) < 0 ||
        sl_repository_split(store, uri, ms->uri.path, &ms->folder, key, err) < 0)
        return -1;
    return find_token(ms, options, err);
}

static void ms_close(struct sl_store *store)
{
    struct sl_ms *ms = store->impl;
    if (!ms)
        return;
    if (ms->http.url.host)
        sl_http_base_close(&ms->http);
    sl_hf_uri_release(&ms->uri);
    forget_token(ms);
    sl_ms_tree_release(&ms->locked.tree);
    pthread_mutex_destroy(&ms->locked.mutex);
    free(ms->endpoint);
    free(ms->folder);
    free(ms);
}

static void ms_describe(struct sl_store *store,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    const struct sl_ms *ms = store->impl;
    sl_hf_describe_hub(ms->endpoint, ms->token_from, row, arg);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* source->impl: the file at the revision. */
static int ms_locate(struct sl_source *source, struct sl_err *err)
{
    struct sl_ms *ms = source->store->impl;
    sl_autofree char *path = sl_asprintf(err, "%s%s", ms->folder, source->name);
    sl_autofree char *encoded = path ? sl_url_encode(path, false, err) : NULL;
    sl_autofree char *revision = encoded ? sl_url_encode(ms->uri.revision, false, err) : NULL;
    sl_autofree char *url =
        revision ? sl_asprintf(err, "%s/api/v1/models/%s/repo?Revision=%s&FilePath=%s",
                               ms->endpoint, ms->uri.repo, revision, encoded)
                 : NULL;
    source->uri = url ? sl_asprintf(err, "%s%s", source->store->uri, source->name) : NULL;
    source->impl = source->uri ? sl_http_base_object(&ms->http, url, err) : NULL;
    return source->impl ? 0 : -1;
}

static int ms_resolve(struct sl_source *source, struct sl_err *err)
{
    struct sl_ms_file file;
    struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_SHA256};
    if (sl_ms_find(source->store->impl, source->name, &file, err) < 0)
        return -1;
    if (!file.sha256[0])
        return 0; /* the first answer says what there is to know */
    memcpy(source->version.pin, file.sha256, sizeof(file.sha256));
    source->bytes = file.bytes;
    source->opened = true;
    if (sl_unhex(file.sha256, sums.items[0].value, 32) < 0)
        return sl_fail(err, SL_E_INTERNAL, "'%s' has a wrong pin", source->uri);
    return source->checksums ? 0 : sl_source_set_checksums(source, &sums, err);
}

/* The host of large files tells with each answer what the hash of all of it is. */
static int check(struct sl_source *source, const struct sl_exchange *exchange, const char *url,
                 struct sl_err *err)
{
    const char *etag = sl_exchange_header(exchange, "X-Linked-ETag"), *pin = source->version.pin;
    (void)url;
    etag = etag ? etag + (*etag == '"') : "";
    if (!*pin || strcspn(etag, "\"") != 64 || strncasecmp(etag, pin, 64) == 0)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "'%.300s' changed during the load: the hub answers with SHA-256 %.64s "
                        "instead of %s",
                        source->uri, etag, pin);
}

static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    char what[400];
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    const struct sl_ms_refusal refusal = {sl_exchange_status(exchange), body, body_bytes,
                                          sl_exchange_header(exchange, "Retry-After")};
    return sl_ms_refuse(source->store->impl, &refusal, what, err);
}

static const struct sl_http_hooks hooks = {.prepare = sl_http_plain_prepare,
                                           .refuse = refuse,
                                           .redirect = sl_http_plain_redirect,
                                           .check = check,
                                           .cuts_bytes_max = CUTS_BYTES_MAX};

const struct sl_store_kind sl_ms_store = {
    .name = "ms",
    .schemes = {"ms", "modelscope"},
    .example = "ms://org/name@revision/file",
    .help = "a repository of ModelScope or of a mirror: ms://ORG/NAME[@REVISION][/PATH]",
    .options = &sl_ms_table,
    .options_help = "ModelScope hubs",
    .login = "set MODELSCOPE_API_TOKEN",
    .traits = {.listing = true, .folders = true, .repository = true},
    .open = ms_open,
    .close = ms_close,
    .locate = ms_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = ms_check,
    .list = sl_ms_list,
    .resolve = ms_resolve,
    .recover = sl_http_plain_recover,
    .describe = ms_describe,
};
