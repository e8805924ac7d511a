/* Listings of Azure Blob storage: paging, encoding, folders, MD5s, and pages that lie. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "az_store.h"
#include "claims.h"
#include "log.h"
#include "range_server.h"
#include "stores.h"

static struct sl_az_options az;
static struct sl_source_config config;
static struct sl_err err;
static struct sl_server *server;

static void say(struct sl_server_reply *reply, int status, const char *headers, const char *body)
{
    reply->status = status;
    snprintf(reply->headers, sizeof(reply->headers), "%s", headers);
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

static void setup(void)
{
    clearenv();
    setenv("AZURE_TOKEN_CREDENTIALS", "none", 1);
    setenv("AZURE_STORAGE_ACCOUNT", "sluicetest", 1);
    az = (struct sl_az_options){0};
    config = (struct sl_source_config){.options = {{&sl_az_table, &az}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
    server = sl_server_start();
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(server, ""), 1);
}

static void teardown(void)
{
    sl_server_stop(server);
}

struct seen {
    char text[1024];
};

static int note(const struct sl_entry *entry, void *arg, struct sl_err *problem)
{
    (void)problem;
    struct seen *seen = arg;
    size_t used = strlen(seen->text);
    snprintf(seen->text + used, sizeof(seen->text) - used, "%s %lu %s%s;", entry->name,
             (unsigned long)entry->bytes, entry->etag, entry->sums ? " md5" : "");
    return 0;
}

#define BLOB(name, bytes, etag)                                                                    \
    "<Blob>" name "<Properties><Content-Length>" bytes "</Content-Length><Etag>" etag              \
    "</Etag></Properties></Blob>"
#define PAGE(blobs, marker)                                                                        \
    "\xef\xbb\xbf<?xml version=\"1.0\"?><EnumerationResults><Blobs>" blobs                         \
    "</Blobs><NextMarker>" marker "</NextMarker></EnumerationResults>"

static bool pages(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    const char *query = strchr(request->target, '?');
    ck_assert_ptr_nonnull(query);
    if (strstr(query, "&marker=2%2192%21MDAw"))
        say(reply, 200, "",
            PAGE(BLOB("<Name Encoded=\"true\">a/%EF%BF%BE.bin</Name>", "7", "0x2"), ""));
    else
        say(reply, 200, "",
            PAGE(BLOB("<Name>a/m &amp; n.bin</Name>", "5", "0x1")
                     BLOB("<Name>a/d/</Name>", "0",
                          "") "<Blob><Name>a/e</Name><Properties><Content-Length>0</Content-Length>"
                              "<ResourceType>directory</ResourceType></Properties></Blob>"
                              "<Blob><Name>a/f</Name><Properties><Content-Length>0</Content-Length>"
                              "</Properties><Metadata><Hdi_isfolder>True</Hdi_isfolder></Metadata>"
                              "</Blob>",
                 "2!92!MDAw"));
    return true;
}

SL_TEST(a_listing_is_read_page_by_page)
{
    struct seen seen = {""};
    sl_server_handle(server, pages, NULL);
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_store_open("az://models/a/", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_store_list(store, note, &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.text, "m & n.bin 5 \"0x1\";\xef\xbf\xbe.bin 7 \"0x2\";");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target,
                     "/sluicetest/models?restype=container&comp=list&prefix=a%2F&maxresults=5000&"
                     "include=metadata");
}

#define MD5_BLOB(name, md5)                                                                        \
    "<Blob><Name>" name "</Name><Properties><Content-Length>5</Content-Length><Content-MD5>" md5   \
    "</Content-MD5></Properties></Blob>"

SL_TEST(a_listing_tells_the_md5_of_blobs_that_have_one)
{
    static const char page[] = PAGE(MD5_BLOB("a/m", "1B2M2Y8AsgTpgAmY7PhCfg==") MD5_BLOB("a/n", "")
                                        MD5_BLOB("a/o", "rubbish") MD5_BLOB("a/p", "rubbish")
                                            MD5_BLOB("a/q", "1B2M2Y8AsgTpgAmY7PhCfg=="),
                                    "");
    struct seen seen = {""};
    char *marker;
    uint64_t entries;
    sl_log_setup(SL_LOG_ERROR, false);
    ck_assert_int_eq(sl_az_page_parse(page, strlen(page), "cannot list 'x'", "a/", note, &seen,
                                      &marker, &entries, &err),
                     0);
    ck_assert_str_eq(seen.text, "m 5  md5;n 5 ;o 5 ;p 5 ;q 5  md5;");
}

SL_TEST(hostile_listings_are_refused)
{
    static const char *const bad[] = {
        "",
        "<x/>",
        "<!DOCTYPE x><EnumerationResults/>",
        PAGE(BLOB("<Name>b/m</Name>", "5", "e"), ""),
        PAGE(BLOB("<Name>a/</Name>", "5", "e"), ""),
        PAGE(BLOB("<Name>a/m</Name>", "-5", "e"), ""),
        PAGE(BLOB("<Name>a/m</Name>", "99999999999999999999", "e"), ""),
        PAGE(BLOB("<Name Encoded=\"true\">a/%00</Name>", "5", "e"), ""),
        PAGE(BLOB("", "5", "e"), ""),
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct seen seen = {""};
        char *marker;
        uint64_t entries;
        int result = sl_az_page_parse(bad[i], strlen(bad[i]), "cannot list 'x'", "a/", note, &seen,
                                      &marker, &entries, &err);
        ck_assert_msg(result == -1, "%zu", i);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_ptr_null(marker);
    }
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
