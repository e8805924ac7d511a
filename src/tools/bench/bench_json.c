/*
 * A result as one line of JSON, and back. What is read comes from logs and is hostile: every number
 * has bounds, every text is cut to its place, and a line of another version is refused by name.
 */
#include <math.h>
#include <string.h>

#include "bench_parts.h"

/* ---- writing -------------------------------------------------------------------------------- */

static void write_facts(struct sl_json *json, const struct sl_bench_facts *facts)
{
    sl_json_key_string(json, "node", facts->node);
    sl_json_key_string(json, "pod", facts->pod);
    sl_json_key_string(json, "region", facts->region);
    sl_json_key_string(json, "link_speed", facts->link_speed);
    sl_json_key(json, "index");
    if (facts->indexed)
        sl_json_uint(json, facts->index);
    else
        sl_json_null(json);
    sl_json_key_string(json, "version", facts->version);
    sl_json_key_string(json, "kernel", facts->kernel);
    sl_json_key_string(json, "machine", facts->machine);
    sl_json_key_string(json, "cpu", facts->cpu);
    sl_json_key_uint(json, "cpus", facts->cpus);
    sl_json_key_uint(json, "memory_bytes", facts->memory_bytes);
    sl_json_key_uint(json, "memory_limit_bytes", facts->memory_limit);
}

static void write_point(struct sl_json *json, const struct sl_bench_result *result,
                        const struct sl_bench_point *point)
{
    sl_json_object(json);
    sl_json_key_string(json, "way", sl_bench_way_name(point->way));
    sl_json_key_string(json, "client", point->client);
    sl_json_key_uint(json, "range_bytes", point->range_bytes);
    sl_json_key_uint(json, "connections", point->connections);
    sl_json_key_uint(json, "bytes", point->bytes);
    sl_json_key_uint(json, "runs", point->runs);
    sl_json_key_uint(json, "failed", point->failed);
    sl_json_key_double(json, "best_bytes_per_second", point->best);
    sl_json_key_double(json, "median_bytes_per_second", point->median);
    sl_json_key_double(json, "worst_bytes_per_second", point->worst);
    sl_json_key_double(json, "spread", sl_bench_spread(point));
    sl_json_key_double(json, "share_of_network", sl_bench_share(result, point));
    sl_json_key_double(json, "cpu_seconds_per_gb", point->cpu_seconds_per_gb);
    sl_json_key_uint(json, "peak_memory_bytes", point->peak_memory_bytes);
    if (*point->why)
        sl_json_key_string(json, "why", point->why);
    sl_json_end(json);
}

