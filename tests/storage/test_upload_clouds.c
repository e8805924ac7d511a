/* Uploads to Google and Azure, and Google's listings: what is sent, broken off, asked again,
 * refused. */
#include <check.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "az_store.h"
#include "claims.h"
#include "gs_store.h"
#include "hash.h"
#include "range_server.h"
#include "stores.h"

enum { UNIT = 256 * 1024, BYTES = 2 * UNIT + 1000, PARTS_MAX = 8 };

static struct sl_gs_options gs;
static struct sl_az_options az;
static struct sl_source_config source;
static struct sl_upload_config config;
static struct sl_err err;
static struct sl_server *server;
static uint8_t data[BYTES], stored[BYTES];

static struct {
    bool there, lies; /* the object exists; the answer tells another hash */
    bool lost;        /* the commit is carried out, and its first answer lost */
    unsigned keep;    /* of the first chunk only so much is kept, with 503; 0: all */
    size_t kept;
    bool made, given_up, conditional;
    const char *elsewhere; /* where the session is */
    char blocks[PARTS_MAX][64];
    size_t block_begin[PARTS_MAX], block_bytes[PARTS_MAX];
    uint8_t *block_data[PARTS_MAX];
    unsigned block_count, commits;
    char first[64]; /* committed */
    char md5[64];   /* of the blob, as the list of blocks says */
} store;

static void say(struct sl_server_reply *reply, int status, const char *headers, const char *body)
{
    reply->status = status;
    snprintf(reply->headers, sizeof(reply->headers), "%s", headers);
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

/* ---- Google ---------------------------------------------------------------------------------- */

static void finish_google(struct sl_server_reply *reply)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char text[16], body[128];
    sl_crc_digest(SL_HASH_CRC32C, sl_crc32c(0, stored, BYTES) + store.lies, digest);
    EVP_EncodeBlock((unsigned char *)text, digest, 4);
    snprintf(body, sizeof(body), "{\"name\": \"m\", \"crc32c\": \"%s\"}", text);
    store.made = true;
    say(reply, 200, "", body);
}

static void take_chunk(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    unsigned long begin = 0, end = 0, total = 0;
    char range[96] = "", headers[96] = "", hash[64];
    ck_assert(sl_server_header(request, "Content-Range", range, sizeof(range)));
    if (sscanf(range, "bytes %lu-%lu/%lu", &begin, &end, &total) == 3) {
        ck_assert_uint_eq(total, BYTES);
        ck_assert_uint_eq(begin, store.kept);
        ck_assert_uint_eq(request->body_bytes, end + 1 - begin);
        ck_assert(end + 1 == total || (end + 1) % UNIT == 0);
        ck_assert_int_eq(sl_server_header(request, "X-Goog-Hash", hash, sizeof(hash)),
                         end + 1 == total);
        size_t bytes = store.keep ? store.keep : request->body_bytes;
        memcpy(stored + begin, request->body, bytes);
        store.kept += bytes;
        if (store.keep) {
            store.keep = 0;
            say(reply, 503, "", "");
            return;
        }
    }
    if (store.kept == BYTES) {
        finish_google(reply);
        return;
    }
    if (store.kept)
        snprintf(headers, sizeof(headers), "Range: bytes=0-%zu\r\n", store.kept - 1);
    say(reply, 308, headers, "");
}

static bool google(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    char headers[512];
    if (strncmp(request->target, "/storage/v1/b/models/o/a%2Fm?", 29) == 0) {
        say(reply, store.there ? 200 : 404, "", "{}");
    } else if (strncmp(request->target, "/upload/", 8) == 0) {
        ck_assert_str_eq(request->method, "POST");
        ck_assert_ptr_nonnull(strstr(request->target, "uploadType=resumable&name=a%2Fm"));
        store.conditional = strstr(request->target, "&ifGenerationMatch=0") != NULL;
        snprintf(headers, sizeof(headers), "Location: %s\r\n",
                 store.elsewhere ? store.elsewhere : sl_server_url(server, "/session?id=hush"));
        say(reply, 200, headers, "");
    } else if (strcmp(request->target, "/session?id=hush") == 0) {
        if (strcmp(request->method, "DELETE") == 0) {
            store.given_up = true;
            say(reply, 499, "", "");
        } else {
            ck_assert_str_eq(request->method, "PUT");
            take_chunk(request, reply);
        }
    } else {
        return false;
    }
    return true;
}

