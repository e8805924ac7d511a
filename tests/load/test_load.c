/* Whole loads, from spec to ready, through memory, files and a server that misbehaves. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "kill_load.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"
#include "skip.h"
#include "tree.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
}

static void put(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

static int load_from(const char *uri, const char *more, struct sl_load_result *result,
                     struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, uri, path, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, err);
    sl_specs_release(&specs);
    return done;
}

static void expect_load(const char *uri, const char *more, struct sl_load_result *result)
{
    struct sl_err err;
    int done = load_from(uri, more, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert(sl_model_exists(path, ".sluice/ready"));
    ck_assert(!sl_model_exists(path, ".sluice/staging"));
}

SL_TEST(bytes_arrive_and_the_second_load_reads_nothing)
{
    struct sl_load_result result;
    size_t bytes = 3 * 1024 * 1024 + 17;
    uint8_t *noise = sl_model_noise(bytes, 1);
    put("m/weights.bin", noise, bytes);
    put("m/sub/config.json", "{}", 2);
    put("m/empty", "", 0);
    expect_load("memory://m/", "", &result);
    ck_assert(!result.already);
    ck_assert_uint_eq(result.bytes, bytes + 2);
    ck_assert_uint_eq(result.files, 3);
    ck_assert(sl_model_same(path, "weights.bin", noise, bytes));
    ck_assert(sl_model_same(path, "sub/config.json", "{}", 2));
    ck_assert(sl_model_same(path, "empty", "", 0));
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, NULL), 0);
    expect_load("memory://m/", "", &result);
    ck_assert(result.already);
    ck_assert_uint_le(result.fetched, bytes / 16); /* to see what is there */
    free(noise);
}

/* One request to look, eight ranges; the last is silent for long. */
struct patient_load {
    const char *uri;
    struct sl_load_result result;
};

static void load_patiently(void *arg)
{
    struct patient_load *load = arg;
    expect_load(load->uri,
                "readers: {hedge: off, connections: 4, rangeBytes: 64Ki}\n"
                "verify: {sidecar: off}\n",
                &load->result);
}

SL_TEST_LOOP(a_spec_may_have_slow_requests_waited_for, 0, 2)
{
    enum { BYTES = 8 * 64 * 1024, REQUESTS = 9, SLOW_MS = 2500 };
    struct sl_server *server = sl_server_start();
    struct patient_load load = {.uri = sl_server_url(server, "/weights.bin")};
    struct fake_clock_work work;
    uint8_t *noise = sl_model_noise(BYTES, 4);
    sl_server_put(server, "/weights.bin", noise, BYTES, "\"one\"");
    SL_SCRIPT(server, {.first = _i ? REQUESTS : 1, .fault = SL_FAULT_SLOW, .after = SLOW_MS});
    sl_test_adapts(); /* a load that is pinned hedges nothing, whatever its spec says */
    fake_clock_hold();
    fake_clock_begin(&work, load_patiently, &load);
    fake_clock_await(SLOW_MS * SL_NS_PER_MS);
    fake_clock_turn(SLOW_MS * SL_NS_PER_MS);
    fake_clock_end(&work);
    fake_clock_release();
    ck_assert_uint_eq(work.took_ns, SLOW_MS * SL_NS_PER_MS);
    ck_assert(sl_model_same(path, "weights.bin", noise, BYTES));
    const struct sl_load_result result = load.result;
    ck_assert_uint_eq(result.hedged, 0);
    ck_assert_uint_eq(sl_server_request_count(server), REQUESTS);
    sl_server_stop(server);
    free(noise);
}

