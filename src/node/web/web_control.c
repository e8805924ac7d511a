/*
 * Requests that change something. Who may is decided from the headers alone, before a byte of a
 * body is read: at the unix socket by the kernel's word on who has connected, elsewhere by a bearer
 * token, so a page in a browser, which has none, can do nothing. Nothing here waits: loads and
 * evictions are begun, and the answer 202 says where to look.
 */
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "web_http.h"
#include "web_rights.h"

struct control {
    const char *method;
    const char *path; /* up to the name, if there is one */
    const char *name; /* "": there is none */
    const char *verb; /* of the path, behind the name; "" for the name itself */
    const char *allow;
    bool body;
    enum MHD_Result (*run)(const struct request *request, const char *name,
                           const struct sl_buf *body);
};

/* ---- what can be done ----------------------------------------------------------------------- */

static int status_of(const struct sl_err *err)
{
    if (err->kind == SL_E_USAGE && err->code[0])
        return 409;
    return sl_err_row(err->kind)->http_status;
}

static enum MHD_Result send_models(const struct request *request,
                                   char names[SL_NODE_REQUEST_MODELS_MAX][64], size_t count)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key(&json, "models");
    sl_json_array(&json);
    for (size_t i = 0; i < count; i++)
        sl_registry_model_json(request->web->node->registry, names[i], true, &json);
    sl_json_end(&json);
    sl_json_end(&json);
    return web_send_json(request, 202, &json);
}

static enum MHD_Result load_new(const struct request *request, const char *name,
                                const struct sl_buf *body)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    struct sl_err err = SL_ERR_INIT;
    size_t count;
    (void)name;
    if (sl_node_request(request->web->node, sl_buf_string(body), body->used, names, &count, &err) <
        0)
        return web_send_failure(request, status_of(&err), &err);
    return send_models(request, names, count);
}

/* 202 and the model, or what was wrong. */
static enum MHD_Result answer(const struct request *request, int done, const char *name,
                              const struct sl_err *err)
{
    if (done < 0)
        return web_send_failure(request, status_of(err), err);
    return web_node_model(request, 202, name);
}

static enum MHD_Result load_again(const struct request *request, const char *name,
                                  const struct sl_buf *body)
{
    struct sl_err err = SL_ERR_INIT;
    (void)body;
    return answer(request, sl_registry_load(request->web->node->registry, name, &err), name, &err);
}

static enum MHD_Result evict(const struct request *request, const char *name,
                             const struct sl_buf *body)
{
    struct sl_err err = SL_ERR_INIT;
    (void)body;
    return answer(request, sl_registry_evict(request->web->node->registry, name, NULL, &err), name,
                  &err);
}

static enum MHD_Result pin(const struct request *request, const char *name,
                           const struct sl_buf *body)
{
    struct sl_err err = SL_ERR_INIT;
    (void)body;
    return answer(request, sl_registry_pin(request->web->node->registry, name, true, &err), name,
                  &err);
}

static enum MHD_Result unpin(const struct request *request, const char *name,
                             const struct sl_buf *body)
{
    struct sl_err err = SL_ERR_INIT;
    (void)body;
    return answer(request, sl_registry_pin(request->web->node->registry, name, false, &err), name,
                  &err);
}

static enum MHD_Result forget(const struct request *request, const char *name,
                              const struct sl_buf *body)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_json json;
    (void)body;
    if (sl_node_forget(request->web->node, name, &err) < 0)
        return web_send_failure(request, status_of(&err), &err);
    sl_json_init(&json, 1024);
    sl_json_object(&json);
    sl_json_key_string(&json, "forgotten", name);
    sl_json_end(&json);
    return web_send_json(request, 202, &json);
}

/* ---- routes --------------------------------------------------------------------------------- */

static const struct control controls[] = {
#define WEB_ROUTE(path, answer, is)
#define WEB_NAMED_ROUTE(path, name, answer, is)
#define WEB_CHANGE(method, path, name, verb, allow, body, run, does)                               \
    {method, path, name, verb, allow, body, run},
#include "web_routes.def"
#undef WEB_ROUTE
#undef WEB_NAMED_ROUTE
#undef WEB_CHANGE
};

static bool is_at(const struct control *control, const char *path, char name[64])
{
    size_t begin = strlen(control->path);
    if (!*control->name)
        return strcmp(path, control->path) == 0;
    if (strncmp(path, control->path, begin) != 0)
        return false;
    const char *rest = path + begin;
    size_t bytes = strcspn(rest, "/");
    if (!bytes || bytes >= 64 || strcmp(rest[bytes] ? rest + bytes + 1 : "", control->verb) != 0)
        return false;
    snprintf(name, 64, "%.*s", (int)bytes, rest);
    return true;
}

/* NULL: no such path. name: of the model, "" for a path without one. */
static const struct control *find_route(const char *url, char name[64])
{
    char path[SL_WEB_PATH_BYTES];
    *name = 0;
    if (sl_web_path_decode(url, path) != 0)
        return NULL;
    for (size_t i = 0; i < SL_COUNT(controls); i++)
        if (is_at(&controls[i], path, name))
            return &controls[i];
    return NULL;
}

