/* Repositories of a hub: one commit for all, hashes from its tree, tokens for it alone, and what
 * its refusals mean. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "hf_hub.h"
#include "hf_store.h"
#include "http_case.h"
#include "http_window.h"
#include "raw_request.h"
#include "store_kind.h"
#include "stores.h"

static struct sl_hub hub;
static struct sl_hf_options options;
static struct sl_source_config config;
static const char config_json[] = "{\"model_type\":\"llama\"}";

static void setup(void)
{
    sl_hub_start(&hub);
    sl_hub_put(&hub, "config.json", config_json, sizeof(config_json) - 1, false);
    sl_hub_put(&hub, "model.safetensors", sl_blob(), SL_BLOB_BYTES, true);
    sl_hub_put(&hub, "sub/a b%.bin", sl_blob(), SL_BLOB_BYTES, true);
    options = (struct sl_hf_options){.endpoint = strdup(sl_hub_url(&hub))};
    config = (struct sl_source_config){.attempts = 3,
                                       .stall_seconds = 20,
                                       .hedge = SL_HEDGE_OFF,
                                       .options[0] = {&sl_hf_table, &options}};
}

static void teardown(void)
{
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    sl_hub_stop(&hub);
    free(options.endpoint);
}

static int read_model(const char *uri, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(uri, &config, 1000, 400000, err);
}

static const char model[] = "hf://org/name/model.safetensors";

/* ---- what is asked for ----------------------------------------------------------------------- */

SL_TEST(a_revision_is_asked_for_once_and_a_file_once)
{
    struct sl_err err;
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/models/org/name/revision/"), 1);
    ck_assert_uint_eq(sl_hub_count(&hub, "/org/name/resolve/" SL_HUB_COMMIT "/"), 1);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 2);
    ck_assert_uint_eq(hub.links, 1);
}

SL_TEST_LOOP(every_way_to_write_a_revision_is_read, 0, 6)
{
    static const char *const uris[] = {
        "hf://org/name@main/model.safetensors",
        "hf://models/org/name@" SL_HUB_COMMIT "/model.safetensors",
        "hf://org/name:main/model.safetensors",
        "hf://org/name@refs/pr/1/model.safetensors",
        "hf://org/name@refs%2Fpr%2F1/model.safetensors",
        "HF://org/name/sub/a b%.bin",
    };
    struct sl_err err;
    ck_assert_msg(read_model(uris[_i], &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/models/org/name/revision/"), _i != 1);
}

static const struct {
    const char *uri, *says;
} bad_uris[] = {
    {"hf://gpt2", "names no repository"},
    {"hf:///x/y", "names no repository"},
    {"hf://org/", "names no repository"},
    {"hf://org/..", "names no repository"},
    {"hf://-org/name", "names no repository"},
    {"hf://org/a--b", "names no repository"},
    {"hf://org/name@", "names no revision"},
    {"hf://org/name:/mnt", "names no revision"},
    {"hf://org/name@a%20b/x", "a blank"},
    {"hf://org/name@a%00b/x", "percent"},
    {"hf://org/name/../x", "an invalid path"},
    {"hf://org/name//x", "an invalid path"},
    {"hf://kernels/org/name", "names a kernel"},
    {"hf://buckets/org", "names no repository"},
    {"hf://buckets/org/name@main/x", "buckets have none"},
    {"hf://buckets/org/name:v1", "buckets have none"},
    {"hf://buckets/org/name/../x", "an invalid path"},
};

SL_TEST_LOOP(what_is_no_repository_is_refused, 0, (int)SL_COUNT(bad_uris))
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_source_check_uri(bad_uris[_i].uri, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, bad_uris[_i].says) != NULL, "%s", err.message);
}

SL_TEST(datasets_and_spaces_have_their_own_addresses)
{
    struct sl_err err;
    ck_assert_int_eq(read_model("hf://datasets/org/name@" SL_HUB_COMMIT "/x", &err), -1);
    ck_assert_uint_eq(sl_hub_count(&hub, "/datasets/org/name/resolve/" SL_HUB_COMMIT "/x"), 1);
    ck_assert_int_eq(read_model("hf://spaces/org/name/x", &err), -1);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/spaces/org/name/revision/main"), 1);
}

/* ---- answers --------------------------------------------------------------------------------- */

