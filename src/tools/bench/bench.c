/*
 * The sweep. A round takes every setting once, and for each setting every way in turn, so that a
 * slow minute of the machine or of the store falls on all alike; rounds repeat. Warm-up rounds are
 * the same and not counted. A failure of the network, the store or a load ends the benchmark: its
 * figures would be of something else. A peer that fails is only noted.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "bench_parts.h"
#include "load.h"
#include "log.h"
#include "raw_request.h"
#include "s3_options.h"
#include "spec.h"

struct sweep {
    const struct sl_spec *spec;
    const struct sl_bench_config *config;
    struct sl_cancel *cancel;
    struct sl_bench_result *result;
    struct sl_plan *plan;
    struct sl_bench_place place;
    struct sl_bench_target target;
    struct sl_bench_memory *memory;  /* of one run into memory */
    struct sl_bench_sample *samples; /* of point p in round r at p * rounds + r */
    uint64_t *taken;                 /* samples of each point */
};

/* ---- what is to be measured ------------------------------------------------------------------ */

static int add_point(struct sweep *sweep, enum sl_bench_way way, const char *client,
                     uint64_t range_bytes, uint32_t connections, struct sl_err *err)
{
    struct sl_bench_point point = {
        .way = way,
        .range_bytes = range_bytes,
        .connections = connections,
        .bytes = way == SL_BENCH_NETWORK || way == SL_BENCH_STORE
                     ? sl_bench_work_bytes(sweep->plan, sweep->config->bytes)
                 : way == SL_BENCH_PEER ? sl_bench_work_bytes(sweep->plan, 0)
                                        : sweep->plan->fetch_bytes,
    };
    snprintf(point.client, sizeof(point.client), "%s", client);
    return sl_bench_point_add(sweep->result, &point, err) ? 0 : -1;
}

static bool has_network(const struct sl_plan *plan)
{
    return plan->source_count && sl_store_asks_by_http(sl_source_store(plan->sources[0].source));
}

static int add_settings(struct sweep *sweep, bool network, struct sl_err *err)
{
    const struct sl_bench_config *config = sweep->config;
    for (int way = SL_BENCH_LOAD; way <= SL_BENCH_MEMORY; way++)
        if (config->ways[way] && add_point(sweep, (enum sl_bench_way)way, "sluice", 0, 0, err) < 0)
            return -1;
    for (size_t c = 0; c < config->connection_count; c++)
        for (size_t r = 0; r < config->range_count; r++)
            for (int way = SL_BENCH_NETWORK; way <= SL_BENCH_LOAD; way++) {
                if (!config->ways[way] || (way == SL_BENCH_NETWORK && !network))
                    continue;
                const char *client = way == SL_BENCH_NETWORK ? "recv" : "sluice";
                if (add_point(sweep, (enum sl_bench_way)way, client, config->range_bytes[r],
                              config->connections[c], err) < 0)
                    return -1;
            }
    return 0;
}

/* A peer that was named and cannot take part is told; with "auto" only those that can are taken. */
static int add_peer(struct sweep *sweep, const struct sl_bench_peer *peer, bool named,
                    struct sl_err *err)
{
    const char *why = sl_bench_peer_unfit(peer, &sweep->target);
    if (why && !named)
        return 0;
    if (add_point(sweep, SL_BENCH_PEER, sl_bench_peer_name(peer), 0, 0, err) < 0)
        return -1;
    struct sl_bench_point *point = &sweep->result->points[sweep->result->point_count - 1];
    if (why)
        snprintf(point->why, sizeof(point->why), "%s", why);
    return 0;
}

static int add_named_peers(struct sweep *sweep, const char *names, struct sl_err *err)
{
    while (*names) {
        size_t bytes = strcspn(names, ",");
        sl_autofree char *name = sl_strndup(names, bytes, err);
        if (!name)
            return -1;
        const struct sl_bench_peer *peer = sl_bench_peer_find(name);
        if (!peer)
            return sl_fail(
                err, SL_E_USAGE,
                "--peers: '%.80s' is not auto, none or a program that `sluice bench --help` names",
                name);
        if (add_peer(sweep, peer, true, err) < 0)
            return -1;
        names += bytes + (names[bytes] == ',');
    }
    return 0;
}

static int add_peers(struct sweep *sweep, struct sl_err *err)
{
    const char *names = sweep->config->peers ? sweep->config->peers : "none";
    if (strcmp(names, "none") == 0)
        return 0;
    if (strcmp(names, "auto") != 0)
        return add_named_peers(sweep, names, err);
    const struct sl_bench_peer *peer;
    for (size_t i = 0; (peer = sl_bench_peer_at(i)); i++)
        if (add_peer(sweep, peer, false, err) < 0)
            return -1;
    return 0;
}

/* ---- one run --------------------------------------------------------------------------------- */

