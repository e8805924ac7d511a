/*
 * Every scheme, every place of a secret in a URI, and every way in that takes a URI: none of them
 * says the secret again, neither in a refusal nor in a log, and whatever cuts a message short.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "http_client.h"
#include "json.h"
#include "log.h"
#include "mem.h"
#include "node_spec.h"
#include "node_uri.h"
#include "progress.h"
#include "run_sluice.h"
#include "scratch.h"
#include "stores.h"
#include "upload.h"
#include "uri_text.h"
#include "volume_request.h"
#include "web.h"

enum { URI_BYTES = 2200, TEXT_BYTES = 3 * URI_BYTES };

/* %s: the scheme. Every secret holds "hush". */
static const char *const places[] = {
    "%s://user:hush@bucket/m",
    "%s://hush@bucket/name/m",
    "%s://user:hush@bucket",
    "%s://user:hush@bucket/folder/",
    "%s://bucket@user:hush@bucket/m",
    "%s:/user:hush@bucket/m",
    "%s:user:hush@bucket/m",
    "%s:///user:hush@bucket/m",
    "%s://user:hush%%40bucket/m",
    "%s://AKIAIOSFODNN7EXAMPLE:hush/hu+sh/x@bucket/m",
    "%s://AKIAIOSFODNN7EXAMPLE:hush/hu+sh/x%%40bucket/m",
    "%s://AKIA:hush/hu@bucket/m",
    "%s://user:hu?hush@bucket/m",
    "%s://user:hush?hu#sh@bucket",
    "user:hush@bucket/m",
    "u:hush?hush@bucket:80/m",
    "%s://bucket/m;jsessionid=hush",
    "%s://bucket/m;JSESSIONID=hush/x;y=1",
    "%s://bucket/m?X-Amz-Signature=hush",
    "%s://bucket/m?x-id=GetObject&X-Goog-Signature=hush",
    "%s://bucket/name/m?sv=2023-11-03&sig=hush#x",
    "%s://bucket/name/m#access_token=hush",
    "%s://user:hush-\x01@bucket/m",
    "%s://user:hu sh hush@bucket/m",
};
enum { PLACES = SL_COUNT(places), FORMS = 2 * PLACES };

static const char *schemes[SL_STORES_SCHEMES_MAX + 2];
static size_t scheme_count;
static char uri[URI_BYTES];
static struct sl_err err;
static struct sl_buf complaints;

/* The odd ones are 900 bytes longer where the secret is. */
static void spell(const char *scheme, int form, bool upper)
{
    char word[32], text[URI_BYTES];
    snprintf(word, sizeof(word), "%s", scheme);
    for (char *at = word; upper && *at; at++)
        *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof(text), places[form / 2], word);
#pragma GCC diagnostic pop
    char *secret = strstr(text, "hush");
    ck_assert_ptr_nonnull(secret);
    int before = (int)(secret - text);
    int filler = form % 2 ? 900 : 0;
    snprintf(uri, sizeof(uri), "%.*s%0*d%s", before, text, filler, 0, secret);
    if (!filler)
        snprintf(uri, sizeof(uri), "%s", text);
    else
        for (int i = 0; i + 4 < filler; i += 4)
            memcpy(uri + before + i, "hush", 4);
}

static void check_text(const char *text, const char *place)
{
    const char *found = text ? strstr(text, "hush") : NULL;
    ck_assert_msg(!found, "%s, of %.120s: %.400s", place, uri, text);
}

static void check_err(const char *place)
{
    check_text(err.message, place);
    check_text(err.code, place);
    check_text(sl_buf_string(&complaints), place);
    sl_buf_release(&complaints);
    complaints = (struct sl_buf)SL_BUF_INIT(1 << 20);
    err = (struct sl_err)SL_ERR_INIT;
}

/* ---- ways in --------------------------------------------------------------------------------- */