SL_TEST(hashes_come_with_the_first_answer)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) large = NULL;
    SL_AUTO(sl_source) small = NULL;
    sl_autofree char *key = NULL;
    char hex[65];
    char headers[] = "X-Repo-Commit: " SL_HUB_COMMIT "\r\n"
                     "ETag: \"0972e95c1405cc1507c19dcbe784f7a36c930907\"\r\n";
    sl_server_put(hub.origin, "/api/resolve-cache/models/org/name/" SL_HUB_COMMIT "/config.json",
                  config_json, sizeof(config_json) - 1, NULL);
    SL_SCRIPT(hub.origin,
              {.path = "/api/resolve-cache/models/org/name/" SL_HUB_COMMIT "/config.json",
               .headers = headers});
    ck_assert_int_eq(sl_store_open("hf://org/name", &config, &store, &key, &err), 0);
    ck_assert_str_eq(key, "");
    ck_assert_str_eq(sl_store_uri(store), "hf://org/name/");
    ck_assert_int_eq(sl_source_open(store, "model.safetensors", 10, &large, &err), 0);
    ck_assert_str_eq(sl_source_version(large)->pin, SL_HUB_COMMIT);
    ck_assert_str_eq(sl_source_version(large)->etag, "");
    const struct sl_checksums *told = sl_source_known_checksums(large);
    ck_assert(told && told->count == 1 && told->items[0].kind == SL_HASH_SHA256);
    sl_hex(told->items[0].value, 32, hex);
    ck_assert_str_eq(hex, hub.files[1].hash);
    ck_assert_int_eq(sl_source_open(store, "config.json", 10, &small, &err), 0);
    told = sl_source_known_checksums(small);
    ck_assert(told && told->items[0].kind == SL_HASH_SHA1 && told->items[0].git);
    sl_hex(told->items[0].value, 20, hex);
    ck_assert_str_eq(hex, "0972e95c1405cc1507c19dcbe784f7a36c930907");
    ck_assert_str_eq(hub.files[0].hash, hex);
}

