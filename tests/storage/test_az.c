/* Azure Blob storage: addresses, what lets requests in, ETags, MD5s, refusals. The mock is
 * strict: a request that Azure would refuse fails the test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "az_store.h"
#include "claims.h"
#include "fake_clock.h"
#include "hash.h"
#include "log.h"
#include "range_server.h"
#include "scratch.h"
#include "source.h"
#include "stores.h"

enum { BYTES = 100000 };

/* Bytes 0 to 63, and an account of that key, as in the vectors of Azure's own client. */
static const char key[] =
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";
static struct sl_az_options az;
static struct sl_source_config config;
static struct sl_err err;
static struct sl_server *server;
static uint8_t data[BYTES];
static char folder[SL_SCRATCH_PATH_BYTES];
static int folder_fd = -1;

static struct {
    const char *query;  /* that must begin the SAS of every request; NULL: there must be none */
    const char *bearer; /* NULL: there must be none; a number follows */
    const char *etag;
    const char *more; /* headers of a range's answer; NULL: none */
    unsigned asked, refuse_at;
    char seen[4096]; /* the last form, or target, that asked for a token */
} mock;

static void say(struct sl_server_reply *reply, int status, const char *headers, const char *body)
{
    reply->status = status;
    snprintf(reply->headers, sizeof(reply->headers), "%s", headers);
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

static bool is_let_in(const struct sl_server_request *request)
{
    char value[4096] = "", wanted[4096] = "";
    const char *query = strchr(request->target, '?');
    sl_server_header(request, "Authorization", value, sizeof(value));
    if (mock.bearer)
        snprintf(wanted, sizeof(wanted), "Bearer %s%u", mock.bearer, mock.asked);
    if (strcmp(value, wanted) != 0 || (mock.refuse_at && mock.asked == mock.refuse_at))
        return false;
    ck_assert(sl_server_header(request, "x-ms-version", value, sizeof(value)));
    ck_assert_str_eq(value, "2023-11-03");
    return mock.query ? query && strstr(query, mock.query) : !query || !strstr(query, "sig=");
}

static bool blob(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    unsigned long begin, end;
    char value[128] = "";
    if (sl_server_header(request, "If-Match", value, sizeof(value)) &&
        strcmp(value, mock.etag) != 0) {
        say(reply, 412, "x-ms-error-code: ConditionNotMet\r\n", "");
        return true;
    }
    ck_assert(sl_server_header(request, "Range", value, sizeof(value)));
    ck_assert_int_eq(sscanf(value, "bytes=%lu-%lu", &begin, &end), 2);
    end = end < BYTES ? end + 1 : BYTES;
    reply->status = 206;
    snprintf(reply->headers, sizeof(reply->headers),
             "Content-Range: bytes %lu-%lu/%d\r\nETag: %s\r\nx-ms-blob-type: BlockBlob\r\n%s",
             begin, end - 1, BYTES, mock.etag, mock.more ? mock.more : "");
    reply->body = malloc(end - begin);
    memcpy(reply->body, data + begin, end - begin);
    reply->body_bytes = end - begin;
    return true;
}

static bool token_service(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char body[256];
    snprintf(mock.seen, sizeof(mock.seen), "%s",
             request->body && *request->body ? request->body : request->target);
    mock.asked++;
    snprintf(body, sizeof(body), "{\"access_token\": \"token%u\", \"expires_in\": \"3600\"}",
             mock.asked);
    say(reply, 200, "", body);
    return true;
}

static bool azure(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    if (strstr(request->target, "/oauth2/"))
        return token_service(request, reply);
    if (strncmp(request->target, "/sluicetest/models/", 19) != 0)
        return false;
    if (!is_let_in(request)) {
        say(reply, mock.bearer ? 401 : 403, "x-ms-error-code: AuthenticationFailed\r\n", "");
        return true;
    }
    return blob(request, reply);
}

static void setup(void)
{
    clearenv();
    setenv("AZURE_TOKEN_CREDENTIALS", "none", 1);
    setenv("AZURE_STORAGE_ACCOUNT", "sluicetest", 1);
    az = (struct sl_az_options){0};
    config = (struct sl_source_config){.options = {{&sl_az_table, &az}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(7 * i + 3);
    server = sl_server_start();
    memset(&mock, 0, sizeof(mock));
    mock.etag = "\"0x8DC0FFEE\"";
    sl_server_handle(server, azure, NULL);
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(server, ""), 1);
}

static void teardown(void)
{
    sl_server_stop(server);
}

static void close_all(void)
{
    teardown();
    if (folder_fd >= 0)
        sl_scratch_close(folder_fd, folder);
}

static const char *write_file(const char *name, const char *text)
{
    static char path[SL_SCRATCH_PATH_BYTES + 64];
    if (folder_fd < 0)
        folder_fd = sl_scratch_open(folder);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    fclose(file);
    return path;
}

static int load(const char *uri)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    static uint8_t got[BYTES];
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_store_open(uri, &config, &store, &name, &err) < 0 ||
        sl_source_open(store, name, 100, &source, &err) < 0)
        return -1;
    ck_assert_ptr_null(strstr(sl_source_uri(source), "sig"));
    if (sl_source_read(source, 0, got, BYTES, &err) < 0)
        return -1;
    ck_assert_uint_eq(sl_source_bytes(source), BYTES);
    ck_assert_mem_eq(got, data, BYTES);
    return 0;
}

