/*
 * Empty objects that only stand for a folder, asked for without the slash: what each store says of
 * them, and that an empty file that nobody marks is loaded.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], out[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(out, sizeof(out), "%s/out", scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown)

static const struct store {
    const char *scheme, *endpoint, *anonymous, *path, *listing, *empty;
} stores[] = {
    {"az", "source.az.endpoint=%s/acct", "source.az.anonymous=true", "/acct/cont/", "comp=list",
     "<EnumerationResults><Blobs></Blobs><NextMarker/></EnumerationResults>"},
    {"s3", "source.s3.endpoint=%s", "source.s3.anonymous=true", "/cont/", "list-type=2",
     "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"},
    {"gs", NULL, "source.gs.anonymous=true", "/cont/", "/storage/v1/b/cont/o?", "{}"},
};
enum store_number { AZ, S3, GS };

static const struct mark {
    enum store_number store;
    const char *name, *headers;
    bool folder, lists; /* lists: the store may be listed */
} marks[] = {
    {AZ, "m", "x-ms-meta-hdi_isfolder: true\r\n", true, true},
    {AZ, "m", "X-Ms-Meta-Hdi_IsFolder: True\r\n", true, true},
    {AZ, "m", "x-ms-resource-type: directory\r\n", true, true},
    {AZ, "m", "x-ms-resource-type: directory\r\n", true, false},
    {AZ, "m.safetensors", "x-ms-meta-hdi_isfolder: true\r\n", true, true},
    {AZ, "m", "x-ms-resource-type: file\r\nx-ms-meta-hdi_isfolder: false\r\n", false, true},
    {AZ, "m", "Content-Type: application/x-directory\r\n", false, true},
    {S3, "m", "Content-Type: application/x-directory\r\n", true, true},
    {S3, "m", "Content-Type: Application/X-Directory; charset=UTF-8\r\n", true, false},
    {S3, "m.gguf", "Content-Type: application/x-directory\r\n", true, true},
    {S3, "m", "Content-Type: binary/octet-stream\r\n", false, true},
    {S3, "m", "x-amz-meta-hdi_isfolder: true\r\n", false, true},
    {S3, "m_$folder$", "", true, true},
    {GS, "m", "Content-Type: application/x-directory\r\n", true, true},
    {GS, "m", "Content-Type: application/octet-stream\r\n", false, true},
    {GS, "m_$folder$", "", true, true},
};

/* An empty object has no range, and the refusal of one tells nothing of it. */
static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    const struct mark *mark = arg;
    const struct store *store = &stores[mark->store];
    size_t path = strlen(store->path);
    char range[64];
    if (strstr(request->target, store->listing)) {
        reply->status = mark->lists ? 200 : 403;
        reply->body = strdup(mark->lists ? store->empty : "");
        reply->body_bytes = strlen(reply->body);
        return true;
    }
    if (strncmp(request->target, store->path, path) != 0 ||
        strncmp(request->target + path, mark->name, strcspn(mark->name, "$")) != 0) {
        reply->status = 404;
        return true;
    }
    if (sl_server_header(request, "Range", range, sizeof(range))) {
        reply->status = 416;
        snprintf(reply->headers, sizeof(reply->headers), "Content-Range: bytes */0\r\n");
        return true;
    }
    snprintf(reply->headers, sizeof(reply->headers), "ETag: \"e\"\r\n%s", mark->headers);
    return true;
}

static void load(struct sl_server *server, const struct mark *mark, const char *more)
{
    const struct store *store = &stores[mark->store];
    char uri[PATH_BYTES], endpoint[PATH_BYTES];
    const char *url = sl_server_url(server, "");
    snprintf(uri, sizeof(uri), "%s://cont/%s", store->scheme, mark->name);
    if (mark->store == GS) {
        setenv("STORAGE_EMULATOR_HOST", url, 1);
        snprintf(endpoint, sizeof(endpoint), "%s", store->anonymous);
    } else {
        snprintf(endpoint, sizeof(endpoint), store->endpoint, url);
    }
    RUN(&ran, "load", uri, "--to", out, "--set", endpoint, "--set", store->anonymous,
        *more ? "--set" : NULL, more);
}

SL_TEST_LOOP(a_mark_of_a_folder_is_no_file, 0, SL_COUNT(marks))
{
    static const char *const layouts[] = {"", "sink.tmpfs.layout=safetensors"};
    struct sl_server *server = sl_server_start();
    const struct mark *mark = &marks[_i];
    char ready[PATH_BYTES * 2];
    snprintf(ready, sizeof(ready), "%s/.sluice/ready", out);
    sl_server_handle(server, serve, (void *)(uintptr_t)mark);
    for (size_t i = 0; i < (mark->folder ? SL_COUNT(layouts) : 1); i++) {
        load(server, mark, layouts[i]);
        ck_assert_msg(ran.exit_code == (mark->folder ? 4 : 0), "%s: exit code %d\n%s",
                      mark->headers, ran.exit_code, ran.err);
        ck_assert_msg(!mark->folder || strstr(ran.err, "folder"), "%s", ran.err);
        ck_assert_msg(!mark->folder || strstr(ran.err, mark->lists ? "empty folder" : "m/'"), "%s",
                      ran.err);
        ck_assert_int_eq(access(ready, F_OK) == 0, !mark->folder);
    }
    sl_server_stop(server);
}
