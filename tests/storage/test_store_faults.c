/* Every fault of a server on every kind of store in the cloud: a table of stores, each a strict
 * mock, and tables of faults that the host of their bytes makes in mid-load. Xet has its own
 * (test_xet_store.c), S3 and web servers theirs (test_fetch.c, test_s3.c, test_http.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "gs_user.h"
#include "hash.h"
#include "hf_hub.h"
#include "http_case.h"
#include "ms_hub.h"
#include "scratch.h"
#include "stores.h"

static struct sl_hub hub;
static struct sl_ms_hub ms;
static struct sl_server *api, *cdn; /* of the others; cdn: NULL, the api has the bytes */
static unsigned given, oldest;      /* tokens, or links; older ones have expired */
static char manifest[512], folder[SL_SCRATCH_PATH_BYTES], uri[128];
static int folder_fd = -1;
static struct sl_source_config config;

static void say(struct sl_server_reply *reply, int status, const char *body)
{
    reply->status = status;
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

/* ---- the stores ------------------------------------------------------------------------------ */

static void give_token(struct sl_server_reply *reply)
{
    char body[128];
    snprintf(body, sizeof(body), "{\"access_token\": \"t%u\", \"expires_in\": 3600}", ++given);
    say(reply, 200, body);
}

static bool is_let_in(const struct sl_server_request *request)
{
    char text[256];
    return sl_server_header(request, "Authorization", text, sizeof(text)) &&
           strncmp(text, "Bearer t", 8) == 0 && strtoul(text + 8, NULL, 10) >= oldest;
}

/* Google's listing, and Azure's. */
static bool list_objects(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char body[512] = "";
    if (strncmp(request->target, "/storage/v1/b/models/o?", 23) == 0)
        snprintf(body, sizeof(body),
                 "{\"items\": [{\"name\": \"m.bin\", \"size\": \"%d\", \"generation\": \"7\"}]}",
                 SL_BLOB_BYTES);
    else if (strstr(request->target, "comp=list"))
        snprintf(body, sizeof(body),
                 "<EnumerationResults><Blobs><Blob><Name>m.bin</Name><Properties><Content-Length>"
                 "%d</Content-Length><Etag>v1</Etag></Properties></Blob></Blobs><NextMarker/>"
                 "</EnumerationResults>",
                 SL_BLOB_BYTES);
    if (*body)
        say(reply, 200, body);
    return *body != 0;
}

/* Google and Azure: a service of tokens, and objects for who has one. */
static bool judge(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    if (strstr(request->target, "/token"))
        give_token(reply);
    else if (!is_let_in(request))
        say(reply, 401, "");
    else
        return list_objects(request, reply);
    return true;
}

static bool lead_on(const struct sl_server_request *request, struct sl_server_reply *reply,
                    void *arg)
{
    (void)arg;
    if (strstr(request->target, "/manifests/")) {
        say(reply, 200, manifest);
        return true;
    }
    reply->status = 307;
    snprintf(reply->headers, sizeof(reply->headers), "Location: %s?%u\r\n",
             sl_server_url(cdn, "/blob"), ++given);
    return true;
}

static bool check_link(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    (void)arg;
    const char *query = strchr(request->target, '?');
    if (query && strtoul(query + 1, NULL, 10) >= oldest)
        return false;
    reply->status = 403;
    return true;
}

static void start_hf(void)
{
    sl_hub_start(&hub);
    sl_hub_put(&hub, "m.bin", sl_blob(), SL_BLOB_BYTES, true);
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
    api = hub.origin;
    cdn = hub.cdn;
}

static void expire_hf(unsigned first_good)
{
    hub.oldest_link = first_good;
}

static void stop_hf(void)
{
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    sl_hub_stop(&hub);
}

static void start_ms(void)
{
    sl_ms_hub_start(&ms);
    sl_ms_hub_put(&ms, "m.bin", sl_blob(), SL_BLOB_BYTES, true);
    setenv("MODELSCOPE_ENDPOINT", sl_server_url(ms.origin, ""), 1);
    setenv("MODELSCOPE_API_TOKEN", ms.token = "secret", 1);
    api = ms.origin;
    cdn = ms.cdn;
}

static void expire_ms(unsigned first_good)
{
    ms.oldest_link = first_good;
}

static void stop_ms(void)
{
    ck_assert_uint_eq(ms.leaked_tokens, 0);
    sl_ms_hub_stop(&ms);
}

static void start_api(const char *object, sl_server_handler *handler)
{
    api = sl_server_start();
    sl_server_handle(api, handler, NULL);
    if (object)
        sl_server_put(api, object, sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void start_gs(void)
{
    start_api("/models/m.bin", judge);
    folder_fd = sl_scratch_open(folder);
    sl_gs_user_of(api, folder);
}

static void start_az(void)
{
    start_api("/sluicetest/models/m.bin", judge);
    setenv("AZURE_STORAGE_ACCOUNT", "sluicetest", 1);
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(api, ""), 1);
    setenv("AZURE_AUTHORITY_HOST", sl_server_url(api, ""), 1);
    setenv("AZURE_TENANT_ID", "tenant", 1);
    setenv("AZURE_CLIENT_ID", "client", 1);
    setenv("AZURE_CLIENT_SECRET", "s", 1);
}

static void start_oci(void)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(manifest, sizeof(manifest),
             "{\"layers\":[{\"mediaType\":\"x\",\"size\":%d,\"digest\":\"sha256:%s\","
             "\"annotations\":{\"org.opencontainers.image.title\":\"m.bin\"}}]}",
             SL_BLOB_BYTES, hex);
    start_api(NULL, lead_on);
    cdn = sl_server_start();
    sl_server_handle(cdn, check_link, NULL);
    sl_server_put(cdn, "/blob", sl_blob(), SL_BLOB_BYTES, "\"edge\"");
}

static void expire(unsigned first_good)
{
    oldest = first_good;
}

static void stop(void)
{
    sl_server_stop(api);
    if (cdn)
        sl_server_stop(cdn);
}

static const struct {
    const char *uri; /* %u: the api's port */
    void (*start)(void);
    void (*expire)(unsigned first_good);
    void (*stop)(void);
    char *headers; /* of every right answer */
    bool cuts;     /* all of an object instead of a range will do, too */
    bool etags;    /* they are what tells versions apart */
    bool labels;   /* Content-Encoding is what an uploader wrote */
} stores[] = {
    {"hf://org/name/m.bin", start_hf, expire_hf, stop_hf, NULL, false, false},
    {"ms://org/name/m.bin", start_ms, expire_ms, stop_ms, NULL, true, false},
    {"gs://models/m.bin", start_gs, expire, stop, (char[]){"x-goog-generation: 7\r\n"}, false,
     false},
    {"az://models/m.bin", start_az, expire, stop, NULL, false, true, true},
    {"oci://127.0.0.1:%u/org/m:v1/m.bin", start_oci, expire, stop, NULL, true, false},
};
enum { STORES = SL_COUNT(stores) };

static void begin(int number)
{
    api = cdn = NULL;
    given = oldest = 0;
    config = (struct sl_source_config){.attempts = 5, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
    fake_clock_run();
    stores[number].start();
    snprintf(uri, sizeof(uri), stores[number].uri, api ? sl_server_port(api) : 0);
}

static void end(int number)
{
    stores[number].stop();
    if (folder_fd >= 0)
        sl_scratch_close(folder_fd, folder);
    folder_fd = -1;
}

/* One fault on those requests for bytes; all others are answered as they should be. */
static void script(int number, struct sl_step step)
{
    struct sl_server *bytes = cdn ? cdn : api;
    static const char *const objects[] = {[2] = "/models/m.bin", [3] = "/sluicetest/models/m.bin"};
    const char *path = cdn ? NULL : objects[number];
    step.path = path;
    if (!step.headers)
        step.headers = stores[number].headers;
    sl_server_script(
        bytes, (const struct sl_step[]){step, {.path = path, .headers = stores[number].headers}},
        2);
}

static int load_all(struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(uri, &config, 1000, 400000, err);
}

/* ---- what passes ----------------------------------------------------------------------------- */

static const struct sl_step passing[] = {
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_RESET, .after = 900},
    {.fault = SL_FAULT_SHORT, .after = -1},
    {.fault = SL_FAULT_SHORT, .after = 900},
    {.fault = SL_FAULT_STALL, .after = -1},
    {.fault = SL_FAULT_STALL, .after = 900},
    {.fault = SL_FAULT_TRICKLE, .after = 900},
    {.fault = SL_FAULT_SLOW, .after = 20},
    {.fault = SL_FAULT_CHUNKED},
    {.fault = SL_FAULT_CLOSE},
    {.fault = SL_FAULT_DROP_AFTER},
    {.fault = SL_FAULT_UNTIL_CLOSE},
    {.fault = SL_FAULT_STATUS, .status = 408},
    {.fault = SL_FAULT_STATUS, .status = 429},
    {.fault = SL_FAULT_STATUS,
     .status = 429,
     .headers = "Retry-After: 0\r\n",
     .last = 4}, /* storm */
    {.fault = SL_FAULT_STATUS, .status = 500},
    {.fault = SL_FAULT_STATUS, .status = 502},
    {.fault = SL_FAULT_STATUS, .status = 503},
    {.fault = SL_FAULT_STATUS, .status = 504},
};
enum { PASSING = SL_COUNT(passing) };

static bool stalls(const struct sl_step *step)
{
    return step->fault == SL_FAULT_STALL || step->fault == SL_FAULT_TRICKLE;
}

SL_TEST_LOOP(what_passes_is_got_over, 0, STORES *PASSING)
{
    struct sl_err err;
    struct sl_step step = passing[_i % PASSING];
    int number = _i / PASSING;
    begin(number);
    step.first = 2;
    script(number, step);
    if (stalls(&step))
        config.stall_seconds = 1;
    ck_assert_msg(load_all(&err) == 0, "%s: %s", uri, err.message);
    end(number);
}

SL_TEST_LOOP(what_passes_at_the_opening_is_got_over, 0, STORES *PASSING)
{
    struct sl_err err;
    struct sl_step step = passing[_i % PASSING];
    int number = _i / PASSING;
    if (stalls(&step))
        return; /* test_hedged_opening.c */
    begin(number);
    step.first = 1;
    script(number, step);
    ck_assert_msg(load_all(&err) == 0, "%s: %s", uri, err.message);
    end(number);
}

/* ---- what passes, anywhere ------------------------------------------------------------------- */

static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)err;
    *(unsigned *)arg += strcmp(entry->name, "m.bin") == 0 && entry->bytes == SL_BLOB_BYTES;
    return 0;
}

