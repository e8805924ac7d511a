/* What the page's head and its chart show: the server itself, and the bytes of the last hour. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "thread.h"
#include "web_parts.h"

static const char *what_is_served(const struct sl_web *web)
{
    return web->node ? "node" : web->share_fd >= 0 ? "files" : "loads";
}

void web_write_runbooks(struct sl_json *json, const char *key, const char *usual)
{
    const char *url = getenv("SLUICE_DOCS_URL");
    char text[1024];
    bool given = url && (strncmp(url, "https://", 8) == 0 || strncmp(url, "http://", 7) == 0);
    size_t bytes = given ? strlen(url) : 0;
    while (bytes && url[bytes - 1] == '/')
        bytes--;
    given = given && snprintf(text, sizeof(text), "%.*s/" WEB_RUNBOOKS,
                              (int)SL_MIN(bytes, sizeof(text)), url) < (int)sizeof(text);
    sl_json_key_string(json, key, given ? text : usual);
}

enum MHD_Result web_status_answer(const struct request *request)
{
    const struct sl_web *web = request->web;
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "node", web->node_name);
    sl_json_key_string(&json, "version", SLUICE_VERSION);
    sl_json_key_string(&json, "serves", what_is_served(web));
    sl_json_key_double(&json, "uptime_seconds",
                       (double)(sl_now_ns() - web->began_ns) / (double)SL_NS_PER_S);
    web_write_runbooks(&json, "runbooks", NULL);
    sl_json_key_string(&json, "changes", web_control_changes(request));
    if (web->node)
        web_node_lost_gpus(web, &json);
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}

enum MHD_Result web_history_answer(const struct request *request)
{
    struct sl_json json;
    sl_json_init(&json, WEB_ANSWER_BYTES_MAX);
    sl_json_object(&json);
    {
        SL_LOCKED(&request->web->lock);
        sl_history_note(&request->web->locked.history, sl_now_ns());
        sl_history_json(&request->web->locked.history, &json);
    }
    sl_json_end(&json);
    return web_send_json(request, 200, &json);
}
