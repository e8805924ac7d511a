/* Small answers of stores that keep redirects and files of credentials (http_base.h): what the
 * listings of hubs are made of. */
#include <string.h>

#include "http_base.h"
#include "http_call.h"

struct get {
    struct sl_http_base *base;
    struct sl_http_object *object;
    const char *what;
    bool json; /* there is a body, of that kind */
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct get *get = arg;
    if (sl_http_prepare(get->base, get->object, request, err) < 0)
        return -1;
    return get->json ? sl_range_add_header(request, err, "Content-Type: application/json") : 0;
}

static int redirect(void *arg, const char *from, const char *to, int status, struct sl_err *err)
{
    struct get *get = arg;
    return sl_http_redirect(get->base, get->object, from, to, status, err);
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct get *get = arg;
    char later[64];
    if (get->base->refuse)
        return get->base->refuse(get->base, answer, get->what, err);
    bool has_later = sl_answer_header(answer, "Retry-After", later, sizeof(later));
    return sl_http_fail(err, answer->status, has_later ? later : NULL, get->what, "");
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct get *get = arg;
    return sl_http_recover(get->base, get->object, why, NULL);
}

int sl_http_get(struct sl_store *store, struct sl_http_base *base, const char *url,
                const char *what, size_t body_limit, struct sl_answer *answer, struct sl_err *err)
{
    return sl_http_query(store, base, url, NULL, what, body_limit, answer, err);
}

int sl_http_query(struct sl_store *store, struct sl_http_base *base, const char *url,
                  const char *json, const char *what, size_t body_limit, struct sl_answer *answer,
                  struct sl_err *err)
{
    SL_AUTO(sl_http_object) object = sl_http_object_new(url, err);
    struct get get = {.base = base, .object = object, .what = what, .json = json != NULL};
    const struct sl_http_call call = {.what = what,
                                      .method = json ? "POST" : "GET",
                                      .body = json,
                                      .body_bytes = json ? strlen(json) : 0,
                                      .answer_limit = body_limit,
                                      .arg = &get,
                                      .prepare = prepare,
                                      .redirect = redirect,
                                      .refuse = refuse,
                                      .recover = recover};
    return object ? sl_http_ask(store, &call, answer, err) : -1;
}