/* All that a load asks a store for: a listing, an opening, all bytes; commits, manifests, tokens
 * and links where there are some. */
static void talk(unsigned failing)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned found = 0;
    sl_autofree char *folder_uri = strndup(uri, strlen(uri) - strlen("m.bin"));
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(folder_uri, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, count_entry, &found, &err) == 0, "request %u: %s", failing,
                  err.message);
    ck_assert_uint_eq(found, 1);
    ck_assert_msg(load_all(&err) == 0, "request %u: %s", failing, err.message);
}

static const struct sl_step once[] = {
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_SHORT, .after = -1},
    {.fault = SL_FAULT_STATUS, .status = 429, .headers = "Retry-After: 0\r\n"},
    {.fault = SL_FAULT_STATUS, .status = 503, .headers = "Retry-After: 0\r\n"},
};
enum { ONCE = SL_COUNT(once) };

/* The nth request that comes to one of a store's hosts, for each n. */
SL_TEST_LOOP(whichever_request_fails_once_is_sent_again, 0, 2 * STORES * ONCE)
{
    int number = _i / (2 * ONCE);
    bool of_links = _i / ONCE % 2, more = true;
    for (unsigned failing = 1; more; failing++) {
        struct sl_step step = once[_i % ONCE];
        begin(number);
        struct sl_server *host = of_links ? cdn : api;
        script(number, (struct sl_step){.first = 9999});
        step.first = failing;
        step.unhandled = true;
        if (host)
            sl_server_script(
                host, (const struct sl_step[]){step, {.headers = stores[number].headers}}, 2);
        talk(failing);
        more = host && sl_server_request_count(host) >= failing;
        ck_assert(failing > 1 || more || !host);
        end(number);
    }
}