static int run_way(struct sweep *sweep, const struct sl_bench_point *point, struct sl_err *err)
{
    const struct sl_bench_config *config = sweep->config;
    switch (point->way) {
    case SL_BENCH_NETWORK:
        return sl_bench_network(sweep->spec, sweep->plan, point->range_bytes, point->connections,
                                config->bytes, sweep->cancel, err);
    case SL_BENCH_STORE:
        return sl_bench_store(sweep->plan, point->range_bytes, point->connections, config->bytes,
                              err);
    case SL_BENCH_MEMORY:
        return sl_bench_memory_load(sweep->memory, sweep->spec, sweep->plan, sweep->cancel, err);
    default:
        return sl_bench_load(sweep->spec, sweep->place.run, point->range_bytes, point->connections,
                             sweep->cancel, err);
    }
}

static int run_own(struct sweep *sweep, const struct sl_bench_point *point,
                   struct sl_bench_sample *sample, struct sl_err *err)
{
    SL_AUTO(sl_bench_memory) memory = NULL;
    if (point->way == SL_BENCH_MEMORY && !(memory = sl_bench_memory_new(sweep->plan, err)))
        return -1;
    sweep->memory = memory;
    struct sl_bench_meter *meter = sl_bench_meter_start(err);
    if (!meter)
        return -1;
    int done = run_way(sweep, point, err);
    sl_bench_meter_stop(meter, sample);
    return done;
}

/* A program that ended well has brought the bytes, or its rate is of something else. */
static int bring(struct sweep *sweep, const struct sl_bench_point *point,
                 struct sl_bench_sample *sample, struct sl_err *err)
{
    const struct sl_bench_peer *peer = sl_bench_peer_find(point->client);
    if (sl_bench_place_make(&sweep->place, err) < 0 ||
        sl_bench_peer_run(peer, &sweep->target, sweep->config->peer_seconds, sweep->cancel, sample,
                          err) < 0)
        return -1;
    uint64_t there = sl_bench_place_bytes(&sweep->place);
    if (!sl_bench_peer_writes(peer) || there >= point->bytes)
        return 0;
    return sl_fail(err, SL_E_NET, "it left %" PRIu64 " bytes, not %" PRIu64, there, point->bytes);
}

/* Only cancellation ends the benchmark. */
static int run_peer(struct sweep *sweep, struct sl_bench_point *point,
                    struct sl_bench_sample *sample, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (bring(sweep, point, sample, &why) == 0)
        return 0;
    if (sl_cancel_check(sweep->cancel, err) < 0)
        return -1;
    point->failed++;
    snprintf(point->why, sizeof(point->why), "%.190s", why.message);
    sl_log(SL_LOG_WARN, "%s: %s", point->client, why.message);
    *sample = (struct sl_bench_sample){0};
    return 0;
}

static const char *point_text(const struct sl_bench_point *point, char text[128])
{
    char size[32], count[32];
    if (!point->range_bytes && !point->connections)
        snprintf(text, 128, "%s", point->client);
    else
        snprintf(text, 128, "%s, ranges of %s, connections: %s", sl_bench_way_title(point->way),
                 sl_bench_size_text(point->range_bytes, size),
                 sl_bench_count_text(point->connections, count));
    return text;
}

/* The destination is empty and warm before the clock starts. */
static int run_point(struct sweep *sweep, size_t number, bool counted, struct sl_err *err)
{
    struct sl_bench_point *point = &sweep->result->points[number];
    struct sl_bench_sample sample = {0};
    char text[128], rate[32];
    bool lands = point->way == SL_BENCH_LOAD || point->way == SL_BENCH_PEER;
    if (sl_cancel_check(sweep->cancel, err) < 0)
        return -1;
    if (lands)
        sl_bench_place_warm(&sweep->place, point->bytes);
    int done = point->way == SL_BENCH_PEER ? run_peer(sweep, point, &sample, err)
                                           : run_own(sweep, point, &sample, err);
    if (lands && sl_bench_place_clear(&sweep->place, done < 0 ? NULL : err) < 0)
        done = -1;
    if (done < 0)
        return sl_wrap(err, "benchmark of %s", point_text(point, text));
    if (sample.seconds <= 0)
        return 0;
    sl_log(SL_LOG_DEBUG, "%s: %s GB/s%s", point_text(point, text),
           sl_bench_rate_text((double)point->bytes / sample.seconds, rate),
           counted ? "" : " (warm-up)");
    if (counted)
        sweep->samples[number * sweep->config->rounds + sweep->taken[number]++] = sample;
    return 0;
}

/* A peer that failed twice will not do better. */
static bool is_hopeless(const struct sl_bench_point *point)
{
    return point->way == SL_BENCH_PEER && (point->failed > 1 || (point->why[0] && !point->failed));
}

/* "round 2 of 5, about 40 s left": rounds are much alike, the warm-up too. */
static void report_round(const struct sl_bench_config *config, uint64_t round, uint64_t began_ns)
{
    char left[48] = "";
    double seconds = (double)(sl_now_ns() - began_ns) / (double)SL_NS_PER_S;
    uint64_t rounds = config->warmups + config->rounds;
    if (round)
        snprintf(left, sizeof(left), ", about %.0f s left",
                 seconds / (double)round * (double)(rounds - round));
    if (round < config->warmups)
        sl_log(SL_LOG_INFO, "warm-up %" PRIu64 " of %" PRIu64 "%s", round + 1, config->warmups,
               left);
    else
        sl_log(SL_LOG_INFO, "round %" PRIu64 " of %" PRIu64 "%s", round - config->warmups + 1,
               config->rounds, left);
}

