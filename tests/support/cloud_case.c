/* See cloud_case.h. */
#include "cloud_case.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "fake_clock.h"
#include "gs_user.h"
#include "hash.h"
#include "hf_hub.h"
#include "ms_hub.h"
#include "scratch.h"

struct cloud_case cloud;
static struct sl_hub hub;
static struct sl_ms_hub ms;
static unsigned given, oldest; /* tokens, or links; older ones have expired */
static char manifest[512], folder[SL_SCRATCH_PATH_BYTES];
static int folder_fd = -1;

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
             sl_server_url(cloud.cdn, "/blob"), ++given);
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
    cloud.api = hub.origin;
    cloud.cdn = hub.cdn;
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
    cloud.api = ms.origin;
    cloud.cdn = ms.cdn;
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
    cloud.api = sl_server_start();
    sl_server_handle(cloud.api, handler, NULL);
    if (object)
        sl_server_put(cloud.api, object, sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void start_gs(void)
{
    start_api("/models/m.bin", judge);
    folder_fd = sl_scratch_open(folder);
    sl_gs_user_of(cloud.api, folder);
}

static void start_az(void)
{
    start_api("/sluicetest/models/m.bin", judge);
    setenv("AZURE_STORAGE_ACCOUNT", "sluicetest", 1);
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(cloud.api, ""), 1);
    setenv("AZURE_AUTHORITY_HOST", sl_server_url(cloud.api, ""), 1);
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
    cloud.cdn = sl_server_start();
    sl_server_handle(cloud.cdn, check_link, NULL);
    sl_server_put(cloud.cdn, "/blob", sl_blob(), SL_BLOB_BYTES, "\"edge\"");
}

static void expire(unsigned first_good)
{
    oldest = first_good;
}

static void stop(void)
{
    sl_server_stop(cloud.api);
    if (cloud.cdn)
        sl_server_stop(cloud.cdn);
}

const struct cloud_store cloud_stores[CLOUD_STORES] = {
    {"hf://org/name/m.bin", start_hf, expire_hf, stop_hf, NULL, false, false},
    {"ms://org/name/m.bin", start_ms, expire_ms, stop_ms, NULL, true, false},
    {"gs://models/m.bin", start_gs, expire, stop, (char[]){"x-goog-generation: 7\r\n"}, false,
     false},
    {"az://models/m.bin", start_az, expire, stop, NULL, false, true, true},
    {"oci://127.0.0.1:%u/org/m:v1/m.bin", start_oci, expire, stop, NULL, true, false},
};
void cloud_begin(int number)
{
    cloud.api = cloud.cdn = NULL;
    given = oldest = 0;
    cloud.config =
        (struct sl_source_config){.attempts = 5, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
    fake_clock_run();
    cloud_stores[number].start();
    snprintf(cloud.uri, sizeof(cloud.uri), cloud_stores[number].uri,
             cloud.api ? sl_server_port(cloud.api) : 0);
}

void cloud_end(int number)
{
    cloud_stores[number].stop();
    if (folder_fd >= 0)
        sl_scratch_close(folder_fd, folder);
    folder_fd = -1;
}

bool cloud_prepare(void)
{
    clearenv();
    sl_test_environment();
    setenv("NO_GCE_CHECK", "true", 1);
    return true;
}
