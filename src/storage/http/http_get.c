/* Small answers of stores that keep redirects and files of credentials (http_base.h): what the
 * listings of hubs are made of. */
#include "http_base.h"
#include "http_call.h"

struct get {
    struct sl_http_base *base;
    struct sl_http_object *object;
    const char *what;
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct get *get = arg;
    return sl_http_prepare(get->base, get->object, request, err);
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
    SL_AUTO(sl_http_object) object = sl_http_object_new(url, err);
    struct get get = {.base = base, .object = object, .what = what};
    const struct sl_http_call call = {.what = what,
                                      .method = "GET",
                                      .answer_limit = body_limit,
                                      .arg = &get,
                                      .prepare = prepare,
                                      .redirect = redirect,
                                      .refuse = refuse,
                                      .recover = recover};
    return object ? sl_http_ask(store, &call, answer, err) : -1;
}
