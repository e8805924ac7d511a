/* What a storage URI takes of a listing, and what the files are called. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choosing.h"
#include "claims.h"
#include "golden.h"
#include "range_server.h"
#include "s3_options.h"
#include "scratch.h"

static struct sl_server *server;
static struct sl_s3_options s3;
static struct sl_source_config config;
static struct sl_err err;
static const char *keys[16]; /* "KEY" of 5 bytes, "-KEY" of none; ended by NULL */

/* Lists the keys that begin with the prefix it is asked for. */
static bool bucket(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    char body[8192] = "<ListBucketResult>", prefix[256] = "";
    (void)arg;
    const char *wanted = strstr(request->target, "&prefix=");
    if (wanted) {
        snprintf(prefix, sizeof(prefix), "%.*s", (int)strcspn(wanted + 8, "&"), wanted + 8);
        /* tests use no other escape */
        for (char *at; (at = strstr(prefix, "%2F"));) {
            *at = '/';
            memmove(at + 1, at + 3, strlen(at + 3) + 1);
        }
    }
    for (const char *const *key = keys; *key; key++) {
        bool empty = **key == '-';
        size_t used = strlen(body);
        if (strncmp(*key + empty, prefix, strlen(prefix)) == 0)
            snprintf(body + used, sizeof(body) - used,
                     "<Contents><Key>%s</Key><Size>%d</Size><ETag>&quot;e&quot;</ETag></Contents>",
                     *key + empty, empty ? 0 : 5);
    }
    size_t used = strlen(body);
    snprintf(body + used, sizeof(body) - used, "</ListBucketResult>");
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
    return true;
}

static void setup(void)
{
    clearenv();
    server = sl_server_start();
    sl_server_handle(server, bucket, NULL);
    s3 = (struct sl_s3_options){.anonymous = true, .endpoint = (char *)sl_server_url(server, "")};
    config = (struct sl_source_config){.options = {{&sl_s3_table, &s3}}, .attempts = 1};
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_server_stop(server);
}

/* "BASE: name>file …", or the error. */
static const char *chosen(const char *uri, bool strict, const char *allow)
{
    static char text[4096];
    __attribute__((cleanup(sl_choosing_release))) struct sl_choice choice = {0};
    __attribute__((cleanup(sl_patterns_release))) struct sl_patterns patterns = {0};
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_patterns_parse("X", allow, &patterns.allow, &err), 0);
    if (sl_choose(uri, &config, strict, &patterns, &choice, &err) < 0)
        return err.message;
    snprintf(text, sizeof(text), "%s:", choice.base_uri);
    for (size_t i = 0; i < choice.objects.count; i++) {
        const char *name = choice.objects.items[i].name, *file = sl_choosing_file(&choice, name);
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, strcmp(name, file) == 0 ? " %s" : " %s>%s", name,
                 file);
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < choice.objects.count; i++)
        bytes += choice.objects.items[i].bytes;
    ck_assert_uint_eq(choice.bytes, bytes);
    return text;
}

static void set_keys(const char *const *list)
{
    for (size_t i = 0; i == 0 || keys[i - 1]; i++)
        keys[i] = list[i];
}
#define KEYS(...) set_keys((const char *const[]){__VA_ARGS__, NULL})

SL_TEST(a_folder_is_named_with_or_without_its_slash)
{
    KEYS("a/model/x", "a/model/sub/y", "-a/model/", "-a/model/empty", "a/other");
    ck_assert_str_eq(chosen("s3://b/a/model/", false, NULL), "s3://b/a/model/: x sub/y");
    ck_assert_str_eq(chosen("s3://b/a/model", false, NULL), "s3://b/a/model/: x sub/y");
    ck_assert_str_eq(chosen("s3://b//a/model", false, NULL), "s3://b/a/model/: x sub/y");
    ck_assert_str_eq(chosen("s3://b", false, NULL), "s3://b/: a/model/x a/model/sub/y a/other");
    ck_assert_str_eq(chosen("s3://b/", true, NULL), "s3://b/: a/model/x a/model/sub/y a/other");
}

SL_TEST(neighbours_come_along_unless_the_prefix_is_strict)
{
    KEYS("a/model/x", "a/model-v2/x", "a/model.json", "a/mo");
    ck_assert_str_eq(chosen("s3://b/a/model", false, NULL),
                     "s3://b/a/: model/x>x model-v2/x>-v2/x model.json>.json");
    ck_assert_str_eq(chosen("s3://b/a/model", true, NULL), "s3://b/a/model/: x");
    ck_assert_str_eq(chosen("s3://b/a/model/", false, NULL), "s3://b/a/model/: x");
    ck_assert_ptr_nonnull(strstr(chosen("s3://b/a/mod", true, NULL), "a neighbour"));
}

