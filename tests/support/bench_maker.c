/* Figures are made from a formula, so that every one is another. */
#include "bench_maker.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t MIB = 1024 * 1024;

static struct sl_bench_result *add_result(struct sl_bench_results *results, const char *node)
{
    struct sl_bench_result *result = sl_bench_results_add(results, NULL);
    ck_assert_ptr_nonnull(result);
    snprintf(result->facts.node, sizeof(result->facts.node), "%s", node);
    snprintf(result->facts.version, sizeof(result->facts.version), "0.0.0");
    snprintf(result->facts.kernel, sizeof(result->facts.kernel), "6.1.0");
    snprintf(result->facts.machine, sizeof(result->facts.machine), "x86_64");
    snprintf(result->facts.cpu, sizeof(result->facts.cpu), "Some \"CPU\", fast");
    snprintf(result->source, sizeof(result->source), "s3://models/a<b>/model.tensors");
    snprintf(result->started, sizeof(result->started), "2026-11-21T04:31:02.123Z");
    result->facts.cpus = 8;
    result->facts.memory_bytes = 64 * 1024 * MIB;
    result->facts.memory_limit = 16 * 1024 * MIB;
    result->started_at = 1795235462;
    result->seconds = 61.5;
    result->bytes = 2000000000;
    result->objects = 2;
    result->rounds = 5;
    return result;
}

static struct sl_bench_point *add_point(struct sl_bench_result *result, enum sl_bench_way way,
                                        const char *client, uint64_t range_bytes,
                                        uint32_t connections, double rate)
{
    struct sl_bench_point point = {
        .way = way,
        .range_bytes = range_bytes,
        .connections = connections,
        .bytes = result->bytes,
        .runs = 5,
        .best = rate * 1.1,
        .median = rate,
        .worst = rate * 0.8,
        .cpu_seconds_per_gb = way == SL_BENCH_NETWORK ? 0.25 : 0.75,
        .peak_memory_bytes = 12 * MIB,
    };
    snprintf(point.client, sizeof(point.client), "%s", client);
    struct sl_bench_point *added = sl_bench_point_add(result, &point, NULL);
    ck_assert_ptr_nonnull(added);
    return added;
}

void sl_bench_sample_result(struct sl_bench_results *results)
{
    struct sl_bench_result *result = add_result(results, "worker-1");
    add_point(result, SL_BENCH_LOAD, "sluice", 0, 0, 2.2e9);
    for (uint32_t connections = 4; connections <= 16; connections *= 4)
        for (uint64_t size = MIB; size <= 64 * MIB; size *= 8) {
            double rate = 1e9 + 4e7 * connections + (size == 8 * MIB ? 6e8 : 1e8);
            add_point(result, SL_BENCH_NETWORK, "recv", size, connections, rate * 2);
            add_point(result, SL_BENCH_STORE, "sluice", size, connections, rate * 1.6);
            add_point(result, SL_BENCH_LOAD, "sluice", size, connections, rate);
        }
    add_point(result, SL_BENCH_PEER, "s5cmd", 0, 0, 1.2e9);
    add_point(result, SL_BENCH_PEER, "rclone", 0, 0, 1.15e9);
    struct sl_bench_point *failed = add_point(result, SL_BENCH_PEER, "aws", 0, 0, 0);
    failed->runs = 0;
    failed->failed = 2;
    snprintf(failed->why, sizeof(failed->why), "'aws' ended with 1: no <credentials>");
}

void sl_bench_sample_nodes(struct sl_bench_results *results, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char node[32];
        snprintf(node, sizeof(node), "worker-%u", i);
        struct sl_bench_result *result = add_result(results, node);
        result->facts.indexed = true;
        result->facts.index = i;
        result->started_at += i;
        double rate = i == 3 ? 9e8 : 2e9 + 1e7 * i;
        add_point(result, SL_BENCH_LOAD, "sluice", 0, 0, rate);
        add_point(result, SL_BENCH_NETWORK, "recv", 8 * MIB, 16, 4e9);
        add_point(result, SL_BENCH_STORE, "sluice", 8 * MIB, 16, 3.5e9);
        add_point(result, SL_BENCH_LOAD, "sluice", 8 * MIB, 16, rate * 0.95);
    }
}

void sl_bench_expect_golden(const char *name, const struct sl_buf *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/bench/%s", SL_TEST_DATA, name);
    if (getenv("SLUICE_WRITE_GOLDEN")) {
        FILE *file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        fwrite(text->data, 1, text->used, file);
        fclose(file);
        return;
    }
    sl_autobuf expected = SL_BUF_INIT(4 * 1024 * 1024);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_buf_read_file(&expected, path, &err) == 0, "%s", err.message);
    ck_assert_str_eq(sl_buf_string(text), sl_buf_string(&expected));
}
