/*
 * sluice node: what an operator asks of the node daemon, over its control socket: which models
 * there are, load, pin, evict, forget, try again. Each action is a row.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "buf.h"
#include "cli.h"
#include "control.h"
#include "operand.h"
#include "url.h"

enum { SPEC_BYTES_MAX = 1024 * 1024, WATCH_MS = 1000 };

struct node_options {
    char *socket;
    bool watch;
};
static const struct sl_option rows[] = {
    SL_OPTION(node_options, socket, STRING, "",
              "the daemon's control socket; $SLUICE_CONTROL_SOCKET, else "
              "/run/sluice/control.sock, unless given",
              .value = "PATH"),
    SL_OPTION(node_options, watch, BOOL, "false",
              "models: show them again every second; load, retry: wait until the model is there"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"node", sizeof(struct node_options), rows};

static const char *socket_of(const struct node_options *options)
{
    const char *usual = getenv("SLUICE_CONTROL_SOCKET");
    if (options->socket && *options->socket)
        return options->socket;
    return usual && *usual ? usual : "/run/sluice/control.sock";
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = sl_json_get_string(object, key);
    return text ? text : "";
}

/* ---- models ---------------------------------------------------------------------------------- */

static int references_of(const json_t *model)
{
    const json_t *versions = json_object_get(model, "versions");
    uint64_t count = 0;
    for (size_t i = 0; i < json_array_size(versions); i++)
        count += sl_json_get_uint(json_array_get(versions, i), "reference_count", 0);
    return (int)SL_MIN(count, (uint64_t)99999);
}

/* The message, since when it fails, how often it was tried, of which kind it is, and what comes. */
static void print_failure(const json_t *error)
{
    char why[800], kind[32], when[20] = "";
    const json_t *since = json_object_get(error, "since_seconds");
    const json_t *retry = json_object_get(error, "retry_in_seconds");
    time_t began = (time_t)(sl_wall_seconds() - (int64_t)json_number_value(since));
    struct tm tm;
    snprintf(why, sizeof(why), "%.767s", text_of(error, "message"));
    snprintf(kind, sizeof(kind), "%s", text_of(error, "kind"));
    sl_sanitize(why);
    sl_sanitize(kind);
    printf("  %s\n", why);
    if (!json_is_number(since))
        return; /* an older daemon */
    if (localtime_r(&began, &tm))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
    uint64_t tries = sl_json_get_uint(error, "tries", 0);
    printf("  failing since %s, %" PRIu64 " %s, %s", when, tries, tries == 1 ? "try" : "tries",
           kind);
    if (json_is_number(retry) && json_number_value(retry) > 0)
        printf("; next try in %.0f s", json_number_value(retry));
    printf("\n");
}

/* Of the load with this number, if it is running. */
static void print_load(const json_t *loads, uint64_t id)
{
    for (size_t i = 0; id && i < json_array_size(loads); i++) {
        const json_t *load = json_array_get(loads, i),
                     *left = json_object_get(load, "seconds_left");
        if (sl_json_get_uint(load, "id", 0) != id || strcmp(text_of(load, "state"), "reading") != 0)
            continue;
        printf("  %" PRIu64 " %%", sl_json_get_uint(load, "percent", 0));
        if (json_is_number(left))
            printf(", %.0f s left", json_number_value(left));
        printf("\n");
    }
}

/* Who failed has failed until it is there, also while it is tried again. */
static void print_model(const json_t *model, const json_t *loads)
{
    char size[32], name[260], state[16], version[17];
    const json_t *error = json_object_get(model, "error");
    snprintf(name, sizeof(name), "%.255s", text_of(model, "name"));
    bool ready = strcmp(text_of(model, "state"), "ready") == 0;
    snprintf(state, sizeof(state), "%s",
             json_is_object(error) && !ready ? "failed" : text_of(model, "state"));
    snprintf(version, sizeof(version), "%s", text_of(model, "version"));
    sl_sanitize(name);
    sl_sanitize(state);
    sl_sanitize(version);
    printf("%-32s %-9s %-7s %10s %6d  %s\n", name, state,
           json_is_true(json_object_get(model, "pinned")) ? "pinned" : "-",
           sl_human_bytes(sl_json_get_uint(model, "bytes", 0), size), references_of(model),
           version);
    print_load(loads, sl_json_get_uint(model, "load", 0));
    if (json_is_object(error))
        print_failure(error);
}

