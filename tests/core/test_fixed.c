/* Loads that are pinned: what may stand in readers.fixed, that what a load decided pins the next
 * one, and that pinned loads send the same requests whatever the machine does meanwhile. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "concurrency.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"
#include "seed.h"
#include "thread.h"

enum { MIB = 1024 * 1024, BYTES = 9 * MIB + 12345, TEXT_BYTES = 256 * 1024 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *noise;
static struct sl_err err;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    noise = sl_model_noise(BYTES, 6);
    server = NULL;
    err = (struct sl_err)SL_ERR_INIT;
}

static void begin_server(void)
{
    server = sl_server_start();
    sl_server_put(server, "/m.bin", noise, BYTES, "\"one\"");
}

static void end_server(void)
{
    sl_server_stop(server);
    server = NULL;
}

static void teardown(void)
{
    free(noise);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)

/* ---- the text -------------------------------------------------------------------------------- */

SL_TEST(a_text_is_read_and_printed)
{
    static const struct {
        const char *text, *printed;
    } rows[] = {
        {NULL, ""},
        {"", ""},
        {" ,", ""},
        {"usual", "usual"},
        {"connections=8", "connections=8"},
        {" threads=2,connections=8 ", "connections=8 threads=2"},
        {"range-bytes=16MiB window-bytes=65536", "range-bytes=16MiB window-bytes=64KiB"},
        {"request-worth=65537", "request-worth=65537"},
        {"openings=32\npreconnect=0\thedge=off", "openings=32 preconnect=0 hedge=off"},
        {"crc=host,cast=gpu,decrypt=gpu", "decrypt=gpu cast=gpu crc=host"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_fixed fixed, again;
        char text[SL_FIXED_TEXT_BYTES];
        ck_assert_msg(sl_fixed_parse(rows[i].text, &fixed, &err) == 0, "%s", err.message);
        ck_assert_str_eq(sl_fixed_print(&fixed, text), rows[i].printed);
        ck_assert_int_eq(fixed.on, *rows[i].printed != 0);
        ck_assert_int_eq(sl_fixed_parse(text, &again, &err), 0);
        ck_assert_mem_eq(&fixed, &again, sizeof(fixed));
    }
}

SL_TEST(a_wrong_text_is_refused_in_a_sentence)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"usaul", "'usaul' pins nothing, did you mean 'usual'?"},
        {"conections=8", "'conections=8' pins nothing, did you mean 'connections=…'?"},
        {"rangeBytes=8Mi", "'rangeBytes=8Mi' pins nothing, did you mean 'range-bytes=…'?"},
        {"connections", "'connections' pins nothing, did you mean 'connections=…'?"},
        {"growth=off", "'growth=off' pins nothing: expected usual, or KEY=VALUE of connections, "
                       "threads, range-bytes, window-bytes, request-worth, openings, preconnect, "
                       "hedge, decrypt, cast, crc"},
        {"threads=0", "'threads': expected a number from 1 to 64, not '0'"},
        {"range-bytes=1", "'range-bytes': expected a size from 64 KiB to 5 GiB, not '1'"},
        {"connections=auto", "'connections': expected a whole number, not 'auto'"},
        {"hedge=auto", "'hedge': expected one of off, not 'auto'"},
        {"cast=gpus", "'cast': expected one of host|gpu, not 'gpus', did you mean 'gpu'?"},
        {"threads=1 threads=1", "'threads' is given twice"},
        {"usual threads=1", "'usual' stands alone: what the pairs leave out is as usual in any "
                            "case"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_fixed fixed;
        ck_assert_int_eq(sl_fixed_parse(rows[i].text, &fixed, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_str_eq(err.message, rows[i].message);
    }
}

/* ---- in a spec ------------------------------------------------------------------------------- */

static int parse(const char *more, struct sl_specs *specs)
{
    sl_autobuf text = SL_BUF_INIT(4096);
    sl_buf_printf(&text, NULL,
                  "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                  "source: {uri: file:///m}\nsink: {tmpfs: {path: /t}}\n%s",
                  more);
    return sl_spec_parse(sl_buf_string(&text), text.used, "spec.yaml", NULL, 0, specs, NULL, &err);
}

SL_TEST(what_it_says_twice_must_agree)
{
    static const char *const wrong[] = {
        "readers: {connections: 4, fixed: connections=5}",
        "readers: {rangeBytes: 1Mi, fixed: range-bytes=2Mi}",
        "readers: {slices: least-bytes, fixed: request-worth=64Ki}",
        "readers: {hedge: auto, fixed: hedge=off}",
    };
    static const char *const right[] = {
        "readers: {connections: 4, fixed: connections=4}",
        "readers: {rangeBytes: 1Mi, fixed: range-bytes=1024Ki}",
        "readers: {slices: least-bytes, fixed: request-worth=1Ki}",
        "readers: {hedge: off, fixed: hedge=off}",
        "readers: {hedge: auto, fixed: usual}",
    };
    struct sl_specs specs = {0};
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        ck_assert_msg(parse(wrong[i], &specs) == -1, "%s", wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.message, "is pinned to something else than 'readers."));
        ck_assert_ptr_nonnull(strstr(err.message, "spec.yaml:6:"));
    }
    for (size_t i = 0; i < SL_COUNT(right); i++) {
        ck_assert_msg(parse(right[i], &specs) == 0, "%s", err.message);
        ck_assert(specs.items[0].fixed.on);
        sl_specs_release(&specs);
    }
}

