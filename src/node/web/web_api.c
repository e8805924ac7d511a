/*
 * A table of fixed paths and two that end in a name. Every answer is built in a limited buffer from
 * copies of the progress list, so no request holds a lock of a load.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "web_http.h"
#include "web_parts.h"

enum { REASONS_MAX = 32, MODELS_MAX = 1024 };

#define PROMETHEUS_TYPE  "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

static enum MHD_Result send_failed(const struct request *request, const struct sl_err *err)
{
    return web_send_error(request, 503, err->kind ? err->kind : SL_E_NO_SPACE, 1, "%s",
                          err->message);
}

/* ---- health --------------------------------------------------------------------------------- */

static enum MHD_Result healthz(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, 256);
    sl_json_object(&json);
    sl_json_key_string(&json, "status", "ok");
    sl_json_key_string(&json, "version", SLUICE_VERSION);
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

struct readiness {
    struct sl_json *json;
    uint64_t seen, published, reasons;
};

static void reason(struct readiness *readiness, const char *text)
{
    if (readiness->reasons++ < REASONS_MAX)
        sl_json_string(readiness->json, text);
}

static void judge(const struct sl_progress_view *view, void *arg)
{
    struct readiness *readiness = arg;
    char text[1024];
    readiness->seen++;
    if (view->state == SL_LOAD_PUBLISHED) {
        readiness->published++;
        return;
    }
    if (view->state == SL_LOAD_FAILED)
        snprintf(text, sizeof(text), "'%s' failed: %s", view->name, view->err.message);
    else if (view->bytes_total)
        snprintf(text, sizeof(text), "'%s' is %s: %" PRIu64 " of %" PRIu64 " bytes", view->name,
                 sl_load_state_name(view->state), view->bytes_done, view->bytes_total);
    else
        snprintf(text, sizeof(text), "'%s' is %s", view->name, sl_load_state_name(view->state));
    reason(readiness, text);
}

/* Is everything published that was asked for; the JSON body of /readyz. */
static bool is_readiness(struct sl_web *web, struct sl_json *json)
{
    struct readiness readiness = {.json = json};
    if (web->node)
        return web_node_readiness(web, json);
    sl_json_object(json);
    sl_json_key(json, "reasons");
    sl_json_array(json);
    sl_progress_each(judge, &readiness);
    bool ready = readiness.published >= web->expected_loads, draining;
    {
        SL_LOCKED(&web->lock);
        draining = web->locked.draining;
    }
    if (draining) {
        reason(&readiness, "this process is about to end");
        ready = false;
    }
    if (readiness.seen < web->expected_loads)
        reason(&readiness, "not every load has started");
    struct sl_err why = SL_ERR_INIT;
    if (web->beside.is_ready && !web->beside.is_ready(web->beside.arg, &why)) {
        reason(&readiness, why.message);
        ready = false;
    }
    if (web->share_fd >= 0 && web_share_unready(web->share_fd, "")) {
        reason(&readiness, "the shared directory is being published");
        ready = false;
    }
    sl_json_end(json);
    web_degraded(json);
    sl_json_key_bool(json, "ready", ready);
    sl_json_key_uint(json, "expected", web->expected_loads);
    sl_json_key_uint(json, "published", readiness.published);
    sl_json_end(json);
    SL_LOCKED(&web->lock);
    web->locked.was_ready = web->locked.was_ready || ready;
    return ready;
}

static enum MHD_Result readyz(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    bool ready = is_readiness(request->web, &json);
    return web_send_json(request, ready ? 200 : 503, &json);
}

/* A native sidecar's startup probe holds the next container back, so it means: everything was there
 * once. */
static enum MHD_Result startupz(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    bool started = is_readiness(request->web, &json);
    if (!started) {
        SL_LOCKED(&request->web->lock);
        started = request->web->locked.was_ready;
    }
    return web_send_json(request, started ? 200 : 503, &json);
}