SL_TEST(another_version_replaces_and_a_failed_one_does_not)
{
    struct sl_load_result result;
    struct sl_err err;
    put("m/a", "one", 3);
    put("m/b", "two", 3);
    expect_load("memory://m/", "", &result);
    sl_memory_clear();
    put("m/a", "three", 5);
    sl_memory_fail_at(2); /* the first opens the object */
    ck_assert_int_eq(load_from("memory://m/", "", &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(sl_model_same(path, "a", "one", 3) && sl_model_same(path, "b", "two", 3));
    ck_assert(sl_model_exists(path, ".sluice/ready"));
    expect_load("memory://m/", "", &result);
    ck_assert(sl_model_same(path, "a", "three", 5));
    ck_assert(!sl_model_exists(path, "b"));
}

SL_TEST(a_broken_off_load_goes_on_where_it_was)
{
    struct sl_load_result result;
    struct sl_err err;
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 2);
    static const char slow[] = "readers: {rangeBytes: 64Ki, connections: 1}\n";
    put("m/weights.bin", noise, bytes);
    sl_memory_fail_at(9);
    ck_assert_int_eq(load_from("memory://m/", slow, &result, &err), -1);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    expect_load("memory://m/", "readers: {rangeBytes: 128Ki, connections: 2}\n", &result);
    ck_assert_msg(result.resumed >= 5 * 64 * 1024, "%u bytes resumed", (unsigned)result.resumed);
    ck_assert(sl_model_same(path, "weights.bin", noise, bytes));
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, NULL), 0);

    sl_memory_clear(); /* broken off, and then another version: nothing of the first remains */
    uint8_t *other = sl_model_noise(bytes, 3), *third = sl_model_noise(bytes, 4);
    put("m/weights.bin", other, bytes);
    sl_memory_fail_at(9);
    ck_assert_int_eq(load_from("memory://m/", slow, &result, &err), -1);
    put("m/weights.bin", third, bytes);
    expect_load("memory://m/", slow, &result);
    ck_assert_uint_eq(result.resumed, 0);
    ck_assert(sl_model_same(path, "weights.bin", third, bytes));
    free(noise);
    free(other);
    free(third);
}

SL_TEST(a_wrong_hash_publishes_nothing)
{
    struct sl_load_result result;
    struct sl_err err;
    put("m/a", "x", 1);
    ck_assert_int_eq(
        load_from("memory://m/",
                  "verify: {sha256: {a: "
                  "\"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4880\"}}\n",
                  &result, &err),
        -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "object 'a'"), "%s",
                  err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "a"));
    expect_load("memory://m/",
                "verify: {sha256: {a: "
                "\"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\"}}\n",
                &result);
    ck_assert_uint_eq(result.checks, 1);
    ck_assert_uint_eq(result.unhashed, 0);
}

SL_TEST(selected_tensors_are_where_the_manifest_says)
{
    struct sl_load_result result;
    size_t bytes, found_bytes;
    uint8_t *model = sl_model_safetensors("a0,b0,a1,b1", 1000, &bytes);
    put("m/model.safetensors", model, bytes);
    put("m/config.json", "{}", 2);
    char more[600];
    snprintf(more, sizeof(more),
             "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\ntensors: {include: [\"a*\"]}\n",
             path);
    expect_load("memory://m/", more, &result);
    ck_assert_uint_eq(result.tensors, 2);
    uint8_t *found = sl_model_read(path, "model.safetensors", &found_bytes);
    ck_assert_ptr_nonnull(found);
    json_t *manifest = sl_model_manifest(path);
    json_t *tensors = json_object_get(manifest, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *tensor = json_array_get(tensors, i);
        size_t offset = sl_json_get_uint(tensor, "offset", 0),
               number = strcmp(sl_json_get_string(tensor, "name"), "a0") ? 2 : 0;
        ck_assert_uint_eq(sl_json_get_uint(tensor, "bytes", 0), 4000);
        ck_assert_uint_le(offset + 4000, found_bytes);
        ck_assert_mem_eq(found + offset, model + bytes - 16000 + number * 4000, 4000);
    }
    json_decref(manifest);
    ck_assert(sl_model_same(path, "config.json", "{}", 2));
    free(found);
    free(model);
}

