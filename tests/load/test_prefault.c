/* When the destination's memory is found before there is anything to write into it. */
#include "prefault.h"

#include <check.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "claims.h"
#include "fake_clock.h"
#include "memory_store.h"
#include "model_maker.h"
#include "scratch.h"
#include "skip.h"
#include "store_kind.h"
#include "thread.h"

enum { LARGE = 24 * 1024 * 1024, SMALL = 64 * 1024 };

static char path[SL_SCRATCH_PATH_BYTES];
static int directory;

static void setup(void)
{
    directory = sl_scratch_open(path);
}

static void teardown(void)
{
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

/* Bytes that the system has found for the one file of a load, whose server begins its answers after
 * so long. */
static uint64_t found(size_t bytes, uint64_t first_byte_ns)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    struct sl_prefault ahead;
    struct stat status;
    uint8_t *data = calloc(1, bytes);
    ck_assert_int_eq(sl_memory_put("model.bin", data, bytes, NULL), 0);
    sl_model_spec(&specs, "memory://model.bin", "/t", "");
    SL_AUTO(sl_plan) plan = NULL;
    ck_assert_int_eq(sl_model_plan(&specs, &plan, &err), 0);
    sl_source_store(plan->sources[0].source)->locked.first_byte_ns = first_byte_ns;
    const struct sl_sink_file file = {plan->files[0].name, plan->files[0].bytes};
    SL_AUTO(sl_sink) sink = sl_tmpfs_open(directory, &file, 1, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    fake_clock_hold(); /* the thread may begin late */
    sl_prefault_start(&ahead, sink, plan);
    sl_prefault_end(&ahead);
    fake_clock_release();
    ck_assert_int_eq(fstatat(directory, file.name, &status, 0), 0);
    ck_assert_uint_eq((uint64_t)status.st_size, bytes);
    sl_specs_release(&specs);
    sl_memory_clear();
    free(data);
    return (uint64_t)status.st_blocks * 512;
}

SL_TEST(a_distant_server_leaves_time_for_it)
{
    if (sl_cpu_count() < 2)
        SL_SKIP("a single processor is never free");
    ck_assert_uint_eq(found(LARGE, 50 * SL_NS_PER_MS), LARGE);
}

SL_TEST(a_near_one_or_small_files_do_not)
{
    ck_assert_uint_eq(found(LARGE, 0), 0);
    ck_assert_uint_eq(found(LARGE, 2 * SL_NS_PER_MS), 0);
    ck_assert_uint_eq(found(SMALL, 50 * SL_NS_PER_MS), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