SL_TEST(one_of_both_is_enough)
{
    struct sl_specs specs = {0};
    ck_assert_int_eq(parse("readers: {fixed: connections=5 range-bytes=2Mi}", &specs), 0);
    ck_assert_uint_eq(specs.items[0].readers.connections, 5);
    ck_assert_uint_eq(specs.items[0].readers.range_bytes, 2 * MIB);
    ck_assert_int_eq(specs.items[0].readers.hedge, SL_HEDGE_OFF);
    sl_specs_release(&specs);
    ck_assert_int_eq(parse("readers: {connections: 6, fixed: threads=1}", &specs), 0);
    ck_assert_uint_eq(specs.items[0].readers.connections, 6);
    sl_specs_release(&specs);
}

SL_TEST(without_it_the_environment_counts)
{
    struct sl_specs specs = {0};
    ck_assert_int_eq(parse("", &specs), 0);
    ck_assert(specs.items[0].fixed.on); /* as all claims */
    sl_specs_release(&specs);
    setenv("SLUICE_FIXED", "connections=3", 1);
    ck_assert_int_eq(parse("", &specs), 0);
    ck_assert_uint_eq(specs.items[0].readers.connections, 3);
    sl_specs_release(&specs);
    ck_assert_int_eq(parse("readers: {fixed: connections=4}", &specs), 0);
    ck_assert_uint_eq(specs.items[0].readers.connections, 4);
    sl_specs_release(&specs);
    setenv("SLUICE_FIXED", "connections=0", 1);
    ck_assert_int_eq(parse("", &specs), -1);
    ck_assert_str_eq(err.message,
                     "SLUICE_FIXED: 'connections': expected a number from 1 to 1024, not '0'");
    sl_test_adapts();
    ck_assert_int_eq(parse("", &specs), 0);
    ck_assert(!specs.items[0].fixed.on);
    sl_specs_release(&specs);
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void load(const char *fixed, const char *more, struct sl_load_result *result)
{
    static unsigned number;
    struct sl_specs specs;
    char readers[SL_FIXED_TEXT_BYTES + 128];
    snprintf(path, sizeof(path), "%s/model%u", scratch, number++);
    snprintf(readers, sizeof(readers), "readers: {fixed: \"%s\"%s}\n", fixed, more);
    sl_model_spec(&specs, sl_server_url(server, "/m.bin"), path, readers);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    ck_assert(sl_model_same(path, "m.bin", noise, BYTES));
}

SL_TEST_LOOP(what_a_load_decided_pins_the_next_to_the_same, 0, 4)
{
    static const char *const ways[] = {"", ", rangeBytes: 256Ki", ", memoryBytes: 1Mi",
                                       ", connections: 5"};
    struct sl_load_result adaptive, pinned;
    sl_test_adapts();
    begin_server();
    load("", ways[_i], &adaptive);
    load(adaptive.reading.decided, ways[_i], &pinned);
    ck_assert_str_eq(pinned.reading.decided, adaptive.reading.decided);
    load(pinned.reading.decided, ways[_i], &adaptive);
    ck_assert_str_eq(pinned.reading.decided, adaptive.reading.decided);
    end_server();
}

SL_TEST(a_busy_store_gets_no_fewer_connections)
{
    struct sl_load_result result;
    begin_server();
    SL_SCRIPT(server, {.first = 4, .last = 6, .fault = SL_FAULT_STATUS, .status = 503});
    load("connections=4 range-bytes=256Ki", "", &result);
    ck_assert_uint_eq(result.retries, 3);
    ck_assert_uint_eq(result.reading.last, 4);
    ck_assert_uint_eq(result.reading.most, 4);
    end_server();
}

/* ---- the same requests ----------------------------------------------------------------------- */

static struct sl_counter over;

static void *spin(void *unused)
{
    (void)unused;
    while (!sl_counter_get(&over))
        sl_now_ns();
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A line for each connection: which ranges it was asked for, one after another; in an order that is
 * none of time. */
static char *requests_by_connection(void)
{
    unsigned count = sl_server_connection_count(server);
    char **lines = calloc(count, sizeof(*lines)), *all = calloc(1, TEXT_BYTES);
    for (unsigned i = 0; i < count; i++)
        lines[i] = calloc(1, TEXT_BYTES);
    for (unsigned i = 1; i < sl_server_request_count(server); i++) { /* behind the opening */
        const struct sl_server_request *request = sl_server_request_at(server, i);
        char range[64], *line = lines[request->connection - 1];
        ck_assert(sl_server_header(request, "Range", range, sizeof(range)));
        snprintf(line + strlen(line), TEXT_BYTES - strlen(line), " %s", range);
    }
    qsort(lines, count, sizeof(*lines), by_text);
    for (unsigned i = 0; i < count; i++) {
        snprintf(all + strlen(all), TEXT_BYTES - strlen(all), "%s\n", lines[i]);
        free(lines[i]);
    }
    free(lines);
    return all;
}

/* All in the order in which they came. */
static char *requests_in_order(void)
{
    char *all = calloc(1, TEXT_BYTES);
    for (unsigned i = 0; i < sl_server_request_count(server); i++) {
        const struct sl_server_request *request = sl_server_request_at(server, i);
        char range[64] = "";
        sl_server_header(request, "Range", range, sizeof(range));
        snprintf(all + strlen(all), TEXT_BYTES - strlen(all), "%u %s %s\n", request->connection,
                 request->method, range);
    }
    return all;
}

enum { TIMES = SL_TEST_STEP == 1 ? 8 : 2, BUSY = 4 };

static void begin_busy(pthread_t threads[BUSY])
{
    for (int i = 0; i < BUSY; i++)
        ck_assert_int_eq(sl_thread_start(&threads[i], "busy", spin, NULL, &err), 0);
}

static void end_busy(const pthread_t threads[BUSY])
{
    sl_counter_add(&over, 1);
    for (int i = 0; i < BUSY; i++)
        pthread_join(threads[i], NULL);
}

/* The requests are these, or what they are from now on. */
static void expect_same(char **first, char *requests)
{
    if (!*first) {
        *first = requests;
        return;
    }
    ck_assert_str_eq(requests, *first);
    free(requests);
}

SL_TEST_LOOP(a_pinned_load_sends_the_same_requests_on_a_busy_machine, 0, 4)
{
    static const char *const ways[] = {"connections=1 threads=1 range-bytes=256Ki", "usual",
                                       "connections=5 threads=3 range-bytes=128Ki",
                                       "connections=4 threads=4 range-bytes=512Ki preconnect=3"};
    pthread_t threads[BUSY];
    char *first = NULL;
    begin_busy(threads);
    for (int i = 0; i < TIMES; i++) {
        struct sl_load_result result;
        begin_server();
        load(ways[_i], "", &result);
        ck_assert_uint_eq(result.hedged, 0);
        expect_same(&first, _i ? requests_by_connection() : requests_in_order());
        end_server();
    }
    end_busy(threads);
    free(first);
}

enum { OBJECTS = 6 };

static bool list(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    sl_autobuf text = SL_BUF_INIT(8192);
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_buf_printf(&text, NULL, "<ListBucketResult><IsTruncated>false</IsTruncated>");
    for (int i = 0; i < OBJECTS; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>m/%d.safetensors</Key><Size>%d</Size></Contents>", i, MIB);
    sl_buf_printf(&text, NULL, "</ListBucketResult>");
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

static void put_objects(void)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b,c,d", 50000, &bytes);
    server = sl_server_start();
    sl_server_handle(server, list, NULL);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    for (int i = 0; i < OBJECTS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "/bucket/m/%d.safetensors", i);
        sl_server_put(server, name, data, bytes, "\"e\"");
    }
    free(data);
}

/* Listing, openings, indexes, ranges of several objects. */
SL_TEST(one_connection_sends_all_in_one_order)
{
    pthread_t threads[BUSY];
    char *first = NULL;
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    begin_busy(threads);
    for (int i = 0; i < TIMES; i++) {
        struct sl_specs specs;
        put_objects();
        snprintf(path, sizeof(path), "%s/model%d", scratch, i);
        sl_model_spec(&specs, "s3://bucket/m/", path,
                      "readers: {fixed: connections=1 threads=1}\n");
        ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, NULL, &err) == 0, "%s", err.message);
        sl_specs_release(&specs);
        expect_same(&first, requests_in_order());
        end_server();
    }
    end_busy(threads);
    free(first);
}