SL_TEST(a_mirror_helps_when_the_source_is_gone)
{
    struct sl_load_result result;
    struct sl_err err;
    char more[256];
    put("good/a", "x", 1);
    put("other/b", "y", 1);
    snprintf(more, sizeof(more),
             "source: {uri: \"memory:gone/a\", mirrors: [\"memory:lost/a\", \"memory:good/a\"]}\n");
    sl_memory_clear();
    put("good/c", "x", 1);
    ck_assert_int_eq(load_from("", more, &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    put("good/a", "x", 1);
    expect_load("", more, &result);
    ck_assert_str_eq(result.uri, "memory:good/a");
}

/* Whatever is wrong with a place, another one may be right; but not after wrong bytes. */
SL_TEST_LOOP(a_mirror_helps_when_the_source_refuses, 0, 5)
{
    static const int statuses[] = {400, 405, 422, 403, 412};
    struct sl_load_result result;
    struct sl_err err;
    char more[400];
    struct sl_server *server = sl_server_start();
    put("good/a", "x", 1);
    snprintf(more, sizeof(more),
             "source: {uri: \"%s\", mirrors: [\"%s\", \"memory:good/a\"]}\n"
             "readers: {attempts: 1}\n",
             sl_server_url(server, "/a"), sl_server_url(server, "/b"));
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS, .status = statuses[_i]});
    int done = load_from("", more, &result, &err);
    ck_assert_int_eq(done, _i < 4 ? 0 : -1);
    if (done == 0)
        ck_assert_str_eq(result.uri, "memory:good/a");
    sl_server_stop(server);
}

SL_TEST(an_object_that_changes_starts_the_load_again_once)
{
    struct sl_load_result result;
    struct sl_err err;
    struct sl_server *server = sl_server_start();
    size_t bytes = 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 5);
    static const char small[] = "readers: {rangeBytes: 128Ki}\n";
    sl_server_put(server, "/m/weights.bin", noise, bytes, "\"one\"");
    const struct sl_step once[] = {
        {.path = "/m/weights.bin", .first = 4, .fault = SL_FAULT_CHANGED}};
    sl_server_script(server, once, 1);
    expect_load(sl_server_url(server, "/m/weights.bin"), small, &result);
    ck_assert(sl_model_same(path, "weights.bin", noise, bytes));

    sl_server_put(server, "/m/weights.bin", noise, bytes, "\"two\"");
    const struct sl_step always[] = {
        {.path = "/m/weights.bin", .first = 14, .last = 1000000, .fault = SL_FAULT_CHANGED}};
    sl_server_script(server, always, 1);
    ck_assert_int_eq(load_from(sl_server_url(server, "/m/weights.bin"), small, &result, &err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    ck_assert(sl_model_exists(path, ".sluice/ready")); /* the old version stays */
    ck_assert(sl_model_same(path, "weights.bin", noise, bytes));
    sl_server_stop(server);
    free(noise);
}

SL_TEST(two_processes_load_once)
{
    char file[512];
    size_t bytes = 8 * 1024 * 1024;
    uint8_t *noise = sl_model_noise(bytes, 7);
    snprintf(file, sizeof(file), "%s/weights.bin", scratch);
    FILE *out = fopen(file, "w");
    ck_assert_uint_eq(fwrite(noise, 1, bytes, out), bytes);
    fclose(out);
    pid_t children[3];
    for (size_t i = 0; i < SL_COUNT(children); i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct sl_load_result result;
            struct sl_err err;
            int done = load_from(file, "", &result, &err);
            _exit(done < 0 ? 9 : result.already ? 1 : 0);
        }
    }
    int loaded = 0, already = 0;
    for (size_t i = 0; i < SL_COUNT(children); i++) {
        int status;
        waitpid(children[i], &status, 0);
        ck_assert(WIFEXITED(status));
        loaded += WEXITSTATUS(status) == 0;
        already += WEXITSTATUS(status) == 1;
    }
    ck_assert_int_eq(loaded, 1);
    ck_assert_int_eq(already, 2);
    ck_assert(sl_model_same(path, "weights.bin", noise, bytes));
    free(noise);
}

enum { STEP = 64 * 1024, STEPS = 12 };