static void expect_load(const char *uri)
{
    ck_assert_msg(load(uri) == 0, "%s", err.message);
}

static void expect_refusal(const char *uri, enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(load(uri), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "hush"));
    ck_assert_ptr_null(strstr(err.message, "sig="));
}

/* ---- addresses ------------------------------------------------------------------------------- */

SL_TEST(every_form_of_uri_names_its_container_and_account)
{
    static const struct {
        const char *uri, *base, *container, *prefix, *name, *shown;
    } rows[] = {
        {"az://models/a/m.bin", "https://sluicetest.blob.core.windows.net", "models", "a/", "m.bin",
         "az://models/"},
        {"azure://models/m", "https://sluicetest.blob.core.windows.net", "models", "", "m",
         "azure://models/"},
        {"abfs://models/a/", "https://sluicetest.blob.core.windows.net", "models", "a/", "",
         "abfs://models/"},
        {"abfss://models@acc.dfs.core.windows.net/a/m", "https://acc.blob.core.windows.net",
         "models", "a/", "m", "abfss://models@acc.dfs.core.windows.net/"},
        {"https://acc.blob.core.windows.net/models/a%20b/m", "https://acc.blob.core.windows.net",
         "models", "a b/", "m", "https://acc.blob.core.windows.net/models/"},
        {"https://acc.z12.blob.storage.azure.net/models/m?sv=1&sig=hush",
         "https://acc.z12.blob.storage.azure.net", "models", "", "m",
         "https://acc.z12.blob.storage.azure.net/models/"},
        {"az://$root/m", "https://sluicetest.blob.core.windows.net", "$root", "", "m",
         "az://$root/"},
    };
    unsetenv("AZURE_STORAGE_ENDPOINT");
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_az_place place;
        sl_autofree char *name = NULL;
        ck_assert_ptr_eq(sl_stores_find(rows[i].uri), &sl_az_store);
        ck_assert_msg(sl_az_place_find(&place, rows[i].uri, &config, &name, &err) == 0, "%s",
                      err.message);
        ck_assert_str_eq(place.base, rows[i].base);
        ck_assert_str_eq(place.container, rows[i].container);
        ck_assert_str_eq(place.prefix, rows[i].prefix);
        ck_assert_str_eq(name, rows[i].name);
        ck_assert_str_eq(place.shown, rows[i].shown);
        ck_assert_int_eq(place.uri_sas != NULL, strstr(rows[i].uri, "sig=") != NULL);
        sl_az_place_release(&place);
    }
    ck_assert_ptr_ne(sl_stores_find("https://blob.core.windows.net.evil.com/c/b"), &sl_az_store);
    ck_assert_ptr_ne(sl_stores_find("https://a.file.core.windows.net/c/b"), &sl_az_store);
}