static void to_a_source(void)
{
    struct sl_source_config config = {0};
    struct sl_store *store;
    char *key;
    if (sl_source_check_uri(uri, &err) == 0 &&
        sl_store_open(uri, &config, &store, &key, &err) == 0) {
        struct sl_json json;
        sl_json_init(&json, TEXT_BYTES);
        sl_json_object(&json);
        sl_json_key_uri(&json, "uri", sl_store_uri(store));
        sl_json_end(&json);
        check_text(sl_json_text(&json, NULL), "a store's own URI");
        sl_json_release(&json);
        sl_store_free(store);
        free(key);
    }
}

static void to_an_upload(void)
{
    struct sl_upload_config config = {0};
    struct sl_upload *upload;
    if (!sl_uri_holds_key(uri) || sl_uri_is_local(uri))
        return; /* one that is asked */
    if (sl_upload_open(uri, 100, &config, &upload, &err) == 0)
        sl_upload_free(upload);
}

/* YAML has no control characters. */
static const char *quoted(void)
{
    static char text[TEXT_BYTES];
    size_t used = 0;
    for (const char *at = uri; *at; at++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 (unsigned char)*at < 0x20 ? "\\x%02x" : "%c", *at);
    return text;
}

static void parse_spec(const char *format_before, const char *format_after)
{
    char text[2 * TEXT_BYTES];
    struct sl_specs specs = {0};
    snprintf(text, sizeof(text), "%s\"%s\"%s", format_before, quoted(), format_after);
    sl_spec_parse(text, strlen(text), "m.yaml", NULL, 0, &specs, &complaints, &err);
    sl_specs_release(&specs);
}

#define SPEC "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"

static void in_a_spec(void)
{
    parse_spec(SPEC "source: {uri: ", "}\nsink: {tmpfs: {path: /dev/shm/x}}\n");
}

static void as_a_mirror(void)
{
    parse_spec(SPEC "source: {uri: s3://b/m, mirrors: [", "]}\nsink: {tmpfs: {path: /x}}\n");
    check_err("mirrors");
    parse_spec(SPEC "source: {uri: oci://h/m, oci: {mirrors: [",
               "]}}\nsink: {tmpfs: {path: /x}}\n");
}

static void where_no_uri_is_wanted(void)
{
    parse_spec("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: ", "}\n");
    check_err("a name");
    parse_spec("apiVersion: ", "\nkind: Model\n");
    check_err("the version");
    parse_spec(SPEC "source: {uri: s3://b/m, s3: {endpoint: ", "}}\nsink: {tmpfs: {path: /x}}\n");
    check_err("an endpoint");
    parse_spec(SPEC "source: {uri: s3://b/m, s3: {region: ", "}}\nsink: {tmpfs: {path: /x}}\n");
    check_err("a region");
    parse_spec(SPEC "source: {uri: /m, ", ": 1}\nsink: {tmpfs: {path: /x}}\n");
}

static void by_setting(void)
{
    struct sl_spec_setting setting = {"source.uri", uri, "--set"};
    struct sl_specs specs = {0};
    sl_spec_from_uri("/m", "/x", &setting, 1, &specs, &complaints, &err);
    sl_specs_release(&specs);
    check_err("--set");
    setting.path = "readers.rangeBytes";
    sl_spec_check_settings(&setting, 1, &complaints, &err);
}

static void as_an_argument(void)
{
    struct sl_specs specs = {0};
    if (sl_spec_from_uri(uri, "/x", NULL, 0, &specs, &complaints, &err) == 0)
        for (size_t i = 0; i < specs.count; i++)
            check_text(specs.items[i].metadata.name, "a model's name");
    sl_specs_release(&specs);
    check_err("a URI");
    if (sl_spec_from_uri("/m", uri, NULL, 0, &specs, &complaints, &err) == 0)
        err = (struct sl_err)SL_ERR_INIT;
    sl_specs_release(&specs);
}

