/* Models that clients ask for by URI: only those that the config allows, and only while something
 * of them is in memory. */
#include "await.h"
#include "fake_clock.h"
#include "node_uri.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "node_case.h"
#include "registry_settle.h"

static struct node_case c;
static struct sl_err err;

static void setup(void)
{
    node_case_init(&c);
    node_case_put(&c, "object.safetensors", 1000);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    node_case_release(&c);
}

static int check(const char *prefix, const char *uri)
{
    char *items[] = {(char *)prefix};
    const struct sl_list prefixes = {items, *prefix ? 1 : 0};
    size_t prefix_bytes;
    err = (struct sl_err)SL_ERR_INIT;
    return sl_node_uri_check(&prefixes, uri, &prefix_bytes, &err);
}

SL_TEST(what_is_below_a_prefix_is_allowed)
{
    static const char *const good[][2] = {
        {"s3://models/", "s3://models/a"},
        {"s3://models/", "s3://models/a/b.safetensors"},
        {"s3://models/", "s3://models/"},
        {"s3://models", "s3://models"},
        {"s3://models", "s3://models/a/"},
        {"s3://models/a", "s3://models/a/b"},
        {"s3://models/", "s3://models/..a/...b/.c/d@1+2%20"},
        {"https://h:1/m/", "https://h:1/m/x"},
        {"/srv/models", "/srv/models/x"},
        {"file:///srv/", "file:///srv/x"},
    };
    for (size_t i = 0; i < SL_COUNT(good); i++)
        ck_assert_msg(check(good[i][0], good[i][1]) == 0, "%s", err.message);
}

