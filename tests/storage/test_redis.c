/* Models in Redis: the table of keys, reading, what servers refuse, what may be lost. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "golden.h"
#include "model_maker.h"
#include "redis_link.h"
#include "redis_model_maker.h"
#include "redis_server.h"
#include "redis_table.h"
#include "run_sluice.h"
#include "scratch.h"
#include "stores.h"

static struct sl_redis_server *server;
static struct sl_source_config config = {.attempts = 2, .stall_seconds = 20};
static uint8_t *model;
static size_t model_bytes;

static void setup(void)
{
    server = sl_redis_server_start();
    model = golden_read("tensorizer/v1-module.tensors.gz", &model_bytes);
    sl_redis_server_put_model(server, "m", model, model_bytes);
}

static void teardown(void)
{
    sl_redis_server_stop(server);
    free(model);
    unsetenv("REDIS_PASSWORD");
}

/* Read the whole object at the URI; *data is malloc'ed. */
static int read_all(const char *uri, uint8_t **data, size_t *bytes, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    *data = NULL;
    if (sl_store_open(uri, &config, &store, &key, err) < 0 ||
        sl_source_open(store, key, 100, &source, err) < 0)
        return -1;
    *bytes = sl_source_bytes(source);
    *data = sl_alloc(*bytes, err);
    return *data ? sl_source_read(source, 0, *data, *bytes, err) : -1;
}

static void expect_model(const char *prefix, const uint8_t *wanted, size_t wanted_bytes)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autofree uint8_t *data = NULL;
    size_t bytes;
    int result = read_all(sl_redis_server_url(server, prefix), &data, &bytes, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_uint_eq(bytes, wanted_bytes);
    ck_assert_mem_eq(data, wanted, bytes);
}

static void expect_refused(const char *prefix, enum sl_err_kind kind, const char *words)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autofree uint8_t *data = NULL;
    size_t bytes;
    ck_assert_int_eq(read_all(sl_redis_server_url(server, prefix), &data, &bytes, &err), -1);
    ck_assert_msg(err.kind == kind && strstr(err.message, words), "%d %s", err.kind, err.message);
}

SL_TEST(a_model_is_read_as_its_file)
{
    expect_model("m", model, model_bytes);
    ck_assert_uint_eq(sl_redis_server_connections(server), 1);
    expect_model("m/", model, model_bytes);
    ck_assert_uint_eq(sl_redis_server_count(server, "SCAN"), 0);
}

SL_TEST(names_and_sizes_of_any_kind_are_read)
{
    static const struct made_tensor tensors[] = {
        {"a b", 3, 7},         {"'q\" *?[x]", 9, 0},         {"\x1e[\"a\",0]", 8, 3 << 20},
        {"nul\0in\r\n", 8, 1}, {"\xc3\xa4:header:0", 11, 4}, {"empty", 5, 0},
    };
    size_t bytes;
    uint8_t *data = make_tensors(tensors, SL_COUNT(tensors), &bytes);
    sl_redis_server_put_model(server, "odd name/x:y", data, bytes);
    expect_model("odd%20name/x:y", data, bytes);
    free(data);
}

SL_TEST(ranges_of_one_model_read_alike)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    uint8_t data[400];
    ck_assert_int_eq(sl_store_open(sl_redis_server_url(server, "m"), &config, &store, &key, &err),
                     0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &source, &err), 0);
    for (size_t at = model_bytes - 1800; at + sizeof(data) <= model_bytes; at += 61) {
        ck_assert_int_eq(sl_source_read(source, at, data, sizeof(data), &err), 0);
        ck_assert_mem_eq(data, model + at, sizeof(data));
    }
}

/* ---- URIs ------------------------------------------------------------------------------------ */