static void start(sl_server_handler *handler)
{
    clearenv();
    setenv("NO_GCE_CHECK", "true", 1);
    setenv("AZURE_TOKEN_CREDENTIALS", "none", 1);
    setenv("AZURE_STORAGE_ACCOUNT", "acc", 1);
    memset(&store, 0, sizeof(store));
    source = (struct sl_source_config){.options = {{&sl_gs_table, &gs}, {&sl_az_table, &az}},
                                       .attempts = 3};
    config = (struct sl_upload_config){.source = &source, .memory_bytes = UNIT, .connections = 1};
    err = (struct sl_err)SL_ERR_INIT;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 7 + i / 251);
    server = sl_server_start();
    sl_server_handle(server, handler, NULL);
    setenv("STORAGE_EMULATOR_HOST", sl_server_url(server, ""), 1);
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(server, ""), 1);
}

static int write_to(const char *uri, uint64_t bytes)
{
    SL_AUTO(sl_upload) upload = NULL;
    if (sl_upload_open(uri, bytes, &config, &upload, &err) < 0)
        return -1;
    for (size_t at = 0; at < bytes; at += 100000) {
        size_t piece = SL_MIN((size_t)bytes - at, (size_t)100000);
        if (sl_upload_admit(upload, &err) < 0 ||
            sl_upload_write(upload, at, data + at, piece, &err) < 0)
            return -1;
    }
    return sl_upload_finish(upload, &err);
}

SL_TEST(google_gets_chunks_in_order_and_the_hash_of_all)
{
    start(google);
    ck_assert_msg(write_to("gs://models/a/m", BYTES) == 0, "%s", err.message);
    ck_assert(store.made && store.conditional && !store.given_up);
    ck_assert_mem_eq(stored, data, BYTES);
    sl_server_stop(server);
}

SL_TEST(google_is_asked_how_much_it_kept_of_a_broken_chunk)
{
    start(google);
    store.keep = 1000;
    config.replace = true;
    ck_assert_msg(write_to("gs://models/a/m", BYTES) == 0, "%s", err.message);
    ck_assert(store.made && !store.conditional);
    ck_assert_mem_eq(stored, data, BYTES);
    sl_server_stop(server);
}

SL_TEST(google_objects_that_are_there_are_kept)
{
    start(google);
    store.there = true;
    ck_assert_int_eq(write_to("gs://models/a/m", BYTES), -1);
    ck_assert_str_eq(err.code, "exists");
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    sl_server_stop(server);
}

SL_TEST(google_that_stores_other_bytes_is_noticed)
{
    start(google);
    store.lies = true;
    ck_assert_int_eq(write_to("gs://models/a/m", BYTES), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    sl_server_stop(server);
}

SL_TEST(a_session_elsewhere_gets_nothing)
{
    start(google);
    store.elsewhere = "http://elsewhere.example/session";
    ck_assert_int_eq(write_to("gs://models/a/m", BYTES), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "at another server"));
    sl_server_stop(server);
}

SL_TEST(an_upload_that_is_given_up_is_deleted)
{
    start(google);
    struct sl_upload *upload = NULL;
    ck_assert_int_eq(sl_upload_open("gs://models/a/m", BYTES, &config, &upload, &err), 0);
    ck_assert_int_eq(sl_upload_write(upload, 0, data, 300000, &err), 0);
    sl_upload_free(upload);
    ck_assert(store.given_up && !store.made);
    sl_server_stop(server);
}

