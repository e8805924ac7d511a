/* The model spec: hostile files, settings of the command line, what documents it, failing memory.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "json.h"
#include "memory_store.h"
#include "s3_options.h"
#include "spec_case.h"

/* ---- hostile input -------------------------------------------------------------------------- */

SL_TEST(an_expansion_bomb_does_not_expand)
{
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n", NULL);
    for (int i = 1; i < 12; i++)
        sl_buf_printf(&text, NULL,
                      "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i,
                      i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    ck_assert_int_lt(parse(sl_buf_string(&text)), 0);
    ck_assert_ptr_nonnull(strstr(err.message, "more than 50000 values, aliases included"));
}

SL_TEST(hostile_documents_are_refused)
{
    expect(GOOD "listen: &a [*a]\n", "m.yaml:6:9: 'listen' must be one value, not a list\n"
                                     "m.yaml:6:13: no anchor '&a' before this alias\n");
    expect(GOOD "? [a]\n: b\n", "m.yaml:6:3: a key must be a plain word\n");
    expect(GOOD "listen: \"a\\0b\"\n", "m.yaml:6:9: a text with a NUL character\n");
    expect(GOOD "<<: 1\n", "m.yaml:1:1: '<<' merges a mapping or a list of mappings\n");
    expect(GOOD "listen: !foo b\n", "m.yaml:6:9: the tag '!foo' means nothing here\n");
}

SL_TEST(syntax_errors_have_a_place)
{
    static const char *const bad[] = {"a: [",
                                      "a: {b",
                                      "\"",
                                      "a: b: c",
                                      "- a\nb: c",
                                      "%YAML 9.9\n---\n",
                                      "\t- a",
                                      "a: *",
                                      "&",
                                      "!<",
                                      "\xff\xfe\xfd",
                                      "a: \"\\x\"",
                                      "? [a]\n: b",
                                      "a\0b",
                                      "a: \"\\0\"",
                                      "<<: 1",
                                      "a: !foo b",
                                      "\x01",
                                      "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_msg(parse(bad[i]) < 0, "%s", bad[i]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_msg(strncmp(err.message, "m.yaml:", 7) == 0, "%s", err.message);
    }
}

SL_TEST(every_prefix_is_refused_or_whole)
{
    size_t whole = strlen(spec_everything), accepted = 0;
    for (size_t bytes = 0; bytes < whole; bytes++) {
        spec_case_reset();
        struct sl_err why = SL_ERR_INIT;
        int done =
            sl_spec_parse(spec_everything, bytes, "m.yaml", NULL, 0, &specs, &complaints, &why);
        ck_assert(done == 0 || why.kind == SL_E_USAGE);
        accepted += done == 0;
    }
    ck_assert_uint_lt(accepted, 200); /* what is left out at the end is optional */
}

SL_TEST(a_large_file_is_refused)
{
    sl_autofree char *text = malloc(SL_SPEC_BYTES_MAX + 1);
    memset(text, '#', SL_SPEC_BYTES_MAX + 1);
    ck_assert_int_lt(
        sl_spec_parse(text, SL_SPEC_BYTES_MAX + 1, "m.yaml", NULL, 0, &specs, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

/* ---- settings ------------------------------------------------------------------------------- */

SL_TEST(settings_win_over_the_document)
{
    static const struct sl_spec_setting settings[] = {
        {"readers.connections", "4", "--connections"},
        {"source.s3.region", "eu", "--set source.s3.region"},
        {"source.include", "*.a,*.b", "--set source.include"},
        {"source.exclude", "['x, y', z]", "--set source.exclude"},
        {"verify.sha256.model.tensors",
         "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
         "--set verify.sha256.model.tensors"},
        {"listen", ":1", "--listen"},
    };
    ck_assert_msg(parse_with(GOOD "readers: {connections: 9}\n", settings, SL_COUNT(settings)) == 0,
                  "%s", sl_buf_string(&complaints));
    ck_assert_uint_eq(specs.items->readers.connections, 4);
    const struct sl_s3_options *s3 = sl_spec_store_options(specs.items, &sl_s3_table);
    ck_assert_str_eq(s3->region, "eu");
    ck_assert_uint_eq(specs.items->source.include.count, 2);
    ck_assert_str_eq(specs.items->source.exclude.items[0], "x, y");
    ck_assert_str_eq(specs.items->verify.sha256.keys[0], "model.tensors");
    ck_assert_str_eq(specs.items->listen, ":1");
}

SL_TEST(a_mistake_in_a_setting_names_the_flag)
{
    static const struct sl_spec_setting settings[] = {
        {"readers.connections", "0", "--connections"},
        {"readers.conections", "1", "--set readers.conections"},
        {"readers", "1", "--set readers"},
        {"listen.x", "1", "--set listen.x"},
    };
    ck_assert_int_lt(parse_with(GOOD, settings, SL_COUNT(settings)), 0);
    ck_assert_str_eq(
        sl_buf_string(&complaints),
        "--connections: expected a number from 1 to 1024 or 'auto', not '0'\n"
        "--set listen.x: 'listen' has no keys below it: 'listen.x' is too long\n"
        "--set readers: 'readers' is a section: name one of its keys, such as 'readers.KEY'\n"
        "--set readers.conections: unknown key 'conections' in 'readers', did you mean "
        "'connections'?\n");
}

SL_TEST(a_setting_leaves_other_users_of_an_alias_alone)
{
    static const struct sl_spec_setting settings[] = {
        {"tensors.shard.rank", "1", "--set tensors.shard.rank"}};
    ck_assert_int_eq(
        parse_with(SAFE "tensors: {shard: {rank: 0, of: 2, rules: [{match: a}]}}\n", settings, 1),
        0);
}

SL_TEST(a_uri_and_a_directory_make_a_spec)
{
    static const struct {
        const char *uri, *name;
    } cases[] = {{"s3://models/GPT-J_6B/", "gpt-j-6b"},
                 {"/a/b/model.safetensors", "model"},
                 {"/", "model"},
                 {"https://h/x/llama-3.1-8b/?q=1", "llama-3.1-8b"},
                 {"memory:x", "x"},
                 {"s3://b", "b"}};
    sl_memory_clear(); /* brings the store of memory: */
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        spec_case_reset();
        ck_assert_msg(sl_spec_from_uri(cases[i].uri, "/t", NULL, 0, &specs, &complaints, &err) == 0,
                      "%s", sl_buf_string(&complaints));
        ck_assert_str_eq(specs.items->metadata.name, cases[i].name);
        ck_assert_str_eq(specs.items->source.uri, cases[i].uri);
        ck_assert_str_eq(specs.items->sink.tmpfs.path, "/t");
    }
    spec_case_reset();
    ck_assert_int_lt(sl_spec_from_uri("s5://x", "/t", NULL, 0, &specs, &complaints, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.message, "URI: 's5://' is not supported, did you mean "
                                              "'s3://'? There are: a path, file://, s3://, "));
    ck_assert_int_lt(sl_spec_from_uri("/x", NULL, NULL, 0, &specs, &complaints, &err), 0);
}

SL_TEST(a_missing_file_is_not_found)
{
    ck_assert_int_lt(sl_spec_read("/nonexistent/m.yaml", NULL, 0, &specs, &complaints, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

/* ---- documents and memory ------------------------------------------------------------------- */

static int names_key(const struct sl_option *row, const char *path, void *arg)
{
    char cell[300];
    (void)row;
    snprintf(cell, sizeof(cell), "`%s`", path);
    ck_assert_msg(strstr(arg, cell) || row->type == SL_OPTION_ITEMS, "%s is not documented", path);
    return 0;
}

SL_TEST(the_page_names_every_key)
{
    sl_autobuf page = SL_BUF_INIT(1 << 20);
    ck_assert_int_eq(sl_spec_write_reference(&page, &err), 0);
    sl_options_walk(sl_spec_table(), names_key, page.data);
}

SL_TEST(the_schema_is_json_and_closed)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    ck_assert_int_eq(sl_spec_write_schema(&text, &err), 0);
    json_t *schema = sl_json_parse(sl_buf_string(&text), text.used, "schema", &err);
    ck_assert_ptr_nonnull(schema);
    ck_assert(json_is_false(json_object_get(schema, "additionalProperties")));
    ck_assert_str_eq(sl_json_get_string(schema, "$id"), "urn:sluice:v1alpha1:model");
    json_t *kind = json_object_get(json_object_get(schema, "properties"), "kind");
    const json_t *first = json_array_get(json_object_get(kind, "anyOf"), 0);
    ck_assert_str_eq(sl_json_get_string(first, "const"), "Model");
    json_t *readers = json_object_get(json_object_get(schema, "properties"), "readers");
    ck_assert(json_is_false(json_object_get(readers, "additionalProperties")));
    ck_assert_ptr_nonnull(json_object_get(json_object_get(readers, "properties"), "rangeBytes"));
    json_decref(schema);
}

static int read_everything(struct sl_err *why)
{
    static const struct sl_spec_setting settings[] = {
        {"source.include", "[a, b]", "--set source.include"}, {"verify.sha256.x", "y", "--set"}};
    static const char text[] = "zz: &a [1]\nyy: *a\n<<: {xx: 1}\n";
    sl_specs_release(&specs);
    sl_buf_release(&complaints);
    if (sl_spec_parse(spec_everything, strlen(spec_everything), "m.yaml", settings, 1, &specs,
                      &complaints, why) < 0)
        return -1;
    sl_specs_release(&specs);
    int done = sl_spec_parse(text, strlen(text), "m.yaml", settings, 2, &specs, &complaints, why);
    if (done < 0 && why->kind == SL_E_USAGE)
        done = sl_spec_from_uri("s3://m/", "/t", settings, 1, &specs, &complaints, why);
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    sl_alloc_fail_at(0);
    ck_assert_int_eq(read_everything(&err), 0);
    unsigned count = sl_alloc_count();
    ck_assert_uint_gt(count, 100);
    for (unsigned nth = 1; nth <= count; nth++) {
        struct sl_err why = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        ck_assert_msg(read_everything(&why) < 0, "allocation %u", nth);
        ck_assert_msg(why.kind == SL_E_NO_SPACE, "allocation %u: %s", nth, why.message);
    }
    sl_alloc_fail_at(0);
}

SL_CASE(.setup = spec_case_setup, .teardown = spec_case_reset)