static void in_a_node(void)
{
    static const char *const texts[] = {
        "pool: {socket: /x, uriPrefixes: [\"%s\"]}\n",
        "csi: {socket: /x, namespaces: [{name: t, uriPrefixes: [\"%s\"], roleArn: r}]}\n",
        "listen: \"%s\"\n", "models: [{file: \"%s\"}]\n"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        char text[3 * TEXT_BYTES], part[2 * TEXT_BYTES];
        struct sl_node_spec node = {0};
        struct sl_specs specs = {0};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(part, sizeof(part), texts[i], quoted());
#pragma GCC diagnostic pop
        snprintf(text, sizeof(text), "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: /d\n%s",
                 part);
        sl_node_spec_parse(text, strlen(text), "n.yaml", &node, &specs, &complaints, &err);
        sl_node_spec_release(&node);
        sl_specs_release(&specs);
        check_err("node.yaml");
    }
}

static void of_a_volume(void)
{
    static const char *const keys[] = {"uri", "model", "pool"};
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        struct sl_volume_request request;
        struct sl_volume_pair pair = {keys[i], uri};
        sl_volume_request_read(&pair, 1, &request, &err);
        check_err("an attribute");
    }
}

static void of_a_pool_client(void)
{
    struct sl_list none = {0};
    size_t bytes;
    ck_assert_int_lt(sl_node_uri_check(&none, uri, &bytes, &err), 0);
}

/* Whoever forgets is caught where messages are made. */
static void quoted_by_anybody(void)
{
    sl_fail(&err, SL_E_NET, "cannot read '%s': 404", uri);
    check_err("sl_fail");
    sl_fail(&err, SL_E_NET, "cannot read '%.200s': 404", uri);
    check_err("cut to 200");
    sl_fail(&err, SL_E_NET, "cannot read '%.80s'", uri);
    check_err("cut to 80");
    sl_fail(&err, SL_E_NET, "404");
    sl_wrap(&err, "from \"%s\" to '%s'", "s3://b/x", uri);
    check_err("sl_wrap");
    sl_fail_errno(&err, SL_E_NET, 2, "'%s'", uri);
    check_err("sl_fail_errno");
    sl_autofree char *clean = sl_uri_sanitize(uri, NULL);
    check_text(clean, "sl_uri_sanitize");
}

static const struct {
    const char *name;
    void (*try)(void);
} ways[] = {
    {"a source", to_a_source},
    {"an upload", to_an_upload},
    {"a spec", in_a_spec},
    {"a mirror", as_a_mirror},
    {"a wrong place of a spec", where_no_uri_is_wanted},
    {"--set", by_setting},
    {"an argument", as_an_argument},
    {"a node's config", in_a_node},
    {"a volume", of_a_volume},
    {"a client of the pool", of_a_pool_client},
    {"a message", quoted_by_anybody},
};
enum { WAYS = SL_COUNT(ways) };