SL_TEST(an_answer_of_another_commit_is_a_change)
{
    struct sl_err err;
    hub.commit = "ffffffffffffffffffffffffffffffffffffffff";
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

SL_TEST(edges_may_give_the_same_bytes_other_etags)
{
    struct sl_err err;
    char text[256];
    SL_SCRIPT(hub.cdn, {.first = 2, .last = 99, .fault = SL_FAULT_WRONG_ETAG});
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
    ck_assert(!header_of(hub.cdn, 1, "If-Match", text));
}

SL_TEST(a_link_that_expires_in_mid_load_is_asked_for_anew)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[1000];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    hub.oldest_link = 2;
    ck_assert_msg(sl_source_read(source, 5000, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 5000, sizeof(data));
    ck_assert_uint_eq(hub.links, 2);
    hub.oldest_link = 99;
    ck_assert_int_eq(sl_source_read(source, 90000, data, sizeof(data), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
}

/* ---- every fault of a server ----------------------------------------------------------------- */

static const enum sl_fault passing[] = {SL_FAULT_RESET,      SL_FAULT_SHORT,   SL_FAULT_CHUNKED,
                                        SL_FAULT_CLOSE,      SL_FAULT_TRICKLE, SL_FAULT_DROP_AFTER,
                                        SL_FAULT_UNTIL_CLOSE};

SL_TEST_LOOP(what_passes_is_got_over, 0, 2 * (int)SL_COUNT(passing))
{
    struct sl_err err;
    enum sl_fault fault = passing[_i / 2];
    int64_t after = fault == SL_FAULT_TRICKLE ? SL_BLOB_BYTES / 4 : _i % 2 ? 900 : -1;
    if (fault == SL_FAULT_TRICKLE && _i % 2)
        fault = SL_FAULT_NONE;
    SL_SCRIPT(hub.cdn, {.first = 2, .fault = fault, .after = after});
    if (fault == SL_FAULT_TRICKLE)
        config.stall_seconds = 1;
    fake_clock_run();
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
}

SL_TEST(a_stall_is_a_stall)
{
    struct sl_err err;
    config.stall_seconds = 1;
    fake_clock_run();
    SL_SCRIPT(hub.cdn, {.first = 2, .fault = SL_FAULT_STALL, .after = 900});
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
}

static const struct {
    enum sl_fault fault;
    enum sl_err_kind kind;
} lasting[] = {
    {SL_FAULT_WRONG_RANGE, SL_E_NET},   {SL_FAULT_NO_RANGE, SL_E_NET},
    {SL_FAULT_WHOLE, SL_E_NET},         {SL_FAULT_LONG, SL_E_NET},
    {SL_FAULT_GZIP, SL_E_NET},          {SL_FAULT_MULTIPART, SL_E_NET},
    {SL_FAULT_CHANGED, SL_E_INTEGRITY}, {SL_FAULT_WRONG_TOTAL, SL_E_INTEGRITY},
};

SL_TEST_LOOP(what_does_not_pass_is_named, 0, (int)SL_COUNT(lasting))
{
    struct sl_err err;
    SL_SCRIPT(hub.cdn, {.first = 2, .last = 99, .fault = lasting[_i].fault});
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_msg(err.kind == lasting[_i].kind, "%d: %s", err.kind, err.message);
    ck_assert_msg(!strstr(err.message, "?1"), "%s", err.message);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

SL_TEST_LOOP(a_token_is_found_where_the_client_finds_it, 0, 6)
{
    struct sl_err err;
    char folder[] = "/tmp/sluice-test-XXXXXX";
    hub.token = "hf_secret";
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "HF_TOKEN") != NULL, "%s", err.message);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    sl_autofree char *path = sl_asprintf(NULL, "%s/token", folder);
    FILE *file = fopen(path, "w");
    fputs("hf_secret\n", file);
    fclose(file);
    if (_i == 0)
        options.token_file = path;
    else if (_i == 1)
        setenv("HF_TOKEN", " hf_secret\n", 1);
    else if (_i == 2)
        setenv("HUGGING_FACE_HUB_TOKEN", "hf_secret", 1);
    else if (_i == 3)
        setenv("HF_TOKEN_PATH", path, 1);
    else
        setenv("HF_HOME", folder, 1);
    if (_i == 5)
        setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes", 1);
    ck_assert_int_eq(read_model(model, &err), _i == 5 ? -1 : 0);
    remove(path);
    remove(folder);
}

/* 0: given for the hub; 1: only found; 2: https. */
SL_TEST_LOOP(a_token_does_not_go_over_plain_http_to_another_machine, 0, 3)
{
    char url[] = "https://hub.test", token_file[] = "/dev/null";
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_hf_options other = {.endpoint = url};
    const struct sl_source_config elsewhere = {.options[0] = {&sl_hf_table, &other}};
    if (_i < 2)
        memmove(url + 4, url + 5, sizeof(url) - 5);
    if (_i == 0)
        other.token_file = token_file;
    else
        setenv("HF_TOKEN", "hf_secret", 1);
    ck_assert_int_eq(sl_store_open(model, &elsewhere, &store, &key, &err), _i == 0 ? -1 : 0);
    if (_i == 0)
        ck_assert_msg(err.kind == SL_E_AUTH && strstr(err.message, "plain http"), "%s",
                      err.message);
    else
        ck_assert_int_eq(((struct sl_hf *)store->impl)->http.bearer_token != NULL, _i == 2);
    if (_i != 1)
        return;
    static const char *const codes[] = {"RepoNotFound", "GatedRepo"};
    for (size_t i = 0; i < SL_COUNT(codes);
         i++) { /* the user gave one already, so none is asked for */
        const struct sl_hf_refusal refusal = {.status = 401, .code = codes[i]};
        sl_hf_refuse(store->impl, &refusal, "cannot read", &err);
        ck_assert_str_eq(err.code, codes[i]);
        ck_assert_msg(strstr(err.message, "the token from HF_TOKEN was not sent, since "
                                          "'http://hub.test' is plain http: use https"),
                      "%s", err.message);
    }
}

SL_TEST(a_refused_token_is_not_told)
{
    struct sl_err err;
    hub.token = "hf_right";
    setenv("HF_TOKEN", "hf_wrong", 1);
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_msg(strstr(err.message, "HF_TOKEN") && strstr(err.message, "/settings/tokens"), "%s",
                  err.message);
    ck_assert_msg(!strstr(err.message, "hf_wrong"), "%s", err.message);
}

SL_TEST(a_renewed_token_file_is_read_again)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) first = NULL;
    SL_AUTO(sl_source) second = NULL;
    sl_autofree char *key = NULL;
    options.token_file = (char *)(uintptr_t)file_with("hf_old\n");
    hub.token = "hf_old";
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &first, &err), 0);
    hub.token = "hf_new";
    FILE *file = fopen(options.token_file, "w");
    fputs("hf_new\n", file);
    fclose(file);
    ck_assert_msg(sl_source_open(store, "config.json", 10, &second, &err) == 0, "%s", err.message);
    remove(options.token_file);
}

