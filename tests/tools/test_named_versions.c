/*
 * One version of an object, named in its URI, crossed with what keeps or tells versions: loads that
 * broke off and go on, what is there already, mirrors, `status` and `verify`. Whatever the store
 * says of its objects, what is published is the version that was asked for.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "json.h"
#include "model_maker.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

enum {
    PATH_BYTES = 512,
    RANGE = 64 * 1024,
    BYTES = 6 * RANGE, /* of each version */
    VERSIONS = 2,
};

/* What an answer says beside the name of the version. */
enum style { ID_ALONE, STRONG, ONE_ETAG, SILENT, STYLES };

static const struct store {
    const char *uri, *target, *query, *header;
    const char *ids[VERSIONS];
} stores[] = {
    {"s3://b/m.bin#%s", "/b/m.bin", "versionId=", "x-amz-version-id: %s\r\n", {"vA", "vB"}},
    {"s3://b/m.bin?versionId=%s",
     "/b/m.bin",
     "versionId=",
     "x-amz-version-id: %s\r\n",
     {"vA", "vB"}},
    {"gs://bkt/m.bin#%s", "/bkt/m.bin", "generation=", "x-goog-generation: %s\r\n", {"17", "18"}},
};
enum { STORES = sizeof(stores) / sizeof(stores[0]) };

static char scratch[SL_SCRATCH_PATH_BYTES], out[PATH_BYTES];
static int scratch_fd;
static struct ran ran;
static struct sl_server *server;
static uint8_t *data[VERSIONS];

/* Set between loads. */
static struct {
    const struct store *store;
    enum style style;
    unsigned current;     /* version without a name */
    uint64_t broken_from; /* ranges behind it are refused; 0: none */
    bool gone;            /* nothing is there */
    unsigned wrong;       /* requests without the name of a version */
    uint64_t sent;
} world;

static unsigned version_of(const char *target)
{
    const char *query = strstr(target, world.store->query);
    for (unsigned i = 0; query && i < VERSIONS; i++)
        if (strcmp(query + strlen(world.store->query), world.store->ids[i]) == 0)
            return i;
    world.wrong++;
    return world.current;
}

static void say_version(struct sl_server_reply *reply, unsigned version)
{
    size_t used = strlen(reply->headers), room = sizeof(reply->headers) - used;
    char *at = reply->headers + used;
    if (world.style != SILENT)
        used = (size_t)snprintf(at, room, world.store->header, world.store->ids[version]);
    else
        used = 0;
    if (world.style == STRONG)
        snprintf(at + used, room - used, "ETag: \"e%u\"\r\n", version);
    else if (world.style == ONE_ETAG)
        snprintf(at + used, room - used, "ETag: W/\"same\"\r\n");
}

static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    unsigned long begin = 0, end = BYTES - 1;
    char range[64];
    (void)arg;
    if (world.gone ||
        strncmp(request->target, world.store->target, strlen(world.store->target)) != 0) {
        reply->status = 404;
        return true;
    }
    unsigned version = version_of(request->target);
    ck_assert(sl_server_header(request, "Range", range, sizeof(range)));
    ck_assert_int_eq(sscanf(range, "bytes=%lu-%lu", &begin, &end), 2);
    end = end < BYTES ? end : BYTES - 1;
    if (world.broken_from && end > world.broken_from) {
        reply->status = 403;
        return true;
    }
    reply->status = 206;
    snprintf(reply->headers, sizeof(reply->headers), "Content-Range: bytes %lu-%lu/%d\r\n", begin,
             end, BYTES);
    say_version(reply, version);
    reply->body_bytes = end + 1 - begin;
    reply->body = malloc(reply->body_bytes);
    memcpy(reply->body, data[version] + begin, reply->body_bytes);
    world.sent += reply->body_bytes;
    return true;
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(out, sizeof(out), "%s/out", scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    server = sl_server_start();
    setenv("STORAGE_EMULATOR_HOST", sl_server_url(server, ""), 1);
    for (unsigned i = 0; i < VERSIONS; i++)
        data[i] = sl_model_noise(BYTES, i + 1);
}

static void teardown(void)
{
    sl_server_stop(server);
    for (unsigned i = 0; i < VERSIONS; i++)
        free(data[i]);
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown)

static const char *uri_of(const struct store *store, unsigned version)
{
    static char uris[4][PATH_BYTES];
    static unsigned turn;
    char *uri = uris[turn++ % 4];
    snprintf(uri, PATH_BYTES, store->uri, store->ids[version]);
    return uri;
}

