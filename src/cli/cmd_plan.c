/* sluice plan: what a load would do, from listings and headers alone, and whether its destination
 * is large enough. */
#include <inttypes.h>
#include <stdio.h>

#include "cli.h"
#include "load.h"
#include "mapping.h"
#include "operand.h"

enum { PLAN_JSON_MAX = 256 * 1024 * 1024, ROWS_SHOWN = 20, NAME_BYTES = 1100 };

struct plan_options {
    char *to;
};
static const struct sl_option rows[] = {
    SL_OPTION(plan_options, to, STRING, "",
              "the directory that a load would publish into; /dev/shm for a URI without it",
              .value = "DIR"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"plan", sizeof(struct plan_options), rows};

static void print_row(const char *label, uint64_t bytes, const char *more)
{
    char text[32];
    printf("  %-14s %12s  %s\n", label, sl_human_bytes(bytes, text), more);
}

static void print_names(const struct sl_plan *plan)
{
    char text[32];
    printf("\n  %-48s %12s  %s\n", "OBJECT", "SIZE", "FORMAT");
    for (size_t i = 0; i < plan->source_count && i < ROWS_SHOWN; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "%s", plan->sources[i].name);
        sl_tame(name);
        printf("  %-48s %12s  %s\n", name,
               sl_human_bytes(sl_source_bytes(plan->sources[i].source), text),
               plan->sources[i].index ? plan->sources[i].index->format : "data");
    }
    if (plan->source_count > ROWS_SHOWN)
        printf("  … and %zu more; --json lists all\n", plan->source_count - ROWS_SHOWN);
}

static void print_room(const struct sl_room *room)
{
    char available[32], limit[32];
    printf("\n  %-48s %12s  %s\n", "LIMIT", "FREE", "SIZE");
    for (unsigned i = 0; i < room->count; i++)
        printf("  %-48s %12s  %s\n", room->limits[i].what,
               sl_human_bytes(room->limits[i].available, available),
               sl_human_bytes(room->limits[i].limit, limit));
}

static void print_plan(const struct sl_spec *spec, const struct sl_plan *plan,
                       const struct sl_room *room)
{
    char more[160], range[32];
    printf("%s: %s to %s\n", spec->metadata.name, sl_plan_uri(plan), spec->sink.tmpfs.path);
    snprintf(more, sizeof(more), "in %zu ranges of up to %s, %zu extents, %u to %u connections",
             plan->range_count, sl_human_bytes(plan->range_bytes, range), plan->extent_count,
             plan->connections, plan->connections_max);
    print_row("to fetch", plan->fetch_bytes, more);
    snprintf(more, sizeof(more), "of %zu objects", plan->source_count);
    print_row("skipped", plan->skipped_bytes, more);
    snprintf(more, sizeof(more), "in %zu files, %zu tensors", plan->file_count, plan->tensor_count);
    print_row("destination", plan->sink_bytes, more);
    struct sl_plan_changes changes = sl_plan_changes(plan);
    if (changes.decrypted || changes.cast || changes.sliced)
        printf("  %-14s %12s  %" PRIu64 " tensors decrypted, %" PRIu64 " cast, %" PRIu64
               " sliced\n",
               "on the way", "", changes.decrypted, changes.cast, changes.sliced);
    snprintf(more, sizeof(more), "%zu hashes will be checked", plan->check_count);
    print_row("without hash", plan->unhashed_bytes, more);
    snprintf(more, sizeof(more), "read for this plan in %" PRIu64 " requests",
             plan->index_requests);
    print_row("indexes", plan->index_bytes, more);
    print_names(plan);
    print_room(room);
}

static int plan_one(struct sl_cli *cli, const struct sl_spec *spec, struct sl_json *json,
                    struct sl_err *err)
{
    struct sl_source_config config;
    struct sl_room room = {0};
    SL_AUTO(sl_plan) plan = NULL;
    sl_load_source_config(spec, cli->cancel, NULL, &config);
    if (sl_plan_make(spec, &config, &plan, err) < 0)
        return sl_wrap(err, "model '%s'", spec->metadata.name);
    const char *path = spec->sink.tmpfs.path;
    if (!path)
        return sl_fail(err, SL_E_USAGE,
                       "the model '%s' has no destination: set sink.tmpfs.path, or give --to DIR",
                       spec->metadata.name);
    int fits = sl_room_check(path, plan->sink_bytes, 0, &room, err);
    if (!cli->json) {
        print_plan(spec, plan, &room);
        return fits;
    }
    sl_json_object(json);
    sl_json_key_string(json, "name", spec->metadata.name);
    sl_json_key_string(json, "path", path);
    sl_json_key(json, "plan");
    sl_plan_json(json, plan);
    sl_json_key(json, "room");
    sl_room_json(json, &room);
    sl_json_key_bool(json, "fits", fits == 0);
    sl_json_end(json);
    return fits;
}

static int run_specs(struct sl_cli *cli, const struct sl_specs *specs, struct sl_json *json,
                     struct sl_err *err)
{
    int done = 0;
    if (specs->count > 1)
        sl_json_array(json);
    for (size_t i = 0; i < specs->count; i++) {
        struct sl_err why = SL_ERR_INIT;
        if (!cli->json && i)
            printf("\n");
        if (plan_one(cli, &specs->items[i], json, &why) == 0)
            continue;
        if (done == 0)
            *err = why;
        done = -1;
        if (why.kind != SL_E_NO_SPACE)
            return -1;
    }
    if (specs->count > 1)
        sl_json_end(json);
    if (cli->json && sl_cli_print_json(json, done ? NULL : err) < 0)
        return -1;
    return done;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct plan_options *options = cli->options;
    struct sl_specs specs = {0};
    struct sl_json json;
    sl_json_init(&json, PLAN_JSON_MAX);
    int done = sl_operand_specs(cli, options->to, NULL, "/dev/shm", &specs, err);
    if (done == 0)
        done = run_specs(cli, &specs, &json, err);
    sl_json_release(&json);
    sl_specs_release(&specs);
    return done;
}

const struct sl_command sl_cmd_plan = {
    .name = "plan",
    .usage = "sluice plan SPEC | URI [--to DIR]",
    .summary = "show what a load would fetch and whether it fits",
    .description = "Reads listings and the headers of model files, no tensor data, and shows "
                   "objects, ranges, bytes to fetch and to skip, the room "
                   "needed at the destination and what limits it: the file system, every cgroup "
                   "above this process, the machine's memory. Exits with "
                   "6 if the destination is too small.",
    .examples = "sluice plan model.yaml\n"
                "sluice plan s3://bucket/model/ --to /models --json   # for scripts",
    .options = &table,
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