/* ---- rights --------------------------------------------------------------------------------- */

static enum MHD_Result refuse_peer(const struct request *request, bool *refused)
{
    struct sl_peer peer = {0};
    bool known, may = web_peer_may(request, &peer, &known);
    uint32_t uid = peer.uid;
    sl_peer_release(&peer);
    if (!known)
        return web_send_error(request, 403, SL_E_AUTH, 0, "cannot find out which user asks");
    if (!may)
        return web_send_error(request, 403, SL_E_AUTH, 0,
                              "user %u can read but not change anything: 'control.uids' and "
                              "'control.gids' of the config list the users that can",
                              uid);
    *refused = false;
    return MHD_YES;
}

static enum MHD_Result refuse_token(const struct request *request, bool *refused)
{
    bool bearer;
    switch (web_judge_token(request, &bearer)) {
    case SL_NODE_TOKEN_GOOD:
        *refused = false;
        return MHD_YES;
    case SL_NODE_TOKEN_NONE:
        return web_send_error(request, 403, SL_E_AUTH, 0,
                              "this address changes nothing: use the control socket, or name a "
                              "'control.tokenFile' in the config");
    case SL_NODE_TOKEN_BROKEN:
        return web_send_error(request, 503, SL_E_AUTH, 5,
                              "no token can be checked: the log says why");
    default:
        return web_send_error(request, 401, SL_E_AUTH, 0,
                              bearer ? "this bearer token is wrong"
                                     : "a bearer token is needed to change something");
    }
}

/* Answers if the request may not be carried out. */
static enum MHD_Result refuse(const struct request *request, bool *refused)
{
    *refused = true;
    return request->web->is_control ? refuse_peer(request, refused)
                                    : refuse_token(request, refused);
}

/* ---- the request ---------------------------------------------------------------------------- */

static enum MHD_Result judge_body(const struct request *request)
{
    const char *length = web_header(request, "Content-Length");
    size_t digits = length ? strspn(length, "0123456789") : 0;
    if (web_header(request, "Transfer-Encoding") || !length)
        return web_send_error(request, 411, SL_E_USAGE, 0,
                              "a request with a model needs its Content-Length");
    if (length[digits] || digits > 18 || strtoull(length, NULL, 10) > WEB_BODY_BYTES_MAX)
        return web_send_error(request, 413, SL_E_USAGE, 0,
                              "a request may bring at most %d bytes, this has %.20s",
                              WEB_BODY_BYTES_MAX, length);
    return MHD_YES;
}

static bool brings_body(const struct request *request)
{
    const char *length = web_header(request, "Content-Length");
    return web_header(request, "Transfer-Encoding") || (length && strcmp(length, "0") != 0);
}

const char *web_control_allow(const struct request *request)
{
    char name[64];
    const struct control *control = request->web->node ? find_route(request->url, name) : NULL;
    return control ? control->allow : NULL;
}

enum MHD_Result web_control_begin(const struct request *request)
{
    char name[64];
    bool refused;
    const struct control *control = find_route(request->url, name);
    struct request answer = *request;
    if (!control || strcmp(request->method, control->method) != 0) {
        bool known = control || web_api_has(request->url);
        answer.allow = control ? control->allow : NULL;
        return web_send_error(&answer, known ? 405 : 404, known ? SL_E_USAGE : SL_E_NOT_FOUND, 0,
                              known ? "'%.200s' does not answer %.20s"
                                    : "there is no '%.200s' to change here",
                              request->url, request->method);
    }
    enum MHD_Result result = refuse(request, &refused);
    if (refused)
        return result;
    if (control->body)
        return judge_body(request);
    if (brings_body(request))
        return web_send_error(request, 413, SL_E_USAGE, 0, "'%.200s' takes no body", request->url);
    return MHD_YES;
}

/* Who was let in: a user at the control socket, else whoever has the token. */
static void describe_caller(const struct request *request, char *text, size_t capacity)
{
    struct sl_peer peer = {0};
    bool known;
    snprintf(text, capacity, "the token");
    if (!request->web->is_control)
        return;
    web_peer_may(request, &peer, &known);
    if (known)
        snprintf(text, capacity, "uid %u, pid %d", peer.uid, (int)peer.pid);
    else
        snprintf(text, capacity, "an unknown user");
    sl_peer_release(&peer);
}

/* Whatever comes of it later, as the end of a load, is logged where that happens. */
static void log_answer(const struct request *request)
{
    const struct web_outcome *outcome = request->outcome;
    bool failed = outcome->status >= 400;
    char caller[64];
    describe_caller(request, caller, sizeof(caller));
    sl_log(failed ? SL_LOG_WARN : SL_LOG_INFO, "%s %.200s by %s: %d%s%s", request->method,
           request->url, caller, outcome->status, failed ? ", " : "", outcome->message);
}

enum MHD_Result web_control_answer(const struct request *request, const struct sl_buf *body)
{
    char name[64];
    struct web_outcome outcome = {0};
    struct request known = *request;
    const struct control *control = find_route(request->url, name);
    known.outcome = &outcome;
    enum MHD_Result result = control->run(&known, name, body);
    log_answer(&known);
    return result;
}
