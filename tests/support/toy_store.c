/*
 * All of a store over HTTP: options, addresses, a listing, hooks, the row. Credentials, redirects,
 * ranges, retries and connections are http_base.h's.
 */
#include "toy_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "http_base.h"

enum { PAGE_BYTES_MAX = 1024 * 1024 };

static const struct sl_option rows[] = {
    SL_OPTION(sl_toy_options, token_file, STRING, "", "file with a token", .value = "FILE"),
    SL_OPTION(sl_toy_options, revision, UINT, "1", "revision that is read", .minimum = 1,
              .maximum = 9),
    SL_OPTION_END,
};
const struct sl_option_table sl_toy_table = {"toy", sizeof(struct sl_toy_options), rows};

struct toy {
    struct sl_http_base http;
    char *folder; /* its URL, with the last '/' */
    char pin[32];
};

static int toy_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_toy_options *options = sl_source_options(&store->config, &sl_toy_table);
    struct toy *toy = store->impl = sl_alloc(sizeof(*toy), err);
    if (!toy)
        return -1;
    const char *place = uri + strlen("toy://"), *name = strrchr(place, '/') + 1;
    size_t host = strcspn(place, "/");
    snprintf(toy->pin, sizeof(toy->pin), "revision %" PRIu64, options ? options->revision : 1);
    toy->http.section = "source.toy";
    toy->http.bearer_token_file = options ? options->token_file : NULL;
    toy->folder = sl_asprintf(err, "http://%.*s/%" PRIu64 "%.*s", (int)host, place,
                              options ? options->revision : 1, (int)(name - place - (long)host),
                              place + host);
    store->uri = sl_strndup(uri, (size_t)(name - uri), err);
    *key = sl_strdup(name, err);
    return toy->folder && store->uri && *key ? sl_http_base_open(&toy->http, toy->folder, err) : -1;
}

static int toy_check(const char *uri, struct sl_err *err)
{
    const char *place = uri + strlen("toy://");
    return strchr(place, '/') > place ? 0 : sl_fail(err, SL_E_USAGE, "'%s' names no toy", uri);
}

static void toy_close(struct sl_store *store)
{
    struct toy *toy = store->impl;
    if (!toy)
        return;
    sl_http_base_close(&toy->http);
    free(toy->folder);
    free(toy);
}

static int toy_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    struct toy *toy = store->impl;
    struct sl_answer answer;
    char etag[64], hex[65], name[64];
    struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_SHA256};
    if (sl_http_get(store, &toy->http, toy->folder, "cannot list toys", PAGE_BYTES_MAX, &answer,
                    err) < 0)
        return -1;
    int used, result = 0;
    struct sl_entry entry = {.name = name, .etag = etag, .pin = toy->pin, .sums = &sums};
    for (const char *at = sl_buf_string(&answer.body);
         result == 0 &&
         sscanf(at, "%" SCNu64 " %63s %64s %63s%n", &entry.bytes, etag, hex, name, &used) == 4;
         at += used)
        result = sl_unhex(hex, sums.items[0].value, 32) < 0
                     ? sl_fail(err, SL_E_FORMAT, "'%s' is not an SHA-256", hex)
                     : listing->each(&entry, listing->arg, err);
    sl_answer_release(&answer);
    return result;
}

static int toy_locate(struct sl_source *source, struct sl_err *err)
{
    struct toy *toy = source->store->impl;
    sl_autofree char *url = sl_asprintf(err, "%s%s", toy->folder, source->name);
    source->uri = sl_asprintf(err, "%s%s", source->store->uri, source->name);
    source->impl = url && source->uri ? sl_http_base_object(&toy->http, url, err) : NULL;
    return source->impl ? 0 : -1;
}

static int redirect(struct sl_source *source, const struct sl_exchange *exchange, const char *from,
                    const char *to, struct sl_err *err)
{
    if (!sl_exchange_header(exchange, "X-Toy"))
        return sl_fail(err, SL_E_NET, "this redirect is not a toy's");
    return sl_http_plain_redirect(source, exchange, from, to, err);
}

static const struct sl_http_hooks hooks = {.prepare = sl_http_plain_prepare, .redirect = redirect};

const struct sl_store_kind sl_toy_store = {
    .name = "toy",
    .schemes = {"toy"},
    .example = "toy://host/m",
    .help = "toys, for tests",
    .options = &sl_toy_table,
    .options_help = "toys",
    .traits = {.listing = true, .folders = true, .urls = true},
    .open = toy_open,
    .close = toy_close,
    .locate = toy_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = toy_check,
    .list = toy_list,
    .recover = sl_http_plain_recover,
};