SL_TEST(no_google_object_is_named_by_a_folder_or_a_generation)
{
    start(google);
    ck_assert_int_eq(write_to("gs://models/m#12", BYTES), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    sl_server_stop(server);
}

/* ---- Google's listings ----------------------------------------------------------------------- */

struct seen {
    char text[512];
};

static int note(const struct sl_entry *entry, void *arg, struct sl_err *problem)
{
    (void)problem;
    struct seen *seen = arg;
    size_t used = strlen(seen->text);
    snprintf(seen->text + used, sizeof(seen->text) - used, "%s %lu %s %s;", entry->name,
             (unsigned long)entry->bytes, entry->pin, entry->sums ? "crc32c" : "none");
    return 0;
}

static bool pages(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    if (strstr(request->target, "&pageToken=n%2F1"))
        say(reply, 200, "",
            "{\"items\": [{\"name\": \"a/n\", \"size\": \"6\", \"generation\": \"8\"}]}");
    else
        say(reply, 200, "",
            "{\"items\": [{\"name\": \"a/m\", \"size\": \"5\", \"generation\": \"7\", "
            "\"crc32c\": \"lvMdxg==\"}, {\"name\": \"a/\", \"size\": \"0\", "
            "\"generation\": \"1\"}], \"nextPageToken\": \"n/1\"}");
    return true;
}

SL_TEST(a_listing_tells_generations_and_hashes)
{
    start(pages);
    struct seen seen = {""};
    SL_AUTO(sl_store) opened = NULL;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_store_open("gs://models/a/", &source, &opened, &name, &err), 0);
    ck_assert_msg(sl_store_list(opened, note, &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.text, "m 5 generation=7 crc32c;n 6 generation=8 none;");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target,
                     "/storage/v1/b/models/o?prefix=a%2F&maxResults=1000&"
                     "fields=items(name,size,generation,crc32c),nextPageToken");
    sl_server_stop(server);
}

static bool circle(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)request, (void)arg;
    say(reply, 200, "",
        "{\"items\": [{\"name\": \"a/m\", \"size\": \"5\"}], \"nextPageToken\": \"n\"}");
    return true;
}

SL_TEST(pages_that_go_in_a_circle_end)
{
    start(circle);
    struct seen seen = {""};
    SL_AUTO(sl_store) opened = NULL;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_store_open("gs://models/a/", &source, &opened, &name, &err), 0);
    ck_assert_int_eq(sl_store_list(opened, note, &seen, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "go in a circle"));
    sl_server_stop(server);
}

SL_TEST(hostile_listings_of_google_are_refused)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"items\": {}}",
        "{\"items\": [{\"name\": \"b/m\", \"size\": \"5\"}]}",
        "{\"items\": [{\"name\": \"a/\", \"size\": \"5\"}]}",
        "{\"items\": [{\"name\": \"a/m\", \"size\": 5}]}",
        "{\"items\": [{\"name\": \"a/m\", \"size\": \"5x\"}]}",
        "{\"items\": [{\"name\": \"a/m\", \"size\": \"99999999999999999999\"}]}",
        "{\"items\": [{\"name\": \"a/m\", \"size\": \"5\", \"generation\": \"1&x=\"}]}",
        "{\"items\": [{\"size\": \"5\"}]}",
        "{\"items\": [{\"name\": \"a/\\u0000\", \"size\": \"5\"}]}",
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct seen seen = {""};
        char *token;
        uint64_t entries;
        int result = sl_gs_page_parse(bad[i], strlen(bad[i]), "cannot list 'x'", "a/", note, &seen,
                                      &token, &entries, &err);
        ck_assert_msg(result == -1, "%zu", i);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_ptr_null(token);
    }
}

/* ---- Azure ----------------------------------------------------------------------------------- */

static void take_block(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char md5[64], text[32];
    uint8_t digest[EVP_MAX_MD_SIZE];
    ck_assert(sl_server_header(request, "Content-MD5", md5, sizeof(md5)));
    EVP_Digest(request->body, request->body_bytes, digest, NULL, EVP_md5(), NULL);
    EVP_EncodeBlock((unsigned char *)text, digest, 16);
    ck_assert_str_eq(md5, text);
    unsigned n = store.block_count++;
    ck_assert_uint_lt(n, PARTS_MAX);
    sscanf(strstr(request->target, "blockid=") + 8, "%63[^&]", store.blocks[n]);
    store.block_bytes[n] = request->body_bytes;
    store.block_data[n] = malloc(request->body_bytes);
    memcpy(store.block_data[n], request->body, request->body_bytes);
    say(reply, 201, "", "");
}

