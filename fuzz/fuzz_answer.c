/*
 * Whole answers of web servers, as they come over a connection: head, framing by length, chunks or
 * close, Content-Range, redirects, refusals. The first byte chooses who asks: a small request, the
 * ranges of a web server's object, or the listing of a bucket.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"
#include "fuzz_peer.h"
#include "s3_options.h"
#include "source.h"
#include "stores.h"

enum { BODY_BYTES_MAX = 64 * 1024, OBJECT_BYTES_MAX = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    static const char *const gone[] = {"http_proxy", "all_proxy", "ALL_PROXY", "NETRC", "HOME"};
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
        unsetenv(gone[i]);
    fuzz_peer_start();
    return 0;
}

static void ask_small(const char *url)
{
    const struct sl_connect connect = {.direct = true, .stall_seconds = 2};
    const struct sl_request request = {.method = "GET", .url = url};
    struct sl_err err = SL_ERR_INIT;
    struct sl_answer answer = {0};
    char value[64];
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, &err);
    if (!exchange || sl_exchange_simple(exchange, &request, BODY_BYTES_MAX, &answer, &err) < 0)
        return;
    if (answer.status < 200 || answer.body.used > BODY_BYTES_MAX)
        abort();
    sl_answer_header(&answer, "Location", value, sizeof(value));
    sl_answer_release(&answer);
}

static void ask_object(const char *uri)
{
    const struct sl_source_config config = {.stall_seconds = 2, .attempts = 1};
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    char *key = NULL;
    if (sl_store_open(uri, &config, &store, &key, &err) == 0 &&
        sl_source_open(store, key, 64, &source, &err) == 0) {
        size_t wanted = (size_t)SL_MIN(sl_source_bytes(source), (uint64_t)OBJECT_BYTES_MAX);
        char *object = malloc(wanted + 1);
        sl_source_read(source, 0, object, wanted, &err);
        free(object);
    }
    free(key);
}

static int each(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg, (void)err;
    if (!*entry->name)
        abort();
    return 0;
}

static void ask_listing(const char *endpoint)
{
    static char region[] = "us-east-1";
    struct sl_s3_options s3 = {
        .region = region, .endpoint = (char *)(uintptr_t)endpoint, .anonymous = true};
    const struct sl_source_config config = {
        .options = {{&sl_s3_table, &s3}}, .stall_seconds = 2, .attempts = 1};
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    char *key = NULL;
    if (sl_store_open("s3://bucket/folder/", &config, &store, &key, &err) == 0)
        sl_store_list(store, each, NULL, &err);
    free(key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char url[64];
    if (bytes == 0)
        return 0;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/o", fuzz_peer_start());
    fuzz_peer_say(data + 1, bytes - 1);
    if (data[0] % 3 == 0) {
        ask_small(url);
    } else if (data[0] % 3 == 1) {
        ask_object(url);
    } else {
        url[strlen(url) - 2] = 0;
        ask_listing(url);
    }
    fuzz_peer_say(NULL, 0);
    return 0;
}
