/* A registry on two range servers: its API with a token service, and the other host that its blobs
 * lie at. Tokens, links and everything else that may expire or be wrong in the middle of a load. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "hash.h"
#include "http_case.h"
#include "http_store.h"
#include "oci_auth.h"
#include "oci_options.h"
#include "stores.h"
#include "tar_maker.h"

static struct registry {
    struct sl_server *api, *cdn;
    char blob[72], manifest[1024]; /* digest; text */
    bool wants_tokens;
    bool token_leads_away;           /* the token service redirects to the other host */
    unsigned lifetime;               /* seconds that a token says that it is good for */
    unsigned given, oldest;          /* tokens; older ones have expired */
    unsigned links, oldest_link;     /* the same of links */
    unsigned leaked;                 /* requests to the other host with Authorization */
    unsigned manifests, token_asked; /* requests */
    const char *login;               /* base64 that the token service wants; NULL: none */
    char other[1600];                /* what stands before its challenge */
} registry;
static struct sl_source_config config;
static char model[64];
static struct sl_buf car; /* an image's layer */

static void say(struct sl_server_reply *reply, const char *body)
{
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

static void give_token(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char text[128];
    registry.token_asked++;
    if (registry.token_leads_away) {
        reply->status = 307;
        snprintf(reply->headers, sizeof(reply->headers), "Location: %s\r\n",
                 sl_server_url(registry.cdn, "/token"));
        return;
    }
    ck_assert_ptr_nonnull(strstr(request->target, "scope=repository%3Aorg%2Fm%3Apull"));
    if (registry.login && (!sl_server_header(request, "Authorization", text, sizeof(text)) ||
                           strcmp(text + strcspn(text, " "), registry.login) != 0)) {
        reply->status = 401;
        return;
    }
    snprintf(text, sizeof(text), "{\"access_token\": \"t%u\", \"expires_in\": %u}",
             ++registry.given, registry.lifetime);
    say(reply, text);
}

/* Without a token that is good, it says where to get one. */
static bool challenges(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char text[256];
    if (!registry.wants_tokens)
        return false;
    if (sl_server_header(request, "Authorization", text, sizeof(text)) &&
        strncmp(text, "Bearer t", 8) == 0 &&
        strtoul(text + 8, NULL, 10) >= SL_MAX(registry.oldest, 1u))
        return false;
    reply->status = 401;
    snprintf(reply->headers, sizeof(reply->headers),
             "WWW-Authenticate: %sBearer realm=\"%s\",service=\"s\",scope=\"repository:org/m:pull\""
             "\r\n",
             registry.other, sl_server_url(registry.api, "/token"));
    say(reply, "{\"errors\": [{\"code\": \"UNAUTHORIZED\", \"message\": \"no\"}]}");
    return true;
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    char text[256];
    if (strncmp(request->target, "/token?", 7) == 0) {
        give_token(request, reply);
    } else if (challenges(request, reply)) {
        return true;
    } else if (strcmp(request->target, "/v2/org/m/manifests/v1") == 0) {
        registry.manifests++;
        ck_assert(sl_server_header(request, "Accept", text, sizeof(text)) && strstr(text, "oci"));
        say(reply, registry.manifest);
    } else {
        reply->status = 307;
        snprintf(reply->headers, sizeof(reply->headers), "Location: %s?%u\r\n",
                 sl_server_url(registry.cdn, "/blob"), ++registry.links);
    }
    return true;
}

static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    char text[256];
    const char *query = strchr(request->target, '?');
    registry.leaked += sl_server_header(request, "Authorization", text, sizeof(text));
    if (query && strtoul(query + 1, NULL, 10) >= registry.oldest_link)
        return false;
    reply->status = 403;
    return true;
}