/* ---- what does not --------------------------------------------------------------------------- */

static const struct {
    enum sl_fault fault;
    enum sl_err_kind kind;
} lasting[] = {
    {SL_FAULT_WRONG_RANGE, SL_E_NET},
    {SL_FAULT_NO_RANGE, SL_E_NET},
    {SL_FAULT_LONG, SL_E_NET},
    {SL_FAULT_GZIP, SL_E_NET},
    {SL_FAULT_MULTIPART, SL_E_NET},
    {SL_FAULT_WHOLE, SL_E_NET},
    {SL_FAULT_CHANGED, SL_E_INTEGRITY},
    {SL_FAULT_WRONG_TOTAL, SL_E_INTEGRITY},
    {SL_FAULT_BARE, SL_E_NET},
    {SL_FAULT_HEAD, SL_E_NET},
    {SL_FAULT_WRONG_ETAG, SL_E_INTEGRITY},
};
enum { LASTING = SL_COUNT(lasting) };

SL_TEST_LOOP(what_does_not_pass_is_named, 0, STORES *LASTING)
{
    struct sl_err err;
    int number = _i / LASTING, fault = _i % LASTING;
    begin(number);
    script(number, (struct sl_step){.first = 2,
                                    .last = 99,
                                    .fault = lasting[fault].fault,
                                    .text = "SSH-2.0-OpenSSH_9.2\r\n\r\n"});
    bool good = (lasting[fault].fault == SL_FAULT_WHOLE && stores[number].cuts) ||
                (lasting[fault].fault == SL_FAULT_GZIP && stores[number].labels) ||
                (lasting[fault].fault == SL_FAULT_WRONG_ETAG && !stores[number].etags);
    enum sl_err_kind kind = lasting[fault].kind;
    int done = load_all(&err);
    if (lasting[fault].fault == SL_FAULT_BARE && stores[number].cuts) {
        good = done == 0; /* asked for all of it next; or it counts as an object of that length */
        kind = SL_E_INTEGRITY;
    }
    ck_assert_msg(done == (good ? 0 : -1), "%s: %s", uri, err.message);
    if (!good)
        ck_assert_msg(err.kind == kind, "%s: %d: %s", uri, err.kind, err.message);
    end(number);
}