void sl_bench_json(struct sl_json *json, const struct sl_bench_result *result)
{
    sl_json_object(json);
    sl_json_key_uint(json, "sluice_bench", SL_BENCH_FORMAT);
    write_facts(json, &result->facts);
    sl_json_key_uri(json, "source", result->source);
    sl_json_key_uint(json, "bytes", result->bytes);
    sl_json_key_uint(json, "objects", result->objects);
    sl_json_key_uint(json, "rounds", result->rounds);
    sl_json_key_string(json, "started", result->started);
    sl_json_key(json, "started_at");
    sl_json_uint(json, (uint64_t)result->started_at);
    sl_json_key_double(json, "seconds", result->seconds);
    sl_json_key(json, "points");
    sl_json_array(json);
    for (size_t i = 0; i < result->point_count; i++)
        write_point(json, result, &result->points[i]);
    sl_json_end(json);
    sl_json_end(json);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* What is wrong, told once; members are then not looked at any more. */
struct reading {
    const json_t *object;
    struct sl_err *err;
    bool wrong;
};

static void refuse(struct reading *reading, const char *key, const char *expected)
{
    if (!reading->wrong)
        sl_fail(reading->err, SL_E_FORMAT, "'%s' is not %s", key, expected);
    reading->wrong = true;
}

static void read_text(struct reading *reading, const char *key, char *text, size_t bytes)
{
    const json_t *value = json_object_get(reading->object, key);
    if (!json_is_string(value) || json_string_length(value) >= bytes ||
        strlen(json_string_value(value)) != json_string_length(value)) {
        refuse(reading, key, "a text of its length");
        return;
    }
    memcpy(text, json_string_value(value), json_string_length(value) + 1);
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = '?'; /* it goes to terminals */
}

static uint64_t read_uint(struct reading *reading, const char *key, uint64_t maximum)
{
    const json_t *value = json_object_get(reading->object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > maximum) {
        refuse(reading, key, "a number within its bounds");
        return 0;
    }
    return (uint64_t)json_integer_value(value);
}

static double read_double(struct reading *reading, const char *key, double maximum)
{
    const json_t *value = json_object_get(reading->object, key);
    double number = json_is_number(value) ? json_number_value(value) : -1;
    if (!(number >= 0 && number <= maximum)) {
        refuse(reading, key, "a number within its bounds");
        return 0;
    }
    return number;
}

static void read_facts(struct reading *reading, struct sl_bench_facts *facts)
{
    read_text(reading, "node", facts->node, sizeof(facts->node));
    read_text(reading, "pod", facts->pod, sizeof(facts->pod));
    read_text(reading, "region", facts->region, sizeof(facts->region));
    read_text(reading, "link_speed", facts->link_speed, sizeof(facts->link_speed));
    facts->indexed = json_is_integer(json_object_get(reading->object, "index"));
    if (facts->indexed)
        facts->index = read_uint(reading, "index", INT32_MAX);
    read_text(reading, "version", facts->version, sizeof(facts->version));
    read_text(reading, "kernel", facts->kernel, sizeof(facts->kernel));
    read_text(reading, "machine", facts->machine, sizeof(facts->machine));
    read_text(reading, "cpu", facts->cpu, sizeof(facts->cpu));
    facts->cpus = (uint32_t)read_uint(reading, "cpus", 1u << 20);
    facts->memory_bytes = read_uint(reading, "memory_bytes", INT64_MAX);
    facts->memory_limit = read_uint(reading, "memory_limit_bytes", INT64_MAX);
}

static enum sl_bench_way read_way(struct reading *reading)
{
    const char *name = sl_json_get_string(reading->object, "way");
    for (int way = 0; name && way < SL_BENCH_WAY_COUNT; way++)
        if (strcmp(name, sl_bench_way_name((enum sl_bench_way)way)) == 0)
            return (enum sl_bench_way)way;
    refuse(reading, "way", "network, store, load or peer");
    return SL_BENCH_PEER;
}

static void read_point(struct reading *reading, struct sl_bench_point *point)
{
    static const double rate_max = 1e15;
    point->way = read_way(reading);
    read_text(reading, "client", point->client, sizeof(point->client));
    point->range_bytes = read_uint(reading, "range_bytes", INT64_MAX);
    point->connections = (uint32_t)read_uint(reading, "connections", 1u << 20);
    point->bytes = read_uint(reading, "bytes", INT64_MAX);
    point->runs = read_uint(reading, "runs", INT32_MAX);
    point->failed = read_uint(reading, "failed", INT32_MAX);
    point->best = read_double(reading, "best_bytes_per_second", rate_max);
    point->median = read_double(reading, "median_bytes_per_second", rate_max);
    point->worst = read_double(reading, "worst_bytes_per_second", rate_max);
    point->cpu_seconds_per_gb = read_double(reading, "cpu_seconds_per_gb", 1e12);
    point->peak_memory_bytes = read_uint(reading, "peak_memory_bytes", INT64_MAX);
    if (json_object_get(reading->object, "why"))
        read_text(reading, "why", point->why, sizeof(point->why));
}

static int read_points(struct reading *reading, struct sl_bench_result *result, struct sl_err *err)
{
    const json_t *points = json_object_get(reading->object, "points");
    if (!json_is_array(points) || json_array_size(points) > SL_BENCH_POINTS_MAX)
        return sl_fail(err, SL_E_FORMAT, "'points' is not a list of at most %d",
                       SL_BENCH_POINTS_MAX);
    for (size_t i = 0; i < json_array_size(points); i++) {
        struct sl_bench_point point = {0};
        struct reading one = {.object = json_array_get(points, i), .err = err};
        read_point(&one, &point);
        if (one.wrong)
            return sl_wrap(err, "point %zu", i + 1);
        if (!sl_bench_point_add(result, &point, err))
            return -1;
    }
    return 0;
}

static int read_result(const json_t *object, struct sl_bench_result *result, struct sl_err *err)
{
    struct reading reading = {.object = object, .err = err};
    if (!json_is_object(object))
        return sl_fail(err, SL_E_FORMAT, "it is not a JSON object");
    uint64_t version = sl_json_get_uint(object, "sluice_bench", 0);
    if (version != SL_BENCH_FORMAT)
        return sl_fail(err, SL_E_FORMAT, "it is of version %llu, and this sluice reads version %d",
                       (unsigned long long)version, SL_BENCH_FORMAT);
    read_facts(&reading, &result->facts);
    read_text(&reading, "source", result->source, sizeof(result->source));
    result->bytes = read_uint(&reading, "bytes", INT64_MAX);
    result->objects = read_uint(&reading, "objects", INT64_MAX);
    result->rounds = read_uint(&reading, "rounds", INT32_MAX);
    read_text(&reading, "started", result->started, sizeof(result->started));
    result->started_at = read_double(&reading, "started_at", 1e11);
    result->seconds = read_double(&reading, "seconds", 1e9);
    return reading.wrong ? -1 : read_points(&reading, result, err);
}

int sl_bench_json_read(const char *text, size_t bytes, struct sl_bench_result *result,
                       struct sl_err *err)
{
    json_t *object = sl_json_parse(text, bytes, "a result", err);
    if (!object)
        return -1;
    int done = read_result(object, result, err);
    json_decref(object);
    return done;
}