SL_TEST(uris_are_taken_apart)
{
    static const struct {
        const char *uri, *url, *label, *prefix, *user, *password;
    } cases[] = {
        {"redis://h/p", "http://h:6379/", "redis://h", "p", NULL, NULL},
        {"redis://h:80/p", "http://h/", "redis://h:80", "p", NULL, NULL},
        {"rediss://h/p", "https://h:6379/", "rediss://h", "p", NULL, NULL},
        {"rediss://u:s%40@[::1]:7/a/b%3F:c", "https://[::1]:7/", "rediss://[::1]:7", "a/b?:c", "u",
         "s@"},
        {"redis://:p:w@h/x", "http://h:6379/", "redis://h", "x", NULL, "p:w"},
        {"redis://u@h/x", "http://h:6379/", "redis://h", "x", "u", "from-environment"},
        {"redis://h", "http://h:6379/", "redis://h", "", NULL, "from-environment"},
        {"redis://h/a/p//", "http://h:6379/", "redis://h", "a/p", NULL, "from-environment"},
        {"redis://h/p%2F", "http://h:6379/", "redis://h", "p/", NULL, "from-environment"},
        {"redis://h//", "http://h:6379/", "redis://h", "", NULL, "from-environment"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_redis_place place;
        char *prefix;
        if (i == 5)
            setenv("REDIS_PASSWORD", "from-environment", 1);
        ck_assert_msg(sl_redis_place_parse(cases[i].uri, NULL, &place, &prefix, &err) == 0,
                      "%s: %s", cases[i].uri, err.message);
        ck_assert_str_eq(place.url, cases[i].url);
        ck_assert_str_eq(place.label, cases[i].label);
        ck_assert_str_eq(prefix, cases[i].prefix);
        ck_assert_pstr_eq(place.user, cases[i].user);
        ck_assert_pstr_eq(place.password, cases[i].password);
        sl_redis_place_release(&place);
        free(prefix);
    }
}

SL_TEST(bad_uris_are_refused_without_their_secrets)
{
    static const char *const uris[] = {
        "redis://u:secret@h/p?db=1", "redis://u:secret@h/p#x",  "redis://u:secret@/p",
        "redis://u:secret@h:x/p",    "redis://u:secret@h/%00x", "redis://u:secret@[::1/p",
        "redis://u:secret@h\n/p",    "redis://u:secret@h",      "redis://u:secret@h/",
        "redis://u:secret@h//",      "redis://u:secret%zz@h/p",
    };
    for (size_t i = 0; i < SL_COUNT(uris); i++) {
        struct sl_err err = SL_ERR_INIT;
        SL_AUTO(sl_store) store = NULL;
        sl_autofree char *key = NULL;
        ck_assert_msg(sl_store_open(uris[i], &config, &store, &key, &err) < 0, "%s", uris[i]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_msg(!strstr(err.message, "secret"), "%s", err.message);
    }
}

SL_TEST(a_folder_has_no_listing)
{
    struct ran ran = {0};
    RUN(&ran, "inspect", sl_redis_server_url(server, "folder%2F"));
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ran.err, "has no listing"));
    ran_release(&ran);
}

/* ---- refusals -------------------------------------------------------------------------------- */

SL_TEST(passwords_are_told_and_refused)
{
    struct ran ran = {0};
    char uri[128];
    sl_redis_server_password(server, "right");
    expect_refused("m", SL_E_AUTH, "passwordFile, or put user and password into the URI, before");
    setenv("REDIS_PASSWORD", "wrong", 1);
    expect_refused("m", SL_E_AUTH, "WRONGPASS");
    RUN(&ran, "inspect", sl_redis_server_url(server, "m"));
    ck_assert_int_eq(ran.exit_code, 3);
    ck_assert_ptr_null(strstr(ran.err, "wrong'"));
    setenv("REDIS_PASSWORD", "right", 1);
    expect_model("m", model, model_bytes);
    unsetenv("REDIS_PASSWORD");
    snprintf(uri, sizeof(uri), "redis://user:right@127.0.0.1:%d/m", sl_redis_server_port(server));
    RUN(&ran, "inspect", "--json", uri);
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_ptr_null(strstr(ran.out, "right"));
    sl_redis_server_password(server, NULL);
    RUN(&ran, "inspect", uri);
    ck_assert_int_eq(ran.exit_code, 3);
    ck_assert_ptr_nonnull(strstr(ran.err, "unset REDIS_PASSWORD"));
    ran_release(&ran);
}

SL_TEST_LOOP(what_servers_refuse_is_told_with_advice, 0, 19)
{
    static const struct {
        const char *reply;
        enum sl_err_kind kind;
        const char *words;
    } cases[] = {
        {"-NOPERM no\r\n", SL_E_AUTH, "GETRANGE"},
        {"-DENIED Redis is running in protected mode\r\n", SL_E_AUTH, "protected-mode"},
        {"-MOVED 7 10.0.0.1:6379\r\n", SL_E_USAGE, "cluster"},
        {"-WRONGTYPE Operation against\r\n", SL_E_FORMAT, "string"},
        {"-LOADING Redis is loading\r\n", SL_E_NET, "gave up after 2 tries"},
        {"-ERR max number of clients reached\r\n", SL_E_NET, "connections"},
        {"-ERR unknown command 'GET', with args beginning with: 'hidden'\r\n", SL_E_NET, "'GET','"},
        {":1\r\n", SL_E_NET, "is it a Redis server?"},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", SL_E_NET, "is it a Redis server?"},
        {"$99999999999\r\n", SL_E_FORMAT, "limit"},
        {"$99999999999999999999\r\n", SL_E_NET, "without a length"},
        {"$-5\r\n", SL_E_NET, "without a length"},
        {"$\r\n", SL_E_NET, "without a length"},
        {"$-1\r\n", SL_E_NOT_FOUND, "no model"},
        {"$0\r\n\r\n", SL_E_FORMAT, "limit"},
        {"$4\r\nabcdefgh", SL_E_NET, "another length"},
        {"$4\r\nabcd\r\n", SL_E_FORMAT, "cut off"},
        {"*1\r\n$4\r\nabcd\r\n", SL_E_NET, "another kind"},
        {"*99999999999\r\n", SL_E_NET, "Redis server"},
    };
    sl_redis_server_fault(server, "GET", 1, 1000, cases[_i].reply, -1);
    expect_refused("m", cases[_i].kind, cases[_i].words);
}

