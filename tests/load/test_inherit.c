/* What a version takes over from the one before, and what it does not. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "dcp_maker.h"
#include "kill_load.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "plan.h"
#include "publish.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "stranger.h"

enum { SHARDS = 4, SHARD_BYTES = 300000, HEAD_BYTES = 131072 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data[SHARDS];
static size_t bytes[SHARDS];
static unsigned versions[SHARDS];
static unsigned config_version; /* 0: there is none */
static bool weak;

static const char *etag_of(unsigned i, const char *quote, char text[64])
{
    snprintf(text, 64, "%s%se%u.%u%s", weak ? "W/" : "", quote, i, versions[i], quote);
    return text;
}

static bool answer_listing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    char etag[64];
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "<ListBucketResult><IsTruncated>false</IsTruncated>", NULL);
    for (unsigned i = 0; i < SHARDS; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>%s/%u.safetensors</Key><Size>%zu</Size><ETag>%s</ETag>"
                      "</Contents>",
                      strstr(request->target, "prefix=n") ? "n" : "m", i, bytes[i],
                      etag_of(i, "&quot;", etag));
    if (config_version)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>m/config.json</Key><Size>8</Size><ETag>&quot;c%u&quot;</ETag>"
                      "</Contents>",
                      config_version);
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

/* Shard i of this version, below two prefixes. */
static void store_shard(unsigned i, unsigned version)
{
    char name[64], etag[64], tensor[32];
    free(data[i]);
    versions[i] = version;
    snprintf(tensor, sizeof(tensor), "t%u%.*s", i, (int)version, "xxxxxxxx");
    data[i] = sl_model_safetensors(tensor, SHARD_BYTES / 4, &bytes[i]);
    for (unsigned prefix = 0; prefix < 2; prefix++) {
        snprintf(name, sizeof(name), "/bucket/%c/%u.safetensors", "mn"[prefix], i);
        sl_server_put(server, name, data[i], bytes[i], etag_of(i, "\"", etag));
    }
}

static void store_config(void)
{
    char text[16], etag[16];
    snprintf(text, sizeof(text), "{\"a\": %u}", config_version);
    snprintf(etag, sizeof(etag), "\"c%u\"", config_version);
    sl_server_put(server, "/bucket/m/config.json", text, 8, etag);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    for (unsigned i = 0; i < SHARDS; i++)
        store_shard(i, 1);
    sl_server_handle(server, answer_listing, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    for (unsigned i = 0; i < SHARDS; i++)
        free(sl_steal(&data[i]));
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)

static void make_spec(struct sl_specs *specs, const char *uri, const char *more)
{
    char text[1200];
    snprintf(text, sizeof(text),
             "source: {uri: \"%s\", s3: {endpoint: \"%s\", region: r, addressing: path, anonymous: "
             "true}}\n%s",
             uri, sl_server_url(server, ""), more);
    sl_model_spec(specs, "", path, text);
}

static void load_from(const char *uri, const char *more, struct sl_load_result *result)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    make_spec(&specs, uri, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_specs_release(&specs);
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
    ck_assert(!sl_model_exists(path, ".sluice/staging") &&
              !sl_model_exists(path, ".sluice/journal"));
}

/* The objects as they are, of prefix m. */
static void load(const char *more, struct sl_load_result *result)
{
    load_from("s3://bucket/m/", more, result);
    for (unsigned i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "%u.safetensors", i);
        ck_assert(sl_model_same(path, name, data[i], bytes[i]));
    }
}

static void file_path(unsigned i, char name[sizeof(path) + 32])
{
    snprintf(name, sizeof(path) + 32, "%s/%u.safetensors", path, i);
}

static struct stat look(unsigned i)
{
    struct stat status;
    char name[sizeof(path) + 32];
    file_path(i, name);
    ck_assert_int_eq(lstat(name, &status), 0);
    return status;
}

/* ---- which files are equal ------------------------------------------------------------------ */

static struct sl_plan *make_plan(const struct sl_specs *specs)
{
    const struct sl_spec *spec = &specs->items[0];
    const struct sl_plan_output output = sl_plan_output_of_spec(spec);
    struct sl_source_config config;
    struct sl_plan *plan;
    struct sl_err err = SL_ERR_INIT;
    sl_spec_source_config(spec, NULL, NULL, &config);
    ck_assert_msg(sl_plan_make(spec, &output, &config, &plan, &err) == 0, "%s", err.message);
    return plan;
}