SL_TEST(a_machine_that_is_offline_asks_nobody)
{
    struct sl_err err;
    setenv("HF_HUB_OFFLINE", "1", 1);
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "HF_HUB_OFFLINE"), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 0);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    unsigned status;
    bool token;
    const char *headers;
    enum sl_err_kind kind;
    const char *says;
} refusals[] = {
    {401, false, "X-Error-Code: GatedRepo\r\n", SL_E_AUTH, "accept the terms at http"},
    {403, true, "X-Error-Code: GatedRepo\r\n", SL_E_AUTH, "/org/name with that account"},
    {401, false, "", SL_E_NOT_FOUND, "give a token by source.hf.tokenFile or HF_TOKEN"},
    {404, true, "X-Error-Code: RepoNotFound\r\n", SL_E_NOT_FOUND, "may not see it"},
    {401, true, "X-Error-Message: Invalid credentials in Authorization header\r\n", SL_E_AUTH,
     "refuses the token (from HF_TOKEN)"},
    {403, true, "X-Error-Message: needs the scope repo.read\r\n", SL_E_AUTH, "the scope repo.read"},
    {404, false, "X-Error-Code: RevisionNotFound\r\n", SL_E_NOT_FOUND, "no revision 'main'"},
    {404, false, "X-Error-Code: EntryNotFound\r\n", SL_E_NOT_FOUND, "'/' at its end"},
    {403, false, "X-Error-Message: Access to this resource is disabled.\r\n", SL_E_NOT_FOUND,
     "taken it down"},
    {429, false, "RateLimit: \"api\";r=0;t=4000\r\n", SL_E_NET, "for 4001 s"},
    {418, false, "", SL_E_USAGE, "418"},
};

SL_TEST_LOOP(a_refusal_says_what_to_do, 0, 2 * (int)SL_COUNT(refusals))
{
    struct sl_err err;
    int i = _i / 2;
    if (refusals[i].token)
        setenv("HF_TOKEN", "hf_secret", 1);
    hub.refuse_status = refusals[i].status;
    hub.refuse_headers = refusals[i].headers;
    fake_clock_run();
    /* of the revision, or of a file of a commit */
    ck_assert_int_eq(read_model(_i % 2 ? "hf://org/name@" SL_HUB_COMMIT "/x" : model, &err), -1);
    ck_assert_msg(err.kind == refusals[i].kind, "%d: %s", err.kind, err.message);
    ck_assert_int_eq(err.http_status, (int)refusals[i].status);
    if (!strstr(refusals[i].says, "'main'") || _i % 2 == 0)
        ck_assert_msg(strstr(err.message, refusals[i].says) != NULL, "%s", err.message);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static struct sl_err later;
static int later_result;

static void read_later(void *arg)
{
    (void)arg;
    config.attempts = 3;
    later_result = read_model(model, &later);
}

/* 300 seconds are longer than any other wait for a server, and one refusal speaks for every
 * connection of the process. */
SL_TEST_LOOP(a_window_is_waited_for_by_everybody, 0, 2)
{
    struct sl_err err;
    struct fake_clock_work work = {0};
    config.stall_seconds = 3600;
    config.attempts = 1;
    hub.refuse_status = 429;
    hub.refuse_headers =
        _i ? "Retry-After: 300\r\n" : "RateLimit: \"resolvers\";r=0;t=299\r\nRetry-After: 1\r\n";
    hub.refuse_times = 1;
    fake_clock_hold();
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_msg(strstr(err.message, "for 300 s; set HF_TOKEN"), "%s", err.message);
    fake_clock_begin(&work, read_later, NULL);
    fake_clock_await_between(300 * SL_NS_PER_S, 301 * SL_NS_PER_S);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 1);
    fake_clock_turn(301 * SL_NS_PER_S);
    fake_clock_end(&work);
    ck_assert_msg(later_result == 0, "%s", later.message);
}

static void write_down_later(void *arg)
{
    sl_autofree char *url = NULL;
    sl_autobuf text = SL_BUF_INIT(64 * 1024);
    later = (struct sl_err)SL_ERR_INIT;
    later_result = sl_source_raw_request(arg, 0, 10, &url, &text, &later);
    ck_assert(later_result < 0 || strncmp(sl_buf_string(&text), "GET /", 5) == 0);
}

SL_TEST(a_request_that_is_only_written_down_waits_for_the_window_too)
{
    struct sl_err err = SL_ERR_INIT;
    struct fake_clock_work work = {0};
    sl_autourl origin = {0};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    setenv("HF_HUB_DISABLE_XET", "1", 1); /* else it is not read by HTTP alone */
    ck_assert_int_eq(sl_url_parse(sl_hub_url(&hub), &origin, &err), 0);
    ck_assert_int_eq(sl_store_open("hf://org/name/config.json", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 1, &source, &err) == 0, "%s", err.message);
    fake_clock_hold();
    sl_http_window_close(&origin, 300 * 1000);
    fake_clock_begin(&work, write_down_later, source);
    fake_clock_await_between(300 * SL_NS_PER_S, 301 * SL_NS_PER_S);
    fake_clock_turn(301 * SL_NS_PER_S);
    fake_clock_end(&work);
    ck_assert_msg(later_result == 0, "%s", later.message);
}

/* A storm of refusals ends in an error, not in a circle. */
SL_TEST(a_hub_that_refuses_for_ever_is_given_up)
{
    struct sl_err err;
    hub.refuse_status = 429;
    fake_clock_run();
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.http_status, 429);
    ck_assert_uint_eq(hub.refused, 3);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