SL_TEST_LOOP(an_endless_line_ends, 0, 2)
{
    static char line[70000];
    memset(line, 'x', sizeof(line) - 1);
    line[0] = _i ? '$' : '+';
    config.stall_seconds = 1;
    fake_clock_run();
    sl_redis_server_fault(server, "GET", 1, 1000, line, -1);
    expect_refused("m", SL_E_NET, "");
}

SL_TEST(silence_is_a_stall)
{
    config.stall_seconds = 1;
    fake_clock_run();
    sl_redis_server_fault(server, "GET", 1, 1000, "", -1);
    expect_refused("m", SL_E_NET, "stalled");
    config.stall_seconds = 20;
}

/* ---- what is lost ---------------------------------------------------------------------------- */

/* Of a made model of two tensors of 3 MiB: the second one's data. */
enum { TENSOR_BYTES = 3 << 20 };
static uint8_t *put_two(const char *prefix, size_t *bytes, char key[64])
{
    static const struct made_tensor tensors[] = {{"w0", 2, TENSOR_BYTES}, {"w1", 2, TENSOR_BYTES}};
    uint8_t *data = make_tensors(tensors, 2, bytes);
    sl_redis_server_put_model(server, prefix, data, *bytes);
    snprintf(key, 64, "%s:w1:%zu", prefix, *bytes - 8 - TENSOR_BYTES);
    return data;
}

SL_TEST_LOOP(a_broken_connection_resumes, 0, 5)
{
    static const long cuts[] = {0, 1, 5, 1000, 200000};
    size_t bytes;
    char key[64];
    sl_autofree uint8_t *data = put_two("two", &bytes, key);
    fake_clock_run();
    sl_redis_server_fault(server, "GETRANGE", 3, 3, NULL, cuts[_i]);
    expect_model("two", data, bytes);
    sl_redis_server_fault(server, "GET", 2, 2, NULL, cuts[_i]);
    expect_model("two", data, bytes);
    sl_redis_server_fault(server, "STRLEN", 1, 1, NULL, cuts[_i]);
    expect_model("two", data, bytes);
}

SL_TEST(a_server_that_always_breaks_off_is_given_up)
{
    fake_clock_run();
    sl_redis_server_fault(server, "GETRANGE", 1, 1000, NULL, 0);
    expect_refused("m", SL_E_NET, "gave up after 2 tries");
}

SL_TEST_LOOP(missing_keys_are_never_zeros, 0, 3)
{
    size_t bytes;
    char key[64];
    free(put_two("two", &bytes, key));
    if (_i == 0)
        sl_redis_server_remove(server, key, strlen(key));
    else
        sl_redis_server_meddle(server, _i == 1 ? "STRLEN" : "GETRANGE", 4, key, NULL);
    expect_refused("two", SL_E_NOT_FOUND, "evicted");
    expect_refused("none", SL_E_NOT_FOUND, "no model");
}

SL_TEST_LOOP(replaced_keys_are_a_change, 0, 3)
{
    size_t bytes;
    char key[64];
    free(put_two("two", &bytes, key));
    fake_clock_run();
    if (_i == 0)
        sl_redis_server_put(server, key, strlen(key), "short", 5);
    else
        sl_redis_server_meddle(server, _i == 1 ? "STRLEN" : "GETRANGE", _i == 1 ? 5 : 4, key,
                               "short");
    expect_refused("two", SL_E_INTEGRITY, "");
}

SL_TEST(a_short_piece_is_a_change)
{
    size_t bytes;
    char key[64];
    free(put_two("two", &bytes, key));
    sl_redis_server_fault(server, "GETRANGE", 2, 2, "$3\r\nabc\r\n", -1);
    expect_refused("two", SL_E_INTEGRITY, "came with 3");
}