static void setup(void)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65];
    registry = (struct registry){.wants_tokens = true, .lifetime = 300};
    registry.api = sl_server_start();
    registry.cdn = sl_server_start();
    sl_server_handle(registry.api, answer, NULL);
    sl_server_handle(registry.cdn, serve, NULL);
    sl_server_put(registry.cdn, "/blob", sl_blob(), SL_BLOB_BYTES, "\"edge\"");
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(registry.blob, sizeof(registry.blob), "sha256:%s", hex);
    snprintf(registry.manifest, sizeof(registry.manifest),
             "{\"layers\":[{\"mediaType\":\"x\",\"size\":%d,\"digest\":\"%s\",\"annotations\":{"
             "\"org.opencontainers.image.title\":\"sub/m.bin\"}}]}",
             SL_BLOB_BYTES, registry.blob);
    snprintf(model, sizeof(model), "oci://127.0.0.1:%u/org/m:v1/sub/m.bin",
             sl_server_port(registry.api));
    setenv("HOME", "/nonexistent", 1);
    config = (struct sl_source_config){.attempts = 3, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
}

static void teardown(void)
{
    ck_assert_uint_eq(registry.leaked, 0);
    sl_server_stop(registry.api);
    sl_server_stop(registry.cdn);
    sl_buf_release(&car);
}

