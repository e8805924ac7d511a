/* Folders of web servers: the lists of `sluice share` and of nginx, and what is refused in one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "http_case.h"
#include "stores.h"

static struct sl_err err;
static const char *const (*lists)[2]; /* target, body; ended by NULL */
static bool deeper;                   /* each folder holds another one */

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    char accept[64];
    (void)arg;
    ck_assert(sl_server_header(request, "Accept", accept, sizeof(accept)));
    ck_assert_str_eq(accept, "application/json");
    const char *body = deeper ? "[{\"name\": \"d\", \"type\": \"directory\"}]" : NULL;
    for (size_t i = 0; !body && lists[i][0]; i++)
        if (strcmp(request->target, lists[i][0]) == 0)
            body = lists[i][1];
    if (!body) {
        reply->status = 404;
        return true;
    }
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
    return true;
}

static void setup(void)
{
    server = sl_server_start();
    sl_server_handle(server, answer, NULL);
    err = (struct sl_err)SL_ERR_INIT;
    deeper = false;
}

static void teardown(void)
{
    sl_server_stop(server);
}

static int note(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    return sl_buf_printf(arg, why, "%s=%lu ", entry->name, (unsigned long)entry->bytes);
}

static int list(struct sl_buf *seen)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m/"), &plain, &store, &key, &err), 0);
    ck_assert_str_eq(key, "");
    return sl_store_list(store, note, seen, &err);
}

static const char *const shared[][2] = {
    {"/m/", "{\"entries\": [{\"name\": \"a b.json\", \"type\": \"file\", \"bytes\": 5, "
            "\"modified\": 1}, {\"name\": \"d%\", \"type\": \"directory\", \"bytes\": 0}], "
            "\"truncated\": false}"},
    {"/m/d%25/", "{\"entries\": [{\"name\": \"w.safetensors\", \"type\": \"file\", \"bytes\": 7}], "
                 "\"truncated\": false}"},
    {NULL, NULL},
};
static const char *const nginx[][2] = {
    {"/m/", "[\r\n{ \"name\":\"d%\", \"type\":\"directory\", \"mtime\":\"Tue\" },\r\n"
            "{ \"name\":\"s\", \"type\":\"other\", \"mtime\":\"Tue\" },\r\n"
            "{ \"name\":\"a b.json\", \"type\":\"file\", \"mtime\":\"Tue\", \"size\":5 }\r\n]"},
    {"/m/d%25/", "[{ \"name\":\"w.safetensors\", \"type\":\"file\", \"size\":7 }]"},
    {NULL, NULL},
};

SL_TEST_LOOP(a_folder_is_listed_with_those_below_it, 0, 2)
{
    sl_autobuf seen = SL_BUF_INIT(4096);
    lists = _i ? nginx : shared;
    ck_assert_msg(list(&seen) == 0, "%s", err.message);
    ck_assert_str_eq(sl_buf_string(&seen),
                     _i ? "d%/w.safetensors=7 a b.json=5 " : "a b.json=5 d%/w.safetensors=7 ");
}

static const struct {
    const char *body, *says;
    enum sl_err_kind kind;
} bad[] = {
    {"<html><a href=\"m\">m</a></html>", "has no listing that can be read", SL_E_USAGE},
    {"", "has no listing that can be read", SL_E_USAGE},
    {"{\"error\": 1}", "has no listing that can be read", SL_E_USAGE},
    {"[", "cannot list", SL_E_FORMAT},
    {"[]", "there is no file below", SL_E_NOT_FOUND},
    {"[7]", "an entry has no name", SL_E_FORMAT},
    {"[{\"name\": \"a\"}]", "no type", SL_E_FORMAT},
    {"[{\"name\": \"..\", \"type\": \"file\", \"size\": 1}]", "a name that is not", SL_E_FORMAT},
    {"[{\"name\": \"a/b\", \"type\": \"file\", \"size\": 1}]", "a name that is not", SL_E_FORMAT},
    {"[{\"name\": \"\", \"type\": \"directory\"}]", "a name that is not", SL_E_FORMAT},
    {"[{\"name\": \"a\", \"type\": \"file\", \"size\": -1}]", "not a number", SL_E_FORMAT},
    {"[{\"name\": \"a\", \"type\": \"file\", \"size\": \"1\"}]", "not a number", SL_E_FORMAT},
    {"[{\"name\": \"a\", \"type\": \"file\"}]", "not a number", SL_E_FORMAT},
    {"[{\"name\": \"a\", \"type\": \"file\", \"size\": 9223372036854775807}]", "not a number",
     SL_E_FORMAT},
    {"{\"entries\": [], \"truncated\": true}", "more entries than the server lists", SL_E_FORMAT},
};

SL_TEST_LOOP(what_is_no_good_list_is_refused, 0, (int)SL_COUNT(bad))
{
    sl_autobuf seen = SL_BUF_INIT(4096);
    const char *const one[][2] = {{"/m/", bad[_i].body}, {NULL, NULL}};
    lists = one;
    ck_assert_int_eq(list(&seen), -1);
    ck_assert_msg(err.kind == bad[_i].kind && strstr(err.message, bad[_i].says), "%d: %s", err.kind,
                  err.message);
}

SL_TEST(folders_without_an_end_are_given_up)
{
    sl_autobuf seen = SL_BUF_INIT(4096);
    deeper = true;
    ck_assert_int_eq(list(&seen), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "too deep"), "%s", err.message);
    ck_assert_uint_lt(sl_server_request_count(server), 40);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