static void setup(void)
{
    static char home[] = "/nonexistent";
    setenv("HOME", home, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    complaints = (struct sl_buf)SL_BUF_INIT(1 << 20);
    scheme_count = sl_stores_schemes(schemes);
    for (size_t i = 0; i < scheme_count; i++)
        if (strcmp(schemes[i], "memory") == 0) /* that of tests */
            schemes[i--] = schemes[--scheme_count];
    schemes[scheme_count++] = "s4";
}

/* Is what was spelled last a URI with a secret, by the rules of its scheme? */
static bool has_secret(const char *scheme, int form)
{
    const char *behind = uri + strcspn(uri, ":");
    if (strncasecmp(uri, "abfs", 4) == 0 && !memchr(uri + 8, ':', strcspn(uri + 8, "@%")))
        return false;              /* a container */
    if (strncmp(uri, "u", 1) == 0) /* without a scheme nothing tells what it is once it is cut */
        return form % 2 == 0;
    if (!strstr("file s4", scheme))
        return true;
    if (strncmp(behind, ":///", 4) == 0 || strncmp(behind, "://", 3) != 0)
        return false; /* a path, and a name that is nobody's */
    return strcmp(scheme, "file") != 0 || !strpbrk(uri, "?#;"); /* bytes of a file's name */
}

SL_TEST_LOOP(no_secret_of_a_uri_is_said_by_what_takes_it, 0, (int)WAYS)
{
    for (size_t scheme = 0; scheme < scheme_count; scheme++)
        for (int form = 0; form < 2 * FORMS; form++) {
            spell(schemes[scheme], form / 2, form % 2);
            if (!has_secret(schemes[scheme], form / 2))
                continue;
            ways[_i].try();
            check_err(ways[_i].name);
        }
}

/* ---- what is served -------------------------------------------------------------------------- */

static const char *const served[] = {
#define WEB_ROUTE(path, answer, is)             "/" path,
#define WEB_NAMED_ROUTE(path, name, answer, is) "/" path "m",
#define WEB_CHANGE(method, path, name, verb, allow, body, run, does)
#include "web_routes.def"
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
#undef WEB_CHANGE
};

/* A load of it that failed. */
static struct sl_progress *tell_of_uri(void)
{
    sl_autofree char *clean = sl_uri_sanitize(uri, NULL);
    struct sl_progress *progress = sl_progress_new("m", clean, "", NULL);
    ck_assert_ptr_nonnull(progress);
    sl_fail(&err, SL_E_NET, "cannot read '%s': 404", uri);
    sl_progress_note_retry(progress, 2, 8, &err, false);
    sl_progress_finish(progress, &err);
    return progress;
}

/* The first event has them all. */
static void check_events(unsigned port)
{
    static char text[1 << 20];
    size_t used = 0;
    int fd = http_connect(port);
    ck_assert_int_eq(http_send(fd, "GET /v1/events HTTP/1.0\r\n\r\n"), 0);
    do {
        ssize_t got = read(fd, text + used, sizeof(text) - 1 - used);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
        text[used] = 0;
    } while (!strstr(text, "data: ") || !strstr(strstr(text, "data: "), "\n\n"));
    close(fd);
    ck_assert_ptr_nonnull(strstr(text, "\"loads\":[{"));
    check_text(text, "/v1/events");
}

static void check_served(unsigned port)
{
    for (size_t i = 0; i < SL_COUNT(served); i++) {
        struct http_reply reply;
        if (strcmp(served[i], "/v1/events") == 0) {
            check_events(port);
            continue;
        }
        ck_assert_int_eq(http_ask(port, "GET", served[i], "", &reply), 0);
        check_text(reply.head, served[i]);
        check_text(reply.body, served[i]);
        http_release(&reply);
    }
}

enum { AT_ONCE = 64 };

static void check_loads(unsigned port, struct sl_progress *loads[AT_ONCE], size_t count)
{
    check_served(port);
    while (count)
        sl_progress_free(loads[--count]);
}

SL_TEST(no_secret_of_a_uri_is_served)
{
    const struct sl_web_config config = {.listen = "127.0.0.1:0"};
    struct sl_progress *loads[AT_ONCE];
    size_t count = 0, all = 0;
    SL_AUTO(sl_web) web = sl_web_start(&config, &err);
    ck_assert_msg(web, "%s", err.message);
    for (size_t scheme = 0; scheme < scheme_count; scheme++)
        for (int form = 0; form < FORMS; form++) {
            spell(schemes[scheme], form, false);
            if (!has_secret(schemes[scheme], form))
                continue;
            loads[count++] = tell_of_uri();
            all++;
            if (count == AT_ONCE) {
                check_loads(sl_web_port(web), loads, count);
                count = 0;
            }
        }
    if (count)
        check_loads(sl_web_port(web), loads, count);
    ck_assert_uint_gt(all, 8 * PLACES);
}

SL_TEST(what_a_uri_names_is_still_told)
{
    static const char *const rows[][2] = {
        {"s3://bucket/a@b/m@1", NULL},
        {"s3://tenant:bucket/m@1", NULL},
        {"s3://arn:aws:s3:us-west-2:123456789012:accesspoint/ap/m@1", NULL},
        {"s3://bucket/what?", NULL},
        {"s3://bucket/a?b#c", NULL},
        {"gs://bucket/m#1234", NULL},
        {"hf://org/name@refs/pr/1/m", NULL},
        {"oci://ghcr.io/org/m:v1@sha256:0123456789abcdef0123456789abcdef", NULL},
        {"oci://ubuntu:24.04@sha256:0123456789abcdef0123456789abcdef", NULL},
        {"oci://localhost:5000/org/m@sha256:0123456789abcdef0123456789abcdef", NULL},
        {"http://h:8080/a@b", NULL},
        {"http://[::1]:8080/a@b", NULL},
        {"abfss://c@a.dfs.core.windows.net/b", NULL},
        {"redis://h:6379/a@b", NULL},
        {"/a:b/c@d/x?token=1", NULL},
        {"a/b@c?d", NULL},
        {"c:/a@b", NULL},
        {"file:///a:b@c/x?sig=y", NULL},
        {"http://user:hush@h:80/a?b", "http://h:80/a"},
        {"s3://user:hush@b/a", "s3://…@b/a"},
        {"s3://b/a?X-Amz-Signature=hush", "s3://b/a"},
        {"https:/u:hush@h/a", "https:/…@h/a"},
        {"u:hush@h/a", "…@h/a"},
        {"user:hush@h:80", "…@h:80"},
        {"s3://u:hush?hush@b/a", "s3://…@b/a"},
        {"s3://AKIA:hush/hush@b/a", "s3://…@b/a"},
        {"file://u:hush@h/a", "file://h/a"},
        {"http://h/a;jsessionid=hush/b?c", "http://h/a"},
        {"ubuntu:24.04@sha256:0123456789abcdef0123456789abcdef", NULL},
        {"http://h?a=b@c", "http://h"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const char *shown = rows[i][1] ? rows[i][1] : rows[i][0];
        char wanted[300];
        sl_autofree char *clean = sl_uri_sanitize(rows[i][0], NULL);
        ck_assert_str_eq(clean, shown);
        sl_autofree char *again = sl_uri_sanitize(clean, NULL);
        ck_assert_str_eq(again, shown);
        sl_fail(&err, SL_E_NET, "from 's3://x/y' to '%s': 404, said 'a@b'", rows[i][0]);
        snprintf(wanted, sizeof(wanted), "from 's3://x/y' to '%s': 404, said 'a@b'", shown);
        ck_assert_str_eq(err.message, wanted);
    }
}

/* A bucket has up to 63 characters, and nothing tells that it is one but its place. */
SL_TEST(long_names_of_buckets_hold_no_key)
{
    static const char *const names[] = {
        "s3://kserve-models-production-eu-west-1-0123456789ab",
        "s3://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "gs://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "az://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint:a-rather-long-name-of-one",
        "s3://my-access-point-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-s3alias"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        sl_autofree char *shown = sl_uri_sanitize(names[i], &err);
        ck_assert_str_eq(shown, names[i]);
        ck_assert(!sl_uri_holds_key(names[i]));
        char wanted[200];
        sl_fail(&err, SL_E_NET, "cannot list '%s': 404", names[i]);
        snprintf(wanted, sizeof(wanted), "cannot list '%s': 404", names[i]);
        ck_assert_str_eq(err.message, wanted);
    }
}

SL_TEST(a_key_in_a_uri_is_refused_with_what_to_do)
{
    static const char *const rows[][2] = {
        {"s3://AKID:hush@models/x/",
         "'s3://…@models/x/' holds a key: remove it, and set AWS_ACCESS_KEY_ID and "
         "AWS_SECRET_ACCESS_KEY"},
        {"gs://u:hush@models/x/",
         "'gs://…@models/x/' holds a key: remove it, and set GOOGLE_APPLICATION_CREDENTIALS to "
         "the key's file"},
        {"hf://hush@org/name", "'hf://…@org/name' holds a key: remove it, and set HF_TOKEN"},
        {"ms://u:hush@org/name",
         "'ms://…@org/name' holds a key: remove it, and set MODELSCOPE_API_TOKEN"},
        {"oci://u:hush@h.example/m",
         "'oci://…@h.example/m' holds a key: remove it, and log in with a container tool, such as "
         "docker login"},
        {"az://u:hush@c/m",
         "'az://…@c/m' holds a key: remove it, and set AZURE_STORAGE_CONNECTION_STRING"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_source_config config = {0};
        struct sl_store *store;
        char *key;
        ck_assert_int_lt(sl_source_check_uri(rows[i][0], &err), 0);
        ck_assert_str_eq(err.message, rows[i][1]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_int_lt(sl_store_open(rows[i][0], &config, &store, &key, &err), 0);
        ck_assert_str_eq(err.message, rows[i][1]);
        if (strstr(rows[i][0], "name") || strchr("sga", rows[i][0][0])) {
            struct sl_upload_config upload = {0};
            struct sl_upload *made;
            char object[200];
            snprintf(object, sizeof(object), "%sm", rows[i][0]);
            ck_assert_int_lt(sl_upload_open(object, 1, &upload, &made, &err), 0);
            check_err("an upload");
        }
    }
}

SL_TEST(no_command_says_the_secret_of_a_uri)
{
    static const char *const commands[][4] = {{"load", NULL, "--to", "/dev/null/x"},
                                              {"inspect", NULL},
                                              {"ls", NULL},
                                              {"plan", NULL},
                                              {"verify", NULL},
                                              {"status", NULL},
                                              {"rm", NULL},
                                              {"convert", NULL, "x"},
                                              {"convert", "/dev/null", NULL},
                                              {"load", "/m", "--to", NULL},
                                              {"initializer", NULL, "/dev/null/x"},
                                              {"serve", NULL},
                                              {"load", "/m", NULL},
                                              {"bench", NULL},
                                              {NULL}};
    static const char refusing[] = "s3 s4 gs hf ms modelscope oci az azure"; /* before any work */
    char scratch[SL_SCRATCH_PATH_BYTES], message[SL_SCRATCH_PATH_BYTES + 10];
    int folder = sl_scratch_open(scratch);
    snprintf(message, sizeof(message), "%s/message", scratch);
    setenv("SLUICE_TERMINATION_LOG", message, 1);
    struct ran ran = {0};
    int number = 0;
    for (size_t i = 0; i < SL_COUNT(commands); i++)
        for (int j = 0; j < 10; j++, number++) {
            const char *arguments[7] = {NULL};
            const char *scheme = schemes[(size_t)number % scheme_count];
            spell(scheme, (2 * number + number / 7) % 14, number % 3 == 0);
            if (!strstr(refusing, scheme) || strncmp(uri + strcspn(uri, ":"), "://", 3) != 0)
                continue;
            size_t used = 0;
            while (used < 4 && (commands[i][used] || used == 0 || !arguments[used - 1] ||
                                arguments[used - 1] != uri)) {
                arguments[used] = commands[i][used] ? commands[i][used] : uri;
                used++;
            }
            arguments[used++] = j % 2 ? "--log-format=json" : "--log-format=text";
            run_copy(&ran, arguments);
            check_text(ran.out, arguments[0]);
            check_text(ran.err, arguments[0]);
        }
    ran_release(&ran);
    sl_scratch_close(folder, scratch);
}

SL_CASE(.setup = setup, .seconds = 120)