static enum MHD_Result metrics(const struct request *request)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out = SL_BUF_INIT(WEB_ANSWER_BYTES_MAX);
    bool open = sl_web_accepts_openmetrics(web_header(request, "Accept"));
    if (sl_metrics_write(&out, open, &err) < 0)
        return send_failed(request, &err);
    return web_send_buf(request, 200, open ? OPENMETRICS_TYPE : PROMETHEUS_TYPE, &out);
}

/* ---- loads ---------------------------------------------------------------------------------- */

static enum MHD_Result loads(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    web_loads_json(&json, web_sees_all(request));
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

struct search {
    uint64_t id;      /* 0: by name */
    const char *name; /* of a published one, the latest */
    bool found;
    struct sl_progress_view view;
};

static void match(const struct sl_progress_view *view, void *arg)
{
    struct search *search = arg;
    if (search->id ? view->id != search->id
                   : view->state != SL_LOAD_PUBLISHED || strcmp(view->name, search->name) != 0)
        return;
    search->view = *view;
    search->found = true;
}

static uint64_t parse_id(const char *text)
{
    uint64_t id = 0;
    size_t digits = strspn(text, "0123456789");
    if (!digits || digits > 18 || text[digits] || text[0] == '0')
        return 0;
    for (; *text; text++)
        id = id * 10 + (uint64_t)(*text - '0');
    return id;
}

static enum MHD_Result one_load(const struct request *request, const char *text)
{
    struct search search = {.id = parse_id(text)};
    if (search.id)
        sl_progress_each(match, &search);
    if (!search.found || (search.view.hidden && !web_sees_all(request)))
        return web_send_error(request, 404, SL_E_NOT_FOUND, 0, "there is no load '%.100s'", text);
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_progress_json(&json, &search.view);
    return web_send_json(request, 200, &json);
}

/* ---- errors --------------------------------------------------------------------------------- */

static enum MHD_Result one_error(const struct request *request, const char *name)
{
    const struct sl_err_row *row = NULL;
    for (int kind = SL_OK + 1; kind <= SL_E_CANCELED && !row; kind++)
        if (strcmp(sl_err_row((enum sl_err_kind)kind)->name, name) == 0)
            row = sl_err_row((enum sl_err_kind)kind);
    if (!row)
        return web_send_error(request, 404, SL_E_NOT_FOUND, 0,
                              "no kind of error is called '%.100s'", name);
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "kind", row->name);
    sl_json_key_uint(&json, "exit_code", (uint64_t)row->exit_code);
    sl_json_key_bool(&json, "tried_again", row->retry);
    sl_json_key_string(&json, "meaning", row->meaning);
    web_write_runbooks(&json, "runbook", "docs/" WEB_RUNBOOKS);
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

/* ---- models --------------------------------------------------------------------------------- */

struct models {
    struct {
        char name[64];
        uint64_t id;
    } * items;
    size_t count, next;
    struct sl_json *json;
};

static void collect_model(const struct sl_progress_view *view, void *arg)
{
    struct models *models = arg;
    if (view->state != SL_LOAD_PUBLISHED)
        return;
    size_t i = 0;
    while (i < models->count && strcmp(models->items[i].name, view->name) != 0)
        i++;
    if (i == MODELS_MAX)
        return;
    models->count = SL_MAX(models->count, i + 1);
    memcpy(models->items[i].name, view->name, sizeof(view->name));
    models->items[i].id = view->id;
}

static void model_json(struct sl_json *json, const struct sl_progress_view *view)
{
    sl_json_object(json);
    sl_json_key_string(json, "name", view->name);
    sl_json_key_uri(json, "uri", view->uri);
    sl_json_key_string(json, "path", view->path);
    sl_json_key_uint(json, "bytes", view->bytes_total);
    sl_json_key_uint(json, "bytes_verified", view->bytes_verified);
    sl_json_key_uint(json, "tensors", view->tensors_total);
    sl_json_key_uint(json, "objects", view->objects_total);
    sl_json_key_double(json, "seconds", view->seconds);
    sl_json_key_double(json, "bytes_per_second", view->bytes_per_second);
    sl_json_key_uint(json, "load", view->id);
    sl_json_end(json);
}

static void write_model(const struct sl_progress_view *view, void *arg)
{
    struct models *models = arg;
    for (size_t i = 0; i < models->count; i++)
        if (models->items[i].id == view->id)
            model_json(models->json, view);
}

static enum MHD_Result list_models(const struct request *request)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_json json;
    struct models found = {.json = &json};
    if (request->web->node)
        return web_node_models(request);
    found.items = sl_alloc_array(MODELS_MAX, sizeof(*found.items), &err);
    if (!found.items)
        return send_failed(request, &err);
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key(&json, "models");
    sl_json_array(&json);
    sl_progress_each(collect_model, &found);
    sl_progress_each(write_model, &found);
    sl_json_end(&json);
    sl_json_end(&json);
    free(found.items);
    return web_send_json(request, 200, &json);
}