static void run(const char *command, const char *uri, const char *more)
{
    char endpoint[PATH_BYTES];
    snprintf(endpoint, sizeof(endpoint), "source.s3.endpoint=%s", sl_server_url(server, ""));
    world.sent = world.wrong = 0;
    sl_server_handle(server, serve, NULL); /* while it serves, the world is its threads' */
    RUN(&ran, command, uri, "--to", out, "--json", "--connections", "1", "--range-bytes", "64KiB",
        "--attempts", "1", "--hedge", "off", "--set", endpoint, "--set", "source.s3.anonymous=true",
        "--set", "source.gs.anonymous=true", *more ? "--set" : NULL, more);
    sl_server_handle(server, NULL, NULL);
}

static uint64_t number(const char *key)
{
    json_t *json = json_loads(ran.out, JSON_DISABLE_EOF_CHECK, NULL);
    ck_assert_msg(json != NULL, "%s", ran.out);
    uint64_t value = (uint64_t)json_integer_value(json_object_get(json, key));
    json_decref(json);
    return value;
}

static void expect_version(unsigned version)
{
    ck_assert_msg(ran.exit_code == 0, "exit code %d\n%s", ran.exit_code, ran.err);
    ck_assert_msg(sl_model_same(out, "m.bin", data[version], BYTES),
                  "style %d of '%s': not version %u", world.style, world.store->uri, version);
    ck_assert_uint_eq(world.wrong, 0);
}

/* A generation is Google's own, so the name alone tells it; of an S3 store that says nothing nobody
 * knows whether it heeds the name. */
static bool keeps(void)
{
    return world.style != SILENT || strcmp(world.store->query, "generation=") == 0;
}

SL_TEST_LOOP(a_load_goes_on_with_the_version_that_it_named, 0, STORES *STYLES)
{
    world.store = &stores[_i / STYLES];
    world.style = (enum style)(_i % STYLES);
    for (unsigned version = 0; version < VERSIONS; version++) {
        unsigned other = 1 - version;
        sl_scratch_close(scratch_fd, scratch);
        scratch_fd = sl_scratch_open(scratch);
        snprintf(out, sizeof(out), "%s/out", scratch);
        world.current = other;
        world.broken_from = BYTES / 2;
        run("load", uri_of(world.store, version), "");
        ck_assert_int_ne(ran.exit_code, 0);
        ck_assert(!sl_model_exists(out, ".sluice/ready"));
        world.broken_from = 0;
        /* Of the other one nothing is taken for it, … */
        run("load", uri_of(world.store, other), "");
        expect_version(other);
        ck_assert_uint_eq(number("resumed"), 0);
        /* … and its own goes on. */
        world.broken_from = BYTES / 2;
        run("load", uri_of(world.store, version), "");
        ck_assert_int_ne(ran.exit_code, 0);
        world.broken_from = 0;
        run("load", uri_of(world.store, version), "");
        expect_version(version);
        ck_assert_msg((number("resumed") > 0) == keeps(), "style %d of '%s': resumed %llu",
                      world.style, world.store->uri, (unsigned long long)number("resumed"));
        /* What is there is not read again. */
        run("load", uri_of(world.store, version), "");
        expect_version(version);
        ck_assert_int_eq(world.sent < BYTES, keeps());
        run("load", uri_of(world.store, other), "");
        expect_version(other);
    }
}

SL_TEST_LOOP(status_and_verify_tell_a_named_version, 0, STORES)
{
    world.store = &stores[_i];
    world.style = STRONG;
    world.current = 1;
    run("load", uri_of(world.store, 0), "");
    expect_version(0);
    RUN(&ran, "status", out);
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_msg(strstr(ran.out, uri_of(world.store, 0)) ||
                      (strstr(ran.out, "m.bin") && strstr(ran.out, world.store->ids[0])),
                  "%s", ran.out);
    RUN(&ran, "verify", out);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
}

SL_TEST_LOOP(a_mirror_is_asked_for_the_version_that_it_names, 0, STORES)
{
    char mirror[PATH_BYTES * 2];
    world.store = &stores[_i];
    world.style = STRONG;
    world.current = 1;
    snprintf(mirror, sizeof(mirror), "source.mirrors=%s", uri_of(world.store, 0));
    char gone[PATH_BYTES];
    snprintf(gone, sizeof(gone), "%s://gone/m.bin%s",
             strncmp(world.store->uri, "gs", 2) ? "s3" : "gs",
             strchr(world.store->uri, '?') ? "?versionId=x" : "#7");
    run("load", gone, mirror);
    expect_version(0);
}
