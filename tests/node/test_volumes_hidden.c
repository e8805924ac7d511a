/* What volumes ask for is the business of their namespaces: who reaches the port without the token
 * is told nothing of it where the config says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "http_client.h"
#include "registry_settle.h"
#include "tree.h"
#include "volume_case.h"
#include "web.h"

#define TOKEN "0123456789abcdef"
#define SPACE "csi.storage.k8s.io/pod.namespace"

static struct volume_case c;
static struct sl_web *web;
static struct volume_ask_case named, by_uri;

static void write_json(void *arg, struct sl_json *json)
{
    struct volume_case *own = arg;
    sl_volumes_json(own->volumes, json);
}

static void say_whether(bool hides)
{
    snprintf(c.csi, sizeof(c.csi),
             ", hideVolumes: %s, namespaces: [{name: tenant-space, models: [m], uriPrefixes: "
             "[\"memory://n/\"]}]",
             hides ? "true" : "false");
}

static void open_case(bool hides)
{
    say_whether(hides);
    volume_case_open(&c);
    const struct sl_web_config config = {
        .listen = "127.0.0.1:0", .node = c.node, .beside = {.write_json = write_json, .arg = &c}};
    web = sl_web_start(&config, &c.err);
    ck_assert_msg(web, "%s", c.err.message);
}

static void setup(void)
{
    volume_case_init(&c);
    ck_assert_int_eq(sl_tree_write(c.scratch, "token", TOKEN "\n", strlen(TOKEN) + 1, NULL), 0);
    snprintf(c.keys, sizeof(c.keys), "budgetBytes: 1MiB\ncontrol: {tokenFile: %s/token}", c.path);
}

static void close_case(void)
{
    sl_web_free(web);
    web = NULL;
    volume_case_end(&c);
}

static void teardown(void)
{
    close_case();
    volume_case_release(&c);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible)

static void publish_both(void)
{
    volume_case_wish(&c, &named, "u1");
    volume_case_set(&named, SPACE, "tenant-space");
    volume_case_set(&named, "csi.storage.k8s.io/pod.name", "named-pod");
    ck_assert_msg(volume_case_publish(&c, &named) == 0, "%s", c.err.message);
    volume_case_wish(&c, &by_uri, "u2");
    volume_case_set(&by_uri, SPACE, "tenant-space");
    volume_case_set(&by_uri, "csi.storage.k8s.io/pod.name", "uri-pod");
    volume_case_set(&by_uri, "model", NULL);
    volume_case_set(&by_uri, "uri", "memory://n/");
    ck_assert_msg(volume_case_publish(&c, &by_uri) == 0, "%s", c.err.message);
}

/* How many of the words a client must not find are in an answer. */
static unsigned tells(const char *path, const char *headers)
{
    static const char *const words[] = {"memory://n/", "tenant-space", "named-pod", "uri-"};
    struct http_reply reply = {0};
    unsigned count = 0;
    ck_assert_int_ge(http_ask(sl_web_port(web), "GET", path, headers, &reply), 0);
    for (size_t i = 0; i < SL_COUNT(words); i++)
        count += reply.status == 200 && strstr(reply.body, words[i]) != NULL;
    http_release(&reply);
    return count;
}

/* The path of the load of the URI, and of its model. */
static void find_paths(char load[64], char model[96])
{
    struct http_reply reply = {0};
    ck_assert_int_eq(http_ask(sl_web_port(web), "GET", "/v1/models",
                              "Authorization: Bearer " TOKEN "\r\n", &reply),
                     0);
    const char *name = strstr(reply.body, "\"uri-");
    ck_assert_ptr_nonnull(name);
    snprintf(model, 96, "/v1/models/%.*s", (int)strcspn(name + 1, "\""), name + 1);
    const char *id = strstr(name, "\"load\":");
    ck_assert_ptr_nonnull(id);
    snprintf(load, 64, "/v1/loads/%lu", strtoul(id + strlen("\"load\":"), NULL, 10));
    http_release(&reply);
}

SL_TEST_LOOP(volumes_are_told_to_whom_the_config_says, 0, 2)
{
    char load[64], model[96];
    open_case(_i);
    publish_both();
    find_paths(load, model);
    const struct {
        const char *path;
        bool open; /* to the token */
    } rows[] = {{"/v1/models", true}, {"/v1/models/m", true}, {model, true},
                {"/v1/loads", true},  {load, true},           {"/metrics", false},
                {"/readyz", false},   {"/v1/status", false}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        unsigned stranger = tells(rows[i].path, "");
        unsigned trusted = tells(rows[i].path, "Authorization: Bearer " TOKEN "\r\n");
        ck_assert_msg(!_i || stranger == 0, "%s", rows[i].path);
        ck_assert_msg(_i || !rows[i].open || stranger > 0, "%s", rows[i].path);
        ck_assert_msg(!rows[i].open || trusted > 0, "%s", rows[i].path);
        ck_assert_msg(tells(rows[i].path, "Authorization: Bearer wrong\r\n") == stranger, "%s",
                      rows[i].path);
    }
}

SL_TEST_LOOP(what_was_loaded_before_follows_the_new_config, 0, 2)
{
    char load[64], model[96];
    open_case(_i);
    publish_both();
    find_paths(load, model);
    say_whether(!_i);
    volume_case_reload(&c);
    const char *const paths[] = {"/v1/models", "/v1/models/m", model,
                                 "/v1/loads",  load,           "/metrics"};
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        ck_assert_msg((tells(paths[i], "") > 0) == _i, "%s", paths[i]);
}

/* All readers get the same, so none gets them. */
SL_TEST_LOOP(events_tell_of_no_hidden_load, 0, 2)
{
    char text[65536] = "";
    size_t used = 0;
    open_case(_i);
    publish_both();
    int fd = http_connect(sl_web_port(web));
    ck_assert_int_eq(http_send(fd, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
    while (!strstr(text, "\"loads\":") || !strstr(strstr(text, "\"loads\":"), "\n\n")) {
        ssize_t got = read(fd, text + used, sizeof(text) - 1 - used);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
        text[used] = 0;
    }
    close(fd);
    ck_assert_int_eq(strstr(text, "memory://n/") != NULL, !_i);
    ck_assert(strstr(text, "memory://m/"));
}

/* Before a pod has asked for it again nothing says whose it is. */
SL_TEST(what_an_earlier_daemon_published_is_hidden_at_once)
{
    open_case(true);
    publish_both();
    close_case();
    open_case(true);
    ck_assert_uint_eq(volume_case_references(&c), 2);
    ck_assert_uint_eq(tells("/v1/models", ""), 0);
    ck_assert_uint_eq(tells("/v1/loads", ""), 0);
    ck_assert_uint_gt(tells("/v1/models", "Authorization: Bearer " TOKEN "\r\n"), 0);
}