SL_TEST(nothing_else_is)
{
    static const char *const other[][2] = {
        {"", "s3://models/a"},
        {"s3://models/", "s3://models"},
        {"s3://models", "s3://models-private/a"},
        {"s3://models/a", "s3://models/ab"},
        {"s3://models/", "S3://models/a"},
        {"s3://models/", "s3://model"},
        {"https://h/m/", "https://h:1/m/x"},
        {"https://h/m/", "http://h/m/x"},
        {"https://h", "https://h@evil/x"},
        {"https://h", "https://h.evil/x"},
        {"/srv/models", "/srv/models2/x"},
        {"/srv", "file:///srv/x"},
    };
    static const char *const odd[] = {
        "s3://m/../x",   "s3://m/a/../../x", "s3://m/..",       "s3://m/a/.",
        "s3://m/./a",    "s3://m//a",        "s3://m/%2e%2E/x", "s3://m/a%2Fb",
        "s3://m/..%5cx", "s3://m/a?b=c",     "s3://m/a#b",      "s3://m/..\\x",
    };
    for (size_t i = 0; i < SL_COUNT(other); i++) {
        ck_assert_msg(check(other[i][0], other[i][1]) < 0, "%s", other[i][1]);
        ck_assert_msg(err.kind == SL_E_AUTH && strstr(err.message, "pool.uriPrefixes"), "%s",
                      err.message);
    }
    for (size_t i = 0; i < SL_COUNT(odd); i++) {
        ck_assert_msg(check("s3://m/", odd[i]) < 0, "%s", odd[i]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
    }
}

SL_TEST(a_uri_is_a_text_and_nothing_more)
{
    static const char *const hostile[] = {"s3://m/\"}, sink: {tmpfs: {path: /etc}}",
                                          "s3://m/a\nsink: {tmpfs: {path: /etc}}", "s3://m/${HOME}",
                                          "s3://m/'\\\"", "s3://m/\xff\xfe"};
    char name[SL_NODE_URI_NAME];
    for (size_t i = 0; i < SL_COUNT(hostile); i++) {
        struct sl_specs specs = {0};
        ck_assert_int_eq(sl_node_uri_name(hostile[i], "host", name, &err), 0);
        if (sl_node_uri_spec(hostile[i], 0, "host", name, &specs, &err) == 0) {
            ck_assert_uint_eq(specs.count, 1);
            ck_assert(specs.items[0].has_pool);
            ck_assert_str_eq(specs.items[0].metadata.name, name);
            if ((unsigned char)hostile[i][7] < 0x80)
                ck_assert_str_eq(specs.items[0].source.uri, hostile[i]);
        }
        sl_specs_release(&specs);
    }
}

SL_TEST(clients_of_a_uri_share_its_load)
{
    static const char uri[] = "memory://m/object.safetensors";
    struct sluice_model_info info = {.size = sizeof(info)};
    node_case_open(&c, ", uriPrefixes: [\"memory://m/\"]", "", NULL);
    struct sluice_model *first = node_case_load(&c, uri), *second = node_case_load(&c, uri);
    ck_assert_msg(first && second, "%s", c.error.message);
    sluice_model_info(first, &info);
    ck_assert_int_eq(sluice_wait_all(first, -1, -1, &c.error), 0);
    sl_registry_settle(c.node->registry);
    ck_assert_uint_eq(node_case_counts(&c).loads, 1);
    ck_assert_uint_eq(node_case_counts(&c).references, 2);
    sluice_detach(first);
    sluice_detach(second);
    ck_assert_uint_ne(node_case_inode(&c, uri, NULL), 0); /* and it stays for the next one */
}

SL_TEST(other_uris_are_refused_before_anything_is_asked)
{
    node_case_open(&c, ", uriPrefixes: [\"memory://other/\"]", "", NULL);
    ck_assert_ptr_null(node_case_load(&c, "memory://m/object.safetensors"));
    ck_assert_int_eq(c.error.kind, SLUICE_AUTH);
    ck_assert_ptr_nonnull(strstr(c.error.message, "does not load 'memory://m/object.safetensors'"));
    ck_assert_uint_eq(node_case_counts(&c).models, 0);
    node_case_end(&c);
    node_case_open(&c, "", "", NULL);
    ck_assert_ptr_null(node_case_load(&c, "memory://m/object.safetensors"));
    ck_assert_int_eq(c.error.kind, SLUICE_AUTH);
    ck_assert_uint_eq(node_case_counts(&c).models, 0);
}

SL_TEST(what_is_not_in_memory_is_forgotten)
{
    fake_clock_turn(1); /* in hand, and going */
    node_case_open(&c, ", uriPrefixes: [\"memory://m\"]", "", NULL);
    ck_assert_ptr_null(node_case_load(&c, "memory://m/none.safetensors"));
    ck_assert_int_eq(c.error.kind, SLUICE_NOT_FOUND);
    ck_assert_uint_ne(node_case_inode(&c, "memory://m/object.safetensors", NULL), 1);
    fake_clock_turn(SL_NS_PER_S);
    SL_AWAIT(!node_case_counts(&c).models, "the end of a model that failed");
    struct sluice_model *model = node_case_load(&c, "memory://m/object.safetensors");
    ck_assert_msg(model != NULL, "%s", c.error.message);
    sluice_detach(model);
    sl_registry_settle(c.node->registry);
    ck_assert_uint_eq(node_case_counts(&c).models, 1);
    SL_AWAIT(!node_case_counts(&c).references, "the end of the last reference");
    sl_registry_set_budget(c.node->registry, 1000);
    fake_clock_turn(SL_NS_PER_S);
    SL_AWAIT(!node_case_counts(&c).models, "the end of a model beyond the budget");
}

SL_TEST(a_new_config_changes_what_is_allowed)
{
    struct sl_node_config config = {.count = 0};
    char *items[] = {strdup("memory://m/")};
    node_case_open(&c, "", "", NULL);
    config.spec.directory = c.path;
    config.spec.budget_bytes = 1 << 20;
    config.spec.pool.uri_prefixes = (struct sl_list){malloc(sizeof(items)), 1};
    memcpy(config.spec.pool.uri_prefixes.items, items, sizeof(items));
    sl_node_reload(c.node, &config);
    sl_options_release(&sl_spec_through_table, &config.spec.through); /* the first config's */
    struct sluice_model *model = node_case_load(&c, "memory://m/object.safetensors");
    ck_assert_msg(model != NULL, "%s", c.error.message);
    sluice_detach(model);
}

SL_CASE(.setup = setup, .teardown = teardown)
