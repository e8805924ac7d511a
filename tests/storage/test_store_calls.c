/* Small requests to every kind of store: listings, manifests, and what uploads begin with. A table
 * of stores by a table of what may be wrong on the way; all of them behave alike, since they ask by
 * one function (http_call.h). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "gs_user.h"
#include "range_blob.h"
#include "range_server.h"
#include "scratch.h"
#include "stores.h"
#include "upload.h"

enum { UNREACHABLE_SECONDS = 25 };

static struct sl_server *store, *tokens;
static struct sl_source_config config;
static struct sl_cancel *cancel;
static struct sl_err err;
static char folder[SL_SCRATCH_PATH_BYTES], place[64];
static int folder_fd;

/* What the store answers to whatever comes, and what came. */
static struct {
    int number; /* of the store, from 0 */
    enum { RIGHT, CIRCLE, BUSY, REFUSED_ONCE, REFUSED, CANCELED, MOVED } mode;
    unsigned asked;
} world;

static void say(struct sl_server_reply *reply, int status, const char *body)
{
    reply->status = status;
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

/* ---- the stores ------------------------------------------------------------------------------ */

static void name_place(const char *url)
{
    setenv("AWS_ENDPOINT_URL", url, 1);
    setenv("STORAGE_EMULATOR_HOST", url, 1);
    setenv("AZURE_STORAGE_ENDPOINT", url, 1);
    setenv("HF_ENDPOINT", url, 1);
    setenv("MODELSCOPE_ENDPOINT", url, 1);
    snprintf(place, sizeof(place), "%s", strstr(url, "//") + 2);
}

/* Credentials that another server renews, so that the store itself may be gone. */
static void name_credentials(void)
{
    char path[SL_SCRATCH_PATH_BYTES + 16];
    sl_gs_user_of(tokens, folder);
    setenv("AZURE_STORAGE_ACCOUNT", "sluicetest", 1);
    setenv("AZURE_AUTHORITY_HOST", sl_server_url(tokens, ""), 1);
    setenv("AZURE_TENANT_ID", "tenant", 1);
    setenv("AZURE_CLIENT_ID", "client", 1);
    setenv("AZURE_CLIENT_SECRET", "s", 1);
    setenv("AWS_ACCESS_KEY_ID", "A", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    setenv("AWS_REGION", "us-east-1", 1);
    snprintf(path, sizeof(path), "%s/token", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("hf_secret\n", file);
    fclose(file);
    setenv("HF_TOKEN_PATH", path, 1);
    setenv("MODELSCOPE_API_TOKEN", "secret", 1);
}

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const struct {
    const char *uri;              /* of a folder; %s: the place */
    const char *listing, *circle; /* the same in a circle; NULL: it has no pages */
    const char *more;             /* headers of the circle */
    int refusal;                  /* something can be done about it; 0: about none */
    const char *refused, *challenge;
    const char *upload; /* %s: the place; NULL: nothing is written there */
    bool follows;       /* redirects */
    bool looks_twice;   /* an upload asks in two ways whether there is an object */
} stores[] = {
    {.uri = "s3://models/a/",
     .listing = "<ListBucketResult><Contents><Key>a/m</Key><Size>5</Size></Contents>"
                "</ListBucketResult>",
     .circle = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>n"
               "</NextContinuationToken><Contents><Key>a/m</Key><Size>5</Size></Contents>"
               "</ListBucketResult>",
     .refusal = 400,
     .refused = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region>"
                "</Error>",
     .upload = "s3://models/new",
     .looks_twice = true},
    {.uri = "gs://models/a/",
     .listing = "{\"items\": [{\"name\": \"a/m\", \"size\": \"5\"}]}",
     .circle = "{\"items\": [{\"name\": \"a/m\", \"size\": \"5\"}], \"nextPageToken\": \"n\"}",
     .refusal = 401,
     .refused = "",
     .upload = "gs://models/new"},
    {.uri = "az://models/a/",
     .listing = "<EnumerationResults><Blobs><Blob><Name>a/m</Name><Properties><Content-Length>5"
                "</Content-Length></Properties></Blob></Blobs></EnumerationResults>",
     .circle = "<EnumerationResults><Blobs><Blob><Name>a/m</Name><Properties><Content-Length>5"
               "</Content-Length></Properties></Blob></Blobs><NextMarker>n</NextMarker>"
               "</EnumerationResults>",
     .refusal = 401,
     .refused = "",
     .upload = "az://models/new"},
    {.uri = "hf://org/name@" COMMIT "/",
     .listing = "[{\"type\": \"file\", \"size\": 5, \"path\": \"m\"}]",
     .circle = "[{\"type\": \"file\", \"size\": 5, \"path\": \"m\"}]",
     .follows = true,
     .more = "Link: </api/models/org/name/tree/" COMMIT ">; rel=\"next\"\r\n",
     .refusal = 401,
     .refused = ""},
    {.uri = "ms://org/name/",
     .listing = "{\"Code\": 200, \"Data\": {\"Files\": [{\"Type\": \"blob\", \"Path\": \"m\", "
                "\"Size\": 5}]}}",
     .follows = true},
    {.uri = "oci://%s/org/m:v1",
     .listing = "{\"layers\": [{\"mediaType\": \"x\", \"size\": 5, \"digest\": \"sha256:"
                "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\", "
                "\"annotations\": {\"org.opencontainers.image.title\": \"m\"}}]}",
     .refusal = 401,
     .refused = "",
     .challenge = "WWW-Authenticate: Bearer realm=\"%s\",service=\"s\"\r\n"},
    {.uri = NULL, .upload = "http://%s/new", .follows = true},
};
enum { STORES = SL_COUNT(stores) };

static bool give_token(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    (void)request, (void)arg;
    say(reply, 200,
        "{\"access_token\": \"t\", \"token\": \"t\", \"expires_in\": 3600, "
        "\"token_type\": \"Bearer\"}");
    return true;
}

static void refuse(struct sl_server_reply *reply)
{
    const char *challenge = stores[world.number].challenge;
    if (challenge)
        snprintf(reply->headers, sizeof(reply->headers),
                 "WWW-Authenticate: Bearer realm=\"%s\",service=\"s\"\r\n",
                 sl_server_url(tokens, "/token"));
    say(reply, stores[world.number].refusal ? stores[world.number].refusal : 401,
        stores[world.number].refused ? stores[world.number].refused : "");
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    unsigned asked = world.asked++;
    if (world.mode == CANCELED)
        sl_cancel_raise(cancel, 15);
    if (world.mode == MOVED) {
        snprintf(reply->headers, sizeof(reply->headers), "Location: https://127.0.0.1:1%.2000s\r\n",
                 request->target);
        say(reply, 308, "");
    } else if (world.mode == BUSY || world.mode == CANCELED) {
        say(reply, 503, "");
    } else if (world.mode == REFUSED || (world.mode == REFUSED_ONCE && !asked)) {
        refuse(reply);
    } else {
        bool circle = world.mode == CIRCLE;
        if (circle && stores[world.number].more)
            snprintf(reply->headers, sizeof(reply->headers), "%s", stores[world.number].more);
        say(reply, 200, circle ? stores[world.number].circle : stores[world.number].listing);
    }
    return true;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    (void)why;
    *(unsigned *)arg += strcmp(entry->name, "m") == 0 && entry->bytes == 5;
    return 0;
}

static int list(unsigned *found)
{
    char uri[128];
    SL_AUTO(sl_store) opened = NULL;
    sl_autofree char *key = NULL;
    *found = 0;
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(uri, sizeof(uri), stores[world.number].uri, place);
    ck_assert_msg(sl_store_open(uri, &config, &opened, &key, &err) == 0, "%s", err.message);
    return sl_store_list(opened, count_entry, found, &err);
}

static int begin_upload(void)
{
    char uri[128];
    const struct sl_upload_config upload_config = {.source = &config};
    SL_AUTO(sl_upload) upload = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(uri, sizeof(uri), stores[world.number].upload, place);
    return sl_upload_open(uri, 5, &upload_config, &upload, &err);
}

/* Ask the store of this row: by its listing, and what uploads begin with. */
static int ask(bool uploads)
{
    unsigned found;
    return uploads ? begin_upload() : list(&found);
}

static bool begin(int row, bool *uploads)
{
    *uploads = row >= STORES;
    world.number = row % STORES;
    return *uploads ? stores[world.number].upload != NULL : stores[world.number].uri != NULL;
}

static void note(uint64_t began_ns, uint64_t least_s, uint64_t most_s)
{
    double took = (double)(sl_now_ns() - began_ns) / 1e9;
    ck_assert_msg(took >= (double)least_s && took <= (double)most_s, "store %d: %.1f s: %s",
                  world.number, took, err.message);
}

/* ---- claims ---------------------------------------------------------------------------------- */

SL_TEST_LOOP(a_store_that_refuses_connections_is_waited_for, 0, 2 * STORES)
{
    bool uploads;
    if (!begin(_i, &uploads))
        return;
    name_place("http://127.0.0.1:1");
    uint64_t began_ns = sl_now_ns();
    config.attempts = 2; /* which count only what was reached */
    config.unreachable_seconds = UNREACHABLE_SECONDS;
    ck_assert_int_eq(ask(uploads), -1);
    ck_assert_msg(err.kind == SL_E_NET && strcmp(err.code, SL_NET_UNREACHED) == 0, "%s",
                  err.message);
    ck_assert_msg(strstr(err.message, "127.0.0.1:1") != NULL, "%s", err.message);
    note(began_ns, UNREACHABLE_SECONDS, UNREACHABLE_SECONDS + 2);
}

SL_TEST_LOOP(a_name_that_does_not_exist_is_told_apart, 0, 2 * STORES)
{
    bool uploads;
    if (!begin(_i, &uploads))
        return;
    name_place("https://nothing.invalid:80");
    fake_clock_release(); /* name servers are not in its hand */
    config.attempts = 2;
    ck_assert_int_eq(ask(uploads), -1);
    ck_assert_msg(err.kind == SL_E_NET && strcmp(err.code, SL_NET_UNRESOLVED) == 0, "%s",
                  err.message);
    ck_assert_msg(strstr(err.message, "nothing.invalid") != NULL, "%s", err.message);
}

SL_TEST_LOOP(a_busy_store_has_its_tries, 0, 2 * STORES)
{
    bool uploads;
    if (!begin(_i, &uploads))
        return;
    world.mode = BUSY;
    config.attempts = 3;
    ck_assert_int_eq(ask(uploads), -1);
    ck_assert_msg(err.kind == SL_E_NET && err.http_status == 503, "%s", err.message);
    ck_assert_uint_eq(world.asked, uploads && stores[world.number].looks_twice ? 6 : 3);
}

SL_TEST_LOOP(a_refusal_that_can_be_mended_is_mended_once, 0, STORES)
{
    bool uploads;
    unsigned found;
    if (!begin(_i, &uploads) || !stores[_i].refusal)
        return;
    world.mode = REFUSED_ONCE;
    ck_assert_msg(list(&found) == 0, "%s", err.message);
    ck_assert_uint_eq(found, 1);
    ck_assert_uint_eq(world.asked, 2);

    world.mode = REFUSED;
    world.asked = 0;
    ck_assert_int_eq(list(&found), -1);
    ck_assert_msg(err.kind == SL_E_AUTH && err.http_status == stores[_i].refusal, "%s",
                  err.message);
    ck_assert_uint_eq(world.asked, 2);
}

SL_TEST_LOOP(pages_that_go_in_a_circle_end, 0, STORES)
{
    bool uploads;
    unsigned found;
    if (!begin(_i, &uploads) || !stores[_i].circle)
        return;
    world.mode = CIRCLE;
    ck_assert_int_eq(list(&found), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "go in a circle"), "%s",
                  err.message);
    ck_assert_uint_eq(world.asked, 2);
}

/* An ingress; hubs and web servers are followed there. */
SL_TEST_LOOP(a_store_that_leads_to_https_is_told_of, 0, 2 * STORES)
{
    bool uploads;
    if (!begin(_i, &uploads))
        return;
    world.mode = MOVED;
    config.attempts = 1;
    ck_assert_int_eq(ask(uploads), -1);
    if (stores[world.number].follows)
        ck_assert_msg(strstr(err.message, "127.0.0.1:1'") != NULL, "%s", err.message);
    else
        ck_assert_msg(err.kind == SL_E_USAGE &&
                          strstr(err.message, "name it as 'https://127.0.0.1:1'"),
                      "%s", err.message);
}

SL_TEST_LOOP(cancellation_ends_the_tries, 0, 2 * STORES)
{
    bool uploads;
    if (!begin(_i, &uploads))
        return;
    world.mode = CANCELED;
    ck_assert_int_eq(ask(uploads), -1);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
    ck_assert_uint_eq(world.asked, 1);
}

static void setup(void)
{
    memset(&world, 0, sizeof(world));
    fake_clock_run();
    cancel = sl_cancel_new(&err);
    config = (struct sl_source_config){
        .attempts = 5, .stall_seconds = 20, .hedge = SL_HEDGE_OFF, .cancel = cancel};
    store = sl_server_start();
    tokens = sl_server_start();
    sl_server_handle(store, answer, NULL);
    sl_server_handle(tokens, give_token, NULL);
    folder_fd = sl_scratch_open(folder);
    name_credentials();
    name_place(sl_server_url(store, ""));
}

static void teardown(void)
{
    sl_server_stop(store);
    sl_server_stop(tokens);
    sl_scratch_close(folder_fd, folder);
    sl_cancel_free(cancel);
}

static bool prepare(void)
{
    clearenv();
    sl_test_environment();
    setenv("NO_GCE_CHECK", "true", 1);
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
