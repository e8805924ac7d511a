/* Files with many places to read in their opening, which are fetched whole by who reads all of
 * them: how many requests they take, and whose bytes are kept how long. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"
#include "sluice.h"

enum { TENSORS = 40, ITEMS = 65536, TENSOR_BYTES = ITEMS * 4 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static struct sl_err err;
static struct sl_load_result result;
static uint8_t *plain, *file; /* the tensors as safetensors, and as a .tensors file */
static size_t plain_bytes, file_bytes;

static void load(const char *layout, const char *more)
{
    struct sl_specs specs;
    char all[SL_SCRATCH_PATH_BYTES + 200];
    snprintf(path, sizeof(path), "%s/loaded", scratch);
    snprintf(all, sizeof(all), "%ssink: {tmpfs: {path: \"%s\", layout: %s}}\n", more, path, layout);
    sl_model_spec(&specs, sl_server_url(server, "/m.tensors"), path, all);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, &result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
}

static void setup(void)
{
    char names[8 * TENSORS] = "";
    clearenv();
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    server = sl_server_start();
    for (int i = 0; i < TENSORS; i++)
        snprintf(names + strlen(names), 8, "%st%02d", i ? "," : "", i);
    plain = sl_model_safetensors(names, ITEMS, &plain_bytes);
    sl_server_put(server, "/m.tensors", plain, plain_bytes, "\"one\"");
    load("tensorizer", "");
    file = sl_model_read(path, "model.tensors", &file_bytes);
    ck_assert_ptr_nonnull(file);
    sl_server_stop(server);
    server = sl_server_start();
    sl_server_put(server, "/m.tensors", file, file_bytes, "\"two\"");
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(plain);
    free(file);
}

/* The first 128 KiB, and twice the rest: 8 MiB, and what is left. */
enum { FEW = 3 };

SL_TEST(a_load_of_all_takes_few_requests)
{
    load("verbatim", "");
    ck_assert_uint_eq(sl_server_request_count(server), FEW);
    ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
    ck_assert_uint_eq(result.fetched, file_bytes);
}

SL_TEST(so_does_one_that_changes_their_layout)
{
    load("safetensors", "");
    ck_assert_uint_eq(sl_server_request_count(server), FEW);
    uint8_t *found = sl_model_read(path, "model.safetensors", &file_bytes);
    ck_assert_ptr_nonnull(found);
    ck_assert_mem_eq(found + file_bytes - TENSORS * TENSOR_BYTES,
                     plain + plain_bytes - TENSORS * TENSOR_BYTES, TENSORS * TENSOR_BYTES);
    free(found);
}

/* Some tensors; less memory than it has bytes. */
SL_TEST_LOOP(others_ask_for_each_header, 0, 2)
{
    static const char *const less[] = {"tensors: {include: [t*]}\n",
                                       "readers: {memoryBytes: 4Mi}\n"};
    load("safetensors", less[_i]);
    ck_assert_uint_gt(sl_server_request_count(server), TENSORS);
}

/* The byte in the middle is wrong in the first answer that has it. */
static bool flip_once(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    unsigned *times = arg;
    uint64_t begin, end, at = file_bytes / 2;
    if (!sl_server_range(request, file_bytes, &begin, &end) || begin > at || end <= at ||
        (*times)++)
        return false;
    sl_server_reply_range(reply, file, begin, end, file_bytes, "\"two\"");
    reply->body[at - begin] ^= 4;
    return true;
}

SL_TEST(what_came_wrong_is_asked_for_again)
{
    unsigned times = 0;
    sl_server_handle(server, flip_once, &times);
    load("verbatim", "");
    ck_assert_uint_ge(times, 2);
    ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
}

/* ---- the library ----------------------------------------------------------------------------- */

static struct sluice_source *open_whole(uint32_t flags)
{
    struct sluice_error error = {0};
    struct sluice_open_options options = {.size = sizeof(options), .flags = flags};
    struct sluice_source *source = NULL;
    ck_assert_msg(sluice_open(sl_server_url(server, "/m.tensors"), &options, &source, &error) == 0,
                  "%s", error.message);
    return source;
}

static void read_all(struct sluice_source *source)
{
    struct sluice_error error = {0};
    struct sluice_read reads[TENSORS] = {{0}};
    uint8_t *all = malloc((size_t)TENSORS * TENSOR_BYTES);
    for (unsigned i = 0; i < TENSORS; i++)
        reads[i] = (struct sluice_read){.size = sizeof(reads[i]),
                                        .number = i,
                                        .to = all + (size_t)i * TENSOR_BYTES,
                                        .bytes = TENSOR_BYTES};
    ck_assert_msg(sluice_read(source, reads, TENSORS, NULL, &error) == 0, "%s", error.message);
    ck_assert_mem_eq(all, plain + plain_bytes - TENSORS * TENSOR_BYTES,
                     (size_t)TENSORS * TENSOR_BYTES);
    free(all);
}

SL_TEST(what_is_opened_whole_is_read_without_a_request)
{
    struct sluice_source *source = open_whole(SLUICE_WHOLE);
    read_all(source);
    read_all(source);
    ck_assert_uint_eq(sl_server_request_count(server), FEW);
    sluice_source_forget(source);
    read_all(source);
    ck_assert_uint_gt(sl_server_request_count(server), FEW);
    sluice_close(source);
}

SL_TEST(what_is_opened_for_a_part_reads_its_headers_alone)
{
    struct sluice_source_info info = {.size = sizeof(info)};
    struct sluice_source *source = open_whole(0);
    sluice_source_info(source, &info);
    ck_assert_uint_lt(info.bytes_fetched, file_bytes / 4);
    read_all(source);
    sluice_close(source);
}

SL_CASE(.seconds = 60, .setup = setup, .teardown = teardown)