SL_TEST(a_killed_load_resumes_wherever_it_was)
{
    static const char one[] = "readers: {connections: 1, rangeBytes: 64Ki}\n";
    struct sl_server *server = sl_server_start();
    struct sl_load_result result;
    uint8_t *noise = sl_model_noise(STEPS * STEP, 8);
    sl_server_put(server, "/m/weights.bin", noise, STEPS * STEP, "\"one\"");
    const char *url = sl_server_url(server, "/m/weights.bin");
    const char *const words[] = {"load",          url,    "--to", path, "--connections", "1",
                                 "--range-bytes", "64Ki", NULL};
    expect_load(url, one, &result);
    unsigned requests = sl_server_request_count(server);
    uint64_t fetched = result.fetched;
    ck_assert_uint_ge(requests, 1 + STEPS);
    for (unsigned nth = 1; nth <= requests; nth++) {
        ck_assert_int_eq(sl_tree_remove(scratch_fd, "model"), 0);
        sl_kill_load(server, words, nth);
        ck_assert(!sl_model_exists(path, ".sluice/ready"));
        expect_load(url, one, &result);
        /* The first request asks what there is; each of the others brings a step. */
        ck_assert_uint_eq(result.resumed, nth < 2 ? 0 : (nth - 2) * STEP);
        ck_assert_uint_eq(result.fetched, fetched - result.resumed);
        ck_assert(sl_model_same(path, "weights.bin", noise, STEPS * STEP));
        ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, NULL), 0);
    }
    sl_server_stop(server);
    free(noise);
}

enum { LISTED = 40 };

/* Enough of S3: one page of a listing with strong ETags. */
static bool answer_listing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "<ListBucketResult><IsTruncated>false</IsTruncated>", NULL);
    for (unsigned i = 0; i < LISTED; i++)
        sl_buf_printf(
            &text, NULL,
            "<Contents><Key>m/f%02u</Key><Size>%u</Size><ETag>&quot;e%u&quot;</ETag></Contents>", i,
            100 + i, i);
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

SL_TEST(small_objects_of_a_listing_cost_one_request_each)
{
    struct sl_load_result result;
    struct sl_err err;
    struct sl_server *server = sl_server_start();
    uint8_t *noise = sl_model_noise(1000, 9);
    char more[400], name[32], etag[32];
    for (unsigned i = 0; i < LISTED; i++) {
        snprintf(name, sizeof(name), "/bucket/m/f%02u", i);
        snprintf(etag, sizeof(etag), "\"e%u\"", i);
        sl_server_put(server, name, noise + i, 100 + i, etag);
    }
    sl_server_handle(server, answer_listing, NULL);
    snprintf(more, sizeof(more),
             "source: {uri: \"s3://bucket/m/\", s3: {endpoint: \"%s\", region: r, addressing: "
             "path, anonymous: true}}\nreaders: {hedge: \"off\"}\n",
             sl_server_url(server, ""));
    expect_load("", more, &result);
    ck_assert_uint_eq(sl_server_request_count(server), 1 + LISTED);
    for (unsigned i = 0; i < LISTED; i++) {
        snprintf(name, sizeof(name), "f%02u", i);
        ck_assert(sl_model_same(path, name, noise + i, 100 + i));
    }
    expect_load("", more, &result);
    ck_assert(result.already);
    ck_assert_uint_eq(sl_server_request_count(server),
                      2 + LISTED); /* the listing tells that nothing changed */
    sl_server_put(server, "/bucket/m/f07", noise, 107,
                  "\"other\""); /* the listing is stale: never a mixture */
    ck_assert_int_eq(sl_tree_remove(scratch_fd, "model"), 0);
    ck_assert_int_eq(load_from("", more, &result, &err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "f07"), "%s", err.message);
    sl_server_stop(server);
    free(noise);
}

static void *raise_later(void *arg)
{
    struct sl_server *server = ((void **)arg)[0];
    SL_AWAIT(sl_server_request_count(server) >= 2, "the second request");
    sl_cancel_raise(((void **)arg)[1], SIGTERM);
    return NULL;
}

SL_TEST(cancel_ends_a_load_that_waits)
{
    struct sl_server *server = sl_server_start();
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    struct sl_specs specs;
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    static const uint8_t zeros[200000];
    sl_server_put(server, "/m/w.bin", zeros, sizeof(zeros), "\"one\"");
    const struct sl_step stall[] = {
        {.first = 2, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1}};
    sl_server_script(server, stall, 1);
    /* A stall is one when the test is long over. */
    sl_model_spec(&specs, sl_server_url(server, "/m/w.bin"), path,
                  "readers: {stallSeconds: 3600}\n");
    void *arg[] = {server, cancel};
    pthread_t thread;
    ck_assert_int_eq(sl_thread_start(&thread, "raise", raise_later, arg, NULL), 0);
    ck_assert_int_eq(sl_load_run(&specs.items[0], cancel, NULL, &result, &err), -1);
    pthread_join(thread, NULL);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
    sl_specs_release(&specs);
    sl_cancel_free(cancel);
    sl_server_stop(server);
}

