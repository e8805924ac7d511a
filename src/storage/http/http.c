/*
 * Any web server, over http_channel.c.
 *
 * The base is the folder of the URI that was named. The object that was named keeps its path and
 * query exactly as written (a presigned URL's signature covers them); other objects are named by an
 * index, and their names are percent-encoded below the base. Credentials and redirects are those
 * of http_base.h.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http_expiry.h"
#include "http_store.h"
#include "xml.h"

static const struct sl_option http_rows[] = {
    SL_OPTION(sl_http_options, bearer_token_file, STRING, "",
              "file with a token that is sent as Authorization: Bearer to the source's own host"),
    SL_OPTION(sl_http_options, headers_file, STRING, "",
              "file with lines 'Name: value' that are sent to the source's own host"),
    SL_OPTION_END,
};
const struct sl_option_table sl_http_table = {"http", sizeof(struct sl_http_options), http_rows};

/* ---- opening --------------------------------------------------------------------------------- */

static int http_check(const char *uri, struct sl_err *err)
{
    sl_autourl url = {0};
    return sl_url_parse(uri, &url, err);
}

static int http_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_http_options *options = sl_source_options(&store->config, &sl_http_table);
    struct sl_http_store *http = store->impl = sl_alloc(sizeof(*http), err);
    if (!http)
        return -1;
    http->base.section = "source.http";
    if (options) {
        http->base.bearer_token_file = options->bearer_token_file;
        http->base.headers_file = options->headers_file;
    }
    if (sl_http_base_open(&http->base, uri, err) < 0 || sl_http_store_name(http, key, err) < 0)
        return -1;
    http->base_url = sl_url_format(&http->base.url, false, err);
    store->uri = http->base_url ? sl_strdup(http->base_url, err) : NULL;
    return store->uri ? 0 : -1;
}

static void http_close(struct sl_store *store)
{
    struct sl_http_store *http = store->impl;
    if (!http)
        return;
    sl_http_base_close(&http->base);
    free(http->base_url);
    free(http->key);
    free(http->key_target);
    free(http);
}

/* source->impl is the object, which is the base's. */
static int http_locate(struct sl_source *source, struct sl_err *err)
{
    sl_autofree char *url = NULL;
    if (sl_http_store_url(source->store, source->name, &url, &source->uri, err) < 0)
        return -1;
    source->queried = strchr(url, '?') != NULL;
    source->impl = sl_http_base_object(source->store->impl, url, err);
    return source->impl ? 0 : -1;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* What a store behind a signed link answers, in XML. */
struct said {
    char code[64], message[160];
};

static int on_said(const char *path, const char *value, void *arg, struct sl_err *err)
{
    struct said *said = arg;
    (void)err;
    if (strcmp(path, "Error/Code") == 0)
        snprintf(said->code, sizeof(said->code), "%s", value);
    else if (strcmp(path, "Error/Message") == 0)
        snprintf(said->message, sizeof(said->message), "%.*s", (int)strcspn(value, "\r\n"), value);
    return 0;
}

/* The first line of a plain-text answer, and what a store says, tell people more than the status.
 */
static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    char what[400], detail[260] = "", expiry[SL_EXPIRY_TEXT_BYTES] = "";
    struct said said = {.code = ""};
    int status = sl_exchange_status(exchange);
    const char *type = sl_exchange_header(exchange, "Content-Type");
    size_t mark = body_bytes >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    if (type && strncasecmp(type, "text/plain", 10) == 0 && body_bytes)
        snprintf(detail, sizeof(detail), "('%.*s')", (int)SL_MIN(strcspn(body, "\r\n"), 120), body);
    else if (body_bytes > mark && body[mark] == '<' &&
             sl_xml_parse(body + mark, body_bytes - mark, "answer", on_said, &said, NULL) == 0 &&
             *said.code)
        snprintf(detail, sizeof(detail), "%s%s%s%s", said.code, *said.message ? " (" : "",
                 said.message, *said.message ? ")" : "");
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    if (status == 400 || status == 401 || status == 403 || status == 410)
        sl_http_expiry_text(sl_http_object_url(source->impl),
                            sl_http_says_expired(said.code, said.message), expiry);
    if (!*expiry)
        return sl_http_fail(err, status, sl_exchange_header(exchange, "Retry-After"), what, detail);
    sl_fail_code(err, SL_E_AUTH, "expired", "%s: the server answered %d%s%s; %s", what, status,
                 *detail ? " " : "", detail, expiry);
    if (err)
        err->http_status = status;
    return -1;
}

static const struct sl_http_hooks hooks = {.prepare = sl_http_plain_prepare,
                                           .refuse = refuse,
                                           .redirect = sl_http_plain_redirect,
                                           .in_order = true};

const struct sl_store_kind sl_http_store = {
    .name = "http",
    .schemes = {"http", "https"},
    .example = "https://host/m.safetensors",
    .help = "any web server, http and https; one without range requests is read in order",
    .options = &sl_http_table,
    .options_help = "web servers",
    .traits = {.folders = true, .urls = true},
    .open = http_open,
    .close = http_close,
    .locate = http_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = http_check,
    .list = sl_http_list,
    .recover = sl_http_plain_recover,
    .upload = &sl_upload_http_ops,
};
