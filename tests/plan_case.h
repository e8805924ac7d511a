/* Plans of objects in memory, in one line of a test. */
#ifndef SL_PLAN_CASE_H
#define SL_PLAN_CASE_H

#include <check.h>
#include <string.h>

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

static void clear(void)
{
    sl_alloc_fail_at(0);
    sl_memory_clear();
}

#endif
