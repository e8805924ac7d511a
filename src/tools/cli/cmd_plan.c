/* sluice plan: what a load would do, from listings and headers alone, and whether its destination
 * is large enough. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "cli.h"
#include "fill.h"
#include "gpu.h"
#include "gpu_holder.h"
#include "load.h"
#include "mapping.h"
#include "operand.h"
#include "pages.h"
#include "routes.h"

enum {
    PLAN_JSON_MAX = 256 * 1024 * 1024,
    ROWS_SHOWN = 20,
    NAME_BYTES = 1100,
    IMAGE_BYTES_MAX = 4096
};

enum { FORMAT_TABLE, FORMAT_POD };

struct plan_options {
    char *to, *image;
    int format;
};
static const struct sl_option rows[] = {
    SL_OPTION(plan_options, to, STRING, "",
              "the directory that a load would publish into; /dev/shm for a URI without it",
              .value = "DIR"),
    SL_OPTION(plan_options, format, CHOICE, "table",
              "a table, or a Pod whose init container loads a URI, with the memory that it needs",
              .choices = "table|pod"),
    SL_OPTION(plan_options, image, STRING, "",
              "the image of that container; sluice:VERSION of $SLUICE_REGISTRY unless given",
              .value = "IMAGE"),
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
        sl_sanitize(name);
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

/* Slices that take a row here and there: what is weighed, and what else it could be. */
static void print_rows(const struct sl_plan *plan)
{
    const struct sl_plan_rows *cost = &plan->rows;
    char more[200], least[32], whole[32], requests[40], slices[40];
    if (!cost->rows)
        return;
    snprintf(more, sizeof(more),
             "in %s for %s of slices; row by row %s in %" PRIu64 ", whole spans %s in %" PRIu64,
             sl_human_count(cost->wanted.requests, "request", requests),
             sl_human_count(cost->rows, "row", slices), sl_human_bytes(cost->least.bytes, least),
             cost->least.requests, sl_human_bytes(cost->whole.bytes, whole), cost->whole.requests);
    print_row("rows", cost->wanted.bytes, more);
    snprintf(more, sizeof(more), "that a request is worth (%s); a load goes by what it sees",
             sl_worth_why_name(plan->weigh.why));
    print_row("", sl_request_worth(&plan->weigh.facts, 0), more);
}

/* Pages of 4 KiB where huge ones could be had: what they would save, about 0.22 s of a processor
 * for a GB (docs/load.md). */
static void print_pages(const struct sl_spec *spec, uint64_t bytes)
{
    double seconds = (double)bytes * 0.22e-9;
    if (!spec->sink.tmpfs.path || seconds < 0.05 ||
        strcmp(sl_pages_of_path(spec->sink.tmpfs.path), sl_pages_text(SL_PAGES_SMALL)) != 0)
        return;
    printf("  %-14s %10.1f s  of processor time would be saved by a tmpfs with huge pages, or a "
           "node's `tmpfs`; an emptyDir cannot have them\n",
           "huge pages", seconds);
}

static void describe_store(const struct sl_plan *plan,
                           void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    if (plan->source_count)
        sl_store_describe(sl_source_store(plan->sources[0].source), row, arg);
}

static void print_mirror(void *arg, const char *what, const char *text)
{
    (void)arg;
    if (strcmp(what, "mirror") == 0)
        printf("  %-14s %12s  %s, asked first for what its digest checks\n", what, "", text);
}

static void write_mirror(void *arg, const char *what, const char *text)
{
    if (strcmp(what, "mirror") == 0)
        sl_json_string(arg, text);
}

/* What goes by which cache, and what by none and why. */
static void print_routes(const struct sl_routes *routes)
{
    char blocks[40], count[40], more[160], size[32];
    if (!routes->count)
        return;
    snprintf(more, sizeof(more), "of it from %s, in blocks of %s",
             sl_human_count(routes->count, "cache", count),
             sl_human_bytes(routes->block_bytes, size));
    print_row("by caches", routes->cached, more);
    for (size_t i = 0; i < routes->count && i < ROWS_SHOWN; i++) {
        snprintf(more, sizeof(more), "in %s from %.100s",
                 sl_human_count(routes->caches[i].blocks, "block", blocks), routes->caches[i].name);
        print_row("", routes->caches[i].bytes, more);
    }
    if (routes->count > ROWS_SHOWN)
        printf("  … and %zu more; --json lists all\n", routes->count - ROWS_SHOWN);
}

static void print_past(const struct sl_routes *routes)
{
    for (unsigned i = 0; i < SL_PAST_COUNT; i++)
        if (routes->past[i])
            print_row("past caches", routes->past[i], sl_past_text((enum sl_past)i));
}