/* The identity of the first file of a plan; "": it is like no other. */
static void identify(const char *uri, const char *more, char text[65])
{
    struct sl_specs specs;
    make_spec(&specs, uri, more);
    struct sl_plan *plan = make_plan(&specs);
    *text = 0;
    if (plan->files[0].identified)
        sl_hex(plan->files[0].identity, 32, text);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

#define SHA(text) "verify: {sha256: {0.safetensors: " text "}}\n"
#define ONES      "1111111111111111111111111111111111111111111111111111111111111111"
#define TWOS      "2222222222222222222222222222222222222222222222222222222222222222"
#define SINK(layout, more)                                                                         \
    "sink: {tmpfs: {path: /nowhere, layout: " layout "}}\ntensors: {" more "}\n"

static const struct {
    const char *uri, *more, *other_uri, *other;
    bool other_version, equal;
} pairs[] = {
    {"s3://bucket/m/", "", "s3://bucket/m/", "", false, true},
    {"s3://bucket/m/", "", "s3://bucket/m/", "", true, false},
    {"s3://bucket/m/", "", "s3://bucket/n/", "", false, false},
    {"s3://bucket/m/", "", "s3://bucket/m/", SINK("verbatim", ""), false, true},
    {"s3://bucket/m/", "", "s3://bucket/m/", "readers: {rangeBytes: 64Ki}\n", false, true},
    {"s3://bucket/m/", SHA(ONES), "s3://bucket/n/", SHA(ONES), true, true},
    {"s3://bucket/m/", SHA(ONES), "s3://bucket/m/", SHA(TWOS), false, false},
    {"s3://bucket/m/", SHA(ONES), "s3://bucket/m/", "", false, false},
    {"s3://bucket/m/", "", "s3://bucket/m/", SINK("safetensors", ""), false, false},
    {"s3://bucket/m/", SINK("safetensors", ""), "s3://bucket/m/", SINK("safetensors", ""), false,
     true},
    {"s3://bucket/m/", SINK("safetensors", ""), "s3://bucket/m/", SINK("tensorizer", ""), false,
     false},
    {"s3://bucket/m/", SINK("safetensors", ""), "s3://bucket/m/",
     SINK("safetensors", "cast: {F32: BF16}"), false, false},
    {"s3://bucket/m/", SINK("tensorizer", "cast: {F32: BF16}"), "s3://bucket/m/",
     SINK("tensorizer", "cast: {F32: F16}"), false, false},
    {"s3://bucket/m/", SINK("tensorizer", "cast: {F32: BF16}"), "s3://bucket/m/",
     SINK("tensorizer", "cast: {F32: BF16}"), false, true},
    {"s3://bucket/m/", SINK("safetensors", ""), "s3://bucket/m/", SINK("safetensors", ""), true,
     false},
};

SL_TEST_LOOP(files_are_equal_by_what_they_are_made_of, 0, SL_COUNT(pairs))
{
    char one[65], other[65];
    identify(pairs[_i].uri, pairs[_i].more, one);
    versions[0] += pairs[_i].other_version;
    store_shard(0, versions[0]);
    identify(pairs[_i].other_uri, pairs[_i].other, other);
    ck_assert_uint_eq(strlen(one), 64);
    ck_assert_int_eq(strcmp(one, other) == 0, pairs[_i].equal);
}

/* Stored once more, with the same bytes. */
SL_TEST(a_strong_etag_tells_that_bytes_are_equal_though_all_else_is_new)
{
    char one[65], other[65];
    identify("s3://bucket/m/0.safetensors", "", one);
    SL_SCRIPT(server, {.path = "/bucket/m/0.safetensors",
                       .headers = "x-amz-version-id: another\r\n"
                                  "Last-Modified: Sun, 06 Nov 2022 08:49:37 GMT\r\n"});
    identify("s3://bucket/m/0.safetensors", "", other);
    ck_assert_str_eq(one, other);
}

/* Of a distributed checkpoint: the index and one file stay, the other is a new one. */
SL_TEST(tensors_of_chunks_are_made_of_the_objects_of_all_chunks)
{
    static const struct dcp_made made = {
        .shape = "4 3",
        .chunks = {{.at = "0 0", .size = "2 3", .path = "a.distcp"},
                   {.at = "2 0", .size = "2 3", .path = "b.distcp"}}};
    static const char *const etags[][2] = {
        {"\"a1\"", "\"b1\""}, {"\"a1\"", "\"b1\""}, {"\"a1\"", "\"b2\""}, {"\"a2\"", "\"b2\""}};
    char told[SL_COUNT(etags)][65];
    sl_autobuf metadata = SL_BUF_INIT(1 << 20), file = SL_BUF_INIT(1 << 20);
    dcp_make(&made, &metadata, &file);
    sl_server_put(server, "/bucket/d/.metadata", metadata.data, metadata.used, "\"index\"");
    for (size_t i = 0; i < SL_COUNT(etags); i++) {
        sl_server_put(server, "/bucket/d/a.distcp", file.data, file.used, etags[i][0]);
        sl_server_put(server, "/bucket/d/b.distcp", file.data, file.used, etags[i][1]);
        identify("s3://bucket/d/.metadata", SINK("safetensors", ""), told[i]);
        ck_assert_msg(*told[i], "%zu", i);
    }
    ck_assert_str_eq(told[0], told[1]);
    ck_assert_str_ne(told[1], told[2]);
    ck_assert_str_ne(told[2], told[3]);
}

SL_TEST(what_has_no_version_is_like_nothing)
{
    char text[65];
    weak = true;
    for (unsigned i = 0; i < SHARDS; i++)
        store_shard(i, 1);
    identify("s3://bucket/m/", "", text);
    ck_assert_str_eq(text, "");
}

/* ---- what is taken over --------------------------------------------------------------------- */

SL_TEST(equal_files_are_linked_and_no_byte_of_them_is_asked_for)
{
    struct sl_load_result first, next;
    struct stat before[SHARDS];
    load("", &first);
    for (unsigned i = 0; i < SHARDS; i++)
        before[i] = look(i);
    store_shard(1, 2);
    load("", &next);
    ck_assert_uint_eq(first.inherited, 0);
    ck_assert_uint_eq(next.inherited, bytes[0] + bytes[2] + bytes[3]);
    ck_assert_uint_lt(next.fetched, bytes[1] + SHARDS * HEAD_BYTES + 1);
    ck_assert_uint_eq(next.resumed, 0);
    ck_assert_uint_eq(next.bytes, bytes[0] + bytes[1] + bytes[2] + bytes[3]);
    for (unsigned i = 0; i < SHARDS; i++) {
        struct stat now = look(i);
        ck_assert_int_eq(now.st_ino == before[i].st_ino, i != 1);
        ck_assert_uint_eq(now.st_nlink, 1);
        ck_assert_int_eq(now.st_mode & 07777, 0444);
    }
    load("", &next);
    ck_assert(next.already);
}

/* What `sluice plan` says. */
SL_TEST(a_plan_tells_beforehand_what_will_be_taken_over)
{
    struct sl_load_result result;
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    struct sl_inheritable there;
    make_spec(&specs, "s3://bucket/m/", "");
    const struct sl_tmpfs_options options = specs.items[0].sink.tmpfs;
    struct sl_plan *plan = make_plan(&specs);
    ck_assert_int_eq(sl_publish_inheritable(path, plan, &options, &there, &err), 0);
    ck_assert_uint_eq(there.bytes, 0);
    sl_plan_free(plan);
    load("", &result);
    store_shard(3, 2);
    plan = make_plan(&specs);
    ck_assert_int_eq(sl_publish_inheritable(path, plan, &options, &there, &err), 0);
    ck_assert_uint_eq(there.bytes, bytes[0] + bytes[1] + bytes[2]);
    ck_assert_uint_eq(there.fetch_bytes, there.bytes);
    ck_assert_uint_eq(there.link_bytes, there.bytes);
    char shard[sizeof(path) + 32];
    snprintf(shard, sizeof(shard), "%s/0.safetensors", path);
    ck_assert_int_eq(chmod(shard, 0644), 0); /* it will be copied */
    ck_assert_int_eq(sl_publish_inheritable(path, plan, &options, &there, &err), 0);
    ck_assert_uint_eq(there.bytes - there.link_bytes, bytes[0]);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

/* Their headers, casts and hashes are not made again, either. */
SL_TEST_LOOP(files_that_are_made_of_tensors_are_taken_over, 0, 3)
{
    static const char *const layouts[] = {"safetensors", "tensorizer", "safetensors"};
    struct sl_load_result first, next;
    char more[sizeof(path) + 128];
    snprintf(more, sizeof(more), "sink: {tmpfs: {path: \"%s\", layout: %s}}\n%s", path, layouts[_i],
             _i == 2 ? "tensors: {cast: {F32: BF16}}\n" : "");
    config_version = 1;
    store_config();
    load_from("s3://bucket/m/", more, &first);
    ck_assert_uint_gt(first.bytes, 2 * SHARD_BYTES);
    config_version = 2;
    store_config();
    load_from("s3://bucket/m/", more, &next);
    ck_assert_uint_eq(next.bytes, first.bytes);
    ck_assert_uint_ge(next.inherited, SHARDS * SHARD_BYTES);
    ck_assert_uint_lt(next.fetched, SHARDS * HEAD_BYTES + 9);
    store_shard(0, 2);
    load_from("s3://bucket/m/", more, &next);
    ck_assert_uint_le(next.inherited, 20);
}

/* ---- what is not sure ----------------------------------------------------------------------- */

static void overwrite(unsigned i, mode_t mode, bool keep_time)
{
    char name[sizeof(path) + 32];
    struct stat status = look(i);
    file_path(i, name);
    ck_assert_int_eq(chmod(name, 0644), 0);
    int fd = open(name, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "damage", 6, 1000), 6);
    if (!keep_time) /* another one, though the kernel's clock may not have ticked since the load */
        status.st_mtim.tv_sec--;
    ck_assert_int_eq(futimens(fd, (struct timespec[]){status.st_mtim, status.st_mtim}), 0);
    close(fd);
    ck_assert_int_eq(chmod(name, mode), 0);
}

static void change(void)
{
    overwrite(0, 0444, false);
}

/* Another file shows that not all is as it was. */
static void change_in_secret(void)
{
    overwrite(0, 0444, true);
    overwrite(2, 0444, false);
}

static void change_in_secret_what_is_copied(void)
{
    overwrite(0, 0644, true);
}

static void truncate_it(void)
{
    char name[sizeof(path) + 32];
    file_path(0, name);
    ck_assert_int_eq(chmod(name, 0644), 0);
    ck_assert_int_eq(truncate(name, 1000), 0);
}

static void remove_it(void)
{
    char name[sizeof(path) + 32];
    file_path(0, name);
    ck_assert_int_eq(unlink(name), 0);
}

static void put_a_link(void)
{
    char name[sizeof(path) + 32], target[sizeof(path) + 32];
    file_path(0, name);
    snprintf(target, sizeof(target), "%s/elsewhere", scratch);
    ck_assert_int_eq(rename(name, target), 0);
    ck_assert_int_eq(symlink(target, name), 0);
}

static void put_a_folder(void)
{
    char name[sizeof(path) + 32];
    file_path(0, name);
    ck_assert_int_eq(unlink(name), 0);
    ck_assert_int_eq(mkdir(name, 0755), 0);
    ck_assert_int_eq(rmdir(name), 0);
}

static void make_writable(void)
{
    char name[sizeof(path) + 32];
    file_path(0, name);
    ck_assert_int_eq(chmod(name, 0664), 0);
}

static void give_away(void)
{
    char name[sizeof(path) + 32];
    file_path(0, name);
    ck_assert_int_eq(chown(name, STRANGER_UID, STRANGER_GID), 0);
}

static void do_nothing(void)
{
}

static const struct {
    void (*damage)(void);
    const char *more;
    unsigned taken;  /* of the three equal shards, bit for bit */
    unsigned linked; /* the same: of these */
    bool root;
} doubts[] = {
    {do_nothing, "", 0xd, 0xd, false},
    {do_nothing, "readers: {connections: 3}\n", 0xd, 0xd, false},
    {change, "", 0xc, 0xc, false},
    {change_in_secret, "", 0x8, 0x8, false},
    {change_in_secret_what_is_copied, "", 0xc, 0xc, false},
    {truncate_it, "", 0xc, 0xc, false},
    {remove_it, "", 0xc, 0xc, false},
    {put_a_link, "", 0xc, 0xc, false},
    {put_a_folder, "", 0xc, 0xc, false},
    {make_writable, "", 0xd, 0xc, false},
    {give_away, "", 0xc, 0xc, true},
};

SL_TEST_LOOP(what_is_not_sure_is_fetched, 0, SL_COUNT(doubts))
{
    struct sl_load_result result;
    uint64_t taken = 0;
    ino_t before[SHARDS];
    if (doubts[_i].root && !stranger_exists("what_is_not_sure_is_fetched"))
        return;
    load("", &result);
    for (unsigned i = 0; i < SHARDS; i++)
        before[i] = look(i).st_ino;
    doubts[_i].damage();
    store_shard(1, 2);
    load(doubts[_i].more, &result);
    for (unsigned i = 0; i < SHARDS; i++) {
        taken += doubts[_i].taken >> i & 1 ? bytes[i] : 0;
        if (doubts[_i].linked >> i & 1)
            ck_assert_uint_eq(look(i).st_ino, before[i]);
        else
            ck_assert_int_eq(look(i).st_mode & 07777, 0444);
    }
    ck_assert_uint_eq(result.inherited, taken);
    ck_assert_uint_ge(result.fetched + taken, result.bytes);
}

SL_TEST(a_weak_version_is_read_whole)
{
    struct sl_load_result result;
    weak = true;
    for (unsigned i = 0; i < SHARDS; i++)
        store_shard(i, 1);
    load("", &result);
    load("", &result);
    ck_assert(!result.already);
    ck_assert_uint_eq(result.inherited, 0);
    ck_assert_uint_ge(result.fetched, result.bytes);
}

/* ---- kills ---------------------------------------------------------------------------------- */

/* A load of the program that is killed at its nth request. */
static void kill_at(unsigned nth, const char *replace)
{
    char endpoint[128], set[64];
    snprintf(endpoint, sizeof(endpoint), "source.s3.endpoint=%s", sl_server_url(server, ""));
    snprintf(set, sizeof(set), "sink.tmpfs.replace=%s", replace);
    const char *words[] = {"load",       "s3://bucket/m/",
                           "--to",       path,
                           "--set",      endpoint,
                           "--set",      "source.s3.region=r",
                           "--set",      set,
                           "--set",      "source.s3.addressing=path",
                           "--set",      "source.s3.anonymous=true",
                           "--progress", "none",
                           NULL};
    sl_kill_load(server, words, nth);
}

/* Bytes of another name of a published file are never written, whatever becomes of the load. */
SL_TEST_LOOP(a_kill_leaves_the_old_version_whole_and_the_next_load_goes_on, 0, 4)
{
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    char name[sizeof(path) + 32], kept[sizeof(path) + 32];
    uint8_t *first = NULL;
    size_t first_bytes;
    load("", &result);
    first = sl_model_read(path, "0.safetensors", &first_bytes);
    file_path(0, name);
    snprintf(kept, sizeof(kept), "%s/kept", scratch);
    ck_assert_int_eq(link(name, kept), 0);
    store_shard(1, 2);
    kill_at(2 + (unsigned)_i % 2 * 4, "keep-old");
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
    ck_assert(sl_model_exists(path, ".sluice/ready"));
    ck_assert(sl_model_same(path, "0.safetensors", first, first_bytes));
    if (_i >= 2)
        ck_assert_int_eq(utimensat(AT_FDCWD, name, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
    load("", &result);
    ck_assert_uint_eq(result.inherited, bytes[2] + bytes[3] + (_i < 2 ? bytes[0] : 0));
    ck_assert(sl_model_same(scratch, "kept", first, first_bytes));
    free(first);
}

SL_TEST_LOOP(where_the_old_version_goes_first_its_equal_files_stay, 0, 3)
{
    struct sl_load_result result;
    char more[sizeof(path) + 64];
    snprintf(more, sizeof(more), "sink: {tmpfs: {path: \"%s\", replace: free-first}}\n", path);
    load("", &result);
    ino_t before = look(0).st_ino;
    store_shard(1, 2);
    if (_i)
        kill_at(_i == 1 ? 2 : 6, "free-first");
    load(more, &result);
    ck_assert_uint_ge(result.inherited + result.resumed, bytes[0] + bytes[2] + bytes[3]);
    ck_assert_uint_eq(look(0).st_ino, before);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Linked, and copied. */
SL_TEST_LOOP(every_failing_allocation_leaves_a_whole_version, 0, 2)
{
    struct sl_load_result result;
    struct sl_specs specs;
    char name[sizeof(path) + 32];
    bool over = false;
    ck_assert_int_eq(sl_memory_put("m/0.safetensors", data[0], bytes[0], NULL), 0);
    sl_model_spec(&specs, "memory://m/", path, "readers: {connections: 1}\n");
    file_path(0, name);
    for (unsigned nth = 1; nth < 2000 && !over; nth++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_memory_put("m/config.json", "1", 1, NULL), 0);
        ck_assert_int_eq(sl_load_run(&specs.items[0], NULL, NULL, &result, &err), 0);
        ck_assert_int_eq(chmod(name, _i ? 0644 : 0444), 0);
        ck_assert_int_eq(sl_memory_put("m/config.json", "2", 1, NULL), 0);
        sl_alloc_fail_at(nth);
        int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
        over = sl_alloc_count() < nth;
        sl_alloc_fail_at(0);
        ck_assert_msg(done == 0 || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        ck_assert(sl_model_same(path, "config.json", "2", 1) ||
                  (done < 0 && sl_model_same(path, "config.json", "1", 1)));
        ck_assert(sl_model_same(path, "0.safetensors", data[0], bytes[0]));
        ck_assert(!over || (done == 0 && result.inherited == bytes[0]));
    }
    ck_assert(over);
    sl_specs_release(&specs);
    sl_memory_clear();
}