static enum MHD_Result one_model(const struct request *request, const char *name)
{
    struct search search = {.name = name};
    if (request->web->node)
        return web_node_model(request, 200, name);
    sl_progress_each(match, &search);
    if (!search.found)
        return web_send_error(request, 404, SL_E_NOT_FOUND, 0,
                              "no model '%.100s' is published here", name);
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    model_json(&json, &search.view);
    return web_send_json(request, 200, &json);
}

/* ---- the table ------------------------------------------------------------------------------ */

#define WEB_CHANGE(method, path, name, verb, allow, body, run, does)
static const struct {
    const char *path; /* without the slash in front */
    enum MHD_Result (*answer)(const struct request *request);
} routes[] = {
#define WEB_ROUTE(path, answer, is) {path, answer},
#define WEB_NAMED_ROUTE(path, name, answer, is)
#include "web_routes.def"
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
};
static const struct {
    const char *path;
    enum MHD_Result (*answer)(const struct request *request, const char *name);
} named_routes[] = {
#define WEB_ROUTE(path, answer, is)
#define WEB_NAMED_ROUTE(path, name, answer, is) {path, answer},
#include "web_routes.def"
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
};
#undef WEB_CHANGE

/* What follows a path that ends in a name; NULL: it is another path. */
static const char *name_in(const char *path, size_t route)
{
    size_t bytes = strlen(named_routes[route].path);
    const char *name = path + bytes;
    bool is = strncmp(path, named_routes[route].path, bytes) == 0 && *name && !strchr(name, '/');
    return is ? name : NULL;
}

bool web_api_has(const char *url)
{
    char path[SL_WEB_PATH_BYTES];
    if (sl_web_path_decode(url, path) != 0)
        return false;
    for (size_t i = 0; i < SL_COUNT(routes); i++)
        if (strcmp(path, routes[i].path) == 0)
            return true;
    for (size_t i = 0; i < SL_COUNT(named_routes); i++)
        if (name_in(path, i))
            return true;
    return false;
}

enum MHD_Result web_api_answer(const struct request *request, bool *found)
{
    char path[SL_WEB_PATH_BYTES];
    *found = sl_web_path_decode(request->url, path) == 0;
    if (*found && request->web->share_fd >= 0 && !*path)
        *found = false; /* the root of a share is its directory, not the page */
    if (!*found)
        return MHD_NO;
    for (size_t i = 0; i < SL_COUNT(routes); i++)
        if (strcmp(path, routes[i].path) == 0)
            return routes[i].answer(request);
    for (size_t i = 0; i < SL_COUNT(named_routes); i++) {
        const char *name = name_in(path, i);
        if (name)
            return named_routes[i].answer(request, name);
    }
    *found = false;
    return MHD_NO;
}