static void write_routes(struct sl_json *json, const struct sl_routes *routes)
{
    sl_json_key(json, "caches");
    sl_json_array(json);
    for (size_t i = 0; i < routes->count; i++) {
        sl_json_object(json);
        sl_json_key_string(json, "name", routes->caches[i].name);
        sl_json_key_uint(json, "bytes", routes->caches[i].bytes);
        sl_json_key_uint(json, "blocks", routes->caches[i].blocks);
        sl_json_end(json);
    }
    sl_json_end(json);
    sl_json_key(json, "past_caches");
    sl_json_object(json);
    for (unsigned i = 0; i < SL_PAST_COUNT; i++)
        if (routes->past[i])
            sl_json_key_uint(json, sl_past_name((enum sl_past)i), routes->past[i]);
    sl_json_end(json);
}

/* "4 connections", "4 to 16 connections". */
static const char *connections_text(const struct sl_connections *connections, char text[40])
{
    if (connections->first == connections->most)
        return sl_human_count(connections->most, "connection", text);
    snprintf(text, 40, "%u to %u connections", connections->first, connections->most);
    return text;
}

static uint64_t left_to_fetch(const struct sl_plan *plan, const struct sl_inheritable *there)
{
    uint64_t all = sl_plan_expected_bytes(plan);
    return all - SL_MIN(all, there->fetch_bytes);
}

static void print_plan(const struct sl_spec *spec, const struct sl_plan *plan,
                       const struct sl_routes *routes, const char *device, uint64_t bytes,
                       const struct sl_inheritable *there, const struct sl_room *room)
{
    char more[160], range[32], count[40], other[40], extents[40];
    printf("%s: %s to %s%s\n", spec->metadata.name, sl_plan_uri(plan), device ? "the pool on " : "",
           device ? device : spec->sink.tmpfs.path);
    snprintf(more, sizeof(more), "in %s of up to %s, %s, %s",
             sl_human_count(plan->range_count, "range", count),
             sl_human_bytes(plan->range_bytes, range),
             sl_human_count(plan->extent_count, "extent", extents),
             connections_text(&plan->connections, other));
    print_row("to fetch", left_to_fetch(plan, there), more);
    if (there->bytes)
        print_row("there already", there->bytes,
                  "in the version that is published, which is taken over");
    print_rows(plan);
    print_routes(routes);
    print_past(routes);
    snprintf(more, sizeof(more), "of %s", sl_human_count(plan->source_count, "object", count));
    print_row("skipped", plan->skipped_bytes, more);
    if (plan->unusual_count) {
        snprintf(more, sizeof(more),
                 "of it %s with the same weights in other forms; source.include chooses "
                 "otherwise",
                 sl_human_count(plan->unusual_count, "object", count));
        print_row("left out", plan->unusual_bytes, more);
    }
    snprintf(more, sizeof(more), "in %s, %s%s%s", sl_human_count(plan->file_count, "file", count),
             sl_human_count(plan->tensor_count, "tensor", other), device ? "" : ", on ",
             device ? "" : sl_pages_of_path(spec->sink.tmpfs.path));
    print_row("destination", bytes, more);
    if (!device)
        print_pages(spec, bytes);
    struct sl_plan_changes changes = sl_plan_changes(plan);
    if (changes.decrypted || changes.cast || changes.sliced)
        printf("  %-14s %12s  %s decrypted, %" PRIu64 " cast, %" PRIu64 " sliced\n", "on the way",
               "", sl_human_count(changes.decrypted, "tensor", count), changes.cast,
               changes.sliced);
    snprintf(more, sizeof(more), "%s will be checked",
             sl_human_count(plan->check_count, "hash", count));
    print_row("without hash", plan->unhashed_bytes, more);
    snprintf(more, sizeof(more), "read for this plan in %s",
             sl_human_count(plan->index_requests, "request", count));
    print_row("indexes", plan->index_bytes, more);
    describe_store(plan, print_mirror, NULL);
    print_names(plan);
    print_room(room);
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* What limits memory of a GPU: what is free on it now. */
static int check_gpu(unsigned ordinal, const struct sl_plan *plan, struct sl_room *room,
                     uint64_t *bytes, struct sl_err *err)
{
    struct sl_room_limit *limit = &room->limits[room->count];
    SL_AUTO(sl_gpu) gpu = sl_gpu_open((int)ordinal, err);
    if (!gpu || sl_gpu_memory(gpu, &limit->available, &limit->limit, err) < 0)
        return -1;
    snprintf(limit->what, sizeof(limit->what), "memory of cuda:%u, %s", ordinal,
             sl_gpu_device(gpu)->name);
    const struct sl_slab_place place = {.kind = SL_SLAB_GPU, .gpu = gpu};
    uint64_t needed = sl_slabs_needed(plan, &place);
    *bytes += needed;
    room->needed = SL_MAX(room->needed, needed); /* on each */
    room->count++;
    if (needed <= limit->available)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "needs %" PRIu64 " bytes of memory of cuda:%u, and %" PRIu64 " are free", needed,
                   ordinal, limit->available);
}