/* The account of Hadoop's URI at a private address or an emulator: what the spec says, and what a
 * connection says of this account. */
SL_TEST(an_endpoint_holds_for_uris_that_name_their_account)
{
    static const struct {
        const char *uri, *endpoint, *connection, *base;
    } rows[] = {
        {"abfss://models@acc.dfs.core.windows.net/m", "http://127.0.0.1:10000/acc", NULL,
         "http://127.0.0.1:10000/acc"},
        {"abfss://models@acc.dfs.core.windows.net/m", "https://private.example", NULL,
         "https://private.example"},
        {"abfs://models@acc.blob.core.windows.net/m", NULL,
         "AccountName=acc;AccountKey=aGk=;BlobEndpoint=http://127.0.0.1:10000/acc",
         "http://127.0.0.1:10000/acc"},
        {"abfss://models@acc.dfs.core.windows.net/m", NULL,
         "AccountName=other;AccountKey=aGk=;BlobEndpoint=http://127.0.0.1:10000/other",
         "https://acc.blob.core.windows.net"},
        {"https://acc.blob.core.windows.net/models/m", "http://127.0.0.1:10000/acc", NULL,
         "https://acc.blob.core.windows.net"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_az_place place;
        sl_autofree char *name = NULL;
        az.endpoint = rows[i].endpoint ? strdup(rows[i].endpoint) : NULL;
        if (rows[i].connection)
            setenv("AZURE_STORAGE_CONNECTION_STRING", rows[i].connection, 1);
        ck_assert_msg(sl_az_place_find(&place, rows[i].uri, &config, &name, &err) == 0, "%s",
                      err.message);
        ck_assert_str_eq(place.base, rows[i].base);
        ck_assert_str_eq(place.account, "acc");
        sl_az_place_release(&place);
        unsetenv("AZURE_STORAGE_CONNECTION_STRING");
        free(az.endpoint);
        az.endpoint = NULL;
    }
}

SL_TEST(what_names_no_container_is_refused)
{
    static const char *const bad[] = {"az://",
                                      "az://UPPER/b",
                                      "az://ab/b",
                                      "abfss://models@evil.example/b",
                                      "https://u:hush@acc.blob.core.windows.net/models/b",
                                      "https://acc.blob.core.windows.net/"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(sl_source_check_uri(bad[i], &err) < 0, "%s", bad[i]);
    unsetenv("AZURE_STORAGE_ACCOUNT");
    unsetenv("AZURE_STORAGE_ENDPOINT");
    expect_refusal("az://models/m", SL_E_USAGE, "no storage account is named");
}

SL_TEST(connection_strings_are_read_as_azures_own_clients_do)
{
    struct sl_az_connection connection;
    ck_assert_int_eq(sl_az_connection_parse("accountname=a;AccountKey=k==;;EndpointSuffix=s;"
                                            "BlobEndpoint=http://h/a;Other=1",
                                            &connection, &err),
                     0);
    ck_assert_str_eq(connection.account, "a");
    ck_assert_str_eq(connection.key, "k==");
    ck_assert_str_eq(connection.endpoint, "http://h/a");
    sl_az_connection_release(&connection);
    ck_assert_int_eq(sl_az_connection_parse("UseDevelopmentStorage=true", &connection, &err), 0);
    ck_assert_str_eq(connection.endpoint, "http://127.0.0.1:10000/devstoreaccount1");
    sl_az_connection_release(&connection);
    ck_assert_int_eq(sl_az_connection_parse("hush", &connection, &err), -1);
    ck_assert_ptr_null(strstr(err.message, "hush"));
    sl_az_connection_release(&connection);
    ck_assert_int_eq(sl_az_connection_parse("AccountKey=hush", &connection, &err), -1);
    sl_az_connection_release(&connection);
}

/* ---- what lets in ---------------------------------------------------------------------------- */

SL_TEST(a_sas_is_signed_as_azures_own_client_does)
{
    struct sl_az_sas sas = {.account = "sluicetest",
                            .container = "models",
                            .rights = "rl",
                            .begins = "2013-05-24T00:00:00Z",
                            .end = "2013-05-25T00:00:00Z",
                            .tls = true};
    sl_autosecret char *query = sl_az_sas_sign(&sas, key, &err);
    ck_assert_str_eq(query, "sv=2023-11-03&sr=c&sp=rl&st=2013-05-24T00%3A00%3A00Z&"
                            "se=2013-05-25T00%3A00%3A00Z&spr=https&"
                            "sig=RTQw7e0aHTYvBxioUrTBVbSg1jjyqrJkEN1Qh5c74CE%3D");
    sas.blob = "llama/model.safetensors";
    sas.rights = "r";
    sas.begins = "";
    sas.tls = false;
    sl_autosecret char *one = sl_az_sas_sign(&sas, key, &err);
    ck_assert_str_eq(strstr(one, "sig="), "sig=3by6noh7pW4KoauBQVkTUgQpwq2LN5QdhGcrGIUBSFY%3D");
    ck_assert_ptr_null(sl_az_sas_sign(&sas, "hush!", &err));
    ck_assert_ptr_null(strstr(err.message, "hush"));
}

SL_TEST(public_blobs_are_read_without_credentials_and_each_range_names_the_etag)
{
    char value[64];
    expect_load("az://models/a b+c%/\xc3\xa9.bin");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target,
                     "/sluicetest/models/a%20b%2Bc%25/%C3%A9.bin");
    for (unsigned i = 1; i < sl_server_request_count(server); i++) {
        ck_assert(sl_server_header(sl_server_request_at(server, i), "If-Match", value, 64));
        ck_assert_str_eq(value, "\"0x8DC0FFEE\"");
    }
}

SL_TEST(a_blob_that_is_replaced_in_mid_load_is_changed)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t got[100];
    ck_assert_int_eq(sl_store_open("az://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    mock.etag = "\"0x2\"";
    ck_assert_int_eq(sl_source_read(source, 5000, got, sizeof(got), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

/* "" if none is known. */
static void expect_md5(const char *headers, const char *hex)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    char text[2 * SL_HASH_BYTES_MAX + 1] = "";
    mock.more = headers;
    ck_assert_int_eq(sl_store_open("az://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    const struct sl_checksums *sums = sl_source_known_checksums(source);
    if (sums) {
        ck_assert_uint_eq(sums->count, 1);
        ck_assert_int_eq(sums->items[0].kind, SL_HASH_MD5);
        sl_hex(sums->items[0].value, 16, text);
    }
    ck_assert_str_eq(text, hex);
}

SL_TEST(the_md5_of_the_blob_is_taken_from_the_first_answer)
{
    static const char of_range[] = "Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\n";
    expect_md5("x-ms-blob-content-md5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\n",
               "d41d8cd98f00b204e9800998ecf8427e");
    expect_md5(of_range, ""); /* of the range */
    expect_md5(NULL, "");
    expect_md5("x-ms-blob-content-md5: \r\n", "");
}

SL_TEST(what_is_no_md5_is_told_and_passed_over)
{
    static const char *const bad[] = {
        "1B2M2Y8AsgTpgAmY7PhCfg", "1B2M2Y8AsgTpgAmY7PhCfgAA",
        "1B2M2Y8A!gTpgAmY7PhCfg==", "d41d8cd98f00b204e9800998ecf8427e", "="};
    char header[128];
    sl_log_setup(SL_LOG_ERROR, false);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_checksums sums;
        ck_assert_msg(!sl_az_take_md5(bad[i], "az://models/m.bin", &sums), "%s", bad[i]);
        ck_assert_uint_eq(sums.count, 0);
        snprintf(header, sizeof(header), "x-ms-blob-content-md5: %s\r\n", bad[i]);
        expect_md5(header, "");
    }
}

SL_TEST(a_sas_of_uri_file_or_environment_goes_into_every_url)
{
    mock.query = "sv=2023-11-03&sig=hush";
    expect_load("az://models/m.bin?sv=2023-11-03&sig=hush");
    setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2023-11-03&sig=hush", 1);
    expect_load("az://models/m.bin");
    az.sas_file = (char *)(uintptr_t)write_file("sas", "?sv=2023-11-03&sig=hush2\n");
    mock.query = "sig=hush2";
    expect_load("az://models/m.bin");
    mock.query = "sig=other";
    expect_refusal("az://models/m.bin", SL_E_AUTH,
                   "the SAS of source.az.sasFile is not accepted: it is of another account, was "
                   "replaced, or has expired: take a new one");
}

/* Whoever renews a secret replaces its file, or takes it away (NULL); what is open is read on. */
static void replace_while_open(const char *path, const char *first, const char *second)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t got[100];
    const char *file = strrchr(path, '/') + 1;
    write_file(file, first);
    mock.query = "sig=hush1";
    ck_assert_int_eq(sl_store_open("az://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert(second ? true : unlink(path) == 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    if (second) {
        write_file(file, second);
        mock.query = "sig=hush2";
    }
    ck_assert_msg(sl_source_read(source, 5000, got, 100, &err) == 0, "%s", err.message);
}

SL_TEST(a_sas_that_is_replaced_in_its_file_opens_what_is_open)
{
    az.sas_file = (char *)(uintptr_t)write_file("sas", "");
    replace_while_open(az.sas_file, "?sv=1&sig=hush1\n", "sv=1&sig=hush2\n");
    replace_while_open(az.sas_file, "sv=1&sig=hush1", NULL);
}

SL_TEST(a_connection_string_that_is_replaced_opens_what_is_open)
{
    char text[2][256];
    for (int i = 0; i < 2; i++)
        snprintf(text[i], 256, "BlobEndpoint=%s;SharedAccessSignature=sv=1&sig=hush%d",
                 sl_server_url(server, "/sluicetest"), i + 1);
    az.connection_string_file = (char *)(uintptr_t)write_file("string", "");
    replace_while_open(az.connection_string_file, text[0], text[1]);
}

SL_TEST(a_key_signs_one_sas_for_all_requests)
{
    mock.query = "sv=2023-11-03&sr=c&sp=rl&st=";
    setenv("AZURE_STORAGE_ACCESS_KEY", key, 1);
    expect_load("az://models/m.bin");
    const char *first = strstr(sl_server_request_at(server, 0)->target, "sig=");
    for (unsigned i = 1; i < sl_server_request_count(server); i++)
        ck_assert_str_eq(strstr(sl_server_request_at(server, i)->target, "sig="), first);
    ck_assert_ptr_null(strstr(sl_server_request_at(server, 0)->target, "spr="));
    setenv("AZURE_STORAGE_ACCESS_KEY", "hush!", 1);
    expect_refusal("az://models/m.bin", SL_E_AUTH, "not the base64 text");
}

static void expect_no_key(const char *uri)
{
    struct sl_az_place place;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_az_place_find(&place, uri, &config, &name, &err), 0);
    ck_assert_ptr_null(place.key);
    sl_az_place_release(&place);
}

SL_TEST(keys_of_another_account_are_left_alone)
{
    unsetenv("AZURE_STORAGE_ENDPOINT");
    setenv("AZURE_STORAGE_KEY", key, 1);
    expect_no_key("abfss://models@other.dfs.core.windows.net/m");
    setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=third;AccountKey=aGk=", 1);
    expect_no_key("abfss://models@other.dfs.core.windows.net/m");
}

static void use_entra(void)
{
    unsetenv("AZURE_TOKEN_CREDENTIALS");
    setenv("AZURE_TENANT_ID", "tenant", 1);
    setenv("AZURE_CLIENT_ID", "client", 1);
    setenv("AZURE_AUTHORITY_HOST", sl_server_url(server, "/"), 1);
    mock.bearer = "token";
}

SL_TEST(workload_identity_exchanges_the_federated_token)
{
    use_entra();
    setenv("AZURE_FEDERATED_TOKEN_FILE", write_file("federated", " \nhush-jwt\n"), 1);
    expect_load("az://models/m.bin");
    ck_assert_str_eq(mock.seen,
                     "client_id=client&grant_type=client_credentials&scope=https%3A%2F%2F"
                     "storage.azure.com%2F.default&client_assertion_type=urn%3Aietf%3Aparams%3A"
                     "oauth%3Aclient-assertion-type%3Ajwt-bearer&client_assertion=hush-jwt");
    ck_assert_uint_eq(mock.asked, 1);
    setenv("AZURE_CLIENT_SECRET", "hush", 1);
    expect_load("az://models/m.bin");
    ck_assert_ptr_nonnull(strstr(mock.seen, "&client_secret=hush"));
}

SL_TEST(managed_identity_is_asked_where_nothing_is_named)
{
    unsetenv("AZURE_TOKEN_CREDENTIALS");
    setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", sl_server_url(server, ""), 1);
    mock.bearer = "token";
    expect_load("az://models/m.bin");
    ck_assert_str_eq(mock.seen, "/metadata/identity/oauth2/token?api-version=2018-02-01&"
                                "resource=https%3A%2F%2Fstorage.azure.com%2F");
}

SL_TEST(a_token_that_is_refused_in_mid_load_is_replaced_once)
{
    use_entra();
    setenv("AZURE_CLIENT_SECRET", "hush", 1);
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t got[100];
    ck_assert_int_eq(sl_store_open("az://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    mock.refuse_at = 1;
    ck_assert_msg(sl_source_read(source, 5000, got, 100, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(mock.asked, 2);
    mock.refuse_at = 2;
    ck_assert_int_eq(sl_source_read(source, 6000, got, 100, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "the service principal of AZURE_CLIENT_ID"));
}

SL_TEST(no_secret_goes_over_plain_http_to_another_machine)
{
    setenv("AZURE_STORAGE_ENDPOINT", "http://emulator.example/sluicetest", 1);
    setenv("AZURE_STORAGE_KEY", key, 1);
    expect_refusal("az://models/m.bin", SL_E_AUTH, "over plain http to another machine");
}

SL_TEST(every_allocation_may_fail)
{
    setenv("AZURE_STORAGE_KEY", key, 1);
    mock.query = "sr=c&sp=rl";
    for (unsigned nth = 1; nth < 600; nth++) {
        sl_alloc_fail_at(nth);
        int result = load("az://models/m.bin");
        unsigned count = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (count < nth) {
            ck_assert_msg(result == 0, "%s", err.message);
            return;
        }
        if (result < 0)
            ck_assert_msg(err.kind == SL_E_NO_SPACE || err.kind == SL_E_AUTH, "%s", err.message);
    }
    ck_abort_msg("never succeeded");
}

/* ---- answers --------------------------------------------------------------------------------- */

SL_TEST(refusals_say_what_to_do)
{
    static const struct {
        int status;
        const char *headers, *body;
        enum sl_err_kind kind;
        const char *text;
    } rows[] = {
        {403, "", "<Error><Code>AuthorizationFailure</Code><Message>no</Message></Error>",
         SL_E_AUTH, "no credentials were found"},
        {403, "x-ms-error-code: AuthenticationFailed\r\n",
         "\xef\xbb\xbf<Error><Code>AuthenticationFailed</Code><Message>Server failed to "
         "authenticate "
         "the request.\nTime:1</Message><AuthenticationErrorDetail>Signature not valid in the "
         "specified time frame: Start [Tue, 06 Oct 2026 10:00:00 GMT] - Expiry [Tue, 06 Oct 2026 "
         "11:00:00 GMT] - Current [Tue, 06 Oct 2026 11:03:00 GMT]</AuthenticationErrorDetail>"
         "</Error>",
         SL_E_AUTH, "is good until Tue, 06 Oct 2026 11:00:00 GMT only: if that has passed"},
        {404, "x-ms-error-code: ContainerNotFound\r\n", "", SL_E_NOT_FOUND, "check the container"},
        {409, "x-ms-error-code: BlobArchived\r\n", "", SL_E_AUTH, "rehydrate it"},
        {409, "x-ms-error-code: PublicAccessNotPermitted\r\n", "", SL_E_AUTH,
         "no credentials were found"},
        {302, "Location: http://elsewhere.example/\r\n", "", SL_E_NET, "302"},
    };
    sl_server_put(server, "/sluicetest/others/x", "x", 1, NULL);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        SL_SCRIPT(server, {.path = "/sluicetest/others/x",
                           .fault = SL_FAULT_STATUS,
                           .status = rows[i].status,
                           .headers = rows[i].headers,
                           .text = rows[i].body});
        expect_refusal("az://others/x", rows[i].kind, rows[i].text);
    }
}

SL_TEST(every_failure_that_may_pass_is_tried_again)
{
    static const struct sl_step faults[] = {
        {.fault = SL_FAULT_RESET, .after = -1},
        {.fault = SL_FAULT_RESET, .after = 10},
        {.fault = SL_FAULT_SHORT, .after = 10},
        {.fault = SL_FAULT_STATUS, .status = 429, .text = ""},
        {.fault = SL_FAULT_STATUS,
         .status = 503,
         .headers = "x-ms-error-code: ServerBusy\r\n",
         .text = ""},
        {.fault = SL_FAULT_STATUS,
         .status = 500,
         .headers = "x-ms-error-code: OperationTimedOut\r\n",
         .text = ""},
        {.fault = SL_FAULT_STALL, .after = 10},
        {.fault = SL_FAULT_DROP_AFTER},
        {.fault = SL_FAULT_CHUNKED},
    };
    fake_clock_run();
    for (size_t i = 0; i < SL_COUNT(faults); i++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            teardown();
            setup();
            sl_server_put(server, "/sluicetest/others/x", data, BYTES, "\"e\"");
            struct sl_step bad = faults[i];
            config.stall_seconds = bad.fault == SL_FAULT_STALL; /* else 0: 30 */
            bad.path = "/sluicetest/others/x";
            bad.first = bad.last = nth;
            SL_SCRIPT(server, bad);
            expect_load("az://others/x");
        }
}

SL_TEST(answers_that_break_the_contract_are_refused)
{
    static const struct sl_step faults[] = {
        {.fault = SL_FAULT_WRONG_RANGE},
        {.fault = SL_FAULT_NO_RANGE},
        {.fault = SL_FAULT_LONG},
        {.fault = SL_FAULT_MULTIPART},
    };
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        sl_server_put(server, "/sluicetest/others/x", data, BYTES, "\"e\"");
        struct sl_step bad = faults[i];
        bad.path = "/sluicetest/others/x";
        SL_SCRIPT(server, bad);
        ck_assert_int_eq(load("az://others/x"), -1);
        ck_assert_msg(err.kind == SL_E_NET || err.kind == SL_E_INTEGRITY, "%s", err.message);
    }
}

SL_CASE(.setup = setup, .teardown = close_all, .seconds = 60)