/* ---- headers far apart ----------------------------------------------------------------------- */

enum { FAR_TENSORS = 40, FAR_ITEMS = 65536 };

/* A .tensors file: each header lies behind the data of the tensor before. */
static uint8_t *make_far_headers(size_t *bytes)
{
    struct sl_specs specs;
    char names[8 * FAR_TENSORS] = "", more[SL_SCRATCH_PATH_BYTES + 100];
    for (int i = 0; i < FAR_TENSORS; i++)
        snprintf(names + strlen(names), 8, "%st%02d", i ? "," : "", i);
    uint8_t *data = sl_model_safetensors(names, FAR_ITEMS, bytes);
    server = sl_server_start();
    sl_server_put(server, "/m.safetensors", data, *bytes, "\"e\"");
    free(data);
    snprintf(path, sizeof(path), "%s/far", scratch);
    snprintf(more, sizeof(more), "sink: {tmpfs: {path: %s, layout: tensorizer}}\n", path);
    sl_model_spec(&specs, sl_server_url(server, "/m.safetensors"), path, more);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, NULL, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    end_server();
    data = sl_model_read(path, "model.tensors", bytes);
    ck_assert_ptr_nonnull(data);
    return data;
}

/* Which ranges were asked for, whenever and wherever: those that wait take the connection that is
 * free first. */