static int read_model(struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(model, &config, 1000, 400000, err);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

SL_TEST(a_manifest_and_a_token_are_asked_for_once)
{
    struct sl_err err;
    ck_assert_msg(read_model(&err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.manifests, 1);
    ck_assert_uint_eq(registry.token_asked, 1);
    ck_assert_uint_eq(registry.links, 1);
    ck_assert_uint_eq(sl_server_request_count(registry.api), 4); /* the challenge, too */
}

/* Of 1,500 bytes, and in a header behind another one. */
SL_TEST_LOOP(a_challenge_is_read_whole, 0, 2)
{
    struct sl_err err;
    if (_i == 0)
        snprintf(registry.other, sizeof(registry.other), "Digest realm=\"%01500d\", ", 0);
    else
        snprintf(registry.other, sizeof(registry.other),
                 "Digest realm=\"other\"\r\nWWW-Authenticate: ");
    ck_assert_msg(read_model(&err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.token_asked, 1);
}

SL_TEST(no_token_is_asked_for_where_none_is_wanted)
{
    struct sl_err err;
    registry.wants_tokens = false;
    ck_assert_msg(read_model(&err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.token_asked, 0);
    ck_assert_uint_eq(sl_server_request_count(registry.api), 2);
}

SL_TEST(a_source_is_pinned_to_its_digest_and_knows_its_hash)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    char hex[65];
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_str_eq(key, "m.bin");
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_str_eq(sl_source_version(source)->pin, registry.blob);
    ck_assert_uint_eq(sl_source_bytes(source), SL_BLOB_BYTES);
    const struct sl_checksums *told = sl_source_known_checksums(source);
    ck_assert(told && told->count == 1 && told->items[0].kind == SL_HASH_SHA256);
    sl_hex(told->items[0].value, 32, hex);
    ck_assert_str_eq(hex, registry.blob + 7);
}

/* ---- what expires ---------------------------------------------------------------------------- */

struct opened {
    struct sl_store *store;
    struct sl_source *source;
};

static struct opened open_model(void)
{
    struct opened opened = {NULL};
    struct sl_err err = SL_ERR_INIT;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(model, &config, &opened.store, &key, &err), 0);
    ck_assert_msg(sl_source_open(opened.store, key, 10, &opened.source, &err) == 0, "%s",
                  err.message);
    return opened;
}

static int read_some(struct opened *opened, uint64_t offset, struct sl_err *err)
{
    uint8_t data[1000];
    *err = (struct sl_err)SL_ERR_INIT;
    if (sl_source_read(opened->source, offset, data, sizeof(data), err) < 0)
        return -1;
    ck_assert_mem_eq(data, sl_blob() + offset, sizeof(data));
    return 0;
}

static void close_model(struct opened *opened)
{
    sl_source_free(opened->source);
    sl_store_free(opened->store);
}

SL_TEST(a_link_and_a_token_that_end_together_are_both_replaced)
{
    struct sl_err err;
    fake_clock_hold();
    struct opened opened = open_model();
    fake_clock_turn(600 * SL_NS_PER_S);
    registry.oldest_link = 2;
    registry.oldest = 2;
    ck_assert_msg(read_some(&opened, 5000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.links, 2);
    ck_assert_uint_eq(registry.given, 2);
    fake_clock_release();
    close_model(&opened);
}

SL_TEST(a_token_that_is_refused_before_its_time_is_replaced)
{
    struct sl_err err;
    fake_clock_hold();
    struct opened opened = open_model();
    fake_clock_turn(30 * SL_NS_PER_S); /* a younger one is not replaced: the refusal is of us */
    registry.oldest = 2;
    registry.oldest_link = 2;
    ck_assert_msg(read_some(&opened, 5000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.given, 2);
    fake_clock_release();
    close_model(&opened);
}

static void log_in(const char *path, const char *auth)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "{\"auths\": {\"127.0.0.1:%u\": {\"auth\": \"%s\"}}}",
            sl_server_port(registry.api), auth);
    fclose(file);
}

/* Passwords of some registries end after hours; whoever logs in again writes the file anew. */
SL_TEST(a_token_is_asked_for_with_the_login_of_now)
{
    struct sl_err err;
    struct sl_oci_options options = {0};
    char path[64];
    snprintf(path, sizeof(path), "%s", file_with(""));
    options.docker_config = path;
    config.options[0] = (struct sl_store_options){&sl_oci_table, &options};
    log_in(path, "dTpvbmU=");
    registry.login = " dTpvbmU=";
    fake_clock_hold();
    struct opened opened = open_model();
    fake_clock_turn(600 * SL_NS_PER_S);
    registry.oldest_link = registry.oldest = 2;
    registry.login = " dTp0d28=";
    log_in(path, "dTp0d28=");
    ck_assert_msg(read_some(&opened, 5000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.given, 2);
    ck_assert_int_eq(unlink(path), 0); /* then the login is what it was at first */
    fake_clock_turn(600 * SL_NS_PER_S);
    registry.oldest_link = registry.oldest = 3;
    registry.login = " dTpvbmU=";
    ck_assert_msg(read_some(&opened, 9000, &err) == 0, "%s", err.message);
    fake_clock_release();
    close_model(&opened);
}

/* Neither the login nor what it asks for goes where a token service leads. */
SL_TEST(a_login_does_not_follow_a_redirect_of_the_token_service)
{
    struct sl_err err;
    char text[256];
    struct sl_oci_options options = {0};
    snprintf(text, sizeof(text),
             "{\"auths\":{\"127.0.0.1:%u\":{\"username\":\"u\",\"password\":\"p\"}}}",
             sl_server_port(registry.api));
    options.docker_config = (char *)(uintptr_t)file_with(text);
    config.options[0] = (struct sl_store_options){&sl_oci_table, &options};
    registry.token_leads_away = true;
    ck_assert_int_eq(read_model(&err), -1);
    remove(options.docker_config);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_uint_eq(sl_server_request_count(registry.cdn), 0);
}

/* ---- layers that are tars -------------------------------------------------------------------- */

static struct sl_oci_options layers;

/* The registry's artifact is an image now: a tar with the model, a small file and an empty one.
 * said_bytes: what the manifest says of its size, 0: the truth. */
static void make_car(uint64_t check_up_to, uint64_t said_bytes)
{
    static char folder[] = "models";
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65];
    sl_buf_release(&car);
    car = (struct sl_buf)SL_BUF_INIT(4 * SL_BLOB_BYTES);
    tar_entry(&car, '0', "models/empty", NULL, NULL, 0);
    tar_entry(&car, '0', "models/sub/m.bin", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_entry(&car, '0', "models/small", NULL, "small", 5);
    tar_end(&car);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, car.data, car.used, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(
        registry.manifest, sizeof(registry.manifest),
        "{\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"size\":%" PRIu64
        ",\"digest\":\"sha256:%s\"}]}",
        said_bytes ? said_bytes : car.used, hex);
    sl_server_put(registry.cdn, "/blob", car.data, car.used, "\"edge\"");
    layers = (struct sl_oci_options){.image_folder = folder, .check_layers_up_to = check_up_to};
    config.options[0] = (struct sl_store_options){&sl_oci_table, &layers};
}

SL_TEST_LOOP(a_file_of_a_layer_is_read_by_ranges, 0, 2)
{
    struct sl_err err;
    make_car(_i ? UINT64_MAX : 0, 0);
    ck_assert_msg(read_model(&err) == 0, "%s", err.message);
    ck_assert_uint_eq(registry.manifests, 1);
    ck_assert_uint_eq(registry.links, 1);
}

/* Only headers are read before the model is: what a load costs is what it takes. */
SL_TEST(the_data_of_a_large_layer_is_passed_over)
{
    struct sl_err err = SL_ERR_INIT;
    make_car(0, 0);
    struct opened opened = open_model();
    char range[256];
    for (unsigned i = 0; i < sl_server_request_count(registry.cdn); i++) {
        unsigned long long from, to;
        ck_assert(sl_server_header(sl_server_request_at(registry.cdn, i), "Range", range, 256));
        ck_assert_int_eq(sscanf(range, "bytes=%llu-%llu", &from, &to), 2);
        ck_assert_msg(to - from < 40000, "%s", range);
    }
    ck_assert_ptr_null(sl_source_known_checksums(opened.source));
    ck_assert_msg(read_some(&opened, SL_BLOB_BYTES - 1000, &err) == 0, "%s", err.message);
    close_model(&opened);
}

SL_TEST(a_small_layer_is_checked_and_its_files_have_hashes)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    make_car(UINT64_MAX, 0);
    struct opened opened = open_model();
    const struct sl_checksums *told = sl_source_known_checksums(opened.source);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    ck_assert(told && told->count == 1);
    ck_assert_mem_eq(told->items[0].value, digest, 32);
    close_model(&opened);
}

SL_TEST(a_changed_byte_of_a_small_layer_is_refused)
{
    struct sl_err err;
    make_car(UINT64_MAX, 0);
    car.data[car.used - 1] ^= 1; /* behind its end mark */
    sl_server_put(registry.cdn, "/blob", car.data, car.used, "\"edge\"");
    ck_assert_int_eq(read_model(&err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "its bytes are sha256:"), "%s",
                  err.message);
}

enum { NAMES_BYTES = 256 };

static int list_names(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)err;
    char *text = arg;
    size_t used = strlen(text);
    snprintf(text + used, NAMES_BYTES - used, "%s:%d ", entry->name, (int)entry->bytes);
    return 0;
}

SL_TEST(a_layer_is_listed_and_empty_files_open)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    char names[NAMES_BYTES] = "", uri[64];
    make_car(0, 0);
    snprintf(uri, sizeof(uri), "oci://127.0.0.1:%u/org/m:v1", sl_server_port(registry.api));
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, list_names, names, &err) == 0, "%s", err.message);
    ck_assert_str_eq(names, "empty:0 small:5 sub/m.bin:1000000 ");
    ck_assert_msg(sl_source_open(store, "empty", 10, &source, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(source), 0);
}

