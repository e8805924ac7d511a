/* `sink.caches`: what a set of engine caches must not come from, and must be signed by. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "spec_case.h"

SL_CASE(.setup = spec_case_setup, .teardown = spec_case_reset)

#define SPEC(uri, more)                                                                            \
    HEAD "source: {uri: '" uri "'}\nsink: {tmpfs: {path: /t/model}, caches: {" more "}}\n"
#define KEY       "publicKey: RWQvMPGObg7OAlSsLrFIv3PSldXgsfQNBZ1UOUOkIueXZC82VXzUKm+s"
#define GOOD_URL  "url: 's3://b/sets/'"
#define GOOD_PATH "path: /t/caches"

/* With a key: nothing but the place is wrong. */
#define PLACE(uri, url) SPEC(uri, GOOD_PATH ", url: '" url "', trust: store")

static const struct {
    const char *text, *complaint; /* NULL: it is good */
} rows[] = {
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store"), NULL},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", publicKeyFile: k"), NULL},
    {SPEC("s3://b/m/",
          GOOD_PATH ", " GOOD_URL ", publicKeyFile: k, save: true, secretKeyFile: s, "
                    "labels: {engine: vllm}, variant: tp8, ready: 'http://127.0.0.1:8000/health'"),
     NULL},
    /* who may write there */
    {PLACE("s3://b/m/", "s3://b/m2/"), NULL},
    {PLACE("s3://b/m/", "s3://c/m/"), NULL},
    {PLACE("s3://b/m/", "s3://b/m/sets/"), "within each other"},
    {PLACE("s3://b/m/", "s3://b/m/"), "within each other"},
    {PLACE("s3://b/m/", "s3://b/"), "within each other"},
    {PLACE("s3://b/m/", "S3://b/m/sets/"), "S3"},
    {PLACE("s3://b/m/", "s3://b//m/sets/"), "within each other"},
    {PLACE("s3://b/x/../m/", "s3://b/m/sets/"), "within each other"},
    {PLACE("s3://b/m/weights.safetensors", "s3://b/m/sets/"), "within each other"},
    {PLACE("https://H/m/", "https://h/m/sets/"), "within each other"},
    {PLACE("https://h/%6d/", "https://h/m/sets/"), "within each other"},
    {PLACE("https://h/m/?sig=x", "https://h/m/sets/"), "within each other"},
    {PLACE("/srv/m/", "file:///srv/m/sets/"), "within each other"},
    {PLACE("/srv/./m/", "/srv/m/sets/"), "within each other"},
    {PLACE("/srv/m/", "/srv/sets/"), NULL},
    {PLACE("s3://b/m/", "/t/model/sets/"), "within each other"},
    {PLACE("s3://b/m/", "file:///t/"), "within each other"},
    {HEAD "source: {uri: 's3://b/m/', mirrors: ['s3://c/m/']}\nsink: {tmpfs: {path: /t/model}, "
          "caches: {" GOOD_PATH ", url: 's3://c/m/sets/', trust: store}}\n",
     "within each other"},
    /* the url and the path themselves */
    {SPEC("s3://b/m/", GOOD_PATH ", url: 's3://b/sets', trust: store"), "end it in '/'"},
    {SPEC("s3://b/m/", GOOD_PATH ", url: 's3://b/../m/', trust: store"), "without '.' and '..'"},
    {SPEC("s3://b/m/", GOOD_PATH ", url: 'ftp://b/x/', trust: store"), "not supported"},
    {SPEC("s3://b/m/", "path: caches, " GOOD_URL ", trust: store"), "not an absolute path"},
    {SPEC("s3://b/m/", "path: /t/caches/, " GOOD_URL ", trust: store"), "not an absolute path"},
    {SPEC("s3://b/m/", "path: /t/../caches, " GOOD_URL ", trust: store"), "not an absolute path"},
    {SPEC("s3://b/m/", "path: /t/model/caches, " GOOD_URL ", trust: store"), "of its own"},
    {SPEC("s3://b/m/", "path: /t, " GOOD_URL ", trust: store"), "of its own"},
    {SPEC("s3://b/m/", GOOD_URL ", trust: store"), "'path' is missing"},
    {SPEC("s3://b/m/", GOOD_PATH ", trust: store"), "'url' is missing"},
    /* who signs */
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL), "name the key that signs them"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: signed"), "name the key that signs them"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store, publicKeyFile: k"), "leave out"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", publicKeyFile: k, " KEY), "not both"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", publicKey: k"), "56 characters"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", publicKeyFile: k, save: true"),
     "needs 'secretKeyFile'"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store, save: true"), NULL},
    /* the rest */
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store, ready: '127.0.0.1:8000'"), "ready"},
    {SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store, variant: \"a\\nb\""), "control"},
    {HEAD "source: {uri: 's3://b/m/'}\nsink: {caches: {" GOOD_PATH ", " GOOD_URL
          ", trust: store}}\n",
     "names no place"},
};