static int check_gpus(const char *device, const struct sl_plan *plan, struct sl_room *room,
                      uint64_t *bytes, struct sl_err *err)
{
    unsigned first = 0;
    int count = 1, done = 0;
    *bytes = 0;
    if (!sl_gpu_ordinal(device, &first) && sl_gpu_count(&count, err) < 0)
        return -1;
    for (unsigned i = 0; i < (unsigned)count && i < SL_GPUS_MAX; i++) {
        struct sl_err why = SL_ERR_INIT;
        if (check_gpu(first + i, plan, room, bytes, &why) == 0)
            continue;
        if (done == 0)
            *err = why;
        done = -1;
        if (why.kind != SL_E_NO_SPACE)
            return -1;
    }
    return done;
}

/* path: where a load would publish, NULL in the pool; device: NULL, or a GPU. */
static int check_place(const char *path, const char *device, const struct sl_plan *plan,
                       const struct sl_inheritable *there, struct sl_room *room, uint64_t *bytes,
                       struct sl_err *err)
{
    *bytes = plan->sink_bytes;
    if (device)
        return check_gpus(device, plan, room, bytes, err);
    return sl_room_check(path ? path : "/dev/shm", plan->sink_bytes, there->link_bytes, room, err);
}

/* ---- a Pod ----------------------------------------------------------------------------------- */

/* The arithmetic of docs/kubernetes.md: who writes pays, and the pod pays as long as the volume is
 * there. */
static char *pod_image(const struct plan_options *options, struct sl_err *err)
{
    const char *registry = getenv("SLUICE_REGISTRY");
    sl_autobuf image = SL_BUF_INIT(IMAGE_BYTES_MAX);
    if (options->image && *options->image)
        return sl_operand_quote(options->image, err);
    if (sl_buf_printf(&image, err, "%s/sluice:" SLUICE_VERSION,
                      registry && *registry ? registry : "REGISTRY") < 0)
        return NULL;
    return sl_operand_quote(sl_buf_string(&image), err);
}

static int print_pod(const struct sl_cli *cli, const struct sl_spec *spec,
                     const struct sl_plan *plan, struct sl_err *err)
{
    const uint64_t mib = 1024 * 1024;
    if (spec->has_pool || sl_operand_is_spec(cli->operands[0]) || cli->setting_count)
        return sl_fail(err, SL_E_USAGE,
                       "--format pod needs a URI and no settings: put a spec into a ConfigMap, as "
                       "manifests/init-container-vllm.yaml does");
    uint64_t model = (sl_add_capped(plan->sink_bytes, mib - 1) / mib) + 64; /* its folders, too */
    sl_autofree char *uri = sl_operand_quote(spec->source.uri, err);
    sl_autofree char *image = pod_image(cli->options, err);
    if (!uri || !image)
        return -1;
    printf("# An init container loads the model into memory; the engine reads it from /models.\n"
           "apiVersion: v1\n"
           "kind: Pod\n"
           "metadata:\n"
           "  generateName: model-\n"
           "spec:\n"
           "  automountServiceAccountToken: false\n"
           "  securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: "
           "65532, seccompProfile: {type: RuntimeDefault}}\n"
           "  initContainers:\n"
           "    - name: load\n"
           "      image: %s\n"
           "      args: [load, %s, --to, /models/model]\n"
           "      # envFrom: [{secretRef: {name: sluice-s3}}]   # the store's credentials\n"
           "      resources:                     # the model and 512Mi\n"
           "        requests: {cpu: \"2\", memory: %" PRIu64 "Mi}\n"
           "        limits: {memory: %" PRIu64 "Mi}\n"
           "      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, "
           "capabilities: {drop: [ALL]}}\n"
           "      volumeMounts: [{name: models, mountPath: /models}]\n",
           image, uri, model + 512, model + 512);
    printf("  containers:\n"
           "    - name: engine\n"
           "      image: ENGINE                  # yours; it reads /models/model\n"
           "      resources:                     # its own memory, here 8192Mi, and the model\n"
           "        requests: {memory: %" PRIu64 "Mi}\n"
           "        limits: {memory: %" PRIu64 "Mi}\n"
           "      volumeMounts: [{name: models, mountPath: /models, readOnly: true}]\n"
           "  volumes:\n"
           "    - name: models\n"
           "      emptyDir: {medium: Memory, sizeLimit: %" PRIu64 "Mi}\n",
           model + 8192, model + 8192, model);
    return 0;
}