SL_TEST_LOOP(refusals_for_ever_are_given_up, 0, STORES)
{
    struct sl_err err;
    begin(_i);
    config.attempts = 3;
    script(_i, (struct sl_step){.first = 2, .last = 99, .fault = SL_FAULT_STATUS, .status = 429});
    ck_assert_int_eq(load_all(&err), -1);
    ck_assert_msg(err.kind == SL_E_NET && err.http_status == 429, "%s: %s", uri, err.message);
    end(_i);
}

/* It would be refused again, whenever it is sent. */
SL_TEST_LOOP(a_request_that_is_refused_for_good_is_no_fault_of_the_network, 0, STORES * 3)
{
    static const int statuses[] = {400, 405, 422};
    struct sl_err err;
    begin(_i / 3);
    script(_i / 3,
           (struct sl_step){.first = 2, .fault = SL_FAULT_STATUS, .status = statuses[_i % 3]});
    ck_assert_int_eq(load_all(&err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && err.http_status == statuses[_i % 3], "%s: %d: %s", uri,
                  err.kind, err.message);
    ck_assert_msg(!err.retryable && strstr(err.message, "the server takes no such request"),
                  "%s: %s", uri, err.message);
    end(_i / 3);
}

/* ---- what has expired ------------------------------------------------------------------------ */

SL_TEST_LOOP(tokens_and_links_that_expire_in_mid_load_are_replaced, 0, STORES)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[1000];
    begin(_i);
    script(_i, (struct sl_step){.first = 99});
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    stores[_i].expire(2);
    ck_assert_msg(sl_source_read(source, 5000, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 5000, sizeof(data));
    stores[_i].expire(1000);
    ck_assert_int_eq(sl_source_read(source, 90000, data, sizeof(data), &err), -1);
    ck_assert_msg(err.http_status == 401 || err.http_status == 403, "%d", err.http_status);
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    end(_i);
}

static bool prepare(void)
{
    clearenv();
    sl_test_environment();
    setenv("NO_GCE_CHECK", "true", 1);
    return true;
}

SL_CASE(.prepare = prepare)