static void print_models(const json_t *answer, const json_t *loads)
{
    char held[32], budget[32];
    const json_t *models = json_object_get(answer, "models");
    printf("%-32s %-9s %-7s %10s %6s  %s\n", "NAME", "STATE", "PIN", "SIZE", "USERS", "VERSION");
    for (size_t i = 0; i < json_array_size(models); i++)
        print_model(json_array_get(models, i), json_object_get(loads, "loads"));
    printf("%s of %s in use\n", sl_human_bytes(sl_json_get_uint(answer, "held_bytes", 0), held),
           sl_human_bytes(sl_json_get_uint(answer, "budget_bytes", 0), budget));
}

/* As it came, on one line. */
static int print_answer(const json_t *answer, struct sl_err *err)
{
    char *text = json_dumps(answer, JSON_COMPACT);
    if (!text)
        return sl_fail(err, SL_E_NO_SPACE, "no memory for the daemon's answer");
    printf("%s\n", text);
    free(text);
    return 0;
}

static int run_models(struct sl_cli *cli, const char *socket, struct sl_err *err)
{
    const struct node_options *options = cli->options;
    for (;;) {
        json_t *answer = NULL, *loads = NULL;
        if (sl_control_ask(socket, "GET", "/v1/models", NULL, &answer, err) < 0)
            return -1;
        if (!cli->json) /* without it only the percent is missing */
            sl_control_ask(socket, "GET", "/v1/loads", NULL, &loads, NULL);
        int done = 0;
        if (cli->json)
            done = print_answer(answer, err);
        else
            print_models(answer, loads);
        json_decref(loads);
        json_decref(answer);
        if (done < 0 || !options->watch)
            return done;
        fflush(stdout);
        if (sl_sleep_ms(WATCH_MS, cli->cancel, err) < 0)
            return -1;
        printf("\n");
    }
}

/* ---- actions --------------------------------------------------------------------------------- */

/* 1: go on waiting. */
static int judge(const json_t *model, struct sl_err *err)
{
    const json_t *error = json_object_get(model, "error");
    bool busy = json_is_true(json_object_get(model, "busy"));
    if (busy)
        return 1;
    if (json_is_object(error)) {
        sl_control_fail(error, err);
        return sl_wrap(err, "model '%s'", text_of(model, "name"));
    }
    return strcmp(text_of(model, "state"), "ready") == 0 ? 0 : 1;
}

static char *path_of_model(const char *name, struct sl_err *err)
{
    sl_autofree char *escaped = sl_url_encode(name, false, err);
    return escaped ? sl_asprintf(err, "/v1/models/%s", escaped) : NULL;
}

/* The model as it is when it is there; the caller's. NULL: it failed, or the wait did. */
static json_t *await_model(struct sl_cli *cli, const char *socket, const char *name,
                           struct sl_err *err)
{
    sl_autofree char *path = path_of_model(name, err);
    for (int state = path ? 1 : -1; state > 0;) {
        json_t *model = NULL;
        if (sl_control_ask(socket, "GET", path, NULL, &model, err) < 0)
            return NULL;
        state = judge(model, err);
        if (state == 0)
            return model;
        json_decref(model);
        if (state > 0 && sl_sleep_ms(WATCH_MS, cli->cancel, err) < 0)
            return NULL;
    }
    return NULL;
}

static int watch_model(struct sl_cli *cli, const char *socket, const char *name, struct sl_err *err)
{
    json_t *model = await_model(cli, socket, name, err);
    if (!model)
        return -1;
    int done = cli->json ? print_answer(model, err) : 0;
    if (!cli->json)
        print_model(model, NULL);
    json_decref(model);
    return done;
}

/* Those of an answer, in which they become what they are when they are there. The first that fails
 * is the error, when all have ended. */
static int watch_models(struct sl_cli *cli, const char *socket, json_t *answer, struct sl_err *err)
{
    json_t *models = json_object_get(answer, "models");
    int done = 0;
    for (size_t i = 0; i < json_array_size(models); i++) {
        struct sl_err why = SL_ERR_INIT;
        json_t *model = await_model(cli, socket, text_of(json_array_get(models, i), "name"), &why);
        if (!model && done == 0) {
            *err = why;
            done = -1;
        }
        if (!model)
            continue;
        if (!cli->json)
            print_model(model, NULL);
        json_array_set_new(models, i, model);
    }
    return done < 0 || !cli->json ? done : print_answer(answer, err);
}

