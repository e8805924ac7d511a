/* What the node has, for /v1/models and /readyz: the registry writes it, under its own lock and
 * into a buffer with a limit. */
#include "node.h"
#include "web_parts.h"

enum { REASONS_MAX = 32 };

static void write_lost_gpu(void *arg, const char *device, const char *why)
{
    struct sl_json *json = arg;
    sl_json_object(json);
    sl_json_key_string(json, "device", device);
    sl_json_key_string(json, "reason", why);
    sl_json_end(json);
}

void web_node_lost_gpus(const struct sl_web *web, struct sl_json *json)
{
    sl_json_key(json, "lost_gpus");
    sl_json_array(json);
    sl_gpu_holders_each_lost(web->node->gpus, write_lost_gpu, json);
    sl_json_end(json);
}

static void write_room(const struct sl_web *web, struct sl_json *json)
{
    uint64_t bytes, free_bytes;
    sl_directory_holder_room(web->node->directory, &bytes, &free_bytes);
    sl_json_key_uint(json, "directory_bytes", bytes);
    sl_json_key_uint(json, "directory_free_bytes", free_bytes);
}

enum MHD_Result web_node_models(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    bool all = web_sees_all(request);
    sl_registry_json(request->web->node->registry, all, &json);
    write_room(request->web, &json);
    web_node_lost_gpus(request->web, &json);
    if (!all)
        sl_json_key_bool(&json, "volumes_hidden", true);
    else if (request->web->beside.write_json)
        request->web->beside.write_json(request->web->beside.arg, &json);
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

enum MHD_Result web_node_model(const struct request *request, int status, const char *name)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    if (sl_registry_model_json(request->web->node->registry, name, web_sees_all(request), &json))
        return web_send_json(request, status, &json);
    sl_json_release(&json);
    return web_send_error(request, 404, SL_E_NOT_FOUND, 0, "no model is called '%.100s' here",
                          name);
}

static void add_reason(void *arg, const char *text)
{
    sl_json_string(arg, text);
}

struct lost_gpus {
    struct sl_json *json;
    unsigned count;
};

static void add_lost_gpu(void *arg, const char *device, const char *why)
{
    struct lost_gpus *lost = arg;
    (void)device; /* the reason names it */
    lost->count++;
    add_reason(lost->json, why);
}

bool web_node_readiness(struct sl_web *web, struct sl_json *json)
{
    uint64_t published, expected;
    bool draining;
    sl_json_object(json);
    sl_json_key(json, "reasons");
    sl_json_array(json);
    bool ready = sl_registry_is_ready(web->node->registry, REASONS_MAX, add_reason, json,
                                      &published, &expected);
    {
        SL_LOCKED(&web->lock);
        draining = web->locked.draining;
    }
    struct lost_gpus lost = {.json = json};
    sl_gpu_holders_each_lost(web->node->gpus, add_lost_gpu, &lost);
    struct sl_err why = SL_ERR_INIT;
    if (web->beside.is_ready && !web->beside.is_ready(web->beside.arg, &why)) {
        add_reason(json, why.message);
        ready = false;
    }
    if (draining)
        add_reason(json, "this process is about to end");
    ready = ready && !lost.count && !draining;
    sl_json_end(json);
    web_degraded(json);
    sl_json_key_bool(json, "ready", ready);
    sl_json_key_uint(json, "expected", expected);
    sl_json_key_uint(json, "published", published);
    sl_json_end(json);
    SL_LOCKED(&web->lock);
    web->locked.was_ready = web->locked.was_ready || ready;
    return ready;
}