static char *requests_sorted(void)
{
    unsigned count = sl_server_request_count(server);
    char **lines = calloc(count, sizeof(*lines)), *all = calloc(1, TEXT_BYTES);
    for (unsigned i = 0; i < count; i++) {
        char range[64] = "";
        const struct sl_server_request *request = sl_server_request_at(server, i);
        sl_server_header(request, "Range", range, sizeof(range));
        ck_assert_int_gt(asprintf(&lines[i], "%s %s", request->method, range), 0);
    }
    qsort(lines, count, sizeof(*lines), by_text);
    for (unsigned i = 0; i < count; i++) {
        snprintf(all + strlen(all), TEXT_BYTES - strlen(all), "%s\n", lines[i]);
        free(lines[i]);
    }
    free(lines);
    return all;
}

SL_TEST_LOOP(headers_far_apart_are_asked_for_by_the_same_requests, 0, 3)
{
    static const char *const ways[] = {"connections=1 threads=1 openings=1", "usual",
                                       "connections=4 threads=2 preconnect=3"};
    pthread_t threads[BUSY];
    char *first = NULL;
    size_t bytes;
    uint8_t *data = make_far_headers(&bytes);
    begin_busy(threads);
    for (int i = 0; i < TIMES; i++) {
        struct sl_specs specs;
        char readers[200];
        server = sl_server_start();
        sl_server_put(server, "/m.tensors", data, bytes, "\"e\"");
        snprintf(path, sizeof(path), "%s/model%d", scratch, i);
        snprintf(readers, sizeof(readers), "readers: {memoryBytes: 4Mi, fixed: \"%s\"}\n",
                 ways[_i]); /* so that it is not fetched whole */
        sl_model_spec(&specs, sl_server_url(server, "/m.tensors"), path, readers);
        ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, NULL, &err) == 0, "%s", err.message);
        sl_specs_release(&specs);
        ck_assert(sl_model_same(path, "m.tensors", data, bytes));
        ck_assert_uint_gt(sl_server_request_count(server), FAR_TENSORS);
        expect_same(&first, _i ? requests_sorted() : requests_in_order());
        end_server();
    }
    end_busy(threads);
    free(first);
    free(data);
}

/* ---- what is usual --------------------------------------------------------------------------- */

SL_TEST(what_is_left_out_is_no_matter_of_the_machine)
{
    const struct sl_plan_facts plan = {
        .ranges = 100, .fetch_bytes = 400 * MIB, .descriptors = 1000, .rows = true, .fixed = true};
    struct sl_load_facts facts = {.planned = sl_concurrency_of_plan(&plan),
                                  .ranges = plan.ranges,
                                  .fetch_bytes = plan.fetch_bytes,
                                  .fixed = sl_fixed_none()};
    facts.fixed.on = true;
    for (unsigned processors = 1; processors < 200; processors *= 4)
        for (uint64_t ns = 0; ns < SL_NS_PER_S; ns = 10 * ns + 1000)
            for (unsigned known = 0; known < 100; known = 3 * known + 1) {
                struct sl_concurrency out;
                facts.processors = processors;
                facts.processor_limit = known ? 0.5 : 0;
                facts.first_byte_ns = ns;
                facts.known = known;
                facts.loads = 1 + known;
                facts.threads_of_all = known;
                sl_concurrency_decide(&facts, &out);
                ck_assert_uint_eq(out.connections.first, 8);
                ck_assert_uint_eq(out.connections.most, 8);
                ck_assert_uint_eq(out.growth.connections, 8);
                ck_assert_uint_eq(out.threads, 2);
                ck_assert_uint_eq(out.stand_ins, 0);
                ck_assert_uint_eq(out.large, 0);
                ck_assert_uint_eq(out.buffer_bytes, 256 * 1024);
            }
}