SL_TEST(an_image_without_the_folder_says_which_option_names_it)
{
    static char folder[] = "elsewhere";
    struct sl_err err;
    make_car(0, 0);
    layers.image_folder = folder;
    ck_assert_int_eq(read_model(&err), -1);
    ck_assert_msg(err.kind == SL_E_NOT_FOUND && strstr(err.message, "source.oci.imageFolder"), "%s",
                  err.message);
}

/* Larger or smaller than it is; a block more or less. */
SL_TEST_LOOP(a_manifest_that_lies_of_a_layers_size_is_refused, 0, 4)
{
    struct sl_err err;
    make_car(0, 0);
    make_car(_i % 2 ? UINT64_MAX : 0, car.used + (_i < 2 ? 512 : -512));
    ck_assert_int_eq(read_model(&err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY || err.kind == SL_E_FORMAT, "%d: %s", err.kind,
                  err.message);
}

static const enum sl_fault of_layers[] = {SL_FAULT_WRONG_RANGE, SL_FAULT_WRONG_TOTAL, SL_FAULT_LONG,
                                          SL_FAULT_NO_RANGE};

SL_TEST_LOOP(a_range_of_a_layer_is_held_to_the_same_contract, 0, (int)SL_COUNT(of_layers))
{
    struct sl_err err;
    make_car(0, 0);
    struct opened opened = open_model();
    unsigned before = sl_server_request_count(registry.cdn);
    SL_SCRIPT(registry.cdn, {.first = before + 1, .last = before + 99, .fault = of_layers[_i]});
    ck_assert_int_eq(read_some(&opened, 5000, &err), -1);
    ck_assert_msg(err.kind == SL_E_NET || err.kind == SL_E_INTEGRITY, "%d: %s", err.kind,
                  err.message);
    close_model(&opened);
}

/* A source that is made of what an earlier opening told, as readers do. */
SL_TEST(a_piece_is_known_by_its_pin)
{
    struct sl_err err = SL_ERR_INIT;
    make_car(0, 0);
    struct opened opened = open_model();
    struct sl_source *first = opened.source;
    ck_assert_int_eq(sl_source_known(opened.store, sl_source_name(first), sl_source_bytes(first),
                                     sl_source_version(first), &opened.source, &err),
                     0);
    sl_source_free(first);
    ck_assert_msg(read_some(&opened, 0, &err) == 0, "%s", err.message);
    struct sl_source *none;
    ck_assert_int_eq(sl_source_known(opened.store, "m.bin", car.used,
                                     sl_source_version(opened.source), &none, &err),
                     -1); /* beyond the layer's end */
    close_model(&opened);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static const struct {
    const char *headers, *body;
    int status;
    enum sl_err_kind kind;
    const char *says;
} refusals[] = {
    {"", "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}", 404, SL_E_NOT_FOUND, "'v1'"},
    {"", "not JSON", 404, SL_E_NOT_FOUND, "'v1'"},
    {"", "{\"errors\":[{\"code\":\"DENIED\"}]}", 403, SL_E_AUTH, "source.oci.dockerConfig"},
    {"WWW-Authenticate: Negotiate\r\n", "", 401, SL_E_AUTH, "source.oci.dockerConfig"},
    {"WWW-Authenticate: Basic realm=\"x\"\r\n", "", 401, SL_E_AUTH, "a user and a password"},
    {"WWW-Authenticate: Bearer realm=\"http://169.254.169.254/x\"\r\n", "", 401, SL_E_AUTH,
     "a cloud's metadata address"},
    {"WWW-Authenticate: Bearer realm=\"ftp://x/\"\r\n", "", 401, SL_E_USAGE, "token service"},
    {"", "<html>", 200, SL_E_FORMAT, "cannot open"},
    {"Docker-Content-Digest: "
     "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\r\n",
     "{\"layers\":[]}", 200, SL_E_INTEGRITY, "its manifest is sha256:"},
};
static unsigned refusal;

static bool refuse(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)request;
    (void)arg;
    reply->status = refusals[refusal].status;
    snprintf(reply->headers, sizeof(reply->headers), "%s", refusals[refusal].headers);
    say(reply, refusals[refusal].body);
    return true;
}

SL_TEST_LOOP(a_refusal_says_what_to_do, 0, (int)SL_COUNT(refusals))
{
    struct sl_err err;
    refusal = (unsigned)_i;
    sl_server_handle(registry.api, refuse, NULL);
    ck_assert_int_eq(read_model(&err), -1);
    ck_assert_msg(err.kind == refusals[_i].kind && strstr(err.message, refusals[_i].says), "%d: %s",
                  err.kind, err.message);
}

/* A login or none, in any spelling, this machine too: https is left for nobody. */
SL_TEST_LOOP(a_token_service_does_not_lead_from_https_to_http, 0, 2)
{
    static const char *const realms[] = {"http://127.0.0.1:1/t", "HTTP://h/t", "http://[::1]:1/"};
    for (size_t i = 0; i < SL_COUNT(realms); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_oci_login login = {0};
        struct sl_range_request request = {0};
        char challenge[200];
        unsigned token;
        login.user = _i ? strdup("user") : NULL;
        login.password = _i ? strdup("password") : NULL;
        struct sl_oci_auth *auth =
            sl_oci_auth_new(&config, "h", "org/m", false, true, &login, &err);
        ck_assert_ptr_nonnull(auth);
        snprintf(challenge, sizeof(challenge), "Bearer realm=\"%s\",service=\"s\"", realms[i]);
        sl_oci_note_challenge(auth, challenge);
        ck_assert_int_eq(sl_oci_let_in(auth, &request, &token, &err), -1);
        ck_assert_msg(strstr(err.message, "from https to plain http"), "%s", err.message);
        ck_assert_int_eq(err.kind, SL_E_AUTH);
        sl_oci_auth_free(auth);
    }
}

static int no_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg;
    return sl_fail(err, SL_E_INTERNAL, "'%s' is listed", entry->name);
}

