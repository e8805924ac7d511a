/* What several answers tell of loads. */
#include "progress.h"
#include "suppliers.h"
#include "web_parts.h"

struct walk {
    struct sl_json *json;
    bool all;
    uint64_t count, skip;
};

static void count_load(const struct sl_progress_view *view, void *arg)
{
    struct walk *walk = arg;
    walk->count += walk->all || !view->hidden;
}

static void write_load(const struct sl_progress_view *view, void *arg)
{
    struct walk *walk = arg;
    if (view->hidden && !walk->all)
        return;
    if (walk->skip) {
        walk->skip--;
        return;
    }
    if (walk->count++ < WEB_LOADS_MAX)
        sl_progress_json(walk->json, view);
}

void web_loads_json(struct sl_json *json, bool all)
{
    struct walk walk = {.json = json, .all = all};
    sl_progress_each(count_load, &walk);
    uint64_t total = walk.count;
    walk.skip = total > WEB_LOADS_MAX ? total - WEB_LOADS_MAX : 0;
    walk.count = 0;
    sl_json_key_uint(json, "load_count", total);
    sl_json_key(json, "loads");
    sl_json_array(json);
    sl_progress_each(write_load, &walk);
    sl_json_end(json);
}

static void add_degraded(void *arg, const char *text)
{
    sl_json_string(arg, text);
}

void web_degraded(struct sl_json *json)
{
    sl_json_key(json, "degraded");
    sl_json_array(json);
    sl_suppliers_each_degraded(add_degraded, json);
    sl_json_end(json);
}