static void write_plan(struct sl_json *json, const struct sl_spec *spec, const struct sl_plan *plan,
                       const struct sl_routes *routes, const char *device, uint64_t bytes,
                       const struct sl_inheritable *there)
{
    sl_json_key_string(json, "name", spec->metadata.name);
    if (device)
        sl_json_key_string(json, "device", device);
    else
        sl_json_key_string(json, "path", spec->sink.tmpfs.path);
    sl_json_key_uint(json, "destination_bytes", bytes);
    sl_json_key_uint(json, "inherited_bytes", there->bytes);
    sl_json_key_uint(json, "left_to_fetch_bytes", left_to_fetch(plan, there));
    sl_json_key(json, "plan");
    sl_plan_json(json, plan);
    sl_json_key(json, "mirrors");
    sl_json_array(json);
    describe_store(plan, write_mirror, json);
    sl_json_end(json);
    write_routes(json, routes);
}

/* Else it is /dev/shm, of which the room is wanted. */
static bool has_own_path(const struct sl_cli *cli)
{
    const struct plan_options *options = cli->options;
    return (options->to && *options->to) || sl_operand_is_spec(cli->operands[0]);
}

static int show_plan(struct sl_cli *cli, const struct sl_spec *spec, const struct sl_plan *plan,
                     const char *device, struct sl_json *json, struct sl_err *err)
{
    const char *gpu = device && strcmp(device, "host") != 0 ? device : NULL;
    struct sl_room room = {0};
    struct sl_routes routes;
    struct sl_inheritable there = {0};
    uint64_t bytes;
    if (!device && has_own_path(cli) && sl_load_would_take(spec, plan, err) < 0)
        return -1;
    if (!device && spec->sink.tmpfs.path &&
        sl_publish_inheritable(spec->sink.tmpfs.path, plan, &spec->sink.tmpfs, &there, err) < 0)
        return -1;
    if (sl_plan_routes(plan, &routes, err) < 0) {
        sl_routes_release(&routes);
        return -1;
    }
    int done = check_place(spec->sink.tmpfs.path, gpu, plan, &there, &room, &bytes, err);
    if (!cli->json) {
        print_plan(spec, plan, &routes, device, bytes, &there, &room);
    } else {
        sl_json_object(json);
        write_plan(json, spec, plan, &routes, device, bytes, &there);
        sl_json_key(json, "room");
        sl_room_json(json, &room);
        sl_json_key_bool(json, "fits", done == 0);
        sl_json_end(json);
    }
    sl_routes_release(&routes);
    return done;
}

static int plan_one(struct sl_cli *cli, const struct sl_spec *spec, struct sl_json *json,
                    struct sl_err *err)
{
    struct sl_source_config config;
    SL_AUTO(sl_plan) plan = NULL;
    sl_spec_source_config(spec, cli->cancel, NULL, &config);
    const struct sl_plan_output output =
        spec->has_pool ? sl_slabs_output(0) : sl_plan_output_of_spec(spec);
    if (sl_plan_make(spec, &output, &config, &plan, err) < 0)
        return sl_wrap(err, "model '%s'", spec->metadata.name);
    const char *device = NULL;
    if (spec->has_pool)
        device = spec->sink.pool.device ? spec->sink.pool.device : "host";
    if (!spec->sink.tmpfs.path && !device)
        return sl_fail(err, SL_E_USAGE,
                       "the model '%s' has no destination: set sink.tmpfs.path, or give --to DIR",
                       spec->metadata.name);
    if (((const struct plan_options *)cli->options)->format == FORMAT_POD)
        return print_pod(cli, spec, plan, err);
    return show_plan(cli, spec, plan, device, json, err);
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
    cli->pooled = cli->looks = true;
    int done = sl_operand_specs(cli, options->to, NULL, "/dev/shm", &specs, err);
    if (done == 0)
        done = run_specs(cli, &specs, &json, err);
    sl_json_release(&json);
    sl_specs_release(&specs);
    return done;
}

const struct sl_command sl_cmd_plan = {
    .name = "plan",
    .usage = "sluice plan SPEC | URI [--to DIR] [--format pod]",
    .summary = "show what a load would fetch and whether it fits",
    .description =
        "Reads listings and the headers of model files, no tensor data. Shows objects, "
        "ranges, bytes to fetch and to skip, the room needed at the destination and "
        "what limits it. With source.through also what goes by which cache, what by none, and why. "
        "Limits are the file system, every cgroup above this process, "
        "the machine's memory, and for a node's model on a GPU the GPU's. Exits with "
        "6 if the destination is too small, and as a load would if that refuses the place. A "
        "URI whose store cannot be reached is given "
        "up after 2 s (--unreachable-seconds), a spec's after what it says.",
    .examples = "sluice plan model.yaml\n"
                "sluice plan s3://bucket/model/ --to /models --json   # for scripts\n"
                "sluice plan s3://bucket/model/ --format pod          # YAML for Kubernetes",
    .options = &table,
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
