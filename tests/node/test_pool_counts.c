/* What the metrics tell of a pool. */
#include <check.h>

#include "await.h"
#include "claims.h"
#include "memory_store.h"
#include "metrics.h"
#include "pool_case.h"

static struct pool_case pool;

static void setup(void)
{
    pool_case_init(&pool);
    pool_case_start(&pool);
}

static void teardown(void)
{
    pool_case_release(&pool);
    sl_memory_clear();
}

/* The server tells after its turn, which may be after the client has its answer. */
static void await(enum sl_metric metric, uint64_t value)
{
    SL_AWAIT(sl_metric_get(metric) == value, "the metric's value");
}

SL_TEST(models_clients_and_leases_are_counted_while_they_are_there)
{
    struct sl_pool_model *model = pool_case_add(&pool, "m", "a,b,c", 1000, 4096);
    uint64_t bytes = sl_metric_get(SL_M_POOL_BYTES);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_MODELS), 1);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_SLABS),
                      sl_pool_copy_slab_count(sl_pool_model_copy(model, 0)));
    ck_assert_uint_ge(bytes, 12000);
    await(SL_M_POOL_OLDEST_LEASE, 0);
    struct sluice_model *first = pool_case_attach(&pool, "m");
    struct sluice_model *second = pool_case_attach(&pool, "m");
    await(SL_M_POOL_LEASES, 2);
    await(SL_M_POOL_CLIENTS, 2);
    await(SL_M_POOL_ATTACHES, 2);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_ATTACH_SECONDS), 2);
    uint64_t oldest = sl_metric_get(SL_M_POOL_OLDEST_LEASE);
    ck_assert_uint_ge(oldest + 60, (uint64_t)sl_wall_seconds());
    ck_assert_uint_le(oldest, (uint64_t)sl_wall_seconds());
    sluice_detach(first);
    sluice_detach(second);
    await(SL_M_POOL_LEASES, 0);
    await(SL_M_POOL_CLIENTS, 0);
    await(SL_M_POOL_OLDEST_LEASE, 0);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_CONNECTS), 2);
}

SL_TEST(what_goes_is_counted_no_more)
{
    uint64_t freed;
    struct sluice_error error;
    pool_case_add(&pool, "m", "a", 1000, 4096);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    ck_assert_int_eq(sluice_evict(pool.socket, "m", NULL, &freed, &error), 0);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_MODELS), 1); /* a client has it */
    sluice_detach(model);
    await(SL_M_POOL_MODELS, 0);
    await(SL_M_POOL_SLABS, 0);
    await(SL_M_POOL_BYTES, 0);
}

SL_TEST(refusals_are_counted)
{
    struct sluice_model *model;
    struct sluice_error error;
    ck_assert_int_eq(pool_case_try(&pool, "none", &model, &error), -1);
    await(SL_M_POOL_REFUSALS, 1);
    await(SL_M_POOL_PROTOCOL_ERRORS, 0);
    pool_case_stop(&pool);
    ck_assert_uint_eq(sl_metric_get(SL_M_POOL_CLIENTS), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