SL_TEST(free_first_takes_the_old_version_away)
{
    struct sl_load_result result;
    struct sl_err err;
    char more[600];
    snprintf(more, sizeof(more), "sink: {tmpfs: {path: \"%s\", replace: free-first}}\n", path);
    put("m/a", "one", 3);
    expect_load("memory://m/", more, &result);
    put("m/a", "two", 3);
    sl_memory_fail_at(2);
    ck_assert_int_eq(load_from("memory://m/", more, &result, &err), -1);
    ck_assert(!sl_model_exists(path, "a") && !sl_model_exists(path, ".sluice/ready"));
    expect_load("memory://m/", more, &result);
    ck_assert(sl_model_same(path, "a", "two", 3));
}

SL_TEST(files_and_folders_are_given_to_the_owner)
{
    struct sl_load_result result;
    struct stat status;
    char more[600], name[512];
    if (geteuid() != 0)
        SL_SKIP("only root gives files away");
    snprintf(more, sizeof(more),
             "sink: {tmpfs: {path: \"%s\", owner: \"1234\", group: \"2345\"}}\n", path);
    put("m/deep/er/a", "one", 3);
    expect_load("memory://m/", more, &result);
    static const char *const names[] = {"deep", "deep/er", "deep/er/a"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        snprintf(name, sizeof(name), "%s/%s", path, names[i]);
        ck_assert_int_eq(lstat(name, &status), 0);
        ck_assert(status.st_uid == 1234 && status.st_gid == 2345);
        ck_assert_int_eq(status.st_mode & 0777, i == 2 ? 0444 : 0555);
    }
    snprintf(more, sizeof(more), "sink: {tmpfs: {path: \"%s\", group: \"3456\"}}\n", path);
    expect_load("memory://m/", more, &result);
    ck_assert_msg(result.already, "nothing but the group is new");
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        snprintf(name, sizeof(name), "%s/%s", path, names[i]);
        ck_assert_int_eq(lstat(name, &status), 0);
        ck_assert(status.st_uid == 1234 && status.st_gid == 3456);
        ck_assert_int_eq(status.st_mode & 0777, i == 2 ? 0444 : 0555);
    }
    put("m/deep/er/a", "two", 3);
    expect_load("memory://m/", more, &result);
    ck_assert(sl_model_same(path, "deep/er/a", "two", 3));
}

SL_TEST(a_destination_that_cannot_be_is_refused)
{
    struct sl_load_result result;
    struct sl_err err;
    put("m/a", "x", 1);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    close(fd);
    ck_assert_int_eq(load_from("memory://m/", "", &result, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, path), "%s", err.message);
}

SL_TEST(every_failing_allocation_is_survived)
{
    struct sl_load_result result;
    struct sl_err err;
    struct sl_specs specs;
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a,b", 16, &bytes);
    put("m/model.safetensors", model, bytes);
    sl_model_spec(&specs, "memory://m/", path, "readers: {connections: 1}\n");
    unsigned succeeded = 0;
    for (unsigned nth = 1; nth < 2000 && succeeded < 3; nth++) {
        int state = open(scratch, O_RDONLY | O_DIRECTORY);
        sl_alloc_fail_at(nth);
        err = (struct sl_err)SL_ERR_INIT;
        int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
        sl_alloc_fail_at(0);
        succeeded = done == 0 && !result.already ? succeeded + 1 : succeeded;
        ck_assert_msg(done == 0 || err.kind == SL_E_NO_SPACE, "allocation %u: %s", nth,
                      err.message);
        if (sl_model_exists(path, ".sluice/ready"))
            ck_assert(sl_model_same(path, "model.safetensors", model, bytes));
        ck_assert(done < 0 || sl_model_exists(path, ".sluice/ready"));
        ck_assert_int_eq(sl_tree_remove(state, "model"), 0);
        close(state);
    }
    ck_assert_uint_eq(succeeded, 3);
    sl_specs_release(&specs);
    free(model);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