SL_TEST(the_object_of_exactly_this_name_is_taken_alone)
{
    KEYS("a/model", "a/model-log", "a/model.d/x");
    ck_assert_str_eq(chosen("s3://b/a/model", false, NULL), "s3://b/a/: model");
    ck_assert_str_eq(chosen("s3://b/a/model", true, NULL), "s3://b/a/: model");
    ck_assert_str_eq(chosen("s3://b/a/model", false, "*.json"), "s3://b/a/: model");
    KEYS("a/model-log", "a/model"); /* in whatever order the store lists */
    ck_assert_str_eq(chosen("s3://b/a/model", false, NULL), "s3://b/a/: model");
    KEYS("-a/model.bin", "-a/model.txt", "a/x"); /* weights that did not arrive are */
    ck_assert_str_eq(chosen("s3://b/a", false, NULL), "s3://b/a/: model.bin x");
    KEYS("-a/model", "a/model/x"); /* an empty one is none */
    ck_assert_str_eq(chosen("s3://b/a/model", false, NULL), "s3://b/a/model/: x");
}

SL_TEST(patterns_see_the_name_that_the_file_gets)
{
    KEYS("m/x.json", "m/sub/y.json", "m/z.bin", "m-v2/w.json");
    ck_assert_str_eq(chosen("s3://b/m/", false, "x.*,sub/*"), "s3://b/m/: x.json sub/y.json");
    ck_assert_str_eq(chosen("s3://b/m", false, "-v2/*"), "s3://b/: m-v2/w.json>-v2/w.json");
    ck_assert_ptr_nonnull(strstr(chosen("s3://b/m", false, "*.none"), "STORAGE_ALLOW_PATTERNS"));
}

SL_TEST(two_objects_are_never_one_file)
{
    KEYS("m/x", "mx");
    ck_assert_ptr_nonnull(strstr(chosen("s3://b/m", false, NULL), "would both be 'x'"));
    ck_assert_str_eq(err.code, "E_NAME");
    KEYS("m/x/y", "mx");
    ck_assert_ptr_nonnull(strstr(chosen("s3://b/m", false, NULL), "would both be 'x'"));
    ck_assert_str_eq(chosen("s3://b/m", true, NULL), "s3://b/m/: x/y");
    KEYS("m/x", "m.sluice/x", "m../x");
    chosen("s3://b/m", false, NULL);
    ck_assert_str_eq(err.code, "E_NAME"); /* a name that would be hostile once cut */
}

SL_TEST(nothing_is_said_to_be_nothing)
{
    keys[0] = NULL;
    ck_assert_ptr_nonnull(
        strstr(chosen("s3://b/none", false, NULL), "no model found in 's3://b/none'"));
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    KEYS("-m/empty", "-m/folder/");
    ck_assert_ptr_nonnull(strstr(chosen("s3://b/m/", false, NULL), "what is there is empty"));
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

SL_TEST(a_folder_on_disk_is_chosen_from_without_hidden_files)
{
    char path[SL_SCRATCH_PATH_BYTES], uri[SL_SCRATCH_PATH_BYTES + 8], file[512], expected[512];
    static const char *const names[] = {"x.json", ".hidden", "y.bin", "empty"};
    int fd = sl_scratch_open(path);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        FILE *out = fopen(file, "w");
        if (strcmp(names[i], "empty") != 0)
            fputs("12345", out);
        fclose(out);
    }
    snprintf(uri, sizeof(uri), "%s/", path);
    snprintf(expected, sizeof(expected), "%s: x.json y.bin", uri);
    ck_assert_str_eq(chosen(uri, false, "*.*"), expected);
    sl_scratch_close(fd, path);
}

static int choose_once(void *arg, struct sl_err *why)
{
    __attribute__((cleanup(sl_choosing_release))) struct sl_choice choice = {0};
    struct sl_patterns patterns = {0};
    return sl_choose(arg, &config, false, &patterns, &choice, why);
}

SL_TEST(every_failing_allocation_is_survived)
{
    char uri[] = "s3://b/m";
    KEYS("m/x", "m-v2/y", "m.json");
    ck_assert_uint_gt(golden_each_allocation(choose_once, uri), 10);
}

SL_CASE(.setup = setup, .teardown = teardown)
