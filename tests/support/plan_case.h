/* Plans of objects in memory, in one line of a test. */
#ifndef SL_PLAN_CASE_H
#define SL_PLAN_CASE_H

#include <check.h>
#include <string.h>

#include "alloc_fail.h"
#include "memory_store.h"
#include "model_maker.h"

static void put(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

/* Plan memory://m/ with more YAML. */
static int plan_with(const char *more, struct sl_plan **plan, struct sl_specs *specs,
                     struct sl_err *err)
{
    *plan = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(specs, "memory://m/", "/nowhere", more);
    return sl_model_plan(specs, plan, err);
}

static void expect_refusal(const char *more, enum sl_err_kind kind, const char *word)
{
    struct sl_specs specs;
    struct sl_plan *plan;
    struct sl_err err;
    ck_assert_int_eq(plan_with(more, &plan, &specs, &err), -1);
    ck_assert_msg(err.kind == kind && strstr(err.message, word), "%d: %s", err.kind, err.message);
    sl_specs_release(&specs);
}

static struct sl_plan *expect_plan(const char *more, struct sl_specs *specs)
{
    struct sl_plan *plan;
    struct sl_err err;
    int done = plan_with(more, &plan, specs, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    return plan;
}

/* Every extent lies in one range of its source; every byte of every file comes from an extent, a
 * literal or is zero. */
static inline void check_shape(const struct sl_plan *plan)
{
    uint32_t seen = 0;
    for (size_t r = 0; r < plan->range_count; r++) {
        const struct sl_range *range = &plan->ranges[r];
        uint64_t at = range->begin;
        ck_assert_uint_gt(range->extent_count, 0);
        seen += range->extent_count;
        for (uint32_t e = 0; e < range->extent_count; e++) {
            const struct sl_extent *extent = &plan->extents[range->extent_first + e];
            ck_assert_uint_eq(extent->source, range->source);
            ck_assert_uint_ge(extent->begin, at);
            ck_assert_uint_lt(extent->begin, extent->end);
            ck_assert_uint_le(extent->file_offset + (extent->end - extent->begin),
                              plan->files[extent->file].bytes);
            at = extent->end;
        }
        ck_assert_uint_eq(at, range->end);
        ck_assert_uint_le(range->end, sl_source_bytes(plan->sources[range->source].source));
        ck_assert_uint_le(range->end - range->begin, plan->range_bytes + plan->range_bytes / 8);
    }
    ck_assert_uint_eq(seen, plan->extent_count);
}

static void clear(void)
{
    sl_alloc_fail_at(0);
    sl_memory_clear();
}

#endif