/* Without the '/' that stands behind a tag where a file's name follows. */
SL_TEST(an_artifact_is_told_as_it_was_written)
{
    struct sl_err err = SL_ERR_INIT;
    char told[160];
    model[strlen(model) - strlen("/sub/m.bin")] = 0;
    snprintf(told, sizeof(told), "cannot open '%s': ", model);
    refusal = 0;
    sl_server_handle(registry.api, refuse, NULL);
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_store_list(store, no_entry, NULL, &err), -1);
    ck_assert_msg(strncmp(err.message, told, strlen(told)) == 0, "%s", err.message);
}

static const enum sl_fault passing[] = {SL_FAULT_RESET, SL_FAULT_SHORT,      SL_FAULT_CHUNKED,
                                        SL_FAULT_CLOSE, SL_FAULT_DROP_AFTER, SL_FAULT_UNTIL_CLOSE};

SL_TEST_LOOP(what_passes_is_got_over, 0, (int)SL_COUNT(passing))
{
    struct sl_err err;
    SL_SCRIPT(registry.cdn, {.first = 2, .fault = passing[_i], .after = 900});
    ck_assert_msg(read_model(&err) == 0, "%s", err.message);
}

static const struct {
    enum sl_fault fault;
    enum sl_err_kind kind;
} lasting[] = {
    {SL_FAULT_WRONG_RANGE, SL_E_NET},
    {SL_FAULT_NO_RANGE, SL_E_NET},
    {SL_FAULT_LONG, SL_E_NET},
    {SL_FAULT_GZIP, SL_E_NET},
    {SL_FAULT_WRONG_TOTAL, SL_E_INTEGRITY},
};

SL_TEST_LOOP(what_does_not_pass_is_named, 0, (int)SL_COUNT(lasting))
{
    struct sl_err err;
    SL_SCRIPT(registry.cdn, {.first = 2, .last = 99, .fault = lasting[_i].fault});
    ck_assert_int_eq(read_model(&err), -1);
    ck_assert_msg(err.kind == lasting[_i].kind, "%d: %s", err.kind, err.message);
    ck_assert_msg(!strstr(err.message, "?1"), "%s", err.message);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