SL_TEST_LOOP(a_set_is_only_taken_from_where_code_may_come_from, 0, SL_COUNT(rows))
{
    int done = parse(rows[_i].text);
    if (!rows[_i].complaint) {
        ck_assert_msg(done == 0, "%s", sl_buf_string(&complaints));
        ck_assert_str_eq(specs.items[0].sink.caches.path, "/t/caches");
        return;
    }
    ck_assert_msg(done < 0, "accepted: %s", rows[_i].text);
    ck_assert_msg(strstr(sl_buf_string(&complaints), rows[_i].complaint) != NULL, "%s",
                  sl_buf_string(&complaints));
}

/* Of another model of the file, whoever wrote it. */
SL_TEST_LOOP(no_other_model_of_the_file_may_write_there, 0, 6)
{
    static const struct {
        const char *source, *sink, *complaint; /* of the other one; NULL: it is good */
    } others[] = {
        {"uri: 's3://b/draft/'", "tmpfs: {path: /t/draft}", NULL},
        {"uri: 's3://b/sets/draft/'", "tmpfs: {path: /t/draft}", "the model 'draft' lie within"},
        {"uri: 's3://b/draft/', mirrors: ['s3://b/sets/']", "tmpfs: {path: /t/draft}",
         "the model 'draft' lie within"},
        {"uri: 's3://b/draft/'", "tmpfs: {path: /t/caches/draft}", "'caches.path' and the path of"},
        {"uri: 's3://b/draft/'", "tmpfs: {path: /t}", "'caches.path' and the path of"},
        {"uri: 's3://b/draft/'",
         "tmpfs: {path: /t/draft}, caches: {path: /t/c, " GOOD_URL ", trust: store}",
         "both have 'sink.caches'"},
    };
    static const char with_caches[] =
        SPEC("s3://b/m/", GOOD_PATH ", " GOOD_URL ", trust: store") "---\n";
    sl_autobuf text = SL_BUF_INIT(4096);
    for (unsigned first = 0; first < 2; first++) {
        text.used = 0;
        for (unsigned i = 0; i < 2; i++)
            ck_assert_int_eq(
                i == first
                    ? sl_buf_text(&text, with_caches, NULL)
                    : sl_buf_printf(&text, NULL,
                                    "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: "
                                    "draft}\nsource: {%s}\nsink: {%s}\n---\n",
                                    others[_i].source, others[_i].sink),
                0);
        int done = parse(sl_buf_string(&text));
        const char *said = complaints.used ? sl_buf_string(&complaints) : "";
        ck_assert_msg(done == (others[_i].complaint ? -1 : 0), "%s", said);
        ck_assert_msg(!others[_i].complaint || strstr(said, others[_i].complaint), "%s", said);
        spec_case_reset();
    }
}

/* `plan` and `doctor`, of what a load takes, and of what only a node would. */
SL_TEST_LOOP(who_only_looks_takes_them_where_a_load_does, 0, 2)
{
    static const char *const sinks[] = {"tmpfs: {path: /t/model}", "pool: {}"};
    char name[] = "/tmp/sluice-test-sets-XXXXXX";
    FILE *file = fdopen(mkstemp(name), "w");
    fprintf(file,
            HEAD "source: {uri: 's3://b/m/'}\nsink: {%s, caches: {" GOOD_PATH ", " GOOD_URL
                 ", trust: store}}\n",
            sinks[_i]);
    ck_assert_int_eq(fclose(file), 0);
    int done = sl_spec_read_pooled(name, NULL, 0, &specs, &complaints, &err);
    unlink(name);
    const char *said = complaints.used ? sl_buf_string(&complaints) : "";
    ck_assert_msg(done == (_i ? -1 : 0), "%s", said);
    ck_assert_int_eq(strstr(said, "only `sluice load` restores") != NULL, _i);
}

SL_TEST(a_spec_without_them_has_none)
{
    ck_assert_int_eq(parse(GOOD), 0);
    ck_assert_ptr_null(specs.items[0].sink.caches.path);
}