/* In the order of the list; 409 for a blob that is there under If-None-Match. */
static void take_list(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char condition[8] = "";
    size_t used = 0;
    store.commits++;
    sl_server_header(request, "If-None-Match", condition, sizeof(condition));
    store.conditional = *condition == '*';
    sl_server_header(request, "x-ms-blob-content-md5", store.md5, sizeof(store.md5));
    if (store.made && store.conditional) {
        say(reply, 409, "x-ms-error-code: BlobAlreadyExists\r\n", "");
        return;
    }
    const char *at = request->body;
    while ((at = strstr(at, "<Latest>"))) {
        char name[64];
        sscanf(at += 8, "%63[^<]", name);
        for (unsigned i = 0; i < store.block_count; i++)
            if (strcmp(store.blocks[i], name) == 0) {
                memcpy(stored + used, store.block_data[i], store.block_bytes[i]);
                used += store.block_bytes[i];
                break;
            }
        if (!*store.first)
            snprintf(store.first, sizeof(store.first), "%s", name);
    }
    store.made = true;
    store.kept = used;
    say(reply, store.lost ? 503 : 201, "", "");
    store.lost = false;
}

static bool azure(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    char body[256];
    if (strncmp(request->target, "/acc/models/a/m", 15) != 0)
        return false;
    if (strcmp(request->method, "HEAD") == 0)
        say(reply, store.there ? 200 : 404, store.there ? "" : "x-ms-error-code: BlobNotFound\r\n",
            "");
    else if (strstr(request->target, "comp=blocklist") && strcmp(request->method, "GET") == 0) {
        snprintf(body, sizeof(body),
                 "<BlockList><CommittedBlocks><Block><Name>%s</Name></Block></CommittedBlocks>"
                 "</BlockList>",
                 store.first);
        say(reply, 200, "", body);
    } else if (strstr(request->target, "comp=blocklist"))
        take_list(request, reply);
    else
        take_block(request, reply);
    return true;
}

static void forget_blocks(void)
{
    for (unsigned i = 0; i < store.block_count; i++)
        free(store.block_data[i]);
}

SL_TEST(azure_gets_blocks_and_their_list)
{
    start(azure);
    config.part_bytes = UNIT;
    ck_assert_msg(write_to("az://models/a/m", BYTES) == 0, "%s", err.message);
    ck_assert_uint_eq(store.block_count, 3);
    ck_assert_uint_eq(store.kept, BYTES);
    ck_assert_mem_eq(stored, data, BYTES);
    ck_assert(store.conditional);
    sl_server_stop(server);
    forget_blocks();
}

/* The MD5 of many blocks would have to be computed in order, once more. */
SL_TEST(azure_keeps_the_md5_of_a_blob_of_one_block)
{
    static const struct {
        uint64_t bytes;
        const char *md5;
    } rows[] = {{0, "1B2M2Y8AsgTpgAmY7PhCfg=="}, {9, NULL}, {UNIT + 1, ""}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        uint8_t digest[EVP_MAX_MD_SIZE];
        char text[32];
        start(azure);
        config.part_bytes = UNIT;
        EVP_Digest(data, rows[i].bytes, digest, NULL, EVP_md5(), NULL);
        EVP_EncodeBlock((unsigned char *)text, digest, 16);
        ck_assert_msg(write_to("az://models/a/m", rows[i].bytes) == 0, "%s", err.message);
        ck_assert_str_eq(store.md5, rows[i].md5 ? rows[i].md5 : text);
        sl_server_stop(server);
        forget_blocks();
    }
}

SL_TEST(azure_whose_answer_is_lost_has_our_blob)
{
    start(azure);
    config.part_bytes = UNIT;
    store.lost = true;
    ck_assert_msg(write_to("az://models/a/m", BYTES) == 0, "%s", err.message);
    ck_assert_uint_eq(store.commits, 2);
    sl_server_stop(server);
    forget_blocks();
}

SL_TEST(azure_blobs_that_are_there_are_kept)
{
    start(azure);
    store.there = true;
    ck_assert_int_eq(write_to("az://models/a/m", BYTES), -1);
    ck_assert_str_eq(err.code, "exists");
    sl_server_stop(server);
    start(azure);
    store.made = true; /* by somebody else, since it was looked for */
    snprintf(store.first, sizeof(store.first), "b3RoZXI=");
    config.part_bytes = UNIT;
    ck_assert_int_eq(write_to("az://models/a/m", BYTES), -1);
    ck_assert_str_eq(err.code, "exists");
    sl_server_stop(server);
    forget_blocks();
}

SL_TEST(an_empty_blob_is_an_empty_list)
{
    start(azure);
    ck_assert_msg(write_to("az://models/a/m", 0) == 0, "%s", err.message);
    ck_assert(store.made);
    ck_assert_uint_eq(store.block_count, 0);
    sl_server_stop(server);
}

SL_CASE(.seconds = 60)