SL_TEST(a_known_model_must_be_the_same)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) first = NULL;
    SL_AUTO(sl_source) known = NULL;
    SL_AUTO(sl_source) other = NULL;
    sl_autofree char *key = NULL;
    uint8_t data[200];
    const char *uri = sl_redis_server_url(server, "m");
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &first, &err), 0);
    const struct sl_version *version = sl_source_version(first);
    uint64_t bytes = sl_source_bytes(first), at = bytes - sizeof(data);
    ck_assert_int_eq(sl_source_known(store, key, bytes, version, &known, &err), 0);
    ck_assert_int_eq(sl_source_read(known, at, data, sizeof(data), &err), 0);
    ck_assert_mem_eq(data, model + at, sizeof(data));
    model[model_bytes - 300] ^= 1; /* in a header or in data: they stand close together */
    size_t header = 73 + (size_t)sl_get_le64(model + 65);
    model[header + 60] ^= 1;
    sl_redis_server_put_model(server, "m", model, model_bytes);
    ck_assert_int_eq(sl_source_known(store, key, bytes, version, &other, &err), 0);
    ck_assert_int_eq(sl_source_read(other, at, data, sizeof(data), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

/* ---- loads ----------------------------------------------------------------------------------- */

SL_TEST(a_load_uses_several_connections)
{
    char directory[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16], key[64];
    struct ran ran = {0};
    size_t bytes;
    int fd = sl_scratch_open(directory);
    sl_autofree uint8_t *data = put_two("two", &bytes, key);
    snprintf(path, sizeof(path), "%s/m", directory);
    RUN(&ran, "load", sl_redis_server_url(server, "two"), "--to", path, "--connections", "8",
        "--range-bytes", "1MiB", "--set", "verify.hashes=off");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ck_assert_int_eq(sl_model_same(path, "two", data, bytes), 1);
    ck_assert_uint_ge(sl_redis_server_connections(server), 3);
    ran_release(&ran);
    sl_scratch_close(fd, directory);
}

static int read_once(void *arg, struct sl_err *err)
{
    sl_autofree uint8_t *data = NULL;
    size_t bytes;
    return read_all(arg, &data, &bytes, err);
}

SL_TEST(every_failing_allocation_is_told)
{
    char uri[128];
    snprintf(uri, sizeof(uri), "redis://u:p@127.0.0.1:%d/m", sl_redis_server_port(server));
    sl_redis_server_password(server, "p");
    ck_assert_uint_ge(golden_each_allocation(read_once, uri), 10);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int parse(const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct sl_redis_table table;
    *err = (struct sl_err)SL_ERR_INIT;
    int result = sl_redis_table_parse(data, bytes, &table, err);
    sl_redis_table_release(&table);
    return result;
}

SL_TEST(every_prefix_of_a_header_is_refused)
{
    struct sl_err err;
    size_t head = 73 + (size_t)sl_get_le64(model + 65);
    ck_assert_int_eq(parse(model, head, &err), 0);
    for (size_t bytes = 0; bytes < 1000; bytes++)
        ck_assert_int_eq(parse(model, bytes, &err), -1);
    ck_assert_int_eq(parse(model, head - 1, &err), -1);
    ck_assert_str_eq(err.code, "E_TRUNCATED");
}

SL_TEST_LOOP(hostile_tables_are_refused, 0, 17)
{
    static const struct {
        size_t at;
        uint64_t value;
        const char *code;
    } cases[] = {
        {57, 0, "E_EMPTY"},
        {57, UINT64_MAX, "E_METADATA"},
        {57, 10000, "E_METADATA"},
        {57, 9040, "E_METADATA"},
        {65, 0, "E_EMPTY"},
        {65, UINT64_MAX, "E_TRUNCATED"},
        {65, 262143, "E_TRUNCATED"},
        {0, 0, "E_MAGIC"},
        {73, 0xffff, "E_"},
        {73, 0, "E_"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4, 0, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4, UINT64_MAX, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4 + 8, 262218, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4 + 8, INT64_MAX, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4 + 16, UINT64_MAX, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4 + 16, 99, "E_OFFSET"},
        {73 + 2 + 2 + 1 + 1 + 3 + 1 + 4 + 16, 101, "E_OFFSET"},
    };
    static const struct made_tensor tensors[] = {{"w0", 2, 100}, {"w1", 2, 100}};
    struct sl_err err;
    size_t bytes;
    sl_autofree uint8_t *data = make_tensors(tensors, 2, &bytes);
    size_t head = 73 + (size_t)sl_get_le64(data + 65);
    ck_assert_int_eq(parse(data, head, &err), 0);
    sl_put_le64(data + cases[_i].at, cases[_i].value);
    ck_assert_int_eq(parse(data, head, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_msg(strncmp(err.code, cases[_i].code, strlen(cases[_i].code)) == 0, "%s: %s",
                  err.code, err.message);
}

SL_CASE(.setup = setup, .teardown = teardown)