static int run_rounds(struct sweep *sweep, struct sl_err *err)
{
    const struct sl_bench_config *config = sweep->config;
    uint64_t began = sl_now_ns();
    for (uint64_t round = 0; round < config->warmups + config->rounds; round++) {
        bool counted = round >= config->warmups;
        report_round(config, round, began);
        for (size_t p = 0; p < sweep->result->point_count; p++)
            if (!is_hopeless(&sweep->result->points[p]) && run_point(sweep, p, counted, err) < 0)
                return -1;
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void describe(struct sweep *sweep)
{
    struct sl_bench_result *result = sweep->result;
    struct timeval now;
    gettimeofday(&now, NULL);
    result->started_at = (double)now.tv_sec + (double)now.tv_usec / 1e6;
    sl_json_time(result->started);
    snprintf(result->source, sizeof(result->source), "%s", sl_plan_uri(sweep->plan));
    result->bytes = sl_bench_work_bytes(sweep->plan, 0);
    result->objects = sweep->plan->source_count;
    result->rounds = sweep->config->rounds;
}

static bool is_folder(const char *uri)
{
    struct stat status;
    const char *path = strncmp(uri, "file://", 7) == 0 ? uri + 7 : uri;
    size_t bytes = strlen(uri);
    return (bytes && uri[bytes - 1] == '/') ||
           (!strstr(path, "://") && stat(path, &status) == 0 && S_ISDIR(status.st_mode));
}

static void set_target(struct sweep *sweep)
{
    const struct sl_spec_source *source = &sweep->spec->source;
    const struct sl_s3_options *s3 = sl_spec_store_options(sweep->spec, &sl_s3_table);
    const char *endpoint = s3->endpoint;
    if (!endpoint)
        endpoint = getenv("AWS_ENDPOINT_URL_S3");
    if (!endpoint)
        endpoint = getenv("AWS_ENDPOINT_URL");
    sweep->target = (struct sl_bench_target){
        .uri = source->uri,
        .kind = sl_store_kind(sl_source_store(sweep->plan->sources[0].source)),
        .endpoint = endpoint ? endpoint : "",
        .objects = sweep->plan->source_count,
        .folder = is_folder(source->uri),
        .chosen = source->include.count || source->exclude.count,
        .name = sl_source_name(sweep->plan->sources[0].source),
        .anonymous = s3->anonymous,
        .directory = sweep->place.run,
    };
    if (sweep->config->ways[SL_BENCH_NETWORK] && !has_network(sweep->plan))
        sl_log(SL_LOG_INFO, "'%s' is not read by HTTP: the bare network is not measured",
               sl_plan_uri(sweep->plan));
}

static int measure(struct sweep *sweep, struct sl_err *err)
{
    struct sl_bench_result *result = sweep->result;
    if (!result->bytes)
        return sl_fail(err, SL_E_USAGE, "'%s' holds no bytes to measure with", result->source);
    set_target(sweep);
    if (add_settings(sweep, has_network(sweep->plan), err) < 0 || add_peers(sweep, err) < 0)
        return -1;
    sweep->samples =
        sl_alloc_array(result->point_count * sweep->config->rounds, sizeof(*sweep->samples), err);
    sweep->taken = sl_alloc_array(result->point_count, sizeof(*sweep->taken), err);
    if (!sweep->samples || !sweep->taken || run_rounds(sweep, err) < 0)
        return -1;
    for (size_t p = 0; p < result->point_count; p++)
        sl_bench_summarize(&result->points[p], sweep->samples + p * sweep->config->rounds,
                           sweep->taken[p]);
    return 0;
}

int sl_bench_run(const struct sl_spec *spec, const struct sl_bench_config *config,
                 struct sl_cancel *cancel, struct sl_bench_result *result, struct sl_err *err)
{
    struct sl_source_config source;
    struct sweep sweep = {.spec = spec,
                          .config = config,
                          .cancel = cancel,
                          .result = result,
                          .place = {.fd = -1, .parent_fd = -1}};
    const struct sl_plan_output output = sl_plan_output_of_spec(spec);
    uint64_t began = sl_now_ns();
    sl_bench_facts(&result->facts);
    sl_spec_source_config(spec, cancel, NULL, &source);
    int done = sl_plan_make(spec, &output, &source, &sweep.plan, err);
    if (done == 0) {
        describe(&sweep);
        done = sl_bench_place_open(&sweep.place, config->to, "sluice-bench", err);
    }
    if (done == 0)
        done = measure(&sweep, err);
    result->seconds = (double)(sl_now_ns() - began) / (double)SL_NS_PER_S;
    sl_bench_place_close(&sweep.place);
    sl_plan_free(sweep.plan);
    free(sweep.samples);
    free(sweep.taken);
    return done;
}