struct action {
    const char *name, *method, *below, *done;
    bool waits; /* --watch waits for the model */
};
static const struct action actions[] = {
    {"load", "POST", "/load", "loading", true},     {"retry", "POST", "/load", "loading", true},
    {"pin", "POST", "/pin", "pinned", false},       {"unpin", "POST", "/unpin", "unpinned", false},
    {"evict", "POST", "/evict", "evicting", false}, {"forget", "DELETE", "", "forgetting", false},
};

static int load_spec(struct sl_cli *cli, const char *socket, const char *file, struct sl_err *err)
{
    const struct node_options *options = cli->options;
    sl_autobuf text = SL_BUF_INIT(SPEC_BYTES_MAX);
    json_t *answer = NULL;
    if (sl_cli_spec_text(cli, file, &text, err) < 0 ||
        sl_control_ask(socket, "POST", "/v1/loads", sl_buf_string(&text), &answer, err) < 0)
        return -1;
    if (!cli->json)
        printf("loading what '%s' says%s\n", file,
               options->watch ? "" : ": see `sluice node models`");
    int done = options->watch ? watch_models(cli, socket, answer, err)
               : cli->json    ? print_answer(answer, err)
                              : 0;
    json_decref(answer);
    return done;
}

static int act(struct sl_cli *cli, const struct action *action, const char *socket,
               struct sl_err *err)
{
    const struct node_options *options = cli->options;
    const char *name = cli->operands[1];
    if (action == actions && sl_operand_is_spec(name))
        return load_spec(cli, socket, name, err);
    if (strchr(name, '/'))
        return sl_fail(err, SL_E_USAGE,
                       "'sluice node %s' takes a model's name, no path or URI: write a spec with "
                       "`sluice init URI >m.yaml`, then `sluice node load m.yaml`",
                       action->name);
    json_t *answer = NULL;
    sl_autofree char *model = path_of_model(name, err);
    sl_autofree char *path = model ? sl_asprintf(err, "%s%s", model, action->below) : NULL;
    if (!path || sl_control_ask(socket, action->method, path, NULL, &answer, err) < 0)
        return -1;
    bool waits = action->waits && options->watch;
    int done = cli->json && !waits ? print_answer(answer, err) : 0;
    if (!cli->json)
        printf("%s %s\n", action->done, name);
    json_decref(answer);
    return done == 0 && waits ? watch_model(cli, socket, name, err) : done;
}

static int fail_unknown(const char *name, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "unknown node command '%.80s': use models, load, retry, pin, unpin, evict or "
                   "forget",
                   name);
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const char *name = cli->operands[0], *socket = socket_of(cli->options);
    if (strcmp(name, "models") == 0)
        return cli->operand_count > 1
                   ? sl_fail(err, SL_E_USAGE, "'sluice node models' takes no name")
                   : run_models(cli, socket, err);
    for (size_t i = 0; i < SL_COUNT(actions); i++) {
        if (strcmp(actions[i].name, name) != 0)
            continue;
        return cli->operand_count < 2
                   ? sl_fail(err, SL_E_USAGE, "'sluice node %s' needs the name of a model", name)
                   : act(cli, &actions[i], socket, err);
    }
    return fail_unknown(name, err);
}

const struct sl_command sl_cmd_node = {
    .name = "node",
    .usage = "sluice node models | load NAME|SPEC | retry|pin|unpin|evict|forget NAME",
    .summary = "ask the node daemon which models it has; load, pin and evict them",
    .description =
        "Asks `sluice serve` at its control socket. models lists every model with its state, size, "
        "users and last error. load looks for a new version of a model, or loads what a spec file "
        "(.yaml, or - for standard input) says; retry does not wait for the next try of a model "
        "that failed. pin keeps a "
        "model in memory, evict takes it out, forget also forgets its name. Allowed: root, the "
        "daemon's user, and whom control.uids and control.gids name.",
    .examples = "sluice node models --watch           # again every second\n"
                "sluice node load model.yaml --watch  # and wait until it is there\n"
                "sluice node retry gpt-j --watch      # now, and wait for it\n"
                "sluice node evict gpt-j",
    .operand_words = "models load retry pin unpin evict forget",
    .options = &table,
    .operand_min = 1,
    .operand_max = 2,
    .run = run,
};
